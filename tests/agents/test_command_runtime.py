"""The command runtime by itself: what a program is given, and what each of its ends means."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.assignment import Feedback, NeededResult
from contracts.ports import ArtifactRef
from contracts.results import Finding
from contracts.states import Outcome
from coordinator.runtimes import load_agents

load_agents()
from agents.runtimes.command import CommandRuntime, Place, projection_document, with_interpreter  # noqa: E402
from agents.runtimes.errors import NoResult  # noqa: E402


class Artifacts:
    """Implements ``contracts.ports.ArtifactStore`` in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {"sha256:1": b"one", "sha256:2": b"two"}

    def put(self, name: str, data: bytes, media_type: str) -> ArtifactRef:
        digest = f"sha256:{len(self.kept) + 1:064x}"
        self.kept[digest] = data
        return ArtifactRef(name, digest, len(data), media_type, redacted=False)

    def get(self, digest: str) -> bytes:
        return self.kept[digest]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    for name in ("scratch", "work"):
        (tmp_path / name).mkdir()
    lock = tmp_path / "lock"
    lock.touch()
    return Place(
        scratch=tmp_path / "scratch", workspace=tmp_path / "work", output_path=tmp_path / "output" / "one.log",
        lock_path=lock, credentials={"GRANTED_TOKEN": "value"},
    )  # fmt: skip


Run = Callable[..., Any]


@pytest.fixture
def runtime(place: Place) -> Callable[[str], CommandRuntime]:
    def make(body: str) -> CommandRuntime:
        prelude = "import json, os, signal, sys, time\nR = os.environ['COORDINATOR_RESULT']\n"
        return CommandRuntime(["python", "-c", prelude + body], ["python", "child.py"], place)

    return make


@pytest.fixture
def run(runtime: Callable[[str], CommandRuntime], make_assignment: Any) -> Run:
    def play(body: str, **fields: Any) -> Any:
        made = runtime(body)
        assignment = make_assignment(artifacts=Artifacts(), **fields)
        return asyncio.run(made.run(assignment)), made

    return play


def says(outcome: str, **fields: Any) -> str:
    return f"open(R, 'w').write({json.dumps({'outcome': outcome, **fields})!r})\n"


def test_a_program_finds_its_contract_projection_and_folders(run: Run, place: Place) -> None:
    body = """
contract = json.load(open(os.environ["COORDINATOR_CONTRACT"]))
projection = json.load(open(os.environ["COORDINATOR_PROJECTION"]))
json.dump({"outcome": "completed", "output": {
    "here": os.getcwd(), "task": contract["task_id"],
    "schema": projection["schema"], "child": projection["child_run_id"],
    "empty": [os.listdir(os.environ[n]) for n in ("HOME", "TMPDIR", "COORDINATOR_ARTIFACTS")],
    "token": os.environ["GRANTED_TOKEN"], "workspace": os.environ["COORDINATOR_WORKSPACE"],
}}, open(R, "w"))
"""
    result, _ = run(body)
    assert result.output == {
        "here": str(place.workspace), "task": "one", "schema": "coordinator/projection/v1", "child": "child-1",
        "empty": [[], [], []], "token": "value", "workspace": str(place.workspace),
    }  # fmt: skip


def test_nothing_else_of_the_coordinators_environment_is_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "c")
    result, _ = run("json.dump({'outcome': 'completed', 'output': sorted(os.environ)}, open(R, 'w'))")
    assert "CANARY" not in result.output
    assert {"COORDINATOR_RESULT", "PATH", "HOME", "TMPDIR", "GRANTED_TOKEN"} <= set(result.output)


def test_the_record_has_the_arguments_as_the_contract_has_them(run: Run) -> None:
    _, made = run("print('out'); print('err', file=sys.stderr)\n" + says("completed"))
    (record,) = made.processes
    assert record.argv == ["python", "child.py"]
    assert (record.how, record.exit_status, record.signal, record.all_gone) == ("exited", 0, None, True)
    assert "out" in record.output_tail
    assert "err" in record.output_tail
    assert made.all_gone


ENDS = [
    ("", says("completed", output=1), Outcome.COMPLETED),
    ("", says("partial", gaps=["half"]), Outcome.PARTIAL),
    ("", says("failed", message="no"), Outcome.FAILED),
    ("sys.exit(3)", says("failed"), Outcome.FAILED),
    ("sys.exit(3)", says("completed"), Outcome.FAILED),
    ("sys.exit(3)", says("partial"), Outcome.FAILED),
    ("os.kill(os.getpid(), signal.SIGKILL)", says("completed"), Outcome.FAILED),
    ("", says("blocked", question="Which?"), Outcome.BLOCKED),
    ("", says("cancelled"), Outcome.CANCELLED),
    ("", says("unknown"), Outcome.UNKNOWN),
]


@pytest.mark.parametrize(("end", "result", "outcome"), ENDS)
def test_the_end_and_the_file_together_make_the_outcome(run: Run, end: str, result: str, outcome: Outcome) -> None:
    made, _ = run(result + end)
    assert made.outcome is outcome


