from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from contracts.errors import NotFound, StaleClaim, WrongState
from contracts.results import CheckOutcome
from contracts.states import Outcome, State
from coordinator.store import TaskStore
from coordinator.store.records import Claim, Done, HeadMoved


def snapshot(sql: Callable[..., list[Any]]) -> list[Any]:
    return [
        sql(f"SELECT * FROM {table} ORDER BY 1, 2")
        for table in ("task", "attempt", "request", "event", "orchestration")
    ]


def submitted(store: TaskStore, build: Any, *tasks: Any, **fields: Any) -> Claim:
    """Make a run, hand its first task in, and claim the judging."""
    store.create_run(build.run(*tasks, **fields))
    (claim,) = store.claim("w", work=1)
    assert store.submit([build.submission(claim)]) == [Done(State.SUBMITTED)]
    (gate,) = store.claim("g", work=0, gate=1)
    return gate


def again(store: TaskStore, build: Any, **fields: Any) -> Claim:
    (claim,) = store.claim("w", work=1)
    store.submit([build.submission(claim, **fields)])
    (gate,) = store.claim("g", work=0, gate=1)
    return gate


# -- repeating ---------------------------------------------------------------------------------------------------------


def test_a_repeated_submission_is_told_what_the_first_was(store: TaskStore, build: Any, sql: Any) -> None:
    store.create_run(build.run("one"))
    (claim,) = store.claim("w", work=1)
    first = store.submit([build.submission(claim)])
    before = snapshot(sql)

    assert store.submit([build.submission(claim)] * 2) == [Done(State.SUBMITTED, repeated=True)] * 2
    assert first == [Done(State.SUBMITTED)]
    assert snapshot(sql) == before
    store.decide([build.verdict(store.claim("g", work=0, gate=1)[0])])
    assert store.submit([build.submission(claim)]) == [Done(State.SUBMITTED, repeated=True)]


def test_another_result_of_the_same_generation_is_refused(store: TaskStore, build: Any, sql: Any) -> None:
    store.create_run(build.run("one"))
    (claim,) = store.claim("w", work=1)
    store.submit([build.submission(claim)])
    before = snapshot(sql)

    assert isinstance(store.submit([build.submission(claim, output="changed")])[0], StaleClaim)
    assert snapshot(sql) == before


@pytest.mark.parametrize("word", ["accepted", "rejected", "repair_required", "not_judged", "waiting"])
def test_a_repeated_decision_is_told_what_the_first_was_whatever_came_after(
    word: Any, store: TaskStore, build: Any, sql: Any
) -> None:
    gate = submitted(store, build)
    verdict = build.verdict(gate, word, reason="because")
    (first,) = store.decide([verdict])
    store.claim("later", work=1)  # a repair is running already
    before = snapshot(sql)

    (second,) = store.decide([verdict])

    assert isinstance(first, Done)
    assert second == Done(first.state, repeated=True, reason=first.reason)
    assert snapshot(sql) == before


@pytest.mark.parametrize("word", ["failed", "cancelled", "unknown", "no_result", "deadline", "released", "blocked"])
def test_a_repeated_ending_is_told_what_the_first_was_whatever_came_after(
    word: Any, store: TaskStore, build: Any, sql: Any
) -> None:
    store.create_run(build.run("one"))
    (claim,) = store.claim("w", work=1)
    ending = build.ending(claim, word)
    (first,) = store.end([ending])
    store.claim("later", work=1)
    before = snapshot(sql)

    assert first == Done(State.PENDING, reason="it broke")
    assert store.end([ending]) == [Done(State.PENDING, repeated=True, reason="it broke")]
    assert snapshot(sql) == before


def test_a_repeated_last_ending_says_failed_again(store: TaskStore, build: Any) -> None:
    store.create_run(build.run(build.task("one", limits={"max_claims": 1})))
    ending = build.ending(store.claim("w", work=1)[0])

    (first,) = store.end([ending])

    assert first.state is State.FAILED
    assert store.end([ending]) == [Done(State.FAILED, repeated=True, reason=first.reason)]


def test_a_judge_that_gives_back_twice_is_told_the_same(store: TaskStore, build: Any, sql: Any) -> None:
    gate = submitted(store, build)
    ending = build.ending(gate, "released", "stopping")
    store.end([ending])
    before = snapshot(sql)

    assert store.end([ending]) == [Done(State.SUBMITTED, repeated=True, reason="stopping")]
    assert snapshot(sql) == before
    assert sql("SELECT gate_tries FROM task") == [(0,)]


