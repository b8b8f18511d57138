"""The page of the protocol is what the code reads, and the example children follow it."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents.processes import (
    ProcessEnd,
    ProcessSpec,
    ResultFile,
    child_environment,
    read_artifact_file,
    read_result_file,
    run_process,
)
from contracts.delegation import Binding, render_contract
from contracts.evidence import EvidenceItem
from contracts.terms import Terms
from tests.agents.processes.conftest import Signal

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "command"
PAGE = (ROOT / "docs" / "command-protocol.md").read_text(encoding="utf-8")
PROJECTION, RESULT = (json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))


def test_the_result_on_the_page_is_one_that_is_read(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(RESULT))

    assert read_result_file(tmp_path / "result.json").model_dump(exclude_unset=True) == RESULT
    assert set(RESULT) == set(ResultFile.model_fields)


def test_the_page_names_every_outcome_and_every_field_of_evidence() -> None:
    schema = ResultFile.model_json_schema()
    table = PAGE[PAGE.index("| `outcome` |") :]
    for word in (*schema["$defs"]["Outcome"]["enum"], *EvidenceItem.model_fields):
        assert f"`{word}`" in table


def test_the_page_says_which_variables_there_are(tmp_path: Path) -> None:
    made = child_environment(home=tmp_path, tmp=tmp_path, extra={}, passed={})

    assert {"HOME", "TMPDIR", "PATH", "LANG", "TERM", "PAGER", "EDITOR"} <= set(made)
    used = {name for file in EXAMPLES.iterdir() for name in re.findall(r"COORDINATOR_[A-Z]+", file.read_text())}
    assert used <= set(re.findall(r"`(COORDINATOR_[A-Z]+)`", PAGE))


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.name)
def test_the_examples_import_nothing_but_the_standard_library(file: Path) -> None:
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module).partition(".")[0])
    assert names <= sys.stdlib_module_names


Child = Callable[..., tuple[ProcessEnd, Path]]


@pytest.fixture
def child(tmp_path: Path) -> Child:
    """Runs a program as the protocol says; gives its end and the folder of the attempt."""
    for name in ("workspace", "home", "tmp", "artifacts"):
        (tmp_path / name).mkdir()

    def run(*argv: str, **changes: Any) -> tuple[ProcessEnd, Path]:
        terms = Terms.model_validate(
            {"task_id": "places", "contract_version": 1, "objective": PROJECTION["objective"], "isolation": "none",
             "limits": {"lease_s": 30, "deadline_s": 600}, "required_evidence": ["places"]}
        )  # fmt: skip
        binding = Binding(
            child_run_id="c", parent_run_id="r", delegation_id="d", parent_state_version=0, claim_generation=1
        )
        (tmp_path / "contract.json").write_text(json.dumps(render_contract(terms, binding)))
        (tmp_path / "projection.json").write_text(
            json.dumps({**PROJECTION, "feedback": None, "answers": [], **changes})
        )
        files = {
            "CONTRACT": "contract.json",
            "PROJECTION": "projection.json",
            "RESULT": "result.json",
            "ARTIFACTS": "artifacts",
            "WORKSPACE": "workspace",
        }
        said = {f"COORDINATOR_{name}": str(tmp_path / file) for name, file in files.items()}
        env = child_environment(home=tmp_path / "home", tmp=tmp_path / "tmp", extra=said, passed={})
        spec = ProcessSpec(argv=argv, cwd=tmp_path / "workspace", env=env, timeout_s=60)
        return asyncio.run(run_process(spec, Signal())), tmp_path

    return run


def test_the_shell_child_counts_whatever_the_files_are_called(child: Child, tmp_path: Path) -> None:
    work = tmp_path / "workspace"
    (work / "sub").mkdir()
    (work / "sub" / 'a "b"\n$(touch evil).txt').write_text("1\n2\n")
    (work / "-rf").write_text("3\n")

    end, folder = child("sh", str(EXAMPLES / "count_files.sh"))

    assert (end.how, end.exit_status, end.stderr) == ("exited", 0, b"")
    result = read_result_file(folder / "result.json")
    assert (result.outcome, result.output) == ("completed", {"files": 2, "lines": 3})
    [artifact] = result.artifacts
    assert b"./-rf\n" in read_artifact_file(folder / "artifacts", artifact.path, max_bytes=1000)
    assert end.stdout == b"counted 2 files\n"


def test_the_python_child_cites_what_it_found_and_says_what_it_did_not_read(child: Child, tmp_path: Path) -> None:
    work = tmp_path / "workspace"
    (work / "a.txt").write_text("one\na mapping\x0cmapping\n")
    (work / "logo.png").write_bytes(b"\x89\xff mapping")
    (work / "link").symlink_to("a.txt")

    end, folder = child("python", str(EXAMPLES / "find_word.py"))

    assert (end.how, end.exit_status, end.stderr) == ("exited", 0, b"")
    result = read_result_file(folder / "result.json")
    assert (result.outcome, result.output) == ("completed", {"word": "mapping", "count": 1})
    assert [(item.path, item.line, item.kind) for item in result.evidence] == [("a.txt", 2, "citation")]
    assert "logo.png" in result.gaps[0]
    assert result.assumptions == []
    assert read_artifact_file(folder / "artifacts", "places.txt", max_bytes=1000).startswith(b"a.txt:2: a mapping")
    assert list(work.rglob("__pycache__")) == []


def test_the_python_child_asks_and_goes_on_with_the_answer(child: Child) -> None:
    _, folder = child("python", str(EXAMPLES / "find_word.py"), inputs={})
    asked = read_result_file(folder / "result.json")
    assert (asked.outcome, asked.question) == ("blocked", "Which word shall be looked for?")

    child("python", str(EXAMPLES / "find_word.py"), inputs={}, answers=PROJECTION["answers"])
    assert read_result_file(folder / "result.json").output == {"word": "mapping", "count": 0}


def test_the_python_child_says_what_it_mended(child: Child) -> None:
    _, folder = child("python", str(EXAMPLES / "find_word.py"), feedback=PROJECTION["feedback"])

    assert read_result_file(folder / "result.json").assumptions == ["mended: line 90 does not exist"]


@pytest.mark.parametrize(
    ("case", "outcome", "said"),
    [
        ("well", "completed", "0.0006525"),
        ("denied", "completed", ""),
        ("no-server", "failed", "api_error"),
        ("no-server-exit-0", "failed", "api_error"),
        ("turns", "partial", "error_max_turns"),
        ("silent", "unknown", "no final record"),
        ("interrupted", "unknown", "no final record"),
        ("half", "unknown", "no final record"),
        ("status-1", "failed", "contradictory"),
        ("twice", "failed", "contradictory"),
        ("empty", "failed", "contradictory"),
    ],
)
def test_the_wrapper_believes_neither_status_nor_the_word_success(
    child: Child, case: str, outcome: str, said: str
) -> None:
    agent = ["python", str(EXAMPLES / "agent_stand_in.py"), "--do", case]

    end, folder = child("python", str(EXAMPLES / "wrap_agent.py"), *agent)

    assert (end.how, end.exit_status, end.stderr) == ("exited", 0, b"")
    result = read_result_file(folder / "result.json")
    assert result.outcome == outcome
    assert said in result.message
    assert bool(result.gaps) == (case in ("denied", "turns"))
    # What the agent printed is kept as it was.
    assert read_artifact_file(folder / "artifacts", "agent.jsonl", max_bytes=10_000) == end.stdout
