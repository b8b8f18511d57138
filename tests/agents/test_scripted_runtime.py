"""Scripted children: a generator is shown and answered what a model would be, and only submit_result is a result."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.assignment import Assignment
from contracts.canonical import sha256_digest
from contracts.results import Result
from contracts.states import Outcome
from contracts.terms import AgentSpec
from contracts.tools import ToolReply, ToolUse
from coordinator.runtimes import load_agents

load_agents()
from agents.broker import Broker  # noqa: E402 - found once it is loaded
from agents.runtimes import NoResult, SourceChanged, build_runtime  # noqa: E402
from agents.runtimes.scripted import ScriptedRuntime, View  # noqa: E402

MakeBroker = Callable[..., Broker]
MakeAssignment = Callable[..., Assignment]
Play = Callable[..., tuple[Result, Broker]]
NOWHERE: Any = None
"""Scripts need no place."""
DONE = ToolUse("submit_result", {"outcome": "completed", "output": "done"})


@pytest.fixture
def play(make_broker: MakeBroker, make_assignment: MakeAssignment, ws: Path) -> Play:
    """Runs a script over a workspace with one file; gives its result and the broker."""
    (ws / "f").write_text("text")

    def run(
        script: Any, *, tools: tuple[str, ...] = (), terms: dict[str, Any] | None = None, **fields: Any
    ) -> tuple[Result, Broker]:
        broker = make_broker(*tools, base={"f": b"text"})
        full = {"workspace": "directory", "resources": {"tools": ["read_file", "write_file"]}, **(terms or {})}
        assignment = make_assignment(terms=full, broker=broker, **fields)
        return ScriptedRuntime(lambda: script, "script.py:play").run(assignment), broker

    return run


def test_a_script_works_by_calls_and_is_answered_one_by_one_or_all_at_once(play: Play, ws: Path) -> None:
    seen: list[Any] = []

    def script(view: View) -> Any:
        seen.append((yield ToolUse("read_file", {"path": "f"})))
        seen.append(
            (yield [ToolUse("read_file", {"path": "none"}), ToolUse("write_file", {"path": "g", "text": "new"})])
        )
        seen.append((yield []))
        seen.append((yield ToolUse("list_files")))
        yield ToolUse("note_gap", {"text": "half"})
        yield DONE

    result, broker = play(script)
    assert seen == [
        ToolReply("text"),
        [ToolReply("there is no file 'none'", is_error=True), ToolReply("done")],
        [],
        ToolReply('["f",\n "g"]'),
    ]
    assert (result.outcome, result.output, result.gaps) == (Outcome.COMPLETED, "done", ["half"])
    assert (ws / "g").read_text() == "new"
    assert [call.ok for call in broker.calls()] == [True, False, True, True, True, True]


def test_it_sees_the_text_and_the_tools_and_nothing_else(play: Play) -> None:
    views: list[View] = []

    def script(view: View) -> Any:
        views.append(view)
        yield DONE

    play(script, tools=("read_file", "write_file"), terms={"objective": "Count the callers."})
    (view,) = views
    assert set(View.__slots__) == {"assignment_text", "tools"}
    assert "Count the callers." in view.assignment_text
    assert [tool["name"] for tool in view.tools] == [
        "read_file",
        "write_file",
        "note_assumption",
        "note_gap",
        "submit_result",
    ]


def test_it_runs_in_the_thread_in_which_it_is_called(play: Play) -> None:
    def script(view: View) -> Any:
        yield ToolUse("submit_result", {"outcome": "completed", "output": threading.current_thread().name})

    assert play(script)[0].output == threading.current_thread().name


def test_a_submission_that_was_not_taken_can_be_mended(play: Play) -> None:
    def script(view: View) -> Any:
        reply = yield ToolUse(
            "submit_result", {"outcome": "completed", "evidence": [{"name": "x", "origin": "verified"}]}
        )
        assert reply.is_error, reply
        assert "origin" in reply.text
        yield DONE

    assert play(script)[0].output == "done"


def test_nothing_runs_after_an_accepted_result(play: Play, ws: Path) -> None:
    after: list[str] = []

    def script(view: View) -> Any:
        try:
            yield [DONE, ToolUse("write_file", {"path": "late", "text": "x"})]
            after.append("went on")
        finally:
            after.append("closed")
            raise SystemExit("in vain")

    result, broker = play(script)
    assert result.output == "done"
    assert after == ["closed"]
    assert not (ws / "late").exists()
    assert [(call.tool, call.ok) for call in broker.calls()] == [("submit_result", True), ("write_file", False)]


def ends(view: View) -> Any:
    yield ToolUse("read_file", {"path": "f"})


def returns_a_result(view: View) -> Any:
    yield ToolUse("read_file", {"path": "f"})
    return {"outcome": "completed"}


def yields_text(view: View) -> Any:
    yield "I am done."


def yields_a_tuple(view: View) -> Any:
    yield ("read_file", {"path": "f"})


def yields_nothing(view: View) -> Any:
    yield


def yields_a_mixed_list(view: View) -> Any:
    yield [ToolUse("read_file", {"path": "f"}), "text"]


def is_no_generator(view: View) -> Any:
    return DONE


async def is_async(view: View) -> Any:
    yield DONE


def exits(view: View) -> Any:
    yield ToolUse("read_file", {"path": "f"})
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (ends, "script.py:play ended without submit_result"),
        (returns_a_result, "script.py:play ended without submit_result"),
        (yields_text, "yielded a str; it must yield ToolUse"),
        (yields_a_tuple, "yielded a tuple"),
        (yields_nothing, "yielded a NoneType"),
        (yields_a_mixed_list, "yielded a str"),
        (is_no_generator, "script.py:play is not a generator function"),
        (is_async, "script.py:play is not a generator function"),
        (exits, "the child raised SystemExit: 0"),
    ],
)
def test_what_hands_in_nothing_has_no_result_and_is_named(play: Play, script: Any, says: str) -> None:
    with pytest.raises(NoResult, match=says):
        play(script)


def test_an_error_of_the_script_comes_through_as_it_is(play: Play) -> None:
    def script(view: View) -> Any:
        yield ToolUse("read_file", {"path": "f"})
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        play(script)


def endless(view: View) -> Any:
    yield ToolUse("note_gap", {"text": "all of it"})
    while True:
        yield ToolUse("read_file", {"path": "f"})


def test_a_budget_of_turns_that_is_used_up_hands_in_partial_with_what_was_noted(play: Play) -> None:
    result, broker = play(endless, terms={"budget": {"max_turns": 3}})
    assert result.outcome is Outcome.PARTIAL
    assert result.gaps == ["all of it"]
    assert "budget of 3 turns" in result.message
    assert len(broker.calls()) == 3


def test_the_last_turn_of_the_budget_may_hand_in_the_result(play: Play) -> None:
    def script(view: View) -> Any:
        yield [ToolUse("read_file", {"path": "f"})] * 5
        yield DONE

    result, _ = play(script, terms={"budget": {"max_turns": 2}})
    assert result.outcome is Outcome.COMPLETED


class StopAfter:
    """Is set once it has been asked a number of times."""

    reason = "deadline"

    def __init__(self, times: int) -> None:
        self.left = times

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0

    def wait(self, timeout_s: float | None = None) -> bool:
        return self.is_set()


@pytest.mark.parametrize("times", [0, 1, 2, 7])
def test_it_is_stopped_between_two_calls(play: Play, times: int) -> None:
    closed: list[bool] = []

    def script(view: View) -> Any:
        try:
            yield from endless(view)
        finally:
            closed.append(True)

    result, broker = play(script, cancel=StopAfter(times))
    assert result.outcome is Outcome.CANCELLED
    assert "deadline" in result.message
    assert len(broker.calls()) == times // 2
    assert closed == [True] * (times > 0)


def test_a_signal_that_comes_within_a_turn_keeps_its_other_calls_from_running(play: Play, ws: Path) -> None:
    def script(view: View) -> Any:
        yield [ToolUse("write_file", {"path": "a", "text": ""}), ToolUse("write_file", {"path": "b", "text": ""})]

    result, _ = play(script, cancel=StopAfter(2))
    assert result.outcome is Outcome.CANCELLED
    assert (ws / "a").exists()
    assert not (ws / "b").exists()


SOURCE = """
from contracts.tools import ToolUse

