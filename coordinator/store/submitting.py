"""The end of an attempt: a submission, or an ending without one. What a stale holder brings is kept as a fact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, select, update

from contracts.errors import StaleClaim
from contracts.results import Manifest
from contracts.states import ClaimKind, Outcome, State
from coordinator.store import tables as t
from coordinator.store.asking import open_request
from coordinator.store.claiming import back_or_failed
from coordinator.store.database import Blob, Tx
from coordinator.store.operating import may_leave_operations, unsettled_questions
from coordinator.store.records import Claim, Done, Ending, Submission
from coordinator.store.transitions import (
    UNCLAIMED,
    Move,
    advance,
    advance_one,
    first_answer,
    move_of,
    refresh_ready,
    stale,
)

__all__ = ["confirm_stopped", "end", "may_ask", "submit"]


_ATTEMPTS = select(t.attempt).where(t.attempt.c.id.in_(bindparam("attempts", expanding=True)))
_SUBMITTED = (
    update(t.attempt)
    .where(t.attempt.c.id == bindparam("of_attempt"))
    .values(ended="submitted", ended_at=bindparam("v_ended_at"), manifest_id=bindparam("v_manifest_id"))
)


def submit(tx: Tx, items: Sequence[Submission]) -> list[Done | StaleClaim]:
    """Hand results in: one submission for each task and generation. Repeating one returns its first answer.

    The caller holds the locks of the tasks, and of the runs that may ask people.
    """
    if not items:
        return []
    manifests = [Blob.of(item.manifest.canonical()) for item in items]
    documents = tx.documents([*(artifact for item in items for artifact in item.artifacts), *manifests])
    rows = [item.claim.attempt_row for item in items]
    attempts = {row.id: row for row in tx.conn.execute(_ATTEMPTS, {"attempts": rows})}
    answers: dict[int, Done | StaleClaim] = {}
    moves: dict[int, Move] = {}
    for index, (item, manifest) in enumerate(zip(items, manifests, strict=True)):
        claim, outcome = item.claim, item.manifest.outcome
        assert outcome in (Outcome.COMPLETED, Outcome.PARTIAL), outcome
        attempt = attempts[claim.attempt_row]
        if attempt.ended == "submitted" and attempt.manifest_id == documents[manifest.digest]:
            answers[index] = Done(State.SUBMITTED, repeated=True)
        else:
            moves[index] = move_of(
                claim, tx.now, values={**UNCLAIMED, "ready": True, "gate_tries": 0}, attempt=claim.attempt_row,
                data={"attempt": claim.attempt, "outcome": outcome},
            )  # fmt: skip
    made = dict(zip(moves, advance(tx, "submitted", list(moves.values()), guards=["fence", "in_time"]), strict=True))
    taken = [
        {
            "of_attempt": items[index].claim.attempt_row, "v_ended_at": tx.now,
            "v_manifest_id": documents[manifests[index].digest],
        }
        for index, ok in made.items() if ok
    ]  # fmt: skip
    if taken:
        tx.conn.execute(_SUBMITTED, taken)
    for index, ok in made.items():
        item = items[index]
        if ok:
            answers[index] = Done(State.SUBMITTED)
            for question in unsettled_questions(tx, item.claim.task_row, item.claim.terms):
                open_request(tx, item.claim.orchestration_row, item.claim.task_row, question)
        elif _was_submitted(tx, item.claim, documents[manifests[index].digest]):  # a moment ago, by this very call
            answers[index] = Done(State.SUBMITTED, repeated=True)
        else:
            late = attempts[item.claim.attempt_row].deadline_at <= tx.now
            answers[index] = _too_late(item.claim) if late else stale(tx, item.claim, "submitting")
            _keep_late(tx, item.claim, documents[manifests[index].digest], item.manifest)
    return [answers[index] for index in range(len(items))]


def _was_submitted(tx: Tx, claim: Claim, manifest_id: int) -> bool:
    query = select(t.attempt.c.id).where(
        t.attempt.c.id == claim.attempt_row, t.attempt.c.ended == "submitted", t.attempt.c.manifest_id == manifest_id
    )
    return tx.conn.execute(query).first() is not None


def _too_late(claim: Claim) -> StaleClaim:
    limit_s = claim.terms.limits.deadline_s
    return StaleClaim(f"submitting {claim.address} refused: its deadline of {limit_s:g} s is over")


def _keep_late(tx: Tx, claim: Claim, manifest_id: int, manifest: Manifest) -> None:
    """A late result changes no task, but it did happen: keep it, once, marked late."""
    kept = tx.conn.execute(
        update(t.attempt)
        .where(t.attempt.c.id == claim.attempt_row, t.attempt.c.manifest_id.is_(None))
        .values(manifest_id=manifest_id, ended_at=tx.now)
    ).rowcount
    if kept:
        data = {"attempt": claim.attempt, "outcome": manifest.outcome, "manifest": manifest.digest, "late": True}
        tx.event(
            claim.orchestration_row,
            claim.task_row,
            "late_result",
            generation=claim.generation,
            owner=claim.owner,
            data=data,
        )


def end(tx: Tx, items: Sequence[Ending]) -> list[Done | StaleClaim]:
    """End attempts (or gating) without a submission. The caller holds the locks, as for ``submit``."""
    return [_end_gate(tx, item) if item.claim.kind is ClaimKind.GATE else _end_work(tx, item) for item in items]


def may_ask(item: Submission | Ending) -> bool:
    """Whether bringing this in may open a request, for which the run is locked first."""
    asks = isinstance(item, Ending) and item.question is not None
    return asks or may_leave_operations(item.claim.terms)


def _end_gate(tx: Tx, item: Ending) -> Done | StaleClaim:
    claim = item.claim
    move = move_of(claim, tx.now, values={**UNCLAIMED, "+gate_tries": -1}, data={"reason": item.reason})
    if advance_one(tx, "gate_released", move, guards=["fence"]):
        return Done(State.SUBMITTED, reason=item.reason)
    return first_answer(tx, claim, ["gate_released"]) or stale(tx, claim, "releasing")


def _end_work(tx: Tx, item: Ending) -> Done | StaleClaim:
    claim = item.claim
    attempt = tx.conn.execute(select(t.attempt).where(t.attempt.c.id == claim.attempt_row)).one()
    manifest_id = None
    if item.manifest is not None:
        manifest = Blob.of(item.manifest.canonical())
        manifest_id = tx.documents([*item.artifacts, manifest])[manifest.digest]
    if attempt.ended == item.word:  # said before, unless it was cancelled from above
        first = first_answer(tx, claim, ["released", "ended", "exhausted"])
        if first is not None:
            return first
    unsettled = unsettled_questions(tx, claim.task_row, claim.terms)
    before = attempt.ended
    # Counted before the guarded UPDATE, so that this end is among the claims that are spent; undone if it is stale.
    tx.conn.execute(update(t.attempt).where(t.attempt.c.id == claim.attempt_row).values(ended=item.word))
    if item.word in ("released", "blocked"):
        data = {"attempt": claim.attempt, "reason": item.reason}
        move = move_of(claim, tx.now, values={**UNCLAIMED, "reason": None}, data=data)
        state = State.PENDING if advance_one(tx, "released", move, guards=["fence"]) else None
    else:

        def ended(values: Mapping[str, Any], reason: str) -> Move:
            return move_of(claim, tx.now, values=values, data={"reason": reason})

        state = back_or_failed(tx, "ended", claim.terms, ended, "fence", item.reason, waits=bool(unsettled))
    if state is None:
        tx.conn.execute(update(t.attempt).where(t.attempt.c.id == claim.attempt_row).values(ended=before))
        if manifest_id is not None and item.manifest is not None:
            _keep_late(tx, claim, manifest_id, item.manifest)
        if item.stopped:
            _stopped(tx, claim)
        return stale(tx, claim, "ending")
    tx.conn.execute(
        update(t.attempt)
        .where(t.attempt.c.id == claim.attempt_row)
        .values(ended_at=tx.now if item.stopped else attempt.ended_at, manifest_id=manifest_id or attempt.manifest_id)
    )
    questions = [*([item.question] if item.question is not None else []), *unsettled]
    for question in questions:
        open_request(tx, claim.orchestration_row, claim.task_row, question)
    if not questions:
        refresh_ready(tx, claim.orchestration_row, task_row=claim.task_row)
    reason = tx.conn.execute(select(t.task.c.reason).where(t.task.c.id == claim.task_row)).scalar_one()
    return Done(state, reason=reason or item.reason)


def confirm_stopped(tx: Tx, claims: Sequence[Claim]) -> None:
    """Record that children whose claim ended earlier have really stopped: a fact, whoever holds the task now."""
    for claim in claims:
        _stopped(tx, claim)


def _stopped(tx: Tx, claim: Claim) -> None:
    stopped = tx.conn.execute(
        update(t.attempt)
        .where(t.attempt.c.id == claim.attempt_row, t.attempt.c.ended_at.is_(None))
        .values(ended_at=tx.now)
    ).rowcount
    if stopped:
        tx.event(
            claim.orchestration_row, claim.task_row, "stopped", generation=claim.generation, owner=claim.owner,
            data={"attempt": claim.attempt},
        )  # fmt: skip
