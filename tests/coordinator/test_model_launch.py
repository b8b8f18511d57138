"""Launching models: files that define them, prices, and keys, all settled before anything starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contracts.canonical import sha256_digest
from contracts.errors import BadInput, Fault
from contracts.orchestration import Orchestration
from coordinator.home import open_home
from coordinator.launch import Plan, launch, plan_delegation, plan_launch
from coordinator.models import missing_keys
from coordinator.store import TaskStore

REVIEWER = """\
---
name: reviewer
description: Reviews: what there is.
tools: Read, Grep, Bash, WebSearch
model: claude-sonnet-4-5
---
Look closely.
"""
OWN = {"openai": {"model": "tiny:0.6b", "base_url": "http://127.0.0.1:9/v1", "api": "chat", "api_key_env": None}}
FREE = {"tiny:0.6b": {"input_mtok_usd": 0, "output_mtok_usd": 0}}


class Desk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        (self.folder / ".claude" / "agents").mkdir(parents=True)
        self.definition = self.folder / ".claude" / "agents" / "reviewer.md"
        self.definition.write_text(REVIEWER)
        self.home = open_home(str(folder / "store.db"))
        self.store = TaskStore(self.home.url, self.home.folder)
        self.document: dict[str, Any] = {
            "schema": "coordinator/v1", "name": "models", "objective": "Look.", "source": ".",
            "budget": {"max_cost_usd": 1}, "tasks": {},
        }  # fmt: skip

    def task(self, agent: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return {"objective": "o", "agent": agent, "isolation": "none", "acceptance": [{"cel": "true"}], **fields}

    def plan(self, **tasks: Any) -> Plan:
        self.document["tasks"] = tasks or self.document["tasks"]
        file = self.folder / "models.json"
        file.write_text(json.dumps(self.document))
        return plan_launch(Orchestration.from_file(file), exclude=self.home.own_files())


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OTHER_KEY"):
        monkeypatch.delenv(name, raising=False)
    made = Desk(tmp_path)
    yield made
    made.store.close()


def words(faults: list[Fault]) -> list[str]:
    return [str(fault) for fault in faults]


FILE = {"file": ".claude/agents/reviewer.md"}


def test_an_agent_in_a_file_is_issued_as_the_model_that_it_names_and_pinned(desk: Desk) -> None:
    plan = desk.plan(a=desk.task(FILE, resources={"tools": ["read_file", "search_code", "list_files"]}))
    assert plan.faults == []
    terms = plan.terms["a"]
    assert terms.agent is not None
    assert terms.agent.anthropic is not None
    assert (terms.agent.anthropic.model, terms.agent.anthropic.instructions) == ("claude-sonnet-4-5", "Look closely.")
    assert terms.agent.definition is None
    assert terms.resources.tools == ["read_file", "search_code"]  # never more than the grant, nor than the file
    assert terms.input_snapshot[FILE["file"]] == f"reviewer.md@{sha256_digest(REVIEWER.encode())}"
    assert plan.files[FILE["file"]] == REVIEWER.encode()
    assert words(plan.warnings) == [
        "tasks.a.agent.file: .claude/agents/reviewer.md asks for WebSearch, which nothing here can do",
        "tasks.a.resources.tools: .claude/agents/reviewer.md asks for run_command, which this task is not granted, "
        "grant it, or leave it so",
    ]


def test_the_same_file_can_be_played_by_another_model(desk: Desk) -> None:
    instructed = {"openai": {**OWN["openai"], "instructions": "In short."}}
    plan = desk.plan(a=desk.task({**FILE, **instructed}, prices=FREE))
    assert plan.faults == []
    agent = plan.terms["a"].agent
    assert agent is not None
    assert agent.openai is not None
    assert agent.openai.model == "tiny:0.6b"
    assert agent.openai.api_key_env is None
    assert agent.openai.instructions == "Look closely.\n\nIn short."


def test_a_changed_definition_is_other_content(desk: Desk) -> None:
    before = desk.plan(a=desk.task(FILE))
    desk.definition.write_text(REVIEWER + "Twice.\n")
    after = desk.plan()
    assert after.authored_digest != before.authored_digest
    assert after.terms["a"].digest != before.terms["a"].digest
    desk.definition.write_text(REVIEWER)
    assert desk.plan().authored_digest == before.authored_digest


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (None, "tasks.a.agent.file: cannot read '.claude/agents/reviewer.md': No such file or directory"),
        (REVIEWER.replace("Grep", "Gerp"), "reviewer.md:4:8: tools: no tool is called 'Gerp', did you mean 'Grep'?"),
        (
            REVIEWER.replace("claude-sonnet-4-5", "sonnet"),
            "tasks.a.agent.file: .claude/agents/reviewer.md names no model by its id, so none can be pinned, add "
            "'agent: {file: \".claude/agents/reviewer.md\", anthropic: {model: MODEL_ID}}'",
        ),
    ],
)
def test_a_definition_that_cannot_be_used_is_refused(desk: Desk, text: str | None, fault: str) -> None:
    desk.definition.unlink() if text is None else desk.definition.write_text(text)
    [found] = desk.plan(a=desk.task(FILE)).faults
    assert fault in str(found)


def test_a_known_price_is_found_and_a_stated_one_goes_first(desk: Desk) -> None:
    stated = {"claude-sonnet-4-5": {"input_mtok_usd": 1.5, "output_mtok_usd": 2.5}}
    plan = desk.plan(
        known=desk.task({"anthropic": "claude-sonnet-4-5"}),
        stated=desk.task({"anthropic": "claude-sonnet-4-5"}, prices={**stated, "unused": FREE["tiny:0.6b"]}),
    )
    assert plan.faults == []
    known, said = plan.priced["known"], plan.priced["stated"]
    assert known.source == "genai-prices"
    assert known.price.output_mtok_usd > known.price.input_mtok_usd > 0
    assert (said.source, said.price.input_mtok_usd) == ("the contract", 1.5)
    assert list(plan.terms["stated"].prices) == ["claude-sonnet-4-5"]  # what concerns it, not all that a file says
    assert plan.terms["known"].prices == {}


def test_an_unknown_price_is_refused_with_the_line_to_add_for_every_model_at_once(desk: Desk) -> None:
    plan = desk.plan(
        new=desk.task({"anthropic": "claude-of-tomorrow"}), own=desk.task(OWN), known=desk.task(OWN, prices=FREE)
    )
    assert words(plan.faults) == [
        "tasks.new.agent.anthropic: nobody knows the price of 'claude-of-tomorrow', add 'prices: "
        '{"claude-of-tomorrow": {input_mtok_usd: IN, output_mtok_usd: OUT}}\' with its dollars for a million tokens',
        "tasks.own.agent.openai: nobody knows the price of 'tiny:0.6b' at http://127.0.0.1:9/v1, add 'prices: "
        '{"tiny:0.6b": {input_mtok_usd: 0, output_mtok_usd: 0}}\' with its dollars for a million tokens',
    ]
    desk.document["prices"] = {**FREE, "claude-of-tomorrow": {"input_mtok_usd": 1, "output_mtok_usd": 2}}
    assert desk.plan().faults == []


def test_a_model_of_a_provider_elsewhere_has_no_price_by_its_name_alone(desk: Desk) -> None:
    agent = {"openai": {"model": "gpt-4o", "base_url": "https://resold.example/v1"}}
    assert [fault.path for fault in desk.plan(a=desk.task(agent)).faults] == ["tasks.a.agent.openai"]
    assert desk.plan(a=desk.task({"openai": "gpt-4o"})).faults == []


def test_every_missing_key_is_named_once_with_the_children_that_need_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = {"s": {"command": ["s"], "credentials": ["OTHER_KEY"]}}
    plan = desk.plan(
        one=desk.task({"anthropic": "claude-sonnet-4-5"}),
        two=desk.task(FILE),
        three=desk.task({"openai": "gpt-4o"}, resources={"tools": ["mcp__s__x"]}, mcp_servers=server),
        local=desk.task(OWN, prices=FREE),
    )
    assert plan.faults == []
    with pytest.raises(BadInput) as wrong:
        launch(desk.store, desk.home, plan)
    assert str(wrong.value).splitlines() == [
        "ANTHROPIC_API_KEY is not set in the environment, and one, two cannot work without it, export it, or write "
        "'api_key_env: null' for a server without keys",
        "OPENAI_API_KEY is not set in the environment, and three cannot work without it, export it, or write "
        "'api_key_env: null' for a server without keys",
        "OTHER_KEY is not set in the environment, and three cannot work without it, export it",
    ]
    assert desk.store.newest_run() is None
    assert list(desk.home.folder.glob("*.git")) == []
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OTHER_KEY"):
        monkeypatch.setenv(name, "x")
    assert launch(desk.store, desk.home, plan).how == "created"
    monkeypatch.setenv("OPENAI_API_KEY", "")
    with pytest.raises(BadInput, match="OPENAI_API_KEY"):  # going on with it needs the key too
        launch(desk.store, desk.home, plan)


def test_an_issued_model_is_what_the_file_said_when_the_run_was_made(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "x")
    launched = launch(desk.store, desk.home, desk.plan(a=desk.task(FILE)))
    desk.definition.write_text(REVIEWER.replace("claude-sonnet-4-5", "claude-opus-4-1"))
    [task] = desk.store.run(launched.row).tasks
    assert task.terms.agent is not None
    assert task.terms.agent.label() == "claude-sonnet-4-5"


def test_a_delegated_model_has_the_prices_of_its_run(desk: Desk) -> None:
    desk.document["prices"] = FREE
    launched = launch(desk.store, desk.home, desk.plan(a=desk.task(OWN)))
    plan = plan_delegation(desk.store, launched.row, desk.task(OWN), "child")
    assert plan.faults == []
    assert list(plan.terms["child"].prices) == ["tiny:0.6b"]


def test_a_task_without_a_model_needs_no_key_and_no_price(desk: Desk) -> None:
    (desk.folder / "code.py").write_text("def child(a): ...\n")
    desk.document["prices"] = FREE
    plan = desk.plan(a=desk.task({"function": "code.py:child"}))
    assert (plan.faults, plan.priced, plan.terms["a"].prices) == ([], {}, {})
    assert missing_keys(plan.terms.values(), {}) == []


def test_only_a_model_without_a_stated_price_loads_the_price_list(desk: Desk) -> None:
    desk.plan(a=desk.task(OWN, prices=FREE))
    code = (
        "import sys\nfrom contracts.orchestration import Orchestration\nfrom coordinator.launch import plan_launch\n"
        "assert plan_launch(Orchestration.from_file(sys.argv[1])).faults == []\n"
        "assert 'genai_prices' not in sys.modules and 'openai' not in sys.modules and 'anthropic' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(desk.folder / "models.json")],
        cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
