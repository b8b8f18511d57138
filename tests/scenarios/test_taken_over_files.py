"""What an operation wrote into the workspace is there for the attempt that is told it was done, or it is told it is
not: in whole runs."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from coordinator import Coordinator, Orchestration
from tests.model_servers.script import Call, Reply

if TYPE_CHECKING:
    from tests.model_servers.fake import FakeModelServer, Request

CHILDREN = """
from contracts.tools import ToolUse

MAKE = ["sh", "-c", "echo built > dist.txt; echo made"]
READ = ["sh", "-c", f"cat dist.txt >> {EFFECTS}"]

def makes_then_reads(a):
    made, read = [a.tools.run_command(words) for words in (MAKE, READ)]
    return a.completed({"made": made[1], "read": read[0], "begun_with": a.files_of})

def played_makes_then_reads(view):
    made = yield ToolUse("run_command", {"command": MAKE})
    read = yield ToolUse("run_command", {"command": READ})
    yield ToolUse("submit_result", {"outcome": "completed", "output": {"made": made.text, "read": read.text}})

def makes(a):
    made = a.tools.run_command(MAKE)
    return a.completed({"made": made[1], "there": (a.workspace / "dist.txt").exists()})

def played_makes(view):
    made = yield ToolUse("run_command", {"command": MAKE})
    there = (yield ToolUse("list_files", {"pattern": "dist.txt"})).text
    yield ToolUse("submit_result", {"outcome": "completed", "output": {"made": made.text, "there": "dist" in there}})

def makes_then_asks(a):
    made = a.tools.run_command(MAKE)
    a.tools.request_approval("Shall it go out?")
    return a.completed({"made": made[1], "there": (a.workspace / "dist.txt").exists()})

def edits_then_makes(a):
    a.tools.edit_file("readme.md", "hello", "goodbye")
    return a.completed({"made": a.tools.run_command(MAKE)[1]})