def test_a_repeated_answer_is_told_what_the_first_was(store: TaskStore, build: Any, sql: Any) -> None:
    store.create_run(build.run("one"))
    (claim,) = store.claim("w", work=1)
    store.end([build.ending(claim, "blocked", question=build.question())])
    (request,) = store.requests(1)
    first = store.answer(request.request_id, approved=True, message="blue")
    before = snapshot(sql)

    assert first == Done(State.PENDING)
    assert store.answer(request.request_id, approved=True, message="blue") == Done(State.PENDING, repeated=True)
    for approved, message in ((False, "blue"), (True, "green")):
        with pytest.raises(WrongState, match=r"answered already \(approved\)"):
            store.answer(request.request_id, approved=approved, message=message)
    assert snapshot(sql) == before
    with pytest.raises(NotFound, match="no request is called"):
        store.answer("nobody", approved=True)


def test_a_repeated_cancel_changes_nothing(store: TaskStore, build: Any, sql: Any) -> None:
    store.create_run(build.run("a", "b", "c"))
    assert store.cancel(1, 1) == 1
    before = snapshot(sql)
    assert store.cancel(1, 1) == 0
    assert snapshot(sql) == before
    assert store.cancel(1, reason="enough") == 2
    before = snapshot(sql)
    assert store.cancel(1, reason="enough") == 0
    assert snapshot(sql) == before


# -- late --------------------------------------------------------------------------------------------------------------


def late_events(store: TaskStore) -> list[Any]:
    return [event for event in store.events(1) if event.verb == "late_result"]


@pytest.mark.parametrize("how", ["lease over", "taken over", "cancelled"])
def test_a_late_result_is_kept_as_a_fact_and_changes_no_task(
    how: str, store: TaskStore, build: Any, sql: Any, expire: Any
) -> None:
    store.create_run(build.run("one"))
    (claim,) = store.claim("w", work=1)
    if how == "cancelled":
        store.cancel(1)
    else:
        expire(claim)
        if how == "taken over":
            assert store.claim("heir", work=1)
    before = sql("SELECT * FROM task")
    late = build.submission(claim, output={"late": True}, artifacts=[store.files.make_durable(b"bytes")])

    assert isinstance(store.submit([late])[0], StaleClaim)
    assert isinstance(store.submit([late])[0], StaleClaim)

    assert sql("SELECT * FROM task") == before
    store.claim("x", work=1)  # takes back the lease that is over
    attempt = store.run(1).tasks[0].attempts[0]
    assert attempt.manifest_digest == late.manifest.digest
    assert attempt.late
    assert attempt.ended_at is not None
    assert store.bytes_of(late.artifacts[0].digest) == b"bytes"
    (event,) = late_events(store)
    assert event.data == {"attempt": 1, "outcome": "completed", "manifest": late.manifest.digest, "late": True}


def test_the_deadline_bars_a_submission_and_the_result_stays_a_fact(
    sqlite_store: TaskStore, build: Any, clock: Any, sqlite_url: str
) -> None:
    store = sqlite_store
    store.create_run(build.run(build.task("one", limits={"deadline_s": 50})))
    (claim,) = store.claim("w", work=1)
    for _ in range(2):
        clock.forward(24.999999)
        assert isinstance(store.renew([claim])[0], int)
    clock.forward(0.000002)
    assert isinstance(store.renew([claim])[0], int)
    submission = build.submission(claim)

    (refused,) = store.submit([submission])
    assert isinstance(refused, StaleClaim)
    assert "its deadline of 50 s is over" in str(refused)
    assert store.end([build.ending(claim, "deadline", "over 50 s", stopped=False)]) == [
        Done(State.PENDING, reason="over 50 s")
    ]

    (attempt,) = store.run(1).tasks[0].attempts
    assert (attempt.ended, attempt.manifest_digest) == ("deadline", submission.manifest.digest)
    assert attempt.late
    assert len(late_events(store)) == 1


