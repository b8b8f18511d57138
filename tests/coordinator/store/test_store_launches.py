from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from contracts.errors import NotFound, Refused, StaleClaim, WrongState
from contracts.states import FINAL_STATES, State
from coordinator.store import TaskStore, Tick, launching
from coordinator.store.records import Done, NewChild


def together(*calls: Callable[[], Any]) -> list[Any]:
    """What each call returns or raises, all started at once."""
    barrier = threading.Barrier(len(calls))
    found: list[Any] = [None] * len(calls)

    def run(number: int, call: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            found[number] = call()
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def amend(store: TaskStore, build: Any, *replaced: Any, run: int = 1, **change: Any) -> int:
    values = {
        "expected_version": store.run(run).orchestration_version, "document": build.run().document,
        "authored_digest": "x", "head": None, "removed": [], "overlaps": [], "files": [], **change,
    }  # fmt: skip
    return store.amend(run, replaced=replaced, **values)


# -- runs --------------------------------------------------------------------------------------------------------------


def test_programs_that_create_the_same_run_at_once_make_one(store: TaskStore, build: Any) -> None:
    for number in range(10):
        new = build.run("a", "b", name=f"same-{number}")
        found = together(*[lambda new=new: store.create_run(new)] * 4)
        assert sorted(found, key=str) == [None, None, None, new.name]


def test_runs_beside_open_ones_get_the_next_name(store: TaskStore, build: Any) -> None:
    found = together(*[lambda: store.create_run(build.run("a"), beside_open=True)] * 4)

    assert sorted(found) == ["run", "run-2", "run-3", "run-4"]
    assert store.create_run(build.run("a", name="run-2")) == "run-2-2"
    assert store.newest_run("run") == store.find_run("run-4")
    assert store.find_run("run") != store.find_run("run-4")
    with pytest.raises(NotFound, match="fits several runs: run, run-2"):
        store.find_run("ru")


def test_an_ended_run_is_followed_by_a_new_one(store: TaskStore, build: Any) -> None:
    assert store.create_run(build.run()) == "run"
    assert store.create_run(build.run()) is None
    store.cancel(1)
    assert store.create_run(build.run()) == "run-2"


def test_a_run_that_takes_children_is_open_until_it_is_closed(store: TaskStore, build: Any) -> None:
    store.create_run(build.run("a", closed=False))
    gate_and_accept(store, build)
    assert store.run_state(1) == "open"
    store.close_run(1)
    assert store.run_state(1) == "ended"
    assert store.run(1).ok


def gate_and_accept(store: TaskStore, build: Any) -> None:
    store.submit([build.submission(claim) for claim in store.claim("w", work=9)])
    store.decide([build.verdict(gate) for gate in store.claim("g", work=0, gate=9)])


def test_a_run_that_takes_children_can_be_cancelled_without_any(store: TaskStore, build: Any) -> None:
    store.create_run(build.run("a", closed=False))
    gate_and_accept(store, build)

    assert store.cancel(1) == 0
    assert store.run_state(1) == "ended"
    with pytest.raises(WrongState, match="it is cancelled"):
        store.delegate(1, [build.task("late")])


def test_ids_are_random(store: TaskStore, build: Any) -> None:
    for name in ("one", "two"):
        store.create_run(build.run("a", "b", name=name))
    claims = store.claim("w", work=4)

    assert len({claim.token for claim in claims}) == 4
    assert len({claim.child_run_id for claim in claims}) == 4
    assert all(len(claim.token) == 32 for claim in claims)


def test_equal_times_do_not_matter(sqlite_store: TaskStore, build: Any) -> None:
    """The clock stands still: order and versions come from counters alone."""
    store = sqlite_store
    for name in ("one", "two"):
        store.create_run(build.run("a", build.task("b", needs=["a"]), name=name))
    for _ in range(2):
        gate_and_accept(store, build)

    assert store.run(store.newest_run() or 0).run_id == "two"
    for run in (1, 2):
        events = store.events(run)
        assert len({event.at for event in events}) == 1
        assert [event.number for event in events] == sorted(event.number for event in events)
        assert [event.verb for event in events[-4:]] == ["claimed", "submitted", "gate_claimed", "accepted"]
        assert store.run(run).ok


# -- cancel ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["pending", "running", "submitted", "judged"])
def test_cancel_and_what_it_crosses_leave_one_final_state(moment: str, store: TaskStore, build: Any) -> None:
    """In both orders and at once, 200 rounds over the moments and databases."""
    for number in range(26):
        store.create_run(build.run("one", name=f"{moment}-{number}"))
        run = store.newest_run() or 0
        other: Callable[[], Any] = partial(store.claim, "w", work=1, runs=[run])
        if moment != "pending":
            (claim,) = store.claim("w", work=1, runs=[run])
            other = partial(store.submit, [build.submission(claim)])
        if moment in ("submitted", "judged"):
            other()
            other = partial(store.claim, "g", work=0, gate=1, runs=[run])
        if moment == "judged":
            (gate,) = other()
            other = partial(store.decide, [build.verdict(gate)])

        def cancel(run: int = run) -> Any:
            return store.cancel(run)

        if number % 3 == 0:
            cancelled, crossed = cancel(), other()
        elif number % 3 == 1:
            crossed = other()
            try:
                cancelled = cancel()
            except WrongState as error:
                cancelled = error
        else:
            cancelled, crossed = together(cancel, other)

        (task,) = store.run(run).tasks
        verbs = [event.verb for event in store.events(run)]
        if moment == "judged":
            accepted = isinstance(crossed[0], Done)
            assert isinstance(crossed[0], (Done, StaleClaim))
            assert isinstance(cancelled, WrongState) == accepted
            assert task.state == (State.ACCEPTED if accepted else State.CANCELLED)
            assert ("accepted" in verbs) != ("cancelled" in verbs)
        else:
            assert cancelled == 1
            assert task.state is State.CANCELLED
            assert verbs.count("cancelled") == 1
        assert task.owner is None
        # A final state is not left by anything that comes after.
        if moment in ("running", "judged"):
            held = gate if moment == "judged" else claim
            assert isinstance(store.renew([held])[0], StaleClaim)
        assert store.claim("w", work=1, gate=1, runs=[run]) == []
        assert store.state_of(task.row) is task.state


def test_cancelling_a_run_reaches_every_descendant(store: TaskStore, build: Any) -> None:
    store.create_run(build.run("top", "beside"))
    (top, _) = store.claim("w", work=2)
    store.delegate(1, [build.task("kid")], parent=top)
    (kid,) = store.claim("w", work=1)
    store.delegate(1, [build.task("grandkid"), build.task("other")], parent=kid)
    (grandkid,) = store.claim("w", work=1)

    assert store.cancel(1, top.task_row, reason="enough") == 4
    view = {task.task_id: task for task in store.run(1).tasks}
    assert {key: task.state for key, task in view.items()} == {
        "top": "cancelled", "kid": "cancelled", "grandkid": "cancelled", "other": "cancelled", "beside": "running",
    }  # fmt: skip
    assert {view[key].reason for key in ("top", "kid", "grandkid")} == {"enough"}
    assert [type(found) for found in store.renew([top, kid, grandkid])] == [StaleClaim] * 3


@pytest.mark.parametrize("end", ["failed", "accepted", "rejected"])
def test_children_end_with_their_parents_row_and_not_with_one_attempt(end: str, store: TaskStore, build: Any) -> None:
    store.create_run(build.run(build.task("top", limits={"max_claims": 2})))
    (top,) = store.claim("w", work=1)
    store.delegate(1, [build.task("kid")], parent=top)
    (kid,) = store.claim("w", work=1)
    store.end([build.ending(top, "failed")])
    assert isinstance(store.renew([kid])[0], int)
    (top,) = store.claim("w", work=1)
    (same,) = store.delegate(1, [build.task("kid")], parent=top)
    assert same.repeated

    if end == "failed":
        store.end([build.ending(top, "failed")])
    else:
        store.submit([build.submission(top)])
        (gate,) = store.claim("g", work=0, gate=1)
        store.decide([build.verdict(gate, end)])

    kid_now = store.run(1).tasks[1]
    assert (kid_now.state, kid_now.reason) == (
        "cancelled", f"its parent is {'accepted' if end == 'accepted' else 'failed'}"
    )  # fmt: skip
    assert isinstance(store.submit([build.submission(kid)])[0], StaleClaim)


def test_it_is_too_late_to_cancel_what_has_ended(store: TaskStore, build: Any) -> None:
    store.create_run(build.run())
    gate_and_accept(store, build)

    with pytest.raises(WrongState, match="too late to cancel one: found state accepted"):
        store.cancel(1, 1)
    with pytest.raises(WrongState, match="every task of the run has ended"):
        store.cancel(1)
    assert store.run(1).cancelled_at is None


# -- delegation --------------------------------------------------------------------------------------------------------


def test_the_same_delegation_is_the_same_child_and_other_terms_are_refused(
    store: TaskStore, build: Any, sql: Any
) -> None:
    store.create_run(build.run(closed=False))
    first = store.delegate(1, [build.task("kid")])
    before = sql("SELECT * FROM task")

    assert [item.repeated for item in first + store.delegate(1, [build.task("kid")])] == [False, True]
    with pytest.raises(Refused, match="issued with other terms"):
        store.delegate(1, [build.task("kid", objective="Another.")])
    with pytest.raises(Refused, match="task id 'kid' is in use"):
        store.delegate(1, [build.task("kid", delegation_id="d-2")])
    assert sql("SELECT * FROM task") == before
    store.close_run(1)
    with pytest.raises(WrongState, match="it is closed"):
        store.delegate(1, [build.task("late")])


def test_a_tick_brings_what_programs_delegate_each_with_an_outcome_and_claims_it(
    store: TaskStore, build: Any, sql: Any
) -> None:
    for name in ("open", "shut"):
        store.create_run(build.run("one", name=name, closed=False))
    store.close_run(2)
    (first,) = store.claim("w", work=1, runs=[1])
    new = [
        NewChild(run, task)
        for run, task in (
            (1, build.task("kid")), (2, build.task("late")), (1, build.task("one", delegation_id="d-2")),
            (1, build.task("kid")),
            (1, build.task("kid", objective="Another.")), (1, build.task("second")),
        )
    ]  # fmt: skip

    outcome = store.tick("w", Tick([build.submission(first)], delegations=new, work=9), runs=[1])

    assert outcome.submissions == [Done(State.SUBMITTED)]
    assert [isinstance(made, Refused) or made.repeated for made in outcome.delegations] == [
        False, True, True, True, True, False,
    ]  # fmt: skip
    closed, taken, again, other = outcome.delegations[1:5]
    assert isinstance(closed, WrongState)
    assert "it is closed" in str(closed)
    assert "in use in this run" in str(taken)
    assert again == replace(outcome.delegations[0], repeated=True)
    assert "issued with other terms" in str(other)
    assert [claim.task_id for claim in outcome.claims] == ["kid", "second"]
    assert sql("SELECT key FROM task ORDER BY id") == [("one",), ("one",), ("kid",), ("second",)]


def test_a_child_may_delegate_in_a_run_to_which_no_program_adds(store: TaskStore, build: Any) -> None:
    store.create_run(build.run(closed=True))
    (claim,) = store.claim("w", work=1)

    assert not store.delegate(1, [build.task("kid")], parent=claim)[0].repeated
    assert store.run(1).tasks[1].parent_task_id == "one"


def test_programs_that_delegate_the_same_child_at_once_make_one(store: TaskStore, build: Any, sql: Any) -> None:
    store.create_run(build.run(closed=False))

    found = together(*[lambda: store.delegate(1, [build.task("kid")])[0].repeated] * 4)

    assert sorted(found) == [False, True, True, True]
    assert sql("SELECT count(*) FROM task") == [(2,)]


def test_no_child_is_born_under_a_parent_that_is_cancelled_meanwhile(store: TaskStore, build: Any, sql: Any) -> None:
    for number in range(20):
        store.create_run(build.run("top", name=f"r{number}"))
        run = store.newest_run() or 0
        (top,) = store.claim("w", work=1, runs=[run])

        def delegate(run: int = run, top: Any = top) -> Any:
            return [store.delegate(run, [build.task(f"kid{n}")], parent=top) for n in range(3)]

        together(delegate, lambda run=run, top=top: store.cancel(run, top.task_row))

    orphans = sql(
        "SELECT count(*) FROM task AS child JOIN task AS parent ON parent.id = child.parent_id"
        " WHERE parent.state = 'cancelled' AND child.state <> 'cancelled'"
    )
    assert orphans == [(0,)]
    assert sql("SELECT count(*) FROM task WHERE key = 'top' AND state <> 'cancelled'") == [(0,)]


def test_no_child_is_born_under_a_parent_that_fails_meanwhile(
    postgres_store: TaskStore, build: Any, postgres_url: str, sql: Any
) -> None:
    """The delegation holds the parent's row: its end waits, and then takes the child along."""
    postgres_store.create_run(build.run(build.task("top", limits={"max_claims": 1})))
    (top,) = postgres_store.claim("w", work=1)
    ended: list[Any] = []
    thread = threading.Thread(target=lambda: ended.extend(postgres_store.end([build.ending(top)])))

    def delegate_slowly(tx: Any) -> None:
        launching.delegate(tx, 1, [build.task("kid")], parent=top, files=[])
        thread.start()
        thread.join(0.5)
        assert ended == []

    postgres_store._db.write(delegate_slowly)
    thread.join()

    assert ended[0].state is State.FAILED
    assert sql("SELECT key, state FROM task ORDER BY id") == [("top", "failed"), ("kid", "cancelled")]


# -- new versions ------------------------------------------------------------------------------------------------------


def test_a_new_version_supersedes_open_rows_and_leaves_accepted_ones_final(
    store: TaskStore, build: Any, sql: Any
) -> None:
    store.create_run(build.run("a", "b", "c", "d", build.task("e", needs=["a"])))
    a, b, _ = store.claim("w", work=3)
    store.submit([build.submission(a)])
    store.decide([build.verdict(gate) for gate in store.claim("g", work=0, gate=1)])
    store.delegate(1, [build.task("kid")], parent=b)
    assert amend(store, build, build.task("b", version=2), build.task("a", version=2), removed=["d"]) == 2

    history = {(task.task_id, task.contract_version): task for task in store.run(1, superseded=True).tasks}
    assert {key: (task.state, task.is_current) for key, task in history.items()} == {
        ("a", 1): ("accepted", False), ("a", 2): ("pending", True),
        ("b", 1): ("superseded", False), ("b", 2): ("pending", True),
        ("c", 1): ("running", True), ("d", 1): ("superseded", False),
        ("e", 1): ("pending", True), ("kid", 1): ("cancelled", False),
    }  # fmt: skip
    assert isinstance(store.submit([build.submission(b)])[0], StaleClaim)
    assert not history["e", 1].ready  # what it needs is to be done again
    claims = store.claim("w", work=9)
    assert [(claim.task_id, claim.terms.contract_version) for claim in claims] == [("b", 2), ("a", 2)]
    # The ids of its children are free for the new contract version of the parent.
    (kid,) = store.delegate(1, [build.task("kid", version=2)], parent=claims[0])
    assert not kid.repeated
    with pytest.raises(Refused, match="task id 'kid' is in use"):
        amend(store, build, build.task("kid", version=3))


def test_a_lost_task_waits_again_for_what_was_replaced_meanwhile(
    store: TaskStore, build: Any, expire: Callable[..., None]
) -> None:
    store.create_run(build.run("a", build.task("b", needs=["a"])))
    gate_and_accept(store, build)
    (claim,) = store.claim("w", work=1)
    amend(store, build, build.task("a", version=2))
    assert isinstance(store.renew([claim])[0], int)
    expire(claim)

    assert [claim.task_id for claim in store.claim("w", work=9)] == ["a"]


def test_of_two_amendments_at_once_one_wins(store: TaskStore, build: Any, sql: Any) -> None:
    for number in range(10):
        store.create_run(build.run("a", "b", name=f"r{number}"))
        run = store.newest_run() or 0
        found = together(
            *[
                lambda run=run: amend(store, build, build.task("a", version=2), run=run, expected_version=1)
            ] * 3
        )  # fmt: skip
        assert sorted(map(str, found))[0] == "2"
        assert [type(item) for item in found].count(WrongState) == 2
        assert [task.contract_version for task in store.run(run).tasks] == [1, 2]
    assert sql("SELECT count(*) FROM task WHERE state = 'superseded'") == [(10,)]


def test_amend_crossing_a_submission_loses_nothing(store: TaskStore, build: Any) -> None:
    for number in range(15):
        store.create_run(build.run("a", name=f"r{number}"))
        run = store.newest_run() or 0
        (claim,) = store.claim("w", work=1, runs=[run])
        submission = build.submission(claim)
        version, outcome = together(
            lambda run=run: amend(store, build, build.task("a", version=2), run=run),
            lambda submission=submission: store.submit([submission])[0],
        )

        assert version == 2
        assert isinstance(outcome, (Done, StaleClaim))
        old, new = store.run(run, superseded=True).tasks
        assert (old.state, new.state) == ("superseded", "pending")
        assert old.attempts[0].manifest_digest == submission.manifest.digest
        store.cancel(run)


def test_overlaps_follow_a_new_version(store: TaskStore, build: Any) -> None:
    store.create_run(build.run("a", "b", "c", overlaps=[("a", "b")]))
    amend(store, build, build.task("b", version=2), overlaps=[("b", "c")])

    claims = store.claim("w", work=9)
    assert [claim.task_id for claim in claims] == ["a", "c"]
    assert [claim.task_id for claim in claims if claim.task_id == "b"] == []


def test_final_states_are_what_the_contract_says(store: TaskStore, build: Any) -> None:
    store.create_run(build.run(*"abcde"))
    claims: Sequence[Any] = store.claim("w", work=3)
    store.submit([build.submission(claim) for claim in claims])
    gates = store.claim("g", work=0, gate=3)
    store.decide([build.verdict(gates[0]), build.verdict(gates[1], partial=True), build.verdict(gates[2], "rejected")])
    amend(store, build, removed=["d"])
    store.cancel(1)

    found = {task.state for task in store.run(1, superseded=True).tasks}
    assert found == FINAL_STATES
