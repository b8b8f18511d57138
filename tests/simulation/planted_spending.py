"""More faults to plant: into what is done for many rows at once, told to nobody, charged, or sent outside."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

import coordinator.worker
from contracts.errors import StoreUnavailable
from coordinator.store import TaskStore, charging, claiming, operating, submitting, transitions
from coordinator.store import tables as t
from coordinator.store.database import Tx
from tests.simulation.planted import PLANTED, planted

__all__ = ["PLANTED"]


# -- many rows at once, and answers that are lost ---------------------------------------------------------------------


@planted(r"\[[123]\]|KeyError", wide=True, mixes=30)  # or the store itself falls over the half of it
def a_batch_that_does_not_fit_is_kept_and_run_again(patch: pytest.MonkeyPatch) -> None:
    def run_guarded(tx: Tx, statement: Any, rows: Any) -> list[bool]:
        if len(rows) > 1:
            together = tx.conn.begin_nested()
            fits = tx.conn.execute(statement, rows).rowcount == len(rows)
            together.commit()
            if fits:
                return [True] * len(rows)
        return [tx.conn.execute(statement, row).rowcount == 1 for row in rows]

    _run_guarded(patch, run_guarded)


@planted(r"\[[123]\]", wide=True, mixes=30)
def a_batch_that_does_not_fit_is_trusted(patch: pytest.MonkeyPatch) -> None:
    def run_guarded(tx: Tx, statement: Any, rows: Any) -> list[bool]:
        return [True] * len(rows) if tx.conn.execute(statement, rows).rowcount else [False] * len(rows)

    _run_guarded(patch, run_guarded)


def _run_guarded(patch: pytest.MonkeyPatch, run_guarded: Any) -> None:
    for verbs in (transitions, claiming):
        patch.setattr(verbs, "run_guarded", run_guarded)


@planted(r"\[1\] .*given back by .*who was told", lost_answers=3, workers=2)
def a_worker_does_not_say_what_it_works_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(coordinator.worker.Worker, "_known_tokens", lambda worker, inbox: set())


@planted(r"\[1\] .*taken from .*who lives", lost_answers=3, workers=2)
def a_claim_whose_answer_was_lost_counts_as_a_try(patch: pytest.MonkeyPatch) -> None:
    why = "the answer was lost"

    def give_back(tx: Tx, row: Any) -> None:
        take_back = claiming._take_back_gate if row.claim_kind == "gate" else claiming._take_back_work
        take_back(tx, row, why)

    patch.setattr(claiming, "_give_back_unheard", give_back)


@planted(r"\[11\] .*was judged .* are counted", lost_answers=3, workers=2)
def judging_that_never_began_counts_as_a_try(patch: pytest.MonkeyPatch) -> None:
    real = claiming._taken_back

    def taken_back(row: Any, values: Any, why: str) -> Any:
        return real(row, {column: value for column, value in values.items() if column != "+gate_tries"}, why)

    patch.setattr(claiming, "_taken_back", taken_back)


@planted(r"\[1\] .*began twice|\[1\] .*began under a claim", lost_answers=3, workers=2)
def a_claim_whose_answer_was_lost_is_worked_on(patch: pytest.MonkeyPatch) -> None:
    real, begun = TaskStore.tick, coordinator.worker.Worker._tick

    def tick(store: TaskStore, owner: str, *args: Any, **more: Any) -> Any:
        outcome = real(store, owner, *args, **more)
        unheard[owner] = outcome.claims
        return outcome

    async def work(worker: Any, looks: bool) -> int:
        try:
            return await begun(worker, looks)
        except StoreUnavailable:
            for claim in unheard.pop(worker.owner, []):
                worker._start(claim)
            raise

    unheard: dict[str, Any] = {}
    patch.setattr(TaskStore, "tick", tick)
    patch.setattr(coordinator.worker.Worker, "_tick", work)


# -- money and side effects ------------------------------------------------------------------------------------------


@planted(r"\[7\] .*passes its limit", spends=True)
def charging_compares_no_limit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(charging, "_CHARGE_TASKS", charging._ADD_TO_TASKS)
    patch.setattr(charging, "_CHARGE_RUN", charging._ADD_TO_RUN)


@planted(r"\[7\] .*its charges", spends=True)
def charges_stay_below_their_task(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(charging, "lineage_of", lambda tx, task_row: [task_row])


@planted(r"\[7\]", spends=True)
def a_charge_is_settled_twice(patch: pytest.MonkeyPatch) -> None:
    real = charging.settle

    def settle(tx: Tx, number: int, *said: Any) -> None:
        tx.conn.execute(update(t.charge).where(t.charge.c.id == number).values(settled_at=None))
        real(tx, number, *said)

    patch.setattr(charging, "settle", settle)


@planted(r"\[[17]\]|\[6\] .*charged.* changed after its end", spends=True, stops=3)
def charging_asks_for_no_live_claim(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(charging, "holds", lambda tx, claim: True)


@planted(r"\[8\] .*handed out|\[8\] .*nobody is asked", spends=True, trouble=1.0)
def nobody_is_asked_about_operations_that_are_open(patch: pytest.MonkeyPatch) -> None:
    for verbs in (submitting, claiming):
        patch.setattr(verbs, "unsettled_questions", lambda tx, task_row, terms: [])


@planted(r"\[8\] .*(handed out|nobody is asked)|\[11\] .* it was exhausted", spends=True, trouble=1.0, crashes=5,
         crash_chance=0.08)  # fmt: skip
def nobody_is_asked_when_a_claim_is_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claiming, "unsettled_questions", lambda tx, task_row, terms: [])


@planted(r"\[8\] operation .* was (sent|succeeded|failed), then prepared", spends=True)
def a_settled_operation_is_sent_again(patch: pytest.MonkeyPatch) -> None:
    real = operating.prepare

    def prepare(tx: Tx, claim: Any, key: str, tool: str, arguments: Any) -> Any:
        of = (t.operation.c.task_id == claim.task_row, t.operation.c.key == key)
        tx.conn.execute(update(t.operation).where(*of).values(state="prepared", outcome_id=None))
        return real(tx, claim, key, tool, arguments)

    patch.setattr(operating, "prepare", prepare)


@planted(r"\[8\] the bytes of .* left", spends=True)
def bytes_leave_before_they_are_recorded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(operating, "send", lambda tx, claim, row, action_digest: True)


@planted(r"\[8\]", spends=True, trouble=1.0)
def what_settles_an_operation_later_overwrites_it(patch: pytest.MonkeyPatch) -> None:
    real = operating._settled

    def settled(tx: Tx, row: int, state: str, outcome: Any) -> bool:
        again = update(t.operation).where(t.operation.c.id == row)
        tx.conn.execute(again.values(state="sent", outcome_id=None, settled_at=None))
        return real(tx, row, state, outcome)

    patch.setattr(operating, "_settled", settled)
