from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from contracts.errors import StaleClaim, WrongState
from contracts.states import FINAL_STATES, TRANSITIONS, ClaimKind, State
from coordinator.store import TaskStore
from coordinator.store.records import Claim

VERBS = sorted({transition.verb for transition in TRANSITIONS})
LEGAL = {(transition.verb, transition.source): transition.target for transition in TRANSITIONS}
DECISIONS: dict[str, dict[str, Any]] = {
    "accepted": {"word": "accepted"},
    "accepted_partial": {"word": "accepted", "partial": True},
    "repair_required": {"word": "repair_required"},
    "repairs_exhausted": {"word": "repair_required", "no_progress": True},
    "rejected": {"word": "rejected"},
    "not_judged": {"word": "not_judged"},
}


class OneTask:
    """A run with one task, brought to a state, with the last claims that were held on it."""

    def __init__(self, store: TaskStore, build: Any, name: str, state: State, verb: str) -> None:
        self.store, self.build = store, build
        limits = {"max_claims": 1 if verb == "exhausted" else 9}
        store.create_run(build.run(build.task("one", limits=limits), name=name))
        self.run = store.find_run(name)
        (self.work,) = store.claim("w", work=1, runs=[self.run])
        self.row = self.work.task_row
        self.gate = replace(
            self.work,
            kind=ClaimKind.GATE,
            manifest_digest="sha256:" + "0" * 64,
            generation_submitted=self.work.generation,
        )
        if state is State.PENDING:
            store.end([build.ending(self.work, "released")])
        elif state is State.CANCELLED:
            store.cancel(self.run, self.row)
        elif state is State.SUPERSEDED:
            self.supersede()
        elif state is not State.RUNNING:
            store.submit([build.submission(self.work)])
            if verb != "gate_claimed" or state is not State.SUBMITTED:
                (self.gate,) = store.claim("g", work=0, gate=1, runs=[self.run])
            ends = {State.ACCEPTED: "accepted", State.PARTIAL: "accepted_partial", State.FAILED: "rejected"}
            if state in ends:
                store.decide([build.verdict(self.gate, **DECISIONS[ends[state]])])
        assert store.state_of(self.row) is state

    def supersede(self) -> None:
        document = self.build.run().document
        self.store.amend(
            self.run, expected_version=self.store.run(self.run).orchestration_version, document=document,
            authored_digest="x", head=None, removed=[], overlaps=[], files=[],
            replaced=[self.build.task("one", version=self.store.newest_contract_version(self.run, "one") + 1)],
        )  # fmt: skip

    def attempt(self, verb: str) -> None:
        """Ask the store for the change that a verb names, by the way that leads there."""
        store, build = self.store, self.build
        if verb in DECISIONS:
            store.decide([build.verdict(self.gate, **DECISIONS[verb])])
        elif verb in ("claimed", "gate_claimed"):
            store.claim("x", work=int(verb == "claimed"), gate=int(verb == "gate_claimed"), runs=[self.run])
        elif verb in ("lost", "gate_lost"):
            store.claim("x", work=0, gone=["w" if verb == "lost" else "g"])
        elif verb == "submitted":
            store.submit([build.submission(self.work, output="again")])
        elif verb in ("released", "ended", "exhausted"):
            store.end([build.ending(self.work, "released" if verb == "released" else "failed")])
        elif verb == "gate_released":
            store.end([build.ending(self.gate, "released")])
        elif verb == "cancelled":
            with suppress(WrongState):
                store.cancel(self.run, self.row)
        else:
            self.supersede()


@pytest.mark.parametrize("state", list(State))
def test_every_verb_does_from_every_state_what_the_table_says(
    state: State, store: TaskStore, build: Any, sql: Any
) -> None:
    for verb in VERBS:
        one = OneTask(store, build, f"{state}-{verb}".replace("_", "-"), state, verb)
        columns = "state, ready, row_version, generation, owner, token, claim_kind, lease_until, gate_tries, reason"
        before = sql(f"SELECT {columns} FROM task WHERE id = {one.row}")
        events = f"SELECT verb FROM event WHERE task_id = {one.row} ORDER BY id"
        known = len(sql(events))

        one.attempt(verb)

        happened = [event.verb for event in sql(events)[known:]]
        if (verb, state) in LEGAL:
            assert store.state_of(one.row) == LEGAL[verb, state], (verb, state)
            assert verb in happened
            assert sql(f"SELECT row_version FROM task WHERE id = {one.row}") == [(before[0].row_version + 1,)], (
                verb,
                state,
            )
        else:
            assert sql(f"SELECT {columns} FROM task WHERE id = {one.row}") == before, (verb, state)
            assert verb not in happened
        if store.run_state(one.run) != "ended":
            store.cancel(one.run)


def test_the_table_names_what_the_store_can_do() -> None:
    assert {verb for verb, _ in LEGAL} == set(VERBS)
    assert all(source not in FINAL_STATES for _, source in LEGAL)
    assert {State.PENDING, *LEGAL.values()} == set(State)


def test_a_claim_to_work_does_not_judge_and_a_claim_to_judge_does_not_submit(
    store: TaskStore, build: Any, sql: Any
) -> None:
    store.create_run(build.run("a", "b"))
    a, b = store.claim("w", work=2)
    store.submit([build.submission(a)])
    (gate,) = store.claim("g", work=0, gate=1)
    before = sql("SELECT * FROM task ORDER BY id")
    judge: Claim = replace(b, manifest_digest=gate.manifest_digest, generation_submitted=b.generation)

    assert isinstance(store.decide([build.verdict(judge)])[0], StaleClaim)
    assert isinstance(store.submit([build.submission(gate, output="mine")])[0], StaleClaim)

    assert sql("SELECT * FROM task ORDER BY id") == before
