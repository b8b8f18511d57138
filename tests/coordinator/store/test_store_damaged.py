"""Terms that have not their digest any more stop the task that they are of, and no other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from coordinator.store import Damaged, TaskStore, Tick, issued
from coordinator.store.records import Claim, Delegated, Done, NewChild


@pytest.fixture
def damage(store: TaskStore, sql: Any) -> Iterator[Callable[[str], Callable[[], None]]]:
    """Changes the stored terms of a task, which this process then does not know by heart; gives what mends them."""

    def change(task_id: str) -> Callable[[], None]:
        digest = next(task.terms_digest for task in store.run(1).tasks if task.task_id == task_id)
        [(data,)] = sql("SELECT data FROM document WHERE digest = :digest", digest=digest)
        put = "UPDATE document SET data = :data WHERE digest = :digest"
        sql(put, data=bytes(data).replace(b"max_claims", b"max_claimz"), digest=digest)
        issued._terms_by_digest.clear()
        return lambda: sql(put, data=bytes(data), digest=digest)

    yield change
    issued._terms_by_digest.clear()


def claimed(store: TaskStore, *, work: int = 9, gate: int = 9) -> dict[str, Claim]:
    return {claim.task_id: claim for claim in store.claim("w", work=work, gate=gate)}


def words(store: TaskStore) -> dict[str, str]:
    return {task.task_id: task.word for task in store.run(1).tasks}


def test_all_but_the_task_whose_terms_are_damaged_and_what_needs_it_go_on(
    store: TaskStore, build: Any, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = [build.task("bad", write_scope=["a/"]), build.task("beside", write_scope=["a/"]), "good",
             build.task("after", needs=["bad"])]  # fmt: skip
    store.create_run(build.run(*tasks, overlaps=[("bad", "beside")]))
    mend = damage("bad")
    assert words(store) == {"bad": "damaged", "beside": "pending", "good": "pending", "after": "blocked"}
    digest = store.run(1).tasks[0].terms_digest
    with caplog.at_level(logging.ERROR, "coordinator.store"):
        assert claimed(store).keys() == {"beside", "good"}
        assert claimed(store) == {}
    (said,) = caplog.messages  # once, however often it was looked for work
    assert said.startswith("run/bad waits for a person")
    assert digest in said
    assert words(store) == {"bad": "waiting", "beside": "running", "good": "running", "after": "blocked"}
    (request,) = store.requests(1)
    assert (request.task_id, request.kind, digest in request.question) == ("bad", "damaged", True)
    assert not store.due()
    store.cancel(1, store.run(1).tasks[1].row)  # beside which it must not run
    # An answer alone mends nothing; it is asked about again.
    store.answer(request.request_id, approved=True)
    assert store.due()
    assert claimed(store) == {}
    assert [item.state for item in store.requests(1)] == ["answered", "open"]
    mend()
    store.answer(store.requests(1)[1].request_id, approved=True)
    assert claimed(store).keys() == {"bad"}


def test_a_result_whose_contract_is_damaged_is_not_judged(store: TaskStore, build: Any, damage: Any) -> None:
    store.create_run(build.run("bad", "good"))
    store.submit([build.submission(claim) for claim in claimed(store).values()])
    mend = damage("bad")
    assert claimed(store).keys() == {"good"}
    (request,) = store.requests(1)
    assert (store.run(1).tasks[0].state, request.kind) == ("submitted", "damaged")
    mend()
    store.answer(request.request_id, approved=True)
    assert claimed(store).keys() == {"bad"}


def test_no_to_what_is_damaged_cancels_the_task_with_what_is_below(store: TaskStore, build: Any, damage: Any) -> None:
    store.create_run(build.run("bad"))
    (parent,) = claimed(store).values()
    store.delegate(1, [build.task("child")], parent=parent)
    store.end([build.ending(parent, "released")])
    damage("bad")
    assert claimed(store).keys() == {"child"}
    (request,) = store.requests(1)
    done = store.answer(request.request_id, approved=False, message="it is lost")
    assert done.state == "cancelled"
    assert store.answer(request.request_id, approved=False, message="it is lost").repeated
    assert {task.task_id: task.state for task in store.run(1).tasks} == {"bad": "cancelled", "child": "cancelled"}
    assert store.run(1).tasks[0].reason == "it is lost"
    assert store.run_state(1) == "ended"


@pytest.mark.parametrize("kind", ["work", "gate"])
def test_a_lost_claim_on_what_is_damaged_is_taken_back(
    store: TaskStore, build: Any, damage: Any, expire: Any, kind: str
) -> None:
    store.create_run(build.run(build.task("bad", limits={"max_claims": 1})))
    if kind == "gate":
        store.submit([build.submission(claim) for claim in claimed(store).values()])
    (claim,) = claimed(store).values()
    mend = damage("bad")
    expire(claim)
    assert claimed(store) == {}
    (task,) = store.run(1).tasks
    assert (task.state, task.owner, task.word) == ("pending" if kind == "work" else "submitted", None, "waiting")
    mend()
    store.answer(store.requests(1)[0].request_id, approved=True)
    (again,) = claimed(store).values()
    assert again.kind == kind


def test_what_has_ended_says_that_its_terms_are_damaged(store: TaskStore, build: Any, damage: Any) -> None:
    store.create_run(build.run("bad"))
    store.cancel(1, store.run(1).tasks[0].row)
    assert store.run(1).tasks[0].damage == ""
    damage("bad")
    (task,) = store.run(1).tasks
    assert (task.word, "were changed" in task.damage) == ("cancelled", True)
    with pytest.raises(Damaged, match="were changed"):
        assert task.terms


def test_what_is_delegated_beside_a_damaged_task_is_kept_apart_from_it_and_keeps_nothing_back(
    store: TaskStore, build: Any, damage: Any
) -> None:
    store.create_run(build.run("bad", "good", closed=False))
    claims = claimed(store)
    mend = damage("bad")
    new = NewChild(1, build.task("new", write_scope=["src/**"]))
    done = store.tick("w", Tick([build.submission(claims["good"])], delegations=[new], work=9))
    assert [outcome.state for outcome in done.submissions if isinstance(outcome, Done)] == ["submitted"]
    assert [outcome.repeated for outcome in done.delegations if isinstance(outcome, Delegated)] == [False]
    assert done.claims == []  # nobody knows what the damaged one, which is being worked on, may write
    mend()
    store.submit([build.submission(claims["bad"])])
    assert claimed(store, gate=0) == {}
    store.decide([build.verdict(claim) for claim in claimed(store).values()])
    assert claimed(store).keys() == {"new"}