@pytest.mark.parametrize("end", ["", "sys.exit(1)", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_without_a_file_there_is_no_result_and_the_end_is_named(run: Run, end: str) -> None:
    with pytest.raises(NoResult, match=r"handed in no result \((exit status [01]|signal 15)\): .*was not written"):
        run(end)


def test_every_fault_of_a_result_is_named(run: Run) -> None:
    with pytest.raises(NoResult) as refused:
        run('open(R, \'w\').write(\'{"outcome": "done", "gaps": 3, "extra": 1}\')')
    for name in ("outcome", "gaps", "extra"):
        assert name in str(refused.value)


def test_a_program_that_cannot_be_started_has_failed_by_name(place: Place, make_assignment: Any) -> None:
    made = CommandRuntime(["/nonexistent/program"], ["program"], place)
    result = asyncio.run(made.run(make_assignment(artifacts=Artifacts())))
    assert result.outcome is Outcome.FAILED
    assert "/nonexistent/program" in result.message
    assert made.all_gone


def test_a_cancel_ends_a_program_that_ignores_it_and_reads_no_result(
    runtime: Callable[[str], CommandRuntime], make_assignment: Any, place: Place
) -> None:
    made = runtime("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + says("completed") + "while True: time.sleep(1)")
    assignment = make_assignment(artifacts=Artifacts())

    async def play() -> Any:
        work = asyncio.ensure_future(made.run(assignment))
        while not (place.scratch / "result" / "result.json").exists():  # noqa: ASYNC110 - the program says when
            await asyncio.sleep(0.01)
        assignment.cancel.set("enough")
        return await work

    result = asyncio.run(play())
    assert result.outcome is Outcome.CANCELLED
    assert made.all_gone
    assert made.processes[0].how == "cancelled"


def test_artifacts_are_stored_and_a_bad_one_makes_no_result(run: Run) -> None:
    write = "open(os.path.join(os.environ['COORDINATOR_ARTIFACTS'], 'a.txt'), 'w').write('text')\n"
    named = [{"name": "a", "path": "a.txt", "media_type": "text/plain"}]
    result, _ = run(write + says("completed", artifacts=named))
    assert [(entry.name, entry.size_bytes, entry.media_type) for entry in result.artifacts] == [("a", 4, "text/plain")]
    with pytest.raises(NoResult, match="artifact 'a': .*was not written"):
        run(says("completed", artifacts=[{"name": "a", "path": "b.txt"}]))
    with pytest.raises(NoResult, match="is no plain path"):
        run(says("completed", artifacts=[{"name": "a", "path": "../contract.json"}]))


def test_the_projection_holds_needs_feedback_and_answers_apart(make_assignment: Any, tmp_path: Path) -> None:
    need = NeededResult(
        task_id="n", output={"x": 1}, artifacts={"a/b.txt": "sha256:1", "b.txt": "sha256:2"},
        manifest_digest="sha256:m", partial=True, gaps=("half",),
    )  # fmt: skip
    found = [Finding(check="cel", message="no", place="output.n")]
    feedback = Feedback(attempt=1, reason="cel is false", findings=found, manifest_digest="sha256:f")
    assignment = make_assignment(
        artifacts=Artifacts(), needs={"n": need}, feedback=feedback, left_out=["result of other"]
    )
    document = projection_document(assignment, tmp_path / "needs")
    assert json.loads(json.dumps(document)) == document
    paths = [item["path"] for item in document["needs"]["n"]["artifacts"].values()]
    assert [Path(path).read_bytes() for path in paths] == [b"one", b"two"]
    assert all(os.stat(path).st_mode & 0o222 == 0 for path in paths)
    assert document["needs"]["n"]["partial"] is True
    assert document["feedback"] == {
        "attempt": 1, "reason": "cel is false", "manifest_digest": "sha256:f",
        "findings": [{"check": "cel", "message": "no", "place": "output.n"}],
    }  # fmt: skip
    assert document["left_out"] == ["result of other"]


@pytest.mark.parametrize("name", ["x" * 200, "é" * 200, "..", "a/..", "/etc/passwd", "🎈" * 200 + ".txt"])
def test_artifacts_of_needs_are_written_whatever_their_names(make_assignment: Any, tmp_path: Path, name: str) -> None:
    need = NeededResult(
        task_id="n", output=None, artifacts={name: "sha256:1"}, manifest_digest="sha256:m", partial=False, gaps=()
    )
    document = projection_document(make_assignment(artifacts=Artifacts(), needs={"n": need}), tmp_path / "needs")
    path = Path(document["needs"]["n"]["artifacts"][name]["path"])
    assert path.read_bytes() == b"one"
    assert path.parent == tmp_path / "needs" / "n"
    assert path.suffix == (".txt" if name.endswith(".txt") else "")


def test_python_is_the_coordinators_interpreter_and_other_programs_are_looked_up() -> None:
    assert with_interpreter(["python", "-V"]) == [sys.executable, "-V"]
    assert with_interpreter(["sh", "python"]) == ["sh", "python"]
