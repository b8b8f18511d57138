"""The child that runs tests, as a program with nothing but what the command protocol gives it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agents.processes import child_environment, read_result_file
from contracts.canonical import sha256_digest
from tests.examples.conftest import EXAMPLES

PASSES = "def test_one():\n    pass\n"
FAILS = "def test_two():\n    assert not 1\n"
DROPS = "def test_three():\n    open('dropped', 'w').close()\n"


@dataclass
class Done:
    workspace: Path
    said: str
    result: Any

    @property
    def files(self) -> set[str]:
        return {path.relative_to(self.workspace).as_posix() for path in self.workspace.rglob("*") if path.is_file()}

    @property
    def report(self) -> bytes:
        return (self.workspace / "reports/junit.xml").read_bytes()


Run = Callable[..., Done]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(files: dict[str, str], command: list[str]) -> Done:
        workspace = tmp_path / "work space"
        for folder in (workspace, tmp_path / "home", tmp_path / "private files"):
            folder.mkdir()
        for name, text in files.items():
            path = workspace / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        contract = {"acceptance": [{"paths_unchanged": ["tests/"]}, {"command": command, "timeout_s": 9}]}
        (tmp_path / "contract.json").write_text(json.dumps(contract))
        result = tmp_path / "result.json"
        environment = child_environment(
            home=tmp_path / "home",
            tmp=tmp_path / "private files",
            passed={},
            extra={"COORDINATOR_CONTRACT": str(tmp_path / "contract.json"), "COORDINATOR_RESULT": str(result)},
        )
        script = str(EXAMPLES / "audit/run_tests.py")
        done = subprocess.run(
            [sys.executable, script], cwd=workspace, env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return Done(workspace, done.stdout + done.stderr, read_result_file(result))

    return run


PYTEST = ["python", "-m", "pytest", "-q"]


@pytest.mark.slow
def test_a_passing_suite_is_handed_in_with_its_own_report_and_nothing_else(run: Run) -> None:
    done = run({"tests/test_a.py": PASSES + DROPS, ".git/config": ""}, PYTEST)

    assert done.result.outcome == "completed"
    assert done.result.output["exit_status"] == 0
    assert done.result.output["counts"] == {"tests": 2, "failures": 0, "errors": 0, "skipped": 0}
    assert done.files == {"tests/test_a.py", ".git/config", "reports/junit.xml"}
    assert b'name="test_one"' in done.report
    assert "2 passed" in done.said
    [test_run, junit] = done.result.evidence
    assert test_run.data == {"argv": PYTEST}
    assert junit.digest == sha256_digest(done.report)


@pytest.mark.slow
def test_a_failing_suite_says_so(run: Run) -> None:
    done = run({"tests/test_a.py": PASSES + FAILS}, PYTEST)

    assert done.result.output["exit_status"] == 1
    assert done.result.output["counts"] == {"tests": 2, "failures": 1, "errors": 0, "skipped": 0}


@pytest.mark.parametrize(("status", "failures"), [(0, 0), (3, 1)])
def test_of_another_test_program_the_whole_run_is_one_case(run: Run, status: int, failures: int) -> None:
    done = run({}, ["sh", "-c", f"echo <here>; exit {status}".replace("<here>", "'here & there'")])

    assert done.result.output["exit_status"] == status
    assert done.result.output["counts"] == {"tests": 1, "failures": failures, "errors": 0, "skipped": 0}
    assert b"here &amp; there" in done.report
    assert done.result.gaps == ["the test program wrote no JUnit report: its cases are not told apart"]


def test_a_program_that_is_not_there_is_a_failure_with_its_name(run: Run) -> None:
    done = run({}, ["no-such-program", "-q"])

    assert done.result.outcome == "failed"
    assert "no-such-program -q could not be run" in done.result.message