"""
MAKE = Call("run_command", {"command": ["sh", "-c", "echo built > dist.txt; echo made"]})
ASKS = Call("request_approval", {"question": "Shall it go out?"})
HANDS_IN = Reply((Call("submit_result", {"outcome": "completed", "output": {"done": True}}),))
NOT_HERE = "[done by an earlier attempt: what it wrote into the workspace is not here]"
TOLD_NOT_HERE = "what it wrote there is not here"
PRICES = {"model-x": {"input_mtok_usd": 3, "output_mtok_usd": 15}}


class Making:
    """A repository, and a child that makes ``dist.txt`` by a command and reads it by another."""

    def __init__(self, bench: Any) -> None:
        self.bench = bench
        self.place = bench.place
        self.effects: Path = bench.folder / "effects.txt"
        self.read = Call("run_command", {"command": ["sh", "-c", f"cat dist.txt >> {self.effects}"]})
        bench.commit({"readme.md": "hello\n"})
        (bench.folder / "children.py").write_text(f"EFFECTS = {str(self.effects)!r}\n{CHILDREN}")

    def task(self, child: str = "", *, approved: bool = True, **fields: Any) -> dict[str, Any]:
        resources = {
            "tools": ["run_command", "write_file", "edit_file", "list_files", "request_approval"],
            "commands": [["sh", "-c"]], "effects": "declared", "needs_approval": ["run_command"] if approved else [],
        }  # fmt: skip
        kind = "scripted" if child.startswith("played_") else "function"
        limits = {"max_claims": 9}
        task: dict[str, Any] = self.bench.task(
            {kind: f"children.py:{child}"}, resources=resources, limits=limits, **fields
        )
        return task

    def model(self, server: FakeModelServer, on_takeover: str, *, approved: bool = True) -> dict[str, Any]:
        spec = {"model": "model-x", "base_url": server.url, "api_key_env": None}
        return {
            **self.task(approved=approved, acceptance=[{"cel": "output.done == true"}]),
            "agent": {"anthropic": spec}, "prices": PRICES, "on_takeover": on_takeover,
        }  # fmt: skip

    def run(self, task: Any) -> Any:
        work = Orchestration.from_file(self.bench.file({"one": task}))
        with Coordinator(self.place.url, home=self.place.home) as coordinator:
            return coordinator.run(work).tasks["one"]

    def run_with_yeses(self, task: Any) -> tuple[Any, int]:
        """Its end, where a person says yes to all that is asked; and how often that was."""
        for yeses in range(9):
            one = self.run(task)
            if not self.asked("open"):
                return one, yeses
            self.answer()
        raise AssertionError(f"it asks and asks: {[request.question for request in self.asked()]}")

    def asked(self, *states: str) -> list[Any]:
        found = self.place.store.requests(self.place.run().row)
        return [request for request in found if not states or request.state in states]

    def answer(self) -> None:
        (waiting,) = self.asked("open")
        self.place.store.answer(waiting.request_id, approved=True, message="go on")

    def dies_at(self, fault: str, task: Any = None) -> None:
        worker = self.place.worker if task is None else lambda *words: self.bench.start({"one": task}, *words)
        self.place.ended(worker("--fault", fault, "--slots", "1"), -signal.SIGKILL)

    def lose_what_was_handed_in_by(self, attempt: int) -> None:
        database = self.place.url.removeprefix("sqlite:///")
        with contextlib.closing(sqlite3.connect(database)) as conn, conn:
            conn.execute(
                "UPDATE document SET data = x'7b7d' WHERE id = (SELECT manifest_id FROM attempt WHERE number = ?)",
                [attempt],
            )


def told(request: Request) -> str:
    return json.dumps(request.body["messages"])


@pytest.fixture
def making(bench: Any) -> Making:
    return Making(bench)


# -- a question after an operation


@pytest.mark.parametrize("child", ["makes_then_reads", "played_makes_then_reads"])
def test_a_program_that_is_asked_about_its_second_call_has_the_files_of_its_first(making: Making, child: str) -> None:
    one, yeses = making.run_with_yeses(making.task(child))
    assert one.accepted, one.reason
    assert (yeses, len(making.asked())) == (2, 2)
    assert making.effects.read_text() == "built\n"
    assert making.bench.head_files()["dist.txt"] == b"built\n"
    assert NOT_HERE not in json.dumps(one.output)
    assert one.output.get("begun_with", 2) == 2


@pytest.mark.parametrize("on_takeover", ["continue", "fresh"])
def test_a_model_that_is_asked_about_the_second_call_of_a_turn_has_the_files_of_the_first(
    making: Making, fake_model: FakeModelServer, on_takeover: str
) -> None:
    def say(request: Request) -> Reply:
        if request.asked.turns:
            return HANDS_IN
        return Reply((making.read,)) if "succeeded" in told(request) else Reply((MAKE, making.read))

    fake_model.choose(say)
    one, yeses = making.run_with_yeses(making.model(fake_model, on_takeover))
    assert one.accepted, one.reason
    assert (yeses, len(making.asked())) == (2, 2)
    assert making.effects.read_text() == "built\n"
    assert making.bench.head_files()["dist.txt"] == b"built\n"
    assert not any(TOLD_NOT_HERE in told(request) for request in fake_model.requests)


@pytest.mark.parametrize("on_takeover", ["continue", "fresh"])
def test_a_model_that_asks_after_an_operation_of_the_same_turn_has_its_files(
    making: Making, fake_model: FakeModelServer, on_takeover: str
) -> None:
    fake_model.choose(lambda request: HANDS_IN if "go on" in told(request) else Reply((MAKE, ASKS)))
    one, yeses = making.run_with_yeses(making.model(fake_model, on_takeover, approved=False))
    assert one.accepted, one.reason
    assert yeses == 1
    assert making.bench.head_files()["dist.txt"] == b"built\n"


def test_a_program_whose_first_call_is_asked_about_begins_in_its_base(making: Making) -> None:
    one, yeses = making.run_with_yeses(making.task("edits_then_makes"))
    assert one.accepted, one.reason  # in the files of the first attempt there would be nothing to edit
    assert yeses == 1
    assert making.bench.head_files() == {"readme.md": b"goodbye\n", "dist.txt": b"built\n"}


@pytest.mark.slow
@pytest.mark.parametrize("on_takeover", ["continue", "fresh"])
def test_a_death_in_the_first_turn_after_the_yes_loses_neither_the_files_nor_the_yes(
    making: Making, fake_model: FakeModelServer, on_takeover: str
) -> None:
    def say(request: Request) -> Reply:
        if request.asked.turns:
            return HANDS_IN
        return Reply((making.read,)) if "succeeded" in told(request) else Reply((MAKE, making.read))

    fake_model.choose(say)
    task = making.model(fake_model, on_takeover)
    for _ in range(2):
        making.run(task)
        making.answer()
    making.dies_at("turn_answered:one:3")
    one, more = making.run_with_yeses(task)
    assert one.accepted, one.reason
    assert (more, len(making.asked())) == (0, 2)
    assert making.effects.read_text() == "built\n"


def test_a_death_after_the_yes_leaves_a_program_the_files_that_it_was_asked_about(making: Making) -> None:
    task = making.task("makes_then_reads")
    for _ in range(2):
        making.run(task)
        making.answer()
    making.dies_at("prepared:one:3")
    one, more = making.run_with_yeses(task)
    assert one.accepted, one.reason
    assert (more, len(making.asked())) == (0, 2)
    assert making.effects.read_text() == "built\n"


# -- a death after an operation


@pytest.mark.slow
def test_a_model_goes_on_with_no_turn_whose_operation_has_left_its_files_elsewhere(
    making: Making, fake_model: FakeModelServer
) -> None:
    def say(request: Request) -> Reply:
        return HANDS_IN if request.asked.turns else Reply((MAKE,))

    fake_model.choose(say)
    making.dies_at("tool_call:one:1", making.model(fake_model, "continue", approved=False))
    making.place.ended(making.place.worker())
    assert [request.asked.turns for request in fake_model.requests] == [0, 0, 1]
    assert "made" in told(fake_model.requests[1])
    assert TOLD_NOT_HERE in told(fake_model.requests[1])
    assert making.bench.head_files()["dist.txt"] == b"built\n"


@pytest.mark.parametrize("child", ["makes", "played_makes"])
def test_a_program_is_told_that_the_files_of_a_call_which_is_not_made_again_are_not_there(
    making: Making, child: str
) -> None:
    making.dies_at("tool_call:one:1", making.task(child, approved=False))
    making.place.ended(making.place.worker())
    output = making.bench.one_output()
    assert output["made"].endswith(f"made\n{NOT_HERE}")
    assert output["there"] is False


# -- what cannot be read


@pytest.mark.slow
def test_a_model_begins_anew_when_what_it_was_blocked_with_is_damaged(
    making: Making, fake_model: FakeModelServer
) -> None:
    fake_model.choose(lambda request: HANDS_IN if "go on" in told(request) else Reply((MAKE, ASKS)))
    task = making.model(fake_model, "fresh", approved=False)
    making.run(task)
    making.answer()
    making.lose_what_was_handed_in_by(1)
    making.place.ended(making.place.worker())
    assert making.place.one("one").state == "accepted"
    assert TOLD_NOT_HERE in told(fake_model.requests[-1])


def test_a_program_begins_in_its_base_when_what_it_was_blocked_with_is_damaged(making: Making) -> None:
    task = making.task("makes_then_asks", approved=False)
    making.run(task)
    making.answer()
    making.lose_what_was_handed_in_by(1)
    making.place.ended(making.place.worker())
    assert making.bench.one_output() == {"made": f"made\n{NOT_HERE}", "there": False}
