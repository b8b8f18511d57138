"""Three worker processes on one PostgreSQL, killed and stopped past their leases as chance has it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from coordinator.store.database import parse_url

SCRIPT = str(Path(__file__).with_name("worker_process.py"))
LEASE_S = 2.0
LATER = ("late_result", "stopped")


def graph(place: Any, count: int, chance: random.Random) -> dict[str, Any]:
    """Half of the tasks need one to three earlier ones."""
    limits = {"lease_s": LEASE_S, "max_claims": 100}
    tasks: dict[str, Any] = {}
    for number in range(count):
        wanted = chance.randint(1, 3) if number > 10 and chance.random() < 0.5 else 0
        needs = sorted({f"t{chance.randrange(number)}" for _ in range(wanted)})
        tasks[f"t{number}"] = place.task("naps", needs=needs, limits=limits)
    return tasks


class Crew:
    """The worker processes; a name that was killed is given to a successor."""

    def __init__(self, place: Any, until: Any, row: int) -> None:
        self._place = place
        self._until = until
        self._row = row
        self._begun = 0
        self.running = {name: self.begin(name) for name in ("a", "b", "c")}
        self.woken: list[tuple[str, int]] = []
        """What stopped workers held when they were stopped, and had lost when they woke: task and generation."""

    def begin(self, name: str) -> subprocess.Popen[str]:
        self._begun += 1
        return self._place.listened(  # type: ignore[no-any-return]
            SCRIPT, "--slots", "4", "--name", f"{name}{self._begun}"
        ).process

    def is_over(self, name: str) -> bool:
        return self.running[name].poll() is not None

    def kill(self, name: str) -> None:
        ended = self.running[name].poll()
        assert ended is None, f"{name} ended by itself with {ended}"
        os.kill(self.running[name].pid, signal.SIGKILL)
        self.running[name].wait()
        self.running[name] = self.begin(name)

    def stop_past_the_lease(self, name: str) -> None:
        pid = self.running[name].pid
        os.kill(pid, signal.SIGSTOP)
        held = self._held(name)
        self._until(lambda: not set(held) & set(self._held(name)), "others take over what a stopped worker held")
        lost = set(held) & self._with_event("lost")  # not what was on its way to the server when it was stopped
        os.kill(pid, signal.SIGCONT)
        self.woken += sorted(lost)
        self._until(
            lambda: self.is_over(name) or lost <= self._with_event(*LATER),
            "what a stopped worker brings is kept as a fact",
        )

    def _held(self, name: str) -> list[tuple[str, int]]:
        tasks = self._place.store.run(self._row).tasks
        return [
            (task.task_id, task.generation)
            for task in tasks
            if task.state == "running" and task.owner is not None and task.owner.startswith(name)
        ]

    def _with_event(self, *verbs: str) -> set[tuple[str, int]]:
        events = self._place.store.events(self._row)
        return {(event.task_id, event.generation) for event in events if event.verb in verbs}


@pytest.mark.parametrize(
    ("count", "kills", "stops"),
    [pytest.param(150, 3, 2), pytest.param(2000, 14, 6, marks=pytest.mark.slow)],
    ids=["short", "long"],
)
def test_killed_and_stopped_workers_on_one_server_lose_nothing_and_do_nothing_twice(
    place: Any, postgres_url: str, until: Any, overlaps: Any, count: int, kills: int, stops: int
) -> None:
    seed = int(os.environ.get("AT_WORK_SEED", "20260301"))
    chance = random.Random(seed)
    place.url = postgres_url
    place.ended(place.worker("--launch-only", file=place.write(graph(place, count, chance))))
    row = place.store.find_run()
    crew = Crew(place, until, row)
    faults = [crew.kill] * kills + [crew.stop_past_the_lease] * stops
    chance.shuffle(faults)
    for number, fault in enumerate(faults):
        share = count * (number + 1) // (len(faults) + 2)
        until(lambda share=share: place.store.counts(row).get("accepted", 0) >= share, f"{share} accepted")
        victim = crew.running[name := chance.choice(sorted(crew.running))]
        with contextlib.suppress(subprocess.TimeoutExpired):
            victim.wait(chance.uniform(0, 0.3))  # a moment, not a condition: that is what is played
        fault(name)
    for process in crew.running.values():
        place.ended(process)

    run, events = place.run(), place.events()
    assert run.ok, seed
    assert len(run.tasks) == count
    assert overlaps(events) == [], seed
    of_generation: dict[tuple[str, int], list[str]] = {}
    accepted: dict[str, int] = {}
    for event in events:
        if event.task_id is not None and event.generation is not None:
            of_generation.setdefault((event.task_id, event.generation), []).append(event.verb)
            accepted[event.task_id] = accepted.get(event.task_id, 0) + (event.verb == "accepted")
    assert set(accepted.values()) == {1}, seed
    assert crew.woken, seed
    # No authority after the lease, and all that came of it is recorded.
    for claim in crew.woken:
        assert of_generation[claim][:2] == ["claimed", "lost"], (seed, claim)
        assert set(of_generation[claim][2:]) in ({"late_result"}, {"stopped"}, set(LATER)), (seed, claim)
    late = [attempt for task in run.tasks for attempt in task.attempts if attempt.late]
    assert late, seed
    assert all(attempt.ended == "lost" and attempt.decision is None for attempt in late), seed
    for task in run.tasks:
        assert sum(attempt.decision == "accepted" for attempt in task.attempts) == 1, seed


def test_a_tick_that_holds_tasks_never_waits_for_their_run(
    postgres_store: Any, postgres_url: str, build: Any, sql: Any, expire: Any
) -> None:
    """Those who hold the run wait for its tasks: waiting the other way round would be a deadlock."""
    postgres_store.create_run(build.run(build.task("one", limits={"max_claims": 1})))
    (work,) = postgres_store.claim("w", work=1)
    postgres_store.submit([build.submission(work)])
    for _ in range(3):
        (gate,) = postgres_store.claim("g", work=0, gate=1)
        expire(gate)  # its judge has died; after the third a person is asked, under the lock of the run
    engine = create_engine(parse_url(postgres_url))
    with engine.connect() as other:
        other.execute(text("SET idle_in_transaction_session_timeout = 0"))
        other.execute(text("SELECT id FROM orchestration FOR NO KEY UPDATE"))
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            assert thread.submit(postgres_store.claim, "h", work=0, gate=1).result(timeout=20) == []
        assert sql("SELECT count(*) FROM request")[0][0] == 0
        other.rollback()
    engine.dispose()
    assert postgres_store.claim("h", work=0, gate=1) == []
    assert [tuple(row) for row in sql("SELECT kind, state FROM request")] == [("not_judged", "open")]
