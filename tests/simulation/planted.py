"""Faults to plant into production code, one for each promise that the simulator watches: its checks must find them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import false, or_, update

import coordinator.worker
from coordinator import crash_points
from coordinator.store import asking, cancelling, claiming, database, deciding, launching, submitting, transitions
from coordinator.store import tables as t
from coordinator.store.database import Database, Tx
from tests.simulation.outside import Git

__all__ = ["PLANTED", "planted"]

Plant = Callable[[pytest.MonkeyPatch], None]
PLANTED: dict[str, tuple[str, dict[str, Any], Plant]] = {}
"""name -> (what the violation must say, what the plans of its seeds shall say, how to plant it)"""

ALWAYS = t.task.c.id >= 0
JUDGE = sys.modules["coordinator.gate.judge"]
"""The module; its package shows the function of that name."""


def planted(says: str, **focus: Any) -> Callable[[Plant], Plant]:
    def keep(plant: Plant) -> Plant:
        PLANTED[plant.__name__] = (says, {"quiet": False, **focus}, plant)
        return plant

    return keep


def _guard(patch: pytest.MonkeyPatch, name: Any, condition: Any) -> None:
    patch.setitem(transitions._GUARDS, name, condition)


# -- claims and authority ------------------------------------------------------------------------------------------


@planted(r"\[[12]\]")
def the_fence_ignores_generation_and_token(patch: pytest.MonkeyPatch) -> None:
    lease = t.task.c.lease_until > transitions.bindparam("g_now")
    _guard(patch, "fence", lease & or_(transitions._SAME_CLAIM, ALWAYS))


@planted(r"\[1\] .* after its lease had ended|\[1\] .*lease that had ended was renewed", stops=3, workers=3)
def the_fence_ignores_the_lease(patch: pytest.MonkeyPatch) -> None:
    late = or_(t.task.c.lease_until > transitions.bindparam("g_now"), ALWAYS)
    _guard(patch, "fence", transitions._SAME_CLAIM & late)


@planted(r"\[1\] .*renewed")
def renewing_asks_for_no_live_claim(patch: pytest.MonkeyPatch) -> None:
    fence = transitions._GUARDS["fence"]
    anyone = or_(fence, t.task.c.owner.is_not(None))
    held = t.task.c.id == transitions.bindparam("b_task")
    values = {"lease_until": transitions.bindparam("v_lease_until")}
    patch.setattr(claiming, "_RENEW", update(t.task).where(held, anyone).values(values))


@planted(r"\[1\] .*generation")
def a_claim_keeps_the_generation_before_it(patch: pytest.MonkeyPatch) -> None:
    real = claiming.advance

    def advance(tx: Tx, verb: str, moves: Any, **more: Any) -> Any:
        if verb == "claimed":
            moves = [
                dataclasses.replace(move, values={**move.values, "generation": move.values["generation"] - 1})
                for move in moves
            ]
        return real(tx, verb, moves, **more)

    patch.setattr(claiming, "advance", advance)


@planted(r"\[1\] .*taken from .*who lives")
def workers_that_live_are_taken_for_dead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(coordinator.worker, "owner_is_gone", lambda folder, owner: True)


@planted(r"\[1\] .*: nobody holds it|\[1\] .* acted")
def delegating_asks_for_no_live_claim(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(launching, "holds", lambda tx, claim: True)


@planted(r"\[3\] the work does not end")
def lost_claims_are_never_taken_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claiming, "reap", lambda tx, **more: None)


# -- facts, and calls that come again --------------------------------------------------------------------------------


@planted(r"\[2\]", repeats=12)
def a_repeated_decision_gets_no_first_answer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deciding, "first_answer", lambda *args: None)


@planted(r"\[2\]", repeats=12, trouble=1.0)
def a_repeated_ending_gets_no_first_answer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(submitting, "first_answer", lambda *args: None)


@planted(r"\[[236]\]")
def a_late_result_takes_the_task(patch: pytest.MonkeyPatch) -> None:
    real = submitting._keep_late

    def keep_late(tx: Tx, claim: Any, manifest_id: int, manifest: Any) -> None:
        real(tx, claim, manifest_id, manifest)
        tx.conn.execute(update(t.task).where(t.task.c.id == claim.task_row).values(reason="late"))

    patch.setattr(submitting, "_keep_late", keep_late)


@planted(r"\[[236]\]")
def a_late_result_overwrites_the_one_before(patch: pytest.MonkeyPatch) -> None:
    def keep_late(tx: Tx, claim: Any, manifest_id: int, manifest: Any) -> None:
        of = t.attempt.c.task_id == claim.task_row
        tx.conn.execute(update(t.attempt).where(of).values(manifest_id=manifest_id))

    patch.setattr(submitting, "_keep_late", keep_late)


# -- one transaction -------------------------------------------------------------------------------------------------


@planted(r"\[3\]|\[6\] tasks .* under way at once")
def an_end_writes_no_event(patch: pytest.MonkeyPatch) -> None:
    real = Tx.event

    def event(tx: Tx, run: int, task: int | None, verb: str, **more: Any) -> None:
        if verb != "ended":
            real(tx, run, task, verb, **more)

    patch.setattr(Tx, "event", event)


@planted(r"\[3\]|\[1\] generation")
def events_are_written_in_a_transaction_of_their_own(patch: pytest.MonkeyPatch) -> None:
    def write(db: Database, change: Any) -> Any:
        with db._transaction(write=True) as tx:
            result = change(tx)
            events, tx._events = tx._events, []
        crash_points.at_commit(change, "committed")
        with db._transaction(write=True) as tx:
            tx._events = events
            tx.flush()
        crash_points.at_commit(change, "committed")
        return result

    patch.setattr(Database, "write", write)


@planted(r"\[3\] .*ready")
def what_needs_an_accepted_task_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    real = deciding.refresh_ready

    def refresh(tx: Tx, run: int, *, needing: Any = None, task_row: int | None = None) -> None:
        if needing is None:
            real(tx, run, task_row=task_row)

    patch.setattr(deciding, "refresh_ready", refresh)


@planted(r"\[3\] .*ready|\[6\] .*need|\[3\] .*while a request is open")
def needs_do_not_count(patch: pytest.MonkeyPatch) -> None:
    real = transitions._refresh.__wrapped__
    patch.setattr(transitions, "_refresh", lambda which: real(which).values(ready=True))


@planted(r"\[4\]")
def stored_bytes_are_not_those_of_their_digest(patch: pytest.MonkeyPatch) -> None:
    real = Tx.documents

    def documents(tx: Tx, blobs: Any) -> Any:
        return real(tx, [dataclasses.replace(blob, data=(blob.data or b"") + b" ") for blob in blobs])

    patch.setattr(Tx, "documents", documents)


# -- acceptance ------------------------------------------------------------------------------------------------------


@planted(r"\[[56]\] .*head", source=True, workers=3, slots=3)
def deciding_does_not_compare_the_head(patch: pytest.MonkeyPatch) -> None:
    real = deciding._target
    patch.setattr(deciding, "_target", lambda tx, item, head: real(tx, item, item.decision.bound.head))


@planted(r"\[6\] the head .* has lost", source=True, amends=2)
def a_new_version_puts_the_head_back(patch: pytest.MonkeyPatch) -> None:
    real = launching.amend
    patch.setattr(launching, "amend", lambda tx, run, **change: real(tx, run, **{**change, "keeps_head": False}))


@planted(r"\[5\] .*without a decision")
def an_acceptance_names_no_decision(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        deciding,
        "_DECIDED",
        deciding._DECIDED.values(decision_id=transitions.bindparam("v_none", None, required=False)),
    )


@planted(r"\[5\] .*that its check refuses")
def the_gate_runs_no_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JUDGE, "run_check", lambda *args: [])


@planted(r"\[12\] .*outside", source=True, trouble=1.0)
def the_gate_does_not_look_at_the_write_scope(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JUDGE._Judgement, "_judge_write_scope", lambda judgement: None)


@planted(r"\[5\] .*nobody approved")
def the_gate_asks_no_person(patch: pytest.MonkeyPatch) -> None:
    judge = JUDGE._Judgement
    real = judge._judge_approval
    patch.setattr(judge, "_judge_approval", lambda own, check, sound: real(own, check, False))


@planted(r"\[6\] .*write scopes meet", source=True, slots=3)
def overlapping_write_scopes_are_worked_on_at_once(patch: pytest.MonkeyPatch) -> None:
    _guard(patch, "no_overlap", ALWAYS)
    patch.setattr(claiming, "busy_overlap", false)


@planted(r"was entered a second time")
def a_new_holder_enters_its_predecessors_workspace(patch: pytest.MonkeyPatch) -> None:
    real = Git.make_workspace

    def make(git: Git, git_dir: Any, folder: Any, kind: Any, commit: str, **about: Any) -> Any:
        if git.written:
            return real(git, git_dir, next(iter(git.written)), kind, commit)
        return real(git, git_dir, folder, kind, commit)

    patch.setattr(Git, "make_workspace", make)


# -- requests, cancelling, limits, clocks ----------------------------------------------------------------------------


@planted(r"\[9\]", cancels=2, amends=2, trouble=1.0)
def requests_about_what_has_ended_stay_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transitions, "void_requests", lambda *args: None)


@planted(r"\[9\]|\[2\]")
def an_answer_can_be_given_again(patch: pytest.MonkeyPatch) -> None:
    real = asking.answer

    def answer(tx: Tx, request_id: str, **more: Any) -> Any:
        tx.conn.execute(
            update(t.request).where(t.request.c.request_id == request_id).values(state="open", approved=None)
        )
        return real(tx, request_id, **more)

    patch.setattr(asking, "answer", answer)


@planted(r"\[10\]|\[2\] a cancel")
def cancelling_does_not_reach_what_is_below(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transitions, "_close_children", lambda *args: None)
    patch.setattr(cancelling, "descendants", lambda tx, rows: [])


@planted(r"\[11\]")
def claims_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claiming, "claims_spent", lambda tx, task: 0)


@planted(r"\[11\]")
def one_claim_less_than_agreed_is_given(patch: pytest.MonkeyPatch) -> None:
    real = claiming.claims_spent
    patch.setattr(claiming, "claims_spent", lambda tx, task: real(tx, task) + 1)


@planted(r"\[11\]", trouble=1.0)
def repairs_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deciding, "_repairs", lambda tx, claim: 0)


@planted(r"\[11\] .*after its deadline", job_delay_s=1.0, trouble=1.0)
def deadlines_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    real = transitions._GUARDS["in_time"]
    _guard(patch, "in_time", or_(real, ALWAYS))


@planted(r"\[13\]")
def the_store_reads_a_clock_of_its_own(patch: pytest.MonkeyPatch) -> None:
    real = database.to_micros
    patch.setattr(database, "to_micros", lambda moment: real(datetime.now(UTC)))
