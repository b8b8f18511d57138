"""A conversation goes on from what the journal holds: nothing that is stored is asked for again."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from agents.broker import Broker
from contracts.assignment import Feedback
from contracts.states import Outcome
from contracts.steps import watched
from contracts.terms import Terms
from contracts.turns import StoredTurn
from tests.agents.conftest import PinnedTree
from tests.agents.llm.conftest import MemoryJournal, MemoryMeter
from tests.model_servers.script import Call, Failure, Reply, Say, Think, Usage, Wire

if TYPE_CHECKING:
    from tests.agents.llm.conftest import Played, Stage
    from tests.model_servers.fake import Request

Form = tuple[str, bool]
PLENTY = Usage(5_000, 100)
SUBMIT = Call("submit_result", {"outcome": "completed", "output": 1})
ANSWERS = (
    Reply((Think("a"), Call("read_file", {"path": "a.txt"}), Call("note_gap", {"text": "b.txt is not read"}))),
    Reply((Say("hm"),)),
    Reply((Call("note_assumption", {"text": "all is well"}), SUBMIT)),
)


class Killed(BaseException):
    """In place of the death of the process."""


STEPS = ["model_charged", "model_answered", "turn_answered", "turn_finished"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("turn", [1, 2, 3])
def test_killed_between_any_two_steps_the_next_holder_repeats_at_most_one_request(
    stage: Stage, step: str, turn: int
) -> None:
    stage.server.by_turn(*ANSWERS)
    journal, meter = MemoryJournal(), MemoryMeter()
    left = turn

    def kill(reached: str, _task: str | None, _attempt: int | None) -> None:
        nonlocal left
        left -= reached == step
        if reached == step and left == 0:
            raise Killed

    with watched(kill), pytest.raises(Killed):
        stage.play("messages", journal=journal, meter=meter)
    before = len(stage.server.requests)
    played = stage.play("messages", journal=MemoryJournal(list(journal.stored.values())), meter=meter)
    assert played.result.outcome is Outcome.COMPLETED
    assert played.result.gaps == ["b.txt is not read"]
    assert played.result.assumptions == ["all is well"]
    assert before == (turn if step != "model_charged" else turn - 1)
    assert len(stage.server.requests) == (4 if step == "model_answered" else 3)
    # Of the one that was charged and not settled, nobody knows whether it was made.
    assert len(meter.open) == (1 if step in ("model_charged", "model_answered") else 0)


def test_a_continued_conversation_is_the_same_conversation(stage: Stage, form: Form) -> None:
    stage.server.by_turn(*ANSWERS)
    deadline_at = datetime.now(UTC) + timedelta(hours=1)
    whole = stage.play(*form, deadline_at=deadline_at)
    digests = [turn.request_digest for turn in whole.journal.stored.values()]
    assert len(set(digests)) == 3
    for stored in (1, 2):
        kept = [turn for number, turn in whole.journal.stored.items() if number <= stored]
        again = stage.play(*form, journal=MemoryJournal(kept), deadline_at=deadline_at)
        assert again.journal.stored[stored + 1].request_digest == digests[stored]


def test_a_turn_whose_calls_were_not_all_answered_has_them_run_without_a_new_request(stage: Stage, form: Form) -> None:
    stage.server.by_turn(*ANSWERS)
    whole = stage.play(*form)
    unfinished = whole.journal.stored[1].model_copy(update={"answers": None})
    asked = len(stage.server.requests)
    again = stage.play(*form, journal=MemoryJournal([unfinished]))
    assert again.result.outcome is Outcome.COMPLETED
    assert again.journal.steps[0] == "finished 1"
    assert len(stage.server.requests) == asked + 2


def test_a_result_that_was_handed_in_and_not_submitted_is_the_result(stage: Stage, form: Form) -> None:
    stage.server.by_turn(*ANSWERS)
    whole = stage.play(*form)
    asked = len(stage.server.requests)
    again = stage.play(*form, journal=MemoryJournal(list(whole.journal.stored.values())))
    assert again.result == whole.result
    assert len(stage.server.requests) == asked


LONG = b"0123456789\n" * 10_000


def test_the_whole_of_what_was_cut_is_an_artifact_of_the_attempt_that_goes_on_too(stage: Stage, form: Form) -> None:
    stage.files["long.txt"] = LONG
    stage.server.by_turn(Reply((Call("read_file", {"path": "long.txt"}),)), Reply((SUBMIT,)))
    first = stage.play(*form, workspace=False)
    [named] = first.result.artifacts
    assert named.size_bytes == len(LONG)
    for turns in (1, len(first.journal.stored)):  # the last one has handed in a result
        stored = list(first.journal.stored.values())[:turns]
        again = stage.play(*form, workspace=False, journal=MemoryJournal(stored), artifacts=first.assignment.artifacts)
        assert again.result.artifacts == [named]
    lost = stage.play(*form, workspace=False, journal=MemoryJournal(list(first.journal.stored.values())[:1]))
    assert lost.result.artifacts == []
    assert any(named.name in gap and "cannot be read any more" in gap for gap in lost.result.gaps)


def test_a_result_that_was_sent_back_is_worked_on(stage: Stage, form: Form) -> None:
    stage.server.by_turn(*ANSWERS, Reply((Call("submit_result", {"outcome": "completed", "output": 2}),)))
    whole = stage.play(*form)
    feedback = Feedback(1, "not good enough", [], "sha256:" + "0" * 64)
    again = stage.play(*form, journal=MemoryJournal(list(whole.journal.stored.values())), feedback=feedback)
    assert again.result.output == 2
    assert "was not the end" in stage.server.requests[-1].asked.text


def test_a_question_that_was_answered_is_not_asked_again(stage: Stage, form: Form) -> None:
    stage.server.by_turn(
        Reply((Call("submit_result", {"outcome": "blocked", "question": "May I?"}),)), Reply((SUBMIT,))
    )
    blocked = stage.play(*form)
    assert blocked.result.outcome is Outcome.BLOCKED
    again = stage.play(*form, journal=MemoryJournal(list(blocked.journal.stored.values())))
    assert again.result.outcome is Outcome.COMPLETED


def test_turns_of_before_count(stage: Stage) -> None:
    stage.server.by_turn(*ANSWERS)
    whole = stage.play()
    kept: list[StoredTurn] = [whole.journal.stored[1], whole.journal.stored[2]]
    again = stage.play(journal=MemoryJournal(kept), budget={"max_turns": 2})
    assert again.result.outcome is Outcome.PARTIAL
    assert again.result.gaps == ["b.txt is not read"]
    assert len(stage.server.requests) == 3


def test_cancelled_while_a_tool_runs_it_ends_when_the_tool_has_ended(stage: Stage) -> None:
    """What runs in a thread cannot be stopped; so nothing of the child is left once `run` has ended."""
    stage.server.reply(Call("read_file", {"path": "a.txt"}))
    inside, go_on, over = threading.Event(), threading.Event(), threading.Event()

    class SlowTree(PinnedTree):
        def read_bytes(self, path: str) -> bytes:
            inside.set()
            go_on.wait(20)
            over.set()
            return super().read_bytes(path)

    resources = Terms.model_validate(
        {"task_id": "one", "contract_version": 1, "objective": "x", "resources": {"tools": ["read_file"]}}
    ).resources
    slow = Broker(resources, SlowTree({"a.txt": b"alpha"}), clock=lambda: datetime.now(UTC))
    runtime, assignment = stage.runtime("messages", True), stage.assignment(broker=slow)

    async def scenario() -> None:
        work = asyncio.ensure_future(runtime.run(assignment))
        assert await asyncio.to_thread(inside.wait, 20)
        work.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not work.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert over.is_set()

    asyncio.run(scenario())
    assert [call.tool for call in slow.calls()] == ["read_file"]


def test_cancelled_while_the_model_thinks_the_request_ends_and_stays_charged(stage: Stage, form: Form) -> None:
    asked = threading.Event()

    def answer(_request: object) -> Reply:
        asked.set()
        return Reply((SUBMIT,), wire=Wire(first_byte_after_s=60))

    stage.server.choose(answer)
    runtime, meter = stage.runtime(*form), MemoryMeter()
    assignment = stage.assignment(meter=meter)

    async def scenario() -> None:
        work = asyncio.ensure_future(runtime.run(assignment))
        assert await asyncio.to_thread(asked.wait, 20)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(scenario())
    assert len(meter.open) == 1
    assert meter.settled == []
    [tried] = meter.tried
    assert (tried.record.outcome, tried.record.billed) == ("stopped", "unknown")


def test_told_to_stop_while_its_provider_is_waited_for_it_stops(stage: Stage) -> None:
    assignment = stage.assignment()

    def answer(_request: object) -> Failure:
        assignment.cancel.set("the worker is leaving")  # type: ignore[attr-defined]
        return Failure(429, headers={"retry-after": "30"})

    stage.server.choose(answer)
    played = asyncio.run(stage.start(stage.runtime("messages", True), assignment))
    assert played.result.outcome is Outcome.CANCELLED
    assert len(stage.server.requests) == 1
    assert stage.clock.now_s == 0


def test_told_to_stop_it_stops_between_two_steps(stage: Stage) -> None:
    assignment = stage.assignment()
    stage.server.by_turn(*ANSWERS)

    def stop(step: str, *_: object) -> None:
        if step == "turn_finished":
            assignment.cancel.set("the worker is leaving")  # type: ignore[attr-defined]

    with watched(stop):
        played = asyncio.run(stage.start(stage.runtime("messages", True), assignment))
    assert played.result.outcome is Outcome.CANCELLED
    assert played.journal.steps == ["answered 1", "finished 1"]


def test_a_call_that_is_made_again_has_the_name_that_it_had(stage: Stage, form: Form) -> None:
    """By it an effect is known to have happened already; a conversation that starts afresh has other names."""
    stage.server.by_turn(Reply((Call("list_files", {}), Call("list_files", {}))), Reply((SUBMIT,)))

    def keys(**fields: Any) -> list[str]:
        assignment = stage.assignment(workspace=False, **fields)
        broker = assignment.tools
        assert isinstance(broker, Broker)
        given: list[str] = []
        serve = broker.call

        def call(name: str, arguments: Any, key: str | None = None) -> Any:
            given.append(str(key))
            return serve(name, arguments, key)

        broker.call = call  # type: ignore[method-assign]
        asyncio.run(stage.start(stage.runtime(*form), assignment))
        return given

    journal = MemoryJournal()
    first = keys(journal=journal)
    assert len(set(first)) == 2
    unfinished = journal.stored[1].model_copy(update={"answers": None})
    assert keys(journal=MemoryJournal([unfinished])) == first
    afresh = MemoryJournal()
    afresh.conversation = 2
    assert not set(keys(journal=afresh)) & set(first)


LAST_TURNS = [
    {"budget": {"max_turns": 2}},
    {"budget": {"max_tool_calls": 1}},
    {"meter": (10**7, 25_000)},
]


@pytest.mark.parametrize("limits", LAST_TURNS)
def test_after_a_takeover_a_last_turn_is_still_one(stage: Stage, form: Form, limits: dict[str, Any]) -> None:
    """What was not offered is not carried out, whoever answers."""

    def answer(request: Request) -> Reply:
        only_result = set(request.asked.tools) == {"submit_result"}
        write = Call("write_file", {"path": "x.txt", "text": "not offered"})
        return Reply((write, SUBMIT)) if only_result else Reply((Call("read_file", {"path": "a.txt"}),), usage=PLENTY)

    def play(journal: MemoryJournal, meter: MemoryMeter) -> Played:
        return stage.play(*form, journal=journal, meter=meter, budget=limits.get("budget"))

    def kill(reached: str, _task: str | None, _attempt: int | None) -> None:
        if reached == "turn_answered" and journal.stored[max(journal.stored)].response.last is not None:
            raise Killed

    stage.server.choose(answer)
    journal, meter = MemoryJournal(), MemoryMeter(*limits.get("meter", ()))
    with watched(kill), pytest.raises(Killed):
        play(journal, meter)
    asked = len(stage.server.requests)
    again = play(MemoryJournal(list(journal.stored.values())), meter)
    assert again.result.outcome is Outcome.COMPLETED
    assert again.calls() == ["submit_result"]
    assert len(stage.server.requests) == asked


def test_after_a_takeover_a_turn_that_was_offered_everything_is_served(stage: Stage, form: Form) -> None:
    """Though it is the last one that some limit allows by now."""
    stage.server.by_turn(*ANSWERS)
    whole = stage.play(*form)
    unfinished = whole.journal.stored[1].model_copy(update={"answers": None})
    again = stage.play(*form, journal=MemoryJournal([unfinished]), meter=MemoryMeter(10**7, 15_000))
    assert again.calls()[:2] == ["read_file", "note_gap"]
