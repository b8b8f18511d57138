"""The bug fix by a model: played by a script, and by a model server that says what a good model would."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from contracts.orchestration import Orchestration
from coordinator.launch import plan_launch
from tests.model_servers.script import Call, Reply, Say

if TYPE_CHECKING:
    from tests.model_servers.fake import FakeModelServer

BUGFIX = Path(__file__).resolve().parents[2] / "examples" / "bugfix"
TESTS = ["python", "-m", "unittest", "discover", "-s", "tests"]
CUTTING = "paging/cutting.py"
Demo = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A copy of the example, as its first lines tell a person to make one."""
    return Path(shutil.copytree(BUGFIX, tmp_path / "bugfix", ignore=shutil.ignore_patterns("__pycache__")))


def agent_of(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The file without its name and agent, and the agent with what only a model has."""
    document = yaml.safe_load((BUGFIX / name).read_text())
    del document["name"]
    task = document["tasks"]["fix"]
    return document, {key: task.pop(key, None) for key in ("agent", "on_takeover")}


def by_model(place: Path, url: str) -> None:
    """Point the file at another server, as a person would."""
    file = place / "orchestration.yaml"
    line = "anthropic: {model: claude-sonnet-4-5, "
    assert line in file.read_text()
    file.write_text(file.read_text().replace(line, f'{line}base_url: "{url}", ').replace(
        "    # prices: {\"qwen3:8b\": {input_mtok_usd: 0, output_mtok_usd: 0}}",
        "    prices: {claude-sonnet-4-5: {input_mtok_usd: 3, output_mtok_usd: 15}}",
    ))  # fmt: skip


def good_model(old: str = "items // per_page + 1", new: str = "-(-items // per_page)") -> Sequence[Reply]:
    evidence = [
        {"name": "cause", "kind": "note", "text": "one page too many"},
        {"name": "changed file", "kind": "file", "path": CUTTING},
        {"name": "test run", "kind": "command", "data": {"argv": TESTS}},
    ]
    return (
        Reply((Say("I look first."), Call("run_command", {"command": TESTS}), Call("read_file", {"path": CUTTING}))),
        Reply((Call("edit_file", {"path": CUTTING, "old": old, "new": new}),)),
        Reply((Call("run_command", {"command": TESTS}),)),
        Reply((Call("submit_result", {"outcome": "completed", "output": {}, "evidence": evidence}),)),
    )


def test_the_tests_of_the_example_fail_as_it_is(place: Path) -> None:
    done = subprocess.run([sys.executable, *TESTS[1:]], cwd=place, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "FAILED (failures=2)" in done.stderr


def test_the_stand_in_works_under_the_contract_of_the_model() -> None:
    by_model, model = agent_of("orchestration.yaml")
    by_script, script = agent_of("orchestration.scripted.yaml")
    assert by_model == by_script
    assert set(model["agent"]) == {"anthropic"}
    assert set(script["agent"]) == {"scripted"}


@pytest.mark.parametrize("variant", ["openai: {model: gpt", 'openai: {model: "qwen'])
def test_each_variant_in_the_comments_of_the_file_would_be_launched(variant: str, place: Path) -> None:
    file = place / "orchestration.yaml"
    text = file.read_text().replace("      anthropic:", "      # anthropic:").replace("    # prices:", "    prices:")
    assert f"# {variant}" in text
    file.write_text(text.replace(f"# {variant}", variant))
    plan = plan_launch(Orchestration.from_file(file))
    assert plan.faults == []
    assert plan.terms["fix"].agent is not None
    assert plan.terms["fix"].agent.kind == "openai"


def test_without_its_key_it_says_which_one_and_starts_nothing(place: Path, demo: Demo, monkeypatch: Any) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    done = demo("run", cwd=place)
    assert done.returncode == 2
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("ANTHROPIC_API_KEY is not set in the environment, and fix cannot work without it")
    with closing(sqlite3.connect(place / ".coordinator" / "store.db")) as database:
        assert database.execute("SELECT count(*) FROM orchestration").fetchone() == (0,)


def test_the_stand_in_mends_it_and_the_gate_ran_the_tests_itself(place: Path, demo: Demo) -> None:
    before = (place / CUTTING).read_bytes()
    done = demo("run", "orchestration.scripted.yaml", "--json", cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = demo("evidence", "bugfix-by-script/fix", cwd=place).stdout
    assert shown.count("yes, by the gate") == 2
    assert "exited 1 after" in shown  # the child saw the tests fail, too
    assert (place / CUTTING).read_bytes() == before


def test_a_model_mends_it_and_every_turn_is_kept_and_paid_once(
    place: Path, demo: Demo, fake_model: FakeModelServer, monkeypatch: Any
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    by_model(place, fake_model.url)
    fake_model.send(*good_model())
    done = demo("run", cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    for number, calls in enumerate(("run_command, read_file", "edit_file", "run_command", "submit_result"), 1):
        assert f"fix: turn {number}: {calls}, 110 tokens, $0.0004" in done.stderr, done.stderr
    assert "accepted  charged $0.0018 of $0.5, 440 tokens" in done.stdout
    turns = json.loads(demo("inspect", "bugfix/fix", "--transcript", "--json", cwd=place).stdout)["turns"]
    assert [turn["usage"]["input_tokens"] for turn in turns] == [100] * 4
    assert "FAILED (failures=2)" in turns[0]["answers"][0]["text"]
    assert turns[2]["answers"][0]["is_error"] is False
    assert len(fake_model.requests) == 4
    assert turns[0]["response"]["text"] == "I look first."


def test_a_model_that_only_says_so_is_sent_back_with_the_failures_of_the_tests(
    place: Path, demo: Demo, fake_model: FakeModelServer, monkeypatch: Any
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    by_model(place, fake_model.url)
    fake_model.send(*good_model(new="items // per_page"), *good_model())
    done = demo("run", "--json", cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    [task] = json.loads(done.stdout)["tasks"]
    assert [attempt["decision"] for attempt in task["attempts"]] == ["repair_required", "accepted"]
    assert "FAILED (failures=1" in json.dumps(fake_model.requests[4].body)
