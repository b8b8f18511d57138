"""Limits end a model child as partial, with what it noted; shortly before, only a result can be handed in."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agents.broker import ToolRefused
from agents.llm.limits import Limits
from contracts.ports import Worst
from contracts.states import Outcome
from tests.agents.conftest import Programs
from tests.agents.llm.conftest import MemoryJournal, MemoryMeter
from tests.model_servers.script import Call, Reply, Usage, Wire

if TYPE_CHECKING:
    from tests.agents.llm.conftest import Stage
    from tests.model_servers.fake import Request

Form = tuple[str, bool]
SUBMIT = Call("submit_result", {"outcome": "partial", "message": "this far"})
READ = Call("read_file", {"path": "a.txt"})


def test_the_last_turn_offers_the_result_alone(stage: Stage, form: Form) -> None:
    stage.server.by_turn(Reply((READ,)), Reply((READ,)), Reply((SUBMIT,)))
    played = stage.play(*form, budget={"max_turns": 3}, workspace=False)
    assert (played.result.outcome, played.result.message) == (Outcome.PARTIAL, "this far")
    last = stage.server.requests[2].asked
    assert (set(last.tools), last.tool_choice) == ({"submit_result"}, "any")
    assert "This is your last turn: the budget of 3 turns was used up." in last.text
    assert "last turn" not in stage.server.requests[1].asked.text


def test_turns_used_up_hand_in_what_was_noted(stage: Stage, form: Form) -> None:
    stage.server.choose(lambda request: Reply((Call("note_gap", {"text": "not read"}), READ)))
    played = stage.play(*form, budget={"max_turns": 2}, workspace=False)
    assert played.result.outcome is Outcome.PARTIAL
    assert played.result.message == "the budget of 2 turns was used up before a result was handed in"
    assert played.result.gaps == ["not read"]
    assert len(stage.server.requests) == 2
    assert played.calls() == ["note_gap", "read_file"]


def test_tool_calls_beyond_their_budget_are_not_made_and_the_result_is_asked_for(stage: Stage, form: Form) -> None:
    stage.server.by_turn(Reply((READ, READ, READ, Call("note_gap", {"text": "much"}))), Reply((SUBMIT,)))
    played = stage.play(*form, budget={"max_tool_calls": 2}, workspace=False)
    assert (played.result.message, played.result.gaps) == ("this far", ["much"])
    assert played.calls() == ["read_file", "read_file", "note_gap", "submit_result"]
    assert "the budget of tool calls is used up" in list(stage.server.requests[1].asked.results.values())[2]
    assert set(stage.server.requests[1].asked.tools) == {"submit_result"}


def test_money_that_holds_no_further_call_ends_as_partial_without_one(stage: Stage, form: Form) -> None:
    played = stage.play(*form, meter=MemoryMeter(micro_usd=1_000))
    assert played.result.outcome is Outcome.PARTIAL
    assert "the budget of the task one does not hold the next call" in played.result.message
    assert len(stage.server.requests) == 0
    assert played.meter.charged == Worst(0, 0)


def test_money_for_one_more_call_offers_the_result_alone(stage: Stage) -> None:
    def answer(request: Request) -> Reply:
        return Reply((SUBMIT if set(request.asked.tools) == {"submit_result"} else READ,), usage=Usage(5_000, 100))

    stage.server.choose(answer)
    played = stage.play(meter=MemoryMeter(tokens=40_000), workspace=False)
    assert played.result.message == "this far"
    assert played.meter.charged.tokens <= 40_000
    assert len(stage.server.requests) > 2
    assert [len(request.asked.tools) == 1 for request in stage.server.requests].index(True) == (
        len(stage.server.requests) - 1
    )


def test_time_used_up_ends_as_partial(stage: Stage, form: Form) -> None:
    stage.server.choose(lambda request: Reply((READ,), wire=Wire(first_byte_after_s=60)))
    played = stage.play(*form, budget={"max_wall_s": 0.3})
    assert played.result.outcome is Outcome.PARTIAL
    assert played.result.message == "the budget of 0.3 s was used up before a result was handed in"


def test_past_its_deadline_nothing_is_asked(stage: Stage) -> None:
    played = stage.play(deadline_at=datetime.now(UTC) - timedelta(seconds=1))
    assert played.result.outcome is Outcome.PARTIAL
    assert len(stage.server.requests) == 0


def test_within_its_limits_a_child_is_not_hurried(stage: Stage, form: Form) -> None:
    stage.server.by_turn(Reply((READ,)), Reply((READ,)), Reply((SUBMIT,)))
    budget = {"max_turns": 4, "max_tool_calls": 3, "max_wall_s": 3_000}
    played = stage.play(*form, budget=budget, meter=MemoryMeter(10_000_000, 10_000_000), workspace=False)
    assert played.result.message == "this far"
    assert all(len(request.asked.tools) > 1 for request in stage.server.requests)


def test_a_model_without_a_price_is_not_asked(stage: Stage, form: Form) -> None:
    played = stage.play(*form, terms={"prices": {}})
    assert played.result.outcome is Outcome.FAILED
    assert "no price is known for the model model-x" in played.result.message
    assert len(stage.server.requests) == 0


@pytest.mark.parametrize("max_turns", [1, 2])
def test_a_result_in_the_last_turn_is_complete(stage: Stage, form: Form, max_turns: int) -> None:
    stage.server.by_turn(*[Reply((READ,))] * (max_turns - 1), Reply((Call("submit_result", {"outcome": "completed"}),)))
    assert stage.play(*form, budget={"max_turns": max_turns}, workspace=False).result.outcome is Outcome.COMPLETED


@pytest.mark.parametrize(("until_s", "margin_s"), [(3600.0, 5.0), (25.0, 5.0), (20.0, 4.0), (1.0, 0.2)])
def test_time_is_kept_for_handing_in(stage: Stage, until_s: float, margin_s: float) -> None:
    """At the deadline itself the attempt is ended from outside, and what was noted is lost."""
    clock_s = 0.0
    limits = Limits(
        stage.assignment(deadline_at=datetime.now(UTC) + timedelta(seconds=until_s)), monotonic=lambda: clock_s
    )
    assert limits.time_left_s() <= until_s - margin_s
    clock_s = until_s - margin_s
    assert limits.used_up() == "the deadline was reached"


def test_a_program_is_waited_for_no_longer_than_there_is_time(stage: Stage, form: Form, tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    command = Call("run_command", {"command": [sys.executable, "-c", "import time; time.sleep(60)"], "timeout_s": 50})
    stage.server.choose(lambda request: Reply((Call("note_gap", {"text": "not run"}), command)))
    grant = {"commands": [[sys.executable]]}
    broker = stage.make_broker("run_command", grant=grant, runner=programs)
    budget = {"max_wall_s": 1.5}
    played = stage.play(*form, broker=broker, tools=["run_command"], budget=budget, terms={"workspace": "directory"})
    assert (played.result.outcome, played.result.gaps) == (Outcome.PARTIAL, ["not run"])
    [(_, timeout_s)] = programs.ran
    assert timeout_s <= 1.5


def test_without_time_no_program_is_started(stage: Stage, tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    broker = stage.make_broker("run_command", grant={"commands": [["make"]]}, runner=programs)
    broker.limit_time(lambda: 0.0)
    with pytest.raises(ToolRefused, match="no time is left for run_command"):
        broker.run_command(["make"])
    assert programs.ran == []


def test_waits_of_the_turns_that_are_gone_on_from_count_as_time(stage: Stage) -> None:
    stage.server.by_turn(
        Reply((Call("read_file", {"path": "a.txt"}),)), Reply((Call("submit_result", {"outcome": "completed"}),))
    )
    first = stage.play()
    turn = first.journal.stored[1]
    slow = [record.model_copy(update={"elapsed_s": 35.0, "waited_s": 40.0}) for record in turn.tries]
    journal = MemoryJournal([turn.model_copy(update={"tries": slow})])
    played = stage.play(journal=journal, budget={"max_wall_s": 70})
    assert played.result.outcome is Outcome.PARTIAL
    assert "the budget of 70 s was used up" in played.result.message
    assert len(stage.server.requests) == 2