def test_a_stop_is_recorded_for_a_claim_that_was_cancelled_from_above(store: TaskStore, build: Any) -> None:
    store.create_run(build.run("a", "b"))
    a, b = store.claim("w", work=2)
    store.cancel(1, reason="not needed")
    assert [task.why for task in store.run(1).tasks] == [
        "not yet confirmed stopped: attempt 1 was told to stop and may still be running in w"
    ] * 2

    (found,) = store.end([build.ending(a, "cancelled", "was told to")])
    store.confirm_stopped([b, b])

    assert isinstance(found, StaleClaim)
    assert [(task.word, task.why) for task in store.run(1).tasks] == [("cancelled", "not needed")] * 2
    assert [event.verb for event in store.events(1)].count("stopped") == 2


# -- judging -----------------------------------------------------------------------------------------------------------


def test_repairs_are_limited_and_the_reason_is_kept(store: TaskStore, build: Any) -> None:
    gate = submitted(store, build, build.task("one", limits={"max_repairs": 2, "max_claims": 1}))
    for number in range(2):
        assert store.decide([build.verdict(gate, "repair_required")]) == [Done(State.PENDING)]
        assert store.run(1).tasks[0].why == f"attempt {number + 1} was sent back for repair"
        gate = again(store, build, output=number)

    (last,) = store.decide([build.verdict(gate, "repair_required", reason="Risks is missing")])

    assert last == Done(State.FAILED, reason="2 of 2 repairs used; Risks is missing")
    assert store.run(1).tasks[0].reason == last.reason


def test_a_repair_that_changed_nothing_ends_the_task(store: TaskStore, build: Any) -> None:
    gate = submitted(store, build)

    (found,) = store.decide([build.verdict(gate, "repair_required", no_progress=True, reason="same")])

    assert found.state is State.FAILED
    assert "no progress" in found.reason


def test_a_rejection_is_final(store: TaskStore, build: Any) -> None:
    gate = submitted(store, build)

    assert store.decide([build.verdict(gate, "rejected", reason="outside")]) == [Done(State.FAILED, reason="outside")]
    assert store.claim("w", work=5, gate=5) == []
    assert store.run_state(1) == "ended"


def test_a_result_not_judged_three_times_asks_a_person_once_and_a_dead_judge_is_one_of_the_three(
    store: TaskStore, build: Any, expire: Any
) -> None:
    gate = submitted(store, build)
    store.decide([build.verdict(gate, "not_judged", reason="a check erred")])
    (gate,) = store.claim("g", work=0, gate=1)
    expire(gate)
    (gate,) = store.claim("g", work=0, gate=1)
    assert store.requests(1) == []
    store.decide([build.verdict(gate, "not_judged", reason="erred again")])

    (request,) = store.requests(1)
    assert (request.kind, request.state) == ("not_judged", "open")
    assert "erred again" in request.question
    assert store.claim("g", work=5, gate=5) == []
    assert not store.due()
    task = store.run(1).tasks[0]
    assert (task.state, task.word, store.run(1).state) == ("submitted", "waiting", "waiting")

    assert store.answer(request.request_id, approved=True) == Done(State.SUBMITTED)
    for _ in range(3):
        (gate,) = store.claim("g", work=0, gate=1)
        expire(gate)
    assert store.claim("g", work=0, gate=1) == []
    _, second = store.requests(1)
    assert "lease of worker g ran out" in second.question
    assert store.answer(second.request_id, approved=False, message="give up") == Done(State.FAILED)
    task = store.run(1).tasks[0]
    assert (task.state, task.reason) == ("failed", "a person rejected it after it could not be judged: give up")
    assert store.run(1).state == "ended"


def test_tries_to_judge_are_counted_for_each_result(store: TaskStore, build: Any) -> None:
    gate = submitted(store, build)
    for _ in range(2):
        store.decide([build.verdict(gate, "not_judged")])
        (gate,) = store.claim("g", work=0, gate=1)
    store.decide([build.verdict(gate, "repair_required")])
    gate = again(store, build, output="better")
    store.decide([build.verdict(gate, "not_judged")])

    assert store.requests(1) == []
    assert len(store.claim("g", work=0, gate=1)) == 1


def test_a_result_whose_judge_died_is_judged_alone_so_that_it_takes_no_other_with_it(
    store: TaskStore, build: Any, expire: Any
) -> None:
    store.create_run(build.run("a", "b", "c"))
    store.submit([build.submission(claim) for claim in store.claim("w", work=2)])
    expire(*store.claim("g", work=0, gate=5))
    store.submit([build.submission(claim) for claim in store.claim("w", work=1)])

    assert [claim.task_id for claim in store.claim("g", work=0, gate=5)] == ["c"]
    assert [claim.task_id for claim in store.claim("g", work=0, gate=5)] == ["a"]
    assert [claim.task_id for claim in store.claim("g", work=0, gate=5)] == ["b"]