def play(view):
    reply = yield ToolUse("read_file", {"path": "f"})
    yield ToolUse("submit_result", {"outcome": "completed", "output": reply.text})
"""


def built(tmp_path: Path, source: str, name: str = "play", pin: str | None = None) -> Any:
    file = tmp_path / "pinned.py"
    file.write_text(source)
    pins = {"script.py": pin or sha256_digest(source.encode())}
    return build_runtime(AgentSpec(scripted=f"script.py:{name}"), pins=pins, pinned_file=lambda _: file, place=NOWHERE)


def test_a_script_is_found_in_its_pinned_file(
    tmp_path: Path, make_broker: MakeBroker, make_assignment: MakeAssignment
) -> None:
    runtime = built(tmp_path, SOURCE)
    assert not runtime.stoppable
    broker = make_broker("read_file", base={"f": b"pinned text"}, workspace=False)
    assignment = make_assignment(terms={"resources": {"tools": ["read_file"]}}, broker=broker)
    result = runtime.run(assignment)
    assert (result.outcome, result.output) == (Outcome.COMPLETED, "pinned text")


@pytest.mark.parametrize(
    ("source", "name", "says"),
    [
        (SOURCE, "absent", "cannot load script.py:absent: AttributeError"),
        ("play = 3", "play", "script.py:play is not a function"),
        ("raise RuntimeError('no luck')", "play", "cannot load script.py:play: RuntimeError: no luck"),
    ],
)
def test_a_script_that_cannot_be_loaded_is_named(
    tmp_path: Path, make_broker: MakeBroker, make_assignment: MakeAssignment, source: str, name: str, says: str
) -> None:
    runtime = built(tmp_path, source, name)
    with pytest.raises(NoResult, match=says):
        runtime.run(make_assignment(broker=make_broker(base={}, workspace=False)))


def test_a_module_that_changed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_broker: MakeBroker, make_assignment: MakeAssignment
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "module_of_a_script.py").write_text(SOURCE)
    spec = AgentSpec(scripted="module_of_a_script:play")
    pins = {"module_of_a_script": sha256_digest(b"")}
    runtime = build_runtime(spec, pins=pins, pinned_file=lambda _: tmp_path, place=NOWHERE)
    with pytest.raises(SourceChanged, match="changed since the contract was issued"):
        runtime.run(make_assignment(broker=make_broker(base={}, workspace=False)))


def test_it_works_through_the_broker_or_not_at_all(make_assignment: MakeAssignment) -> None:
    assignment = make_assignment(tools=object())
    with pytest.raises(TypeError, match="works through the broker"):
        ScriptedRuntime(lambda: ends, "script.py:play").run(assignment)
