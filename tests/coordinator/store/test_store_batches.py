"""Many at once: what is said twice, what is stale among others, and claims whose answer was lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from contracts.errors import StaleClaim
from contracts.states import State
from coordinator.store import TaskStore, Tick
from coordinator.store.database import AT_ONCE_MAX, Blob
from coordinator.store.records import Done, HeadMoved


def test_a_verdict_said_twice_in_one_call_is_told_the_same_twice(store: TaskStore, build: Any) -> None:
    store.create_run(build.run("a"))
    store.submit([build.submission(store.claim("w", work=1)[0])])
    verdict = build.verdict(store.claim("w", work=0, gate=1)[0])

    first, second = store.decide([verdict, verdict])

    assert first == Done(State.ACCEPTED)
    assert second == Done(State.ACCEPTED, repeated=True)
    assert [event.verb for event in store.events(1)].count("accepted") == 1


def test_a_result_and_an_ending_said_twice_in_one_call_are_told_the_same_twice(store: TaskStore, build: Any) -> None:
    store.create_run(build.run("a", "b"))
    a, b = store.claim("w", work=2)
    result, ending = build.submission(a), build.ending(b)

    assert store.submit([result, result]) == [Done(State.SUBMITTED), Done(State.SUBMITTED, repeated=True)]
    first, second = store.end([ending, ending])
    assert isinstance(first, Done)
    assert isinstance(second, Done)
    assert second.repeated
    verbs = [event.verb for event in store.events(1)]
    assert (verbs.count("submitted"), verbs.count("ended")) == (1, 1)


def test_one_that_is_stale_fails_alone_and_the_others_of_its_batch_are_accepted(store: TaskStore, build: Any) -> None:
    store.create_run(build.run("a", "b", "c"))
    store.submit([build.submission(claim) for claim in store.claim("w", work=3)])
    a, b, c = store.claim("w", work=0, gate=3)
    store.cancel(1, b.task_row)

    outcomes = store.decide([build.verdict(claim) for claim in (a, b, c)])

    assert [type(outcome) for outcome in outcomes] == [Done, StaleClaim, Done]
    assert [task.state for task in store.run(1).tasks] == [State.ACCEPTED, State.CANCELLED, State.ACCEPTED]
    verbs = [event.verb for event in store.events(1)]
    assert (verbs.count("accepted"), verbs.count("cancelled")) == (2, 1)


def test_a_decision_that_came_too_late_for_the_head_is_told_so_again(store: TaskStore, build: Any) -> None:
    store.create_run(build.run("a", head="1" * 40))
    store.submit([build.submission(store.claim("w", work=1)[0])])
    verdict = build.verdict(store.claim("w", work=0, gate=1)[0], head="2" * 40)

    first, again = store.decide([verdict])[0], store.decide([verdict])[0]

    assert isinstance(first, HeadMoved)
    assert again == first


def test_a_judgement_is_told_its_first_answer_also_after_a_later_one(store: TaskStore, build: Any) -> None:
    store.create_run(build.run("a"))
    store.submit([build.submission(store.claim("w", work=1)[0])])
    early = build.verdict(store.claim("w", work=0, gate=1)[0], "not_judged", reason="away")
    store.decide([early])
    store.decide([build.verdict(store.claim("w", work=0, gate=1)[0])])

    assert store.decide([early]) == [Done(State.SUBMITTED, repeated=True, reason="away")]
    assert store.run(1).tasks[0].state is State.ACCEPTED


def test_bytes_that_were_a_file_and_are_a_document_too_can_be_read_as_one(store: TaskStore, build: Any) -> None:
    store.create_run(build.run("a", "b"))
    a, b = store.claim("w", work=2)
    manifest = build.manifest(b, output="x" * 40_000)
    document = Blob.of(manifest.canonical())
    in_file = Blob(document.digest, document.size_bytes, None)

    store.tick("w", Tick([build.submission(a, artifacts=[in_file])], [build.ending(b, manifest=manifest)]))

    assert store.bytes_of(document.digest) == document.data


def test_claims_whose_answer_was_lost_come_back_at_once_and_are_no_try(store: TaskStore, build: Any) -> None:
    few = {"max_claims": 1}
    store.create_run(build.run(build.task("a", limits=few), build.task("b", limits=few)))
    known, _lost = store.claim("w", work=2)

    won = store.tick("w", Tick(held=[known.token], work=2)).claims

    assert [claim.task_id for claim in won] == ["b"]
    assert won[0].attempt == 2
    assert isinstance(store.submit([build.submission(known)])[0], Done)
    assert isinstance(store.submit([build.submission(won[0])])[0], Done)


def test_a_claim_to_judge_whose_answer_was_lost_comes_back_and_is_no_try(
    store: TaskStore, build: Any, sql: Callable[..., Any]
) -> None:
    store.create_run(build.run("a"))
    store.submit([build.submission(store.claim("w", work=1)[0])])
    store.claim("w", work=0, gate=1)

    won = store.tick("w", Tick(held=[], gate=1)).claims

    assert sql("SELECT gate_tries FROM task")[0][0] == 1
    assert isinstance(store.decide([build.verdict(won[0])])[0], Done)


def test_another_workers_claims_are_not_given_back(store: TaskStore, build: Any) -> None:
    store.create_run(build.run("a"))
    (claim,) = store.claim("other", work=1)

    assert store.tick("w", Tick(held=[], work=1)).claims == []
    assert isinstance(store.submit([build.submission(claim)])[0], Done)


def test_more_tasks_than_a_statement_may_name_are_cancelled_in_one_go(store: TaskStore, build: Any) -> None:
    count = 2 * AT_ONCE_MAX + 1
    store.create_run(build.run(*(f"t{number}" for number in range(count))))

    assert store.cancel(1, reason="enough") == count
    assert store.counts(1) == {"cancelled": count}
    assert [event.verb for event in store.events(1)].count("cancelled") == count
