"""The transition table is whole, and the page for people is made from it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from contracts.states import (
    FINAL_STATES,
    OPEN_STATES,
    TRANSITIONS,
    State,
    sources_of,
    targets_of,
    transition_table,
)


def test_every_state_is_open_or_final() -> None:
    assert frozenset(State) == OPEN_STATES | FINAL_STATES
    assert not OPEN_STATES & FINAL_STATES
    assert {state.value for state in State} == {
        "pending", "running", "submitted", "accepted", "partial", "failed", "cancelled", "superseded",
    }  # fmt: skip


def test_every_state_is_reached_from_pending() -> None:
    reached = {State.PENDING}
    while more := {t.target for t in TRANSITIONS if t.source in reached} - reached:
        reached |= more
    assert reached == frozenset(State)


def test_a_final_state_is_never_left_and_every_open_one_can_end() -> None:
    assert {t.source for t in TRANSITIONS} == OPEN_STATES
    for state in OPEN_STATES:
        assert any(t.source == state and t.target in FINAL_STATES for t in TRANSITIONS), state


def test_a_verb_leads_to_one_state_from_each_source() -> None:
    assert {key for key, count in Counter((t.verb, t.source) for t in TRANSITIONS).items() if count > 1} == set()


def test_every_open_task_can_be_cancelled_and_superseded() -> None:
    for verb, target in (("cancelled", State.CANCELLED), ("superseded", State.SUPERSEDED)):
        assert sources_of(verb) == OPEN_STATES
        assert targets_of(verb) == {target}


def test_only_a_submitted_task_can_be_accepted() -> None:
    for state in (State.ACCEPTED, State.PARTIAL):
        assert {t.source for t in TRANSITIONS if t.target == state} == {State.SUBMITTED}


def test_gating_leaves_the_result_in_its_place() -> None:
    for verb in ("gate_claimed", "gate_lost", "gate_released", "not_judged"):
        assert sources_of(verb) == targets_of(verb) == {State.SUBMITTED}


def test_an_unknown_verb_is_an_error_of_the_programmer() -> None:
    for find in (sources_of, targets_of):
        with pytest.raises(AssertionError, match="no transition is called 'eaten'"):
            find("eaten")


def test_the_page_about_states_holds_this_table() -> None:
    table = transition_table()
    assert table.count("\n") == len(TRANSITIONS) + 2
    page = Path(__file__).parents[2] / "docs" / "states.md"
    assert page.read_text(encoding="utf-8").endswith(f"\n\n{table}")
