"""Side effects: prepared, sent, settled; and what nobody saw the end of is asked, while its task waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from contracts.errors import StaleClaim, WrongState
from coordinator.store import TaskStore
from coordinator.store.database import Blob
from coordinator.store.records import Claim

ARGUMENTS = Blob.of({"command": ["deploy"]})


@pytest.fixture
def claim(store: TaskStore, build: Any) -> Claim:
    resources = {"effects": "declared"}
    store.create_run(build.run(build.task("one", resources=resources, limits={"max_claims": 1}), "other"))
    return store.claim("w", work=1)[0]


def sent(store: TaskStore, claim: Claim, key: str = "1:1:0") -> int:
    row = store.prepare_operation(claim, key, "run_command", ARGUMENTS).row
    store.send_operation(claim, row)
    return row


def due(store: TaskStore) -> list[str]:
    return [claim.task_id for claim in store.claim("v", work=2)]


def test_a_key_names_a_call_for_ever(store: TaskStore, claim: Claim) -> None:
    first = store.prepare_operation(claim, "k", "run_command", ARGUMENTS)
    assert (first.state, first.outcome) == ("prepared", None)
    assert store.prepare_operation(claim, "k", "run_command", ARGUMENTS) == first
    with pytest.raises(WrongState, match="'k' of run/one is a call of run_command; needed one of mcp__a__b"):
        store.prepare_operation(claim, "k", "mcp__a__b", ARGUMENTS)
    store.send_operation(claim, first.row)
    assert store.prepare_operation(claim, "k", "run_command", ARGUMENTS).state == "sent"
    with pytest.raises(WrongState, match="was sent already"):
        store.send_operation(claim, first.row)
    store.settle_operation(claim, first.row, ok=True, outcome=Blob.of("deployed"))
    store.settle_operation(claim, first.row, ok=False, outcome=Blob.of("no, it was not"))
    found = store.prepare_operation(claim, "k", "run_command", ARGUMENTS)
    assert (found.state, found.outcome) == ("succeeded", "deployed")


def test_a_stale_holder_sends_nothing(store: TaskStore, claim: Claim, expire: Callable[..., None]) -> None:
    row = store.prepare_operation(claim, "k", "run_command", ARGUMENTS).row
    expire(claim)
    with pytest.raises(StaleClaim):
        store.send_operation(claim, row)
    with pytest.raises(StaleClaim):
        store.prepare_operation(claim, "l", "run_command", ARGUMENTS)


ENDS = ["lost", "failed", "released", "blocked", "submitted"]


def end(store: TaskStore, build: Any, claim: Claim, word: Any, expire: Callable[..., None]) -> None:
    if word == "lost":
        expire(claim)
        store.claim("v", work=0, gone=["nobody"])
    elif word == "submitted":
        store.submit([build.submission(claim)])
    else:
        question = build.question("q", what="Blue?") if word == "blocked" else None
        store.end([build.ending(claim, word, question=question)])


@pytest.mark.parametrize("word", ENDS)
def test_an_attempt_that_ends_with_an_unsettled_operation_asks_and_its_task_is_not_handed_out(
    store: TaskStore, build: Any, claim: Claim, word: str, expire: Callable[..., None]
) -> None:
    sent(store, claim)
    settled = sent(store, claim, "1:1:1")
    store.settle_operation(claim, settled, ok=True, outcome=Blob.of("well"))
    end(store, build, claim, word, expire)
    asked = [item for item in store.requests(1) if item.kind == "operation"]
    assert [item.state for item in asked] == ["open"]
    assert 'run_command was called with {"command": ["deploy"]}' in asked[0].question
    assert due(store) == ["other"]
    assert store.claim("v", work=0, gate=9) == []
    # Though the one claim that it has is spent: nobody knows that it has failed.
    assert store.run(1).tasks[0].state == ("submitted" if word == "submitted" else "pending")


@pytest.mark.parametrize("word", ENDS)
def test_without_an_unsettled_operation_nothing_is_asked(
    store: TaskStore, build: Any, claim: Claim, word: str, expire: Callable[..., None]
) -> None:
    store.prepare_operation(claim, "k", "run_command", ARGUMENTS)  # never sent
    end(store, build, claim, word, expire)
    assert [item.kind for item in store.requests(1)] == (["input"] if word == "blocked" else [])


@pytest.mark.parametrize(("approved", "state"), [(True, "succeeded"), (False, "failed")])
def test_a_person_settles_it_and_the_task_goes_on(
    store: TaskStore, build: Any, claim: Claim, approved: bool, state: str
) -> None:
    sent(store, claim)
    store.end([build.ending(claim, "released")])
    (request,) = store.requests(1)
    store.answer(request.request_id, approved=approved, message="I looked")
    after = next(found for found in store.claim("v", work=2) if found.task_id == "one")
    found = store.prepare_operation(after, "1:1:0", "run_command", ARGUMENTS)
    assert (found.state, found.outcome) == (state, "I looked")
    late = Blob.of("it was so")
    store.settle_operation(claim, found.row, ok=not approved, outcome=late)  # too late to say otherwise
    assert store.prepare_operation(after, "1:1:0", "run_command", ARGUMENTS) == found


def test_a_late_outcome_settles_it_and_makes_the_question_void(
    store: TaskStore, build: Any, claim: Claim, expire: Callable[..., None]
) -> None:
    row = sent(store, claim)
    expire(claim)
    store.claim("v", work=0, gone=["nobody"])
    (request,) = store.requests(1)
    assert request.state == "open"
    before = store.run(1).tasks[0]
    store.settle_operation(claim, row, ok=True, outcome=Blob.of("deployed"))
    (request,) = store.requests(1)
    assert request.state == "void"
    with pytest.raises(WrongState, match="void"):
        store.answer(request.request_id, approved=True)
    task = store.run(1).tasks[0]
    assert (task.state, task.generation) == (before.state, before.generation)
    assert due(store) == ["one", "other"]


def test_two_operations_are_two_questions_and_both_have_to_be_answered(
    store: TaskStore, build: Any, claim: Claim
) -> None:
    sent(store, claim, "1:1:0")
    sent(store, claim, "1:1:1")
    store.end([build.ending(claim, "released")])
    one, two = store.requests(1)
    store.answer(one.request_id, approved=True)
    assert due(store) == ["other"]
    store.answer(two.request_id, approved=False)
    assert due(store) == ["one"]


def test_a_task_without_declared_effects_costs_no_look(store: TaskStore, build: Any) -> None:
    store.create_run(build.run("plain"))
    (claim,) = store.claim("w", work=1)
    store.end([build.ending(claim, "released")])
    assert store.requests(1) == []
