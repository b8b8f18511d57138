from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from contracts.errors import StaleClaim
from contracts.states import State
from coordinator.store import TaskStore, Tick
from coordinator.store.claiming import reap
from coordinator.store.database import parse_url
from coordinator.store.records import Claim, Done


def only(store: TaskStore, run: int = 1) -> Any:
    (task,) = store.run(run).tasks
    return task


def snapshot(sql: Callable[..., list[Any]]) -> list[Any]:
    return [
        sql(f"SELECT * FROM {table} ORDER BY 1, 2")
        for table in ("task", "attempt", "request", "event", "orchestration")
    ]


def race(url: str, folder: Path, processes: int, what: str) -> list[list[Any]]:
    program = str(Path(__file__).parent / "racer.py")
    done = subprocess.run(
        [sys.executable, program, url, str(folder), str(processes), what], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert None not in found, done.stderr
    return found


# -- winning -----------------------------------------------------------------------------------------------------------


def test_one_of_eight_threads_wins_each_task(store: TaskStore, build: Any) -> None:
    store.create_run(build.run(*(f"t{n}" for n in range(20))))
    barrier, won, failed = threading.Barrier(8), [], []

    def take(name: str) -> None:
        try:
            barrier.wait()
            while claims := store.claim(name, work=3):
                won.extend(claims)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=take, args=(f"w{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failed == []
    assert Counter(claim.task_id for claim in won) == Counter({f"t{n}": 1 for n in range(20)})
    assert {claim.generation for claim in won} == {1}
    assert len({claim.token for claim in won}) == len({claim.child_run_id for claim in won}) == 20


def test_one_of_sixteen_processes_wins_each_task(
    store: TaskStore, build: Any, database_url: str, tmp_path: Path
) -> None:
    store.create_run(build.run(*(f"t{n}" for n in range(5))))

    won = [tuple(item) for one in race(database_url, tmp_path, 16, "claim_one") for item in one]

    assert sorted(task for task, _, _ in won) == [f"t{n}" for n in range(5)]
    assert {(task.task_id, task.generation, task.state) for task in store.run(1).tasks} == {
        (f"t{n}", 1, State.RUNNING) for n in range(5)
    }


def test_a_claim_takes_as_much_as_is_asked_and_judging_apart_from_work(store: TaskStore, build: Any) -> None:
    store.create_run(build.run("a", "b", "c"))

    first = store.claim("w", work=2)
    store.submit([build.submission(first[0])])
    both = store.claim("w", work=5, gate=5)

    assert [claim.task_id for claim in first] == ["a", "b"]
    assert [(claim.task_id, claim.kind) for claim in both] == [("a", "gate"), ("c", "work")]
    assert both[0].manifest_digest == build.manifest(first[0]).digest
    assert both[0].generation_submitted == 1
    assert (both[0].attempt_row, both[0].child_run_id) == (first[0].attempt_row, first[0].child_run_id)
    assert store.claim("w", work=5, gate=5) == []


def test_claims_keep_to_the_runs_that_are_asked_for(store: TaskStore, build: Any) -> None:
    store.create_run(build.run("a", name="one"))
    store.create_run(build.run("b", name="two"))

    assert not store.due(runs=[])
    assert [claim.task_id for claim in store.claim("w", work=5, runs=[2])] == ["b"]
    assert store.due(runs=[1])
    assert not store.due(runs=[2])


def test_the_generation_only_grows_over_work_and_gating(store: TaskStore, build: Any) -> None:
    store.create_run(build.run(build.task("one", limits={"max_claims": 10})))
    generations = []
    for word in ("failed", "released", "no_result"):
        (claim,) = store.claim("w", work=1)
        generations.append(claim.generation)
        store.end([build.ending(claim, word)])
    (claim,) = store.claim("w", work=1)
    store.submit([build.submission(claim)])
    for word in ("not_judged", "waiting", "repair_required"):
        (gate,) = store.claim("w", work=0, gate=1)
        generations += [gate.generation]
        store.decide([build.verdict(gate, word)])
    (claim,) = store.claim("w", work=1)

    assert [*generations, claim.generation] == [1, 2, 3, 5, 6, 7, 8]
    assert claim.attempt == 5


# -- authority ---------------------------------------------------------------------------------------------------------

ACTS: dict[str, Callable[[TaskStore, Any, Claim], Any]] = {
    "renew": lambda store, build, claim: store.renew([claim])[0],
    "submit": lambda store, build, claim: store.submit([build.submission(claim)])[0],
    "end": lambda store, build, claim: store.end([build.ending(claim)])[0],
    "delegate": lambda store, build, claim: store.delegate(claim.orchestration_row, [build.task("kid")], parent=claim),
}
LOSSES = ["generation", "token", "lease", "cancelled", "superseded", "ancestor cancelled", "ancestor superseded"]


def lose(how: str, store: TaskStore, build: Any, claim: Claim, expire: Callable[..., None]) -> Claim:
    change = {
        "expected_version": 1, "document": build.run().document, "authored_digest": "x", "removed": [], "overlaps": [],
        "files": [], "head": None,
    }  # fmt: skip
    if how == "generation":
        return replace(claim, generation=claim.generation + 1)
    if how == "token":
        return replace(claim, token="0" * 32)
    if how == "lease":
        expire(claim)
    elif how in ("cancelled", "ancestor cancelled"):
        store.cancel(1, 1)
    else:
        store.amend(1, replaced=[build.task("one", version=2)], **change)
    return claim


@pytest.mark.parametrize("how", LOSSES)
@pytest.mark.parametrize("act", ACTS)
def test_a_claim_without_authority_is_stale(
    how: str, act: str, store: TaskStore, build: Any, sql: Any, expire: Callable[..., None]
) -> None:
    store.create_run(build.run("one"))
    (claim,) = store.claim("w", work=1)
    if how.startswith("ancestor"):
        store.delegate(1, [build.task("child")], parent=claim)
        (claim,) = store.claim("w", work=1)
        assert claim.task_id == "child"
    claim = lose(how, store, build, claim, expire)
    before = sql("SELECT * FROM task ORDER BY id")

    if act == "delegate":
        with pytest.raises(StaleClaim):
            ACTS[act](store, build, claim)
    else:
        found = ACTS[act](store, build, claim)
        assert isinstance(found, StaleClaim), found
        assert "found state" in str(found)

    assert sql("SELECT * FROM task ORDER BY id") == before


@pytest.mark.parametrize("how", ["generation", "token", "lease", "cancelled", "superseded"])
@pytest.mark.parametrize("act", ["renew", "decide", "end"])
def test_a_gating_claim_without_authority_is_stale(
    how: str, act: str, store: TaskStore, build: Any, sql: Any, expire: Callable[..., None]
) -> None:
    store.create_run(build.run("one"))
    store.submit([build.submission(store.claim("w", work=1)[0])])
    (gate,) = store.claim("g", work=0, gate=1)
    gate = lose(how, store, build, gate, expire)
    before = snapshot(sql)

    act_on = {
        "renew": lambda: store.renew([gate]),
        "decide": lambda: store.decide([build.verdict(gate)]),
        "end": lambda: store.end([build.ending(gate, "released")]),
    }
    (found,) = act_on[act]()

    assert isinstance(found, StaleClaim), found
    assert snapshot(sql) == before


def test_a_lease_that_ends_now_is_over(sqlite_store: TaskStore, build: Any, clock: Any) -> None:
    sqlite_store.create_run(build.run("one", "two"))
    one, two = sqlite_store.claim("w", work=2)

    clock.forward(29.999999)
    assert isinstance(sqlite_store.submit([build.submission(one)])[0], Done)
    assert sqlite_store.claim("thief", work=5) == []
    clock.forward(0.000001)
    assert isinstance(sqlite_store.submit([build.submission(two)])[0], StaleClaim)
    assert [claim.task_id for claim in sqlite_store.claim("heir", work=5)] == ["two"]


def test_stale_items_fail_alone_and_the_others_commit(
    store: TaskStore, build: Any, expire: Callable[..., None]
) -> None:
    store.create_run(build.run(*"abcdefgh"))
    claims = store.claim("w", work=8)
    store.submit([build.submission(claim) for claim in claims[5:]])
    gates = store.claim("w", work=0, gate=3)
    expire(claims[1], gates[1])
    a, b, c, d, e = claims[:5]

    renewed = store.renew([a, b, d])
    outcome = store.tick(
        "w",
        Tick(
            submissions=[build.submission(claim) for claim in (a, b, c)],
            endings=[build.ending(replace(d, token="no")), build.ending(e)],
            verdicts=[build.verdict(gate) for gate in gates],
        ),
    )

    assert [type(item) for item in renewed] == [int, StaleClaim, int]
    assert [type(item) for item in outcome.submissions] == [Done, StaleClaim, Done]
    assert [type(item) for item in outcome.endings] == [StaleClaim, Done]
    assert [type(item) for item in outcome.verdicts] == [Done, StaleClaim, Done]
    assert [task.state for task in store.run(1).tasks] == [
        "submitted", "running", "submitted", "running", "pending", "accepted", "submitted", "accepted",
    ]  # fmt: skip


def test_a_worker_of_the_same_name_but_an_older_generation_has_no_say(
    store: TaskStore, build: Any, expire: Callable[..., None]
) -> None:
    store.create_run(build.run("one"))
    (old,) = store.claim("w0", work=1)
    expire(old)
    (new,) = store.claim("w0", work=1)
    assert (new.generation, new.owner) == (2, old.owner)
    before = only(store)

    assert isinstance(store.renew([old])[0], StaleClaim)
    assert isinstance(store.end([build.ending(old)])[0], StaleClaim)
    assert isinstance(store.submit([build.submission(old, output="old")])[0], StaleClaim)
    now = only(store)

    assert (now.state, now.generation, now.lease_until) == (before.state, before.generation, before.lease_until)
    assert [attempt.ended for attempt in now.attempts] == ["lost", None]
    assert isinstance(store.submit([build.submission(new)])[0], Done)
    (gate,) = store.claim("w0", work=0, gate=1)
    expire(gate)
    (again,) = store.claim("w0", work=0, gate=1)
    assert isinstance(store.decide([build.verdict(gate)])[0], StaleClaim)
    assert store.decide([build.verdict(again)]) == [Done(State.ACCEPTED)]


def test_renewal_moves_the_lease_and_nothing_else(
    sqlite_store: TaskStore, build: Any, clock: Any, sqlite_url: str, sql: Any
) -> None:
    sqlite_store.create_run(build.run("one"))
    (claim,) = sqlite_store.claim("w", work=1)
    clock.forward(20)
    before = [sql("SELECT * FROM attempt"), sql("SELECT state, generation, row_version, token, gate_tries FROM task")]

    (until,) = sqlite_store.renew([claim])

    assert until == claim.lease_until + 20_000_000
    assert sql("SELECT lease_until FROM task") == [(until,)]
    assert [
        sql("SELECT * FROM attempt"),
        sql("SELECT state, generation, row_version, token, gate_tries FROM task"),
    ] == before


# -- taking back -------------------------------------------------------------------------------------------------------


def test_recovery_that_lost_the_race_does_nothing(
    store: TaskStore, build: Any, expire: Callable[..., None], sql: Any
) -> None:
    store.create_run(build.run("one"))
    (claim,) = store.claim("dead", work=1)
    expire(claim)

    assert [c.generation for c in store.claim("heir", work=1)] == [2]
    before = snapshot(sql)
    assert store.claim("late", work=1, gone=["dead"]) == []

    assert snapshot(sql) == before
    assert [event.verb for event in store.events(1)] == ["created", "issued", "claimed", "lost", "claimed"]


def test_two_recoveries_of_the_same_claims_take_each_back_once(
    store: TaskStore, build: Any, expire: Callable[..., None]
) -> None:
    for round_number in range(1, 11):
        store.create_run(build.run("a", "b", name=f"r{round_number}"))
        claims = store.claim("dead", work=2)
        expire(*claims)
        barrier, failed = threading.Barrier(4), []

        def recover(barrier: threading.Barrier = barrier, failed: list[Any] = failed) -> None:
            barrier.wait()
            try:
                store._db.write(lambda tx: reap(tx, gone=["dead"]))
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=recover) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert failed == []
        assert [event.verb for event in store.events(round_number)].count("lost") == 2
        store.cancel(round_number)


def test_a_gone_owner_loses_its_claims_before_the_lease_ends_and_no_other_does(store: TaskStore, build: Any) -> None:
    store.create_run(build.run("a", "b"))
    store.claim("w1", work=1)
    store.claim("w2", work=1)

    assert sorted(store.claim_owners()) == ["w1", "w2"]
    assert [claim.task_id for claim in store.claim("w3", work=5, gone=["w1", "never-there"])] == ["a"]


def test_a_worker_that_always_dies_ends_the_task_with_the_reason(
    store: TaskStore, build: Any, expire: Callable[..., None]
) -> None:
    store.create_run(build.run(build.task("one", limits={"max_claims": 3}), build.task("next", needs=["one"])))
    claims = []
    for _ in range(20):
        for claim in store.claim("same-name", work=1):
            # Counted when it was claimed: whatever happens to the worker, there is a row of it.
            assert only_attempts(store, "one") == claim.attempt
            claims.append(claim)
            expire(claim)

    one, following = store.run(1).tasks
    assert len(claims) == 3
    assert one.state == "failed"
    assert one.reason == "3 of 3 claims ended without a result; the last: the lease of worker same-name ran out"
    assert [attempt.ended for attempt in one.attempts] == ["lost"] * 3
    assert (following.word, following.why) == ("blocked", "needs one (failed)")
    assert store.run(1).state == "ended"


def only_attempts(store: TaskStore, task_id: str) -> int:
    return next(len(task.attempts) for task in store.run(1).tasks if task.task_id == task_id)


def test_a_restarted_worker_of_the_same_name_does_not_hide_the_dead_claim(
    store: TaskStore, build: Any, expire: Callable[..., None]
) -> None:
    store.create_run(build.run("a", "b"))
    (dead,) = store.claim("w", work=1)
    (live,) = store.claim("w", work=1)
    expire(dead)

    store.renew([live])
    assert store.due()
    assert [(claim.task_id, claim.generation) for claim in store.claim("w", work=1)] == [("a", 2)]


def test_max_claims_counts_since_the_last_submission_and_neither_released_nor_blocked(
    store: TaskStore, build: Any
) -> None:
    store.create_run(build.run(build.task("one", limits={"max_claims": 2, "max_repairs": 5})))
    for word in ("failed", "released", "released", "blocked"):
        (claim,) = store.claim("w", work=1)
        assert isinstance(store.end([build.ending(claim, word)])[0], Done)
    store.submit([build.submission(store.claim("w", work=1)[0])])
    store.decide([build.verdict(store.claim("w", work=0, gate=1)[0], "repair_required")])
    (claim,) = store.claim("w", work=1)
    assert store.end([build.ending(claim, "unknown")])[0] == Done(State.PENDING, reason="it broke")
    (claim,) = store.claim("w", work=1)
    (last,) = store.end([build.ending(claim, "no_result", "nothing came")])

    assert last == Done(State.FAILED, reason="2 of 2 claims ended without a result; the last: nothing came")


# -- write scopes ------------------------------------------------------------------------------------------------------


def test_tasks_whose_write_scopes_meet_are_not_handed_out_together(store: TaskStore, build: Any) -> None:
    store.create_run(build.run("a", "b", "c", overlaps=[("a", "b"), ("b", "a")]))

    claims = store.claim("w", work=5)
    assert [claim.task_id for claim in claims] == ["a", "c"]
    assert not store.due()
    store.submit([build.submission(claims[0])])
    (gate,) = store.claim("w", work=5, gate=5)
    assert gate.task_id == "a"
    assert store.claim("w", work=5, gate=5) == []
    store.decide([build.verdict(gate)])
    assert store.due()
    assert [claim.task_id for claim in store.claim("w", work=5)] == ["b"]


def test_a_delegated_child_is_kept_apart_from_all_that_write_where_it_does_except_those_above_it(
    store: TaskStore, build: Any
) -> None:
    store.create_run(build.run(build.task("parent", write_scope=["src/"]), build.task("other", write_scope=["doc/"])))
    parent, other = store.claim("w", work=2)
    store.delegate(1, [build.task("kid", write_scope=["src/a.py"])], parent=parent)
    store.delegate(1, [build.task("twin", write_scope=["src/*.py"])], parent=parent)
    store.delegate(1, [build.task("third", write_scope=["doc/x.md"])], parent=parent)

    assert [claim.task_id for claim in store.claim("w", work=5)] == ["kid"]
    store.end([build.ending(other, "failed")])
    assert {claim.task_id for claim in store.claim("w", work=5)} == {"other"}


@pytest.mark.slow
def test_racing_processes_never_hold_two_tasks_whose_write_scopes_meet(
    store: TaskStore, build: Any, database_url: str, tmp_path: Path
) -> None:
    names = ["a", "b", "c", "d"]
    tasks = [build.task(name, limits={"max_claims": 8}) for name in names]
    pairs = [("a", "b"), ("b", "c"), ("a", "c")]
    store.create_run(build.run(*tasks, overlaps=pairs))

    held = [item for one in race(database_url, tmp_path, 6, "hold_and_release") for item in one]

    assert Counter(task for task, _, _, _ in held) == Counter(dict.fromkeys(names, 8))
    for task, generation, since, until in held:
        for other, other_generation, other_since, other_until in held:
            if (task, generation) != (other, other_generation) and (
                task == other or tuple(sorted((task, other))) in pairs
            ):
                assert until < other_since or other_until < since, (task, other)


# -- clocks ------------------------------------------------------------------------------------------------------------


def test_postgres_counts_leases_by_its_own_clock(
    postgres_url: str, open_store: Callable[..., TaskStore], build: Any, clock: Any
) -> None:
    store = open_store(postgres_url, clock=clock)
    store.create_run(build.run("one"))
    (claim,) = store.claim("w", work=1)
    for seconds in (86_400, -10 * 86_400):
        clock.forward(seconds)
        assert isinstance(store.renew([claim])[0], int)
        assert store.claim("thief", work=1) == []
    engine = create_engine(parse_url(postgres_url))
    with engine.connect() as conn:
        ahead = conn.execute(
            text("SELECT lease_until / 1e6 - extract(epoch FROM clock_timestamp()) FROM task")
        ).scalar_one()
    engine.dispose()

    assert 20 < ahead <= 30
    assert isinstance(store.submit([build.submission(claim)])[0], Done)


def test_a_short_lease_ends_by_itself_on_postgres(postgres_store: TaskStore, build: Any) -> None:
    postgres_store.create_run(build.run(build.task("one", limits={"lease_s": 0.2})))
    (claim,) = postgres_store.claim("w", work=1)
    assert not postgres_store.due()
    pause = threading.Event()
    while not postgres_store.due():
        pause.wait(0.02)

    assert isinstance(postgres_store.submit([build.submission(claim)])[0], StaleClaim)
    assert [claim.generation for claim in postgres_store.claim("w2", work=1)] == [2]


def test_the_fence_looks_at_the_clock_after_a_wait_for_a_lock(
    postgres_store: TaskStore, build: Any, postgres_url: str
) -> None:
    postgres_store.create_run(build.run(build.task("one", limits={"lease_s": 0.4})))
    (claim,) = postgres_store.claim("w", work=1)
    engine = create_engine(parse_url(postgres_url))
    outcome: list[Any] = []
    with engine.connect() as conn:
        conn.execute(text("SELECT id FROM task FOR UPDATE"))
        thread = threading.Thread(target=lambda: outcome.extend(postgres_store.submit([build.submission(claim)])))
        thread.start()
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        pause = threading.Event()
        while not conn.execute(text(waiting)).scalar_one():
            pause.wait(0.01)
        conn.execute(text("SELECT pg_sleep(0.5)"))
        conn.commit()
    thread.join()
    engine.dispose()

    assert isinstance(outcome[0], StaleClaim)
