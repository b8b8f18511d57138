"""A random walk over everything that can be asked of a store, with the invariants checked by code of their own."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import pytest

from contracts.errors import Refused, StaleClaim, WrongState
from contracts.states import TRANSITIONS, Outcome
from coordinator.store import TaskStore, Tick
from coordinator.store.records import Claim, Done

FINAL = {"accepted", "partial", "failed", "cancelled", "superseded"}
ARROWS = {(transition.source.value, transition.target.value) for transition in TRANSITIONS}
ENOUGH = {"accepted", "partial"}
KEYS = [f"k{n}" for n in range(5)]


class Walk:
    def __init__(self, store: TaskStore, build: Any, clock: Any, sql: Any, seed: int, *, postgres: bool) -> None:
        self.store, self.build, self.clock, self.sql, self.postgres = store, build, clock, sql, postgres
        self.random = random.Random(seed)
        self.claims: list[Claim] = []
        self.said: list[tuple[str, Any, Any]] = []  # calls that were answered, to be made again
        self.before: dict[int, Any] = {}
        self.limits: dict[int, Any] = {}
        self.events = 0
        self.counter = 0
        self.seen: Counter[str] = Counter()

    # -- steps ---------------------------------------------------------------------------------------------------

    def terms(self, key: str, version: int = 1) -> Any:
        others = [other for other in KEYS if other < key]
        needs = [
            {"task": other, "partial_ok": self.random.random() < 0.5}
            for other in others
            if self.random.random() < 0.3
        ]  # fmt: skip
        limits = {"max_claims": self.random.randint(1, 3), "max_repairs": self.random.randint(0, 2), "deadline_s": 90}
        return self.build.task(key, needs=needs, version=version, limits=limits)

    def overlaps(self) -> list[tuple[str, str]]:
        return [(a, b) for a in KEYS for b in KEYS if a < b and self.random.random() < 0.2]

    def runs(self) -> list[int]:
        return [row.id for row in self.sql("SELECT id FROM orchestration ORDER BY id")]

    def some_run(self) -> int:
        return self.random.choice(self.runs()[-3:])

    def some_claim(self, kind: str = "") -> Claim:
        # Mostly one that may be alive, at times one that is long over.
        claims = [claim for claim in self.claims if claim.kind == kind] or self.claims
        claim = self.random.choice(claims[-5:] if self.random.random() < 0.85 else claims)
        return replace(claim, token="f" * 32) if self.random.random() < 0.03 else claim

    def create(self) -> None:
        tasks = [self.terms(key) for key in KEYS]
        beside = self.random.random() < 0.3
        name = f"run{self.random.randint(1, 3)}"
        new = self.build.run(*tasks, name=name, closed=self.random.random() < 0.7, overlaps=self.overlaps())
        self.store.create_run(new, beside_open=beside)

    def claim(self) -> None:
        owner = f"w{self.random.randint(1, 3)}"
        gone = [f"w{self.random.randint(1, 3)}"] if self.random.random() < 0.1 else []
        self.claims += self.store.claim(
            owner, work=self.random.randint(0, 2), gate=self.random.randint(0, 2), gone=gone
        )

    def renew(self) -> None:
        self.store.renew([self.some_claim() for _ in range(2)])

    def submit(self) -> None:
        claim = self.some_claim("work")
        if claim.kind == "work":
            outcome = self.random.choice([Outcome.COMPLETED, Outcome.PARTIAL])
            submission = self.build.submission(claim, outcome=outcome, output=self.random.randint(1, 2))
            self.remember("submit", submission, self.store.submit([submission])[0])

    def end(self) -> None:
        claim = self.some_claim()
        self.counter += 1
        if claim.kind == "gate":
            ending = self.build.ending(claim, "released")
        else:
            word = self.random.choice(
                ["failed", "cancelled", "unknown", "no_result", "deadline", "released", "blocked"]
            )
            question = self.build.question(f"q{self.counter}") if word == "blocked" else None
            ending = self.build.ending(claim, word, question=question, stopped=self.random.random() < 0.5)
        self.remember("end", ending, self.store.end([ending])[0])

    def decide(self) -> None:
        claim = self.some_claim("gate")
        if claim.kind != "gate":
            return
        self.counter += 1
        word = self.random.choice(
            ["accepted", "accepted", "accepted", "rejected", "repair_required", "not_judged", "waiting"]
        )
        asks = word == "waiting" or (word == "not_judged" and self.random.random() < 0.2)
        questions = [self.build.question(f"a{self.counter}", "approval")] if asks else []
        verdict = self.build.verdict(
            claim, word, partial=self.random.random() < 0.3, questions=questions, no_progress=self.random.random() < 0.2
        )
        self.remember("decide", verdict, self.store.decide([verdict])[0])

    def answer(self) -> None:
        open_ones = self.sql("SELECT request_id FROM request WHERE state = 'open' ORDER BY id")
        if open_ones:
            self.store.answer(self.random.choice(open_ones).request_id, approved=self.random.random() < 0.6)

    def cancel(self) -> None:
        if self.random.random() < 0.3:
            run = self.some_run()
            tasks = self.sql("SELECT id FROM task WHERE orchestration_id = :run ORDER BY id", run=run)
            task = self.random.choice(tasks).id if self.random.random() < 0.9 else None
            self.store.cancel(run, task, reason="by chance")

    def delegate(self) -> None:
        self.counter += 1
        claim = self.some_claim()
        scope = ["src/"] if self.random.random() < 0.5 else []
        child = self.build.task(f"child{self.random.randint(1, 40)}", write_scope=scope, limits={"deadline_s": 90})
        if self.random.random() < 0.7 and claim.kind == "work":
            self.store.delegate(claim.orchestration_row, [child], parent=claim)
        else:
            self.store.delegate(self.some_run(), [child])

    def amend(self) -> None:
        run = self.some_run()
        keys = self.random.sample(KEYS, self.random.randint(0, 2))
        kept = {row.key for row in self.sql("SELECT key FROM task WHERE is_current AND orchestration_id = :r", r=run)}
        pairs = [pair for pair in self.overlaps() if {*pair} <= kept]
        replaced = [self.terms(key, self.store.newest_contract_version(run, key) + 1) for key in keys]
        self.store.amend(
            run, expected_version=self.store.run(run).orchestration_version, document=self.build.run().document,
            authored_digest="x", head=None, replaced=replaced, removed=[], overlaps=pairs, files=[],
        )  # fmt: skip

    def wait(self) -> None:
        seconds = self.random.choice([1, 1, 5, 5, 12, 31, 95])
        if self.postgres:
            self.sql(f"UPDATE task SET lease_until = lease_until - {seconds * 1_000_000} WHERE owner IS NOT NULL")
        else:
            self.clock.forward(seconds)

    def repeat(self) -> None:
        """What was answered before is answered so again, and changes nothing."""
        if self.said:
            what, item, first = self.random.choice(self.said)
            before = self.facts()
            (second,) = getattr(self.store, what)([item])
            if isinstance(second, Done):
                assert second == replace(first, repeated=True)
            else:
                # A judgement that left the result in its place was followed by another one.
                assert isinstance(second, StaleClaim)
                assert what == "decide"
                assert item.decision.decision in ("not_judged", "waiting")
            assert self.facts() == before

    def remember(self, what: str, item: Any, outcome: Any) -> None:
        self.seen[f"{what}: {type(outcome).__name__}"] += 1
        if isinstance(outcome, Done) and not outcome.repeated:
            self.said.append((what, item, outcome))

    def tick(self) -> None:
        work = [claim for claim in self.claims[-4:] if claim.kind == "work"]
        gates = [claim for claim in self.claims[-4:] if claim.kind == "gate"]
        outcome = self.store.tick(
            "w1",
            Tick(
                submissions=[self.build.submission(claim) for claim in work[:1]],
                endings=[self.build.ending(claim, "released") for claim in work[1:2]],
                verdicts=[self.build.verdict(claim) for claim in gates[:1]], stopped=work[2:3], work=2, gate=2,
            ),
        )  # fmt: skip
        self.claims += outcome.claims

    def step(self) -> None:
        steps = {
            self.create: 3, self.claim: 10, self.renew: 3, self.submit: 9, self.end: 4, self.decide: 9, self.answer: 4,
            self.cancel: 2, self.delegate: 3, self.amend: 1, self.wait: 3, self.repeat: 3, self.tick: 2,
        }  # fmt: skip
        (chosen,) = self.random.choices(list(steps), list(steps.values()))
        if not self.runs():
            chosen = self.create
        elif not self.claims and chosen not in (self.create, self.wait):
            chosen = self.claim
        try:
            chosen()
        except (Refused, WrongState) as refused:
            self.seen[type(refused).__name__] += 1
        self.check()

    # -- what always holds ---------------------------------------------------------------------------------------

    def facts(self) -> list[Any]:
        return [self.sql(f"SELECT * FROM {table} ORDER BY 1, 2") for table in ("task", "attempt", "request", "event")]

    def check(self) -> None:
        tasks = {row.id: row for row in self.sql("SELECT * FROM task")}
        attempts = self.sql("SELECT * FROM attempt ORDER BY task_id, number")
        requests = self.sql("SELECT * FROM request")
        needs = self.sql("SELECT * FROM need")
        self.check_claims(tasks)
        self.check_ready(tasks, needs, requests)
        self.check_families(tasks, requests)
        self.check_attempts(tasks, attempts)
        self.check_events(tasks)
        self.before = tasks

    def check_claims(self, tasks: dict[int, Any]) -> None:
        for row in tasks.values():
            assert (row.owner is None) == (row.token is None) == (row.lease_until is None) == (row.claim_kind is None)
            assert (row.state == "running") == (row.claim_kind == "work")
            old = self.before.get(row.id)
            if old is None:
                continue
            assert row.generation >= old.generation
            assert row.row_version >= old.row_version
            if row.token != old.token and row.token is not None:
                assert row.generation > old.generation
            if old.state in FINAL:
                assert row.state == old.state, "a final state was left"
                assert row.generation == old.generation
        for pair in self.sql("SELECT task_id, other_id FROM overlap"):
            assert not {tasks[pair.task_id].state, tasks[pair.other_id].state} <= {"running", "submitted"} or (
                # Two that were under way when a new version said that they overlap.
                pair.task_id in self.under_way(tasks) and pair.other_id in self.under_way(tasks)
            )

    def under_way(self, tasks: dict[int, Any]) -> set[int]:
        busy = {"running", "submitted"}
        return {
            row.id
            for row in tasks.values()
            if row.state in busy and row.id in self.before and self.before[row.id].state in busy
        }

    def check_ready(self, tasks: dict[int, Any], needs: list[Any], requests: list[Any]) -> None:
        current = {(row.orchestration_id, row.key): row.state for row in tasks.values() if row.is_current}
        by_task: dict[int, list[Any]] = defaultdict(list)
        for need in needs:
            by_task[need.task_id].append(need)
        asked = {request.task_id for request in requests if request.state == "open"}
        for row in tasks.values():
            met = all(
                current.get((row.orchestration_id, need.needed_key)) in (ENOUGH if need.partial_ok else {"accepted"})
                for need in by_task[row.id]
            )
            expected = row.state not in FINAL and row.id not in asked and (met or row.state != "pending")
            assert bool(row.ready) == expected, row

    def check_families(self, tasks: dict[int, Any], requests: list[Any]) -> None:
        for row in tasks.values():
            if row.parent_id is not None and row.state not in FINAL:
                assert tasks[row.parent_id].state not in FINAL
        for request in requests:
            assert request.state != "open" or tasks[request.task_id].state not in FINAL
        for run in self.sql("SELECT id FROM orchestration WHERE cancelled_at IS NOT NULL"):
            assert all(row.state in FINAL for row in tasks.values() if row.orchestration_id == run.id)

    def check_attempts(self, tasks: dict[int, Any], attempts: list[Any]) -> None:
        known = max(self.limits, default=0)
        fresh = self.sql(
            "SELECT DISTINCT d.id, d.data FROM document AS d JOIN task ON terms_id = d.id WHERE d.id > :id", id=known
        )
        self.limits.update({row.id: json.loads(bytes(row.data))["limits"] for row in fresh})
        spent: Counter[int] = Counter()
        by_task: dict[int, list[Any]] = defaultdict(list)
        for row in attempts:
            by_task[row.task_id].append(row)
            if row.ended == "submitted":
                spent[row.task_id] = 0
                assert row.manifest_id is not None
            elif row.ended not in (None, "released", "blocked", "superseded"):
                spent[row.task_id] += 1
        for row in tasks.values():
            own = by_task[row.id]
            assert [attempt.number for attempt in own] == list(range(1, len(own) + 1))
            assert row.generation >= max((attempt.generation for attempt in own), default=0)
            maximum = self.limits[row.terms_id]["max_claims"]
            assert spent[row.id] <= maximum
            if spent[row.id] == maximum:
                assert row.state in FINAL
            if row.state in ("accepted", "partial"):
                assert [attempt.decision for attempt in own].count("accepted") == 1
                assert own[-1].decision == "accepted"
                assert own[-1].decision_id is not None
            if row.state == "running":
                assert own[-1].generation == row.generation
                assert own[-1].ended is None
            if row.state == "submitted":
                assert own[-1].ended == "submitted"

    def check_events(self, tasks: dict[int, Any]) -> None:
        """Each change of a state has its one event, and is an arrow of the table."""
        fresh = self.sql("SELECT * FROM event WHERE id > :known ORDER BY id", known=self.events)
        verbs = {transition.verb: transition for transition in TRANSITIONS}
        states = {row_id: row.state for row_id, row in self.before.items()}
        for row in fresh:
            if row.verb in verbs:
                state = states.get(row.task_id, "pending")
                targets = {t.target.value for t in TRANSITIONS if t.verb == row.verb and t.source.value == state}
                assert len(targets) == 1, (row.verb, state)
                states[row.task_id] = targets.pop()
        assert {row_id: states.get(row_id, "pending") for row_id in tasks} == {
            row.id: row.state for row in tasks.values()
        }
        if fresh:
            self.events = fresh[-1].id


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_invariants_hold_after_every_step(
    sqlite_store: TaskStore, build: Any, clock: Any, sqlite_url: str, sql: Any, seed: int
) -> None:
    walk = Walk(sqlite_store, build, clock, sql, seed, postgres=False)

    for _ in range(250):
        walk.step()

    assert sql("PRAGMA foreign_key_check") == []
    assert (
        min(walk.seen[f"{what}: {how}"] for what in ("submit", "end", "decide") for how in ("Done", "StaleClaim")) > 0
    )


@pytest.mark.slow
def test_invariants_hold_after_every_step_on_postgres(
    postgres_store: TaskStore, build: Any, clock: Any, postgres_url: str, sql: Any
) -> None:
    walk = Walk(postgres_store, build, clock, sql, 99, postgres=True)

    for _ in range(200):
        walk.step()