def test_a_judge_that_gives_back_is_no_try(store: TaskStore, build: Any) -> None:
    gate = submitted(store, build)
    for _ in range(5):
        store.end([build.ending(gate, "released", "stopping")])
        (gate,) = store.claim("g", work=0, gate=1)

    assert store.requests(1) == []
    assert store.decide([build.verdict(gate)]) == [Done(State.ACCEPTED)]


def test_a_decision_that_waits_for_a_person_is_made_again_after_the_answer(store: TaskStore, build: Any) -> None:
    gate = submitted(store, build)
    question = build.question("approve:1", "approval", "Publish it?")

    assert store.decide([build.verdict(gate, "waiting", questions=[question])]) == [Done(State.SUBMITTED)]
    assert store.claim("g", work=0, gate=1) == []
    (request,) = store.requests(1)
    store.answer(request.request_id, approved=False, message="no")
    (gate,) = store.claim("g", work=0, gate=1)

    # What was answered is not asked again.
    store.decide([build.verdict(gate, "waiting", questions=[question])])
    (request,) = store.requests(1)
    assert request.answer is not None
    assert (request.answer.approved, request.answer.message) == (False, "no")
    assert len(store.claim("g", work=0, gate=1)) == 1


def test_a_decision_on_a_head_that_moved_on_is_made_again(store: TaskStore, build: Any, sql: Any) -> None:
    gate = submitted(store, build, head="a" * 40)
    sql("UPDATE orchestration SET head = :head", head="b" * 40)

    assert store.decide([build.verdict(gate, head="a" * 40)]) == [HeadMoved(found="b" * 40, judged="a" * 40)]
    (gate,) = store.claim("g", work=0, gate=1)
    assert gate.head == "b" * 40
    assert store.decide([build.verdict(gate, head="b" * 40)]) == [Done(State.ACCEPTED)]


def test_a_decision_is_kept_with_its_checks_and_what_it_is_bound_to(store: TaskStore, build: Any, sql: Any) -> None:
    gate = submitted(store, build)
    check = CheckOutcome(check="sections", check_digest="sha256:c", subject_digest="sha256:s", outcome="errored")
    store.decide([build.verdict(gate, "not_judged", checks=[check])])
    (gate,) = store.claim("g", work=0, gate=1)
    passed = check.model_copy(update={"outcome": "passed"})
    verdict = build.verdict(gate, checks=[passed])
    store.decide([verdict])

    (attempt,) = store.run(1).tasks[0].attempts
    assert (attempt.decision, attempt.policy_version) == ("accepted", "policy-1")
    assert store.bytes_of(str(attempt.decision_digest)).startswith(b"{")
    assert sql("SELECT check_digest, outcome FROM check_run") == [("sha256:c", "passed")]


def test_hostile_text_is_kept_and_stops_nothing(store: TaskStore, build: Any) -> None:
    hostile = "nul \x00 half \udce9 esc \x1b[31m"
    store.create_run(build.run(build.task("one", limits={"max_claims": 1}), "two"))
    one, two = store.claim("w", work=2)

    outcomes = store.end([build.ending(one, "failed", hostile), build.ending(two, "blocked", hostile)])
    store.cancel(1, reason=hostile)

    assert [outcome.state for outcome in outcomes] == ["failed", "pending"]
    assert [task.state for task in store.run(1).tasks] == ["failed", "cancelled"]
    assert "nul \\u0000 half \\udce9" in str(store.run(1).tasks[0].reason)


# -- needs -------------------------------------------------------------------------------------------------------------


def test_a_need_is_met_by_accepted_and_by_partial_only_for_those_that_say_so(store: TaskStore, build: Any) -> None:
    tasks = [
        build.task("first"),
        build.task("strict", needs=["first"]),
        build.task("lenient", needs=[{"task": "first", "partial_ok": True}]),
        build.task("both", needs=["lenient", "strict"]),
    ]
    gate = submitted(store, build, *tasks)
    assert store.claim("w", work=9) == []
    store.decide([build.verdict(gate, partial=True)])

    assert [claim.task_id for claim in store.claim("w", work=9)] == ["lenient"]
    view = {task.task_id: task for task in store.run(1).tasks}
    assert (view["strict"].word, view["strict"].why) == ("blocked", "needs first (partial)")
    assert view["both"].why == "needs lenient (running), strict (pending)"


