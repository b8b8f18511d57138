"""Turns of models: kept as soon as they are paid for, gone on from by whoever holds the task, and by nobody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from contracts.errors import StaleClaim, WrongState
from contracts.turns import ModelUsage
from coordinator.store import TaskStore
from coordinator.store.database import Blob
from coordinator.store.journaling import BROKEN_OFF, Answered
from coordinator.store.records import Claim


def turn(claim: Claim, number: int, *, conversation: int | None = None, says: str = "hello") -> Answered:
    usage = ModelUsage(input_tokens=100, output_tokens=7)
    return Answered(claim, conversation or claim.attempt, number, Blob.of({"says": says}), "m-1", usage, 42)


def answers(*texts: str) -> Blob:
    return Blob.of(list(texts))


@pytest.fixture
def claim(store: TaskStore, build: Any) -> Claim:
    store.create_run(build.run(build.task("one", limits={"max_claims": 9}), head="c" * 40))
    return store.claim("w", work=1)[0]


def again(store: TaskStore, build: Any, claim: Claim, word: Any) -> Claim:
    """The next attempt, after this one has ended so."""
    question = build.question() if word == "blocked" else None
    store.end([build.ending(claim, word, question=question)])
    if question is not None:
        store.answer("run-q1", approved=True)
    return store.claim("w", work=1)[0]


def test_turns_are_stored_in_order_with_what_they_cost_and_where_they_stood(store: TaskStore, claim: Claim) -> None:
    store.answered(turn(claim, 1))
    store.finished(claim, 1, 1, answers("a"), "t" * 40)
    store.answered(turn(claim, 2, says="more"))
    first, second = store.turns(claim.orchestration_row, task=claim.task_row)
    assert (first.number, first.base_commit, first.workspace_tree, first.late) == (1, "c" * 40, "t" * 40, False)
    assert first.answers_digest == answers("a").digest
    assert (second.number, second.answers_digest, second.workspace_tree) == (2, None, None)


def test_said_again_a_turn_is_stored_once(store: TaskStore, claim: Claim) -> None:
    for _ in range(2):
        store.answered(turn(claim, 1))
        store.finished(claim, 1, 1, answers("a"), None)
    assert len(store.turns(claim.orchestration_row, task=claim.task_row)) == 1
    with pytest.raises(WrongState, match="turn 1 of run/one is answered already, otherwise"):
        store.finished(claim, 1, 1, answers("b"), None)
    with pytest.raises(WrongState, match="turn 2 of run/one is not stored"):
        store.finished(claim, 1, 2, answers("a"), None)


def test_a_turn_that_a_stale_holder_paid_for_is_kept_as_late_and_gone_on_from_by_nobody(
    store: TaskStore, claim: Claim, expire: Callable[..., None]
) -> None:
    store.answered(turn(claim, 1))
    store.finished(claim, 1, 1, answers("a"), None)
    expire(claim)
    (after,) = store.claim("v", work=1)
    with pytest.raises(StaleClaim):
        store.answered(turn(claim, 2, says="late"))
    with pytest.raises(StaleClaim):
        store.answered(turn(claim, 2, says="late"))
    store.answered(turn(after, 2, conversation=1, says="in time"))
    stored = store.turns(claim.orchestration_row, task=claim.task_row)
    assert [(found.attempt, found.number, found.late) for found in stored] == [
        (1, 1, False), (1, 2, True), (2, 2, False),
    ]  # fmt: skip
    expire(after)
    (last,) = store.claim("w", work=1)
    earlier = store.earlier_of(last)
    assert earlier is not None
    assert [(found.attempt, found.number) for found in earlier.turns] == [(1, 1), (2, 2)]
    assert [event.data for event in store.events(1) if event.verb == "late_turn"] == [
        {"attempt": 1, "turn": 2, "late": True}
    ]


def test_a_stale_holder_finishes_no_turn_that_another_goes_on_from(
    store: TaskStore, claim: Claim, expire: Callable[..., None]
) -> None:
    store.answered(turn(claim, 1))
    expire(claim)
    (after,) = store.claim("v", work=1)
    with pytest.raises(StaleClaim):
        store.finished(claim, 1, 1, answers("stale"), None)
    store.finished(after, 1, 1, answers("fresh"), None)
    assert store.turns(claim.orchestration_row, task=claim.task_row)[0].answers_digest == answers("fresh").digest


@pytest.mark.parametrize(
    ("word", "goes_on", "broken_off"),
    [
        ("released", True, False), ("deadline", True, False), ("blocked", True, False), ("failed", True, True),
        ("no_result", True, True), ("cancelled", False, False), ("unknown", False, False),
    ],
)  # fmt: skip
def test_which_ends_can_be_gone_on_from(
    store: TaskStore, build: Any, claim: Claim, word: str, goes_on: bool, broken_off: bool
) -> None:
    store.answered(turn(claim, 1))
    earlier = store.earlier_of(again(store, build, claim, word))
    assert (earlier is not None) is goes_on
    if earlier is not None:
        assert [(ended.number, ended.word in BROKEN_OFF) for ended in earlier.attempts] == [(1, broken_off)]
        assert len(earlier.turns) == 1


def test_attempts_that_said_nothing_are_looked_behind_up_to_a_submission(
    store: TaskStore, build: Any, claim: Claim
) -> None:
    store.answered(turn(claim, 1))
    third = again(store, build, again(store, build, claim, "released"), "released")
    earlier = store.earlier_of(third)
    assert earlier is not None
    assert earlier.turns[0].attempt == 1
    store.submit([build.submission(third)])
    (gate,) = store.claim("w", work=0, gate=1)
    store.decide([build.verdict(gate, "repair_required", head="c" * 40)])
    (fourth,) = store.claim("w", work=1)
    assert store.earlier_of(fourth) is None
    earlier = store.earlier_of(again(store, build, fourth, "released"))
    assert earlier is not None
    assert ([ended.number for ended in earlier.attempts], earlier.turns) == ([4], [])