@pytest.mark.parametrize("end", ["rejected", "cancelled"])
def test_a_need_that_ends_otherwise_leaves_the_dependent_blocked_and_the_run_ended(
    end: Any, store: TaskStore, build: Any
) -> None:
    gate = submitted(store, build, "first", build.task("second", needs=["first"]))
    assert store.run_state(1) == "open"
    if end == "cancelled":
        store.cancel(1, 1)
    else:
        store.decide([build.verdict(gate, "rejected")])

    second = store.run(1).tasks[1]
    assert (second.state, second.word) == ("pending", "blocked")
    assert second.why == f"needs first ({'cancelled' if end == 'cancelled' else 'failed'})"
    assert store.run_state(1) == "ended"
    assert store.open_runs() == []
    assert not store.due()


def test_a_need_is_met_in_its_own_run_only(store: TaskStore, build: Any) -> None:
    for name in ("one", "two"):
        store.create_run(build.run("a", "b", build.task("c", needs=["a", "b"]), name=name))
    for key in ("a", "b"):
        (claim,) = [c for c in store.claim("w", work=1, runs=[1]) if c.task_id == key]
        store.submit([build.submission(claim)])
        store.decide([build.verdict(store.claim("g", work=0, gate=1)[0])])
    (claim,) = store.claim("w", work=1, runs=[2])
    store.submit([build.submission(claim)])
    store.decide([build.verdict(store.claim("g", work=0, gate=1)[0])])

    assert [task.ready for task in store.run(1).tasks] == [False, False, True]
    assert [task.ready for task in store.run(2).tasks] == [False, True, False]


def test_a_dependent_is_ready_when_the_last_of_its_needs_is_accepted(store: TaskStore, build: Any) -> None:
    store.create_run(build.run("a", "b", build.task("c", needs=["a", "b"])))
    store.submit([build.submission(claim) for claim in store.claim("w", work=2)])
    a, b = store.claim("g", work=0, gate=2)
    version = store.run(1).version
    store.decide([build.verdict(a)])
    assert store.claim("w", work=1) == []
    store.decide([build.verdict(b)])

    (claim,) = store.claim("w", work=1)
    assert (claim.task_id, claim.parent_state_version) == ("c", version + 2)


def test_a_blocked_child_waits_for_its_answer(store: TaskStore, build: Any) -> None:
    store.create_run(build.run("one"))
    (claim,) = store.claim("w", work=1)
    question = build.question(f"input:{claim.attempt_row}")
    ending = build.ending(
        claim, "blocked", "which?", question=question, manifest=build.manifest(claim, outcome=Outcome.BLOCKED)
    )
    store.end([ending, ending])

    (request,) = store.requests(1)
    assert request.request_id == "run-q1"
    assert store.run_state(1) == "waiting"
    assert not store.due()
    store.answer("run-q1", approved=True, message="this one")
    assert [claim.generation for claim in store.claim("w", work=1)] == [2]


def test_requests_of_a_task_that_ends_are_void(store: TaskStore, build: Any) -> None:
    store.create_run(build.run("one"))
    (claim,) = store.claim("w", work=1)
    store.end([build.ending(claim, "blocked", question=build.question())])
    store.cancel(1)

    assert [request.state for request in store.requests(1)] == ["void"]
    with pytest.raises(WrongState, match="void: what it asked about has ended"):
        store.answer("run-q1", approved=True)


def test_where_many_deaths_are_allowed_for_judges_may_die_as_often(store: TaskStore, build: Any, expire: Any) -> None:
    store.create_run(build.run(build.task("one", limits={"max_claims": 5})))
    store.submit([build.submission(claim) for claim in store.claim("w", work=1)])
    for _ in range(4):
        expire(*store.claim("g", work=0, gate=1))
    (gate,) = store.claim("g", work=0, gate=1)
    assert store.requests(1) == []
    expire(gate)

    assert store.claim("g", work=0, gate=1) == []
    (request,) = store.requests(1)
    assert "in 5 tries" in request.question
