"""The end of an attempt: a submission, or an ending without one. What a stale holder brings is kept as a fact."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import exists, literal, select, update

from contracts.errors import StaleClaim
from contracts.results import Manifest
from contracts.states import ClaimKind, Outcome, State
from coordinator.store import tables as t
from coordinator.store.asking import open_request
from coordinator.store.claiming import back_or_failed
from coordinator.store.database import Blob, Tx
from coordinator.store.records import Claim, Done, Ending, Submission
from coordinator.store.transitions import (
    UNCLAIMED,
    advance,
    fence,
    first_answer,
    lock_orchestrations,
    lock_tasks,
    refresh_ready,
    stale,
)

__all__ = ["confirm_stopped", "end", "submit"]


def submit(tx: Tx, items: Sequence[Submission]) -> list[Done | StaleClaim]:
    """Hand results in: one submission for each task and generation. Repeating one returns its first answer."""
    lock_tasks(tx, [item.claim.task_row for item in items])
    return [_submit(tx, item) for item in items]


def _submit(tx: Tx, item: Submission) -> Done | StaleClaim:
    claim, manifest = item.claim, item.manifest
    assert manifest.outcome in (Outcome.COMPLETED, Outcome.PARTIAL), manifest.outcome
    for artifact in item.artifacts:
        tx.document(artifact)
    manifest_id = tx.document(Blob.of(manifest.canonical()))
    attempt = tx.conn.execute(select(t.attempt).where(t.attempt.c.id == claim.attempt_row)).one()
    if attempt.ended == "submitted" and attempt.manifest_id == manifest_id:
        return Done(State.SUBMITTED, repeated=True)
    in_time = exists(select(literal(1)).where(t.attempt.c.id == claim.attempt_row, t.attempt.c.deadline_at > tx.now))
    taken = advance(
        tx, "submitted", task_row=claim.task_row, orchestration_row=claim.orchestration_row,
        where=[fence(claim, tx.now), in_time], generation=claim.generation, owner=claim.owner,
        data={"attempt": claim.attempt, "outcome": manifest.outcome},
        values={**UNCLAIMED, "ready": True, "gate_tries": 0},
    )  # fmt: skip
    if not taken:
        if attempt.deadline_at <= tx.now:
            why = StaleClaim(
                f"submitting {claim.address} refused: its deadline of {claim.terms.limits.deadline_s:g} s is over"
            )
        else:
            why = stale(tx, claim, "submitting")
        _keep_late(tx, claim, manifest_id, manifest)
        return why
    tx.conn.execute(
        update(t.attempt)
        .where(t.attempt.c.id == claim.attempt_row)
        .values(ended="submitted", ended_at=tx.now, manifest_id=manifest_id)
    )
    return Done(State.SUBMITTED)


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
    """End attempts (or gating) without a submission."""
    lock_orchestrations(tx, [item.claim.orchestration_row for item in items if item.question is not None])
    lock_tasks(tx, [item.claim.task_row for item in items])
    return [_end_gate(tx, item) if item.claim.kind is ClaimKind.GATE else _end_work(tx, item) for item in items]


def _end_gate(tx: Tx, item: Ending) -> Done | StaleClaim:
    claim = item.claim
    given_back = advance(
        tx, "gate_released", task_row=claim.task_row, orchestration_row=claim.orchestration_row,
        where=[fence(claim, tx.now)], generation=claim.generation, owner=claim.owner, data={"reason": item.reason},
        values={**UNCLAIMED, "gate_tries": t.task.c.gate_tries - 1},
    )  # fmt: skip
    if given_back:
        return Done(State.SUBMITTED, reason=item.reason)
    return first_answer(tx, claim, ["gate_released"]) or stale(tx, claim, "releasing")


def _end_work(tx: Tx, item: Ending) -> Done | StaleClaim:
    claim = item.claim
    attempt = tx.conn.execute(select(t.attempt).where(t.attempt.c.id == claim.attempt_row)).one()
    manifest_id = None
    if item.manifest is not None:
        for artifact in item.artifacts:
            tx.document(artifact)
        manifest_id = tx.document(Blob.of(item.manifest.canonical()))
    if attempt.ended == item.word:  # said before, unless it was cancelled from above
        first = first_answer(tx, claim, ["released", "ended", "exhausted"])
        if first is not None:
            return first
    guard = [fence(claim, tx.now)]
    before = attempt.ended
    # Counted before the guarded UPDATE, so that this end is among the claims that are spent; undone if it is stale.
    tx.conn.execute(update(t.attempt).where(t.attempt.c.id == claim.attempt_row).values(ended=item.word))
    if item.word in ("released", "blocked"):
        done = advance(
            tx, "released", task_row=claim.task_row, orchestration_row=claim.orchestration_row, where=guard,
            generation=claim.generation, owner=claim.owner, data={"attempt": claim.attempt, "reason": item.reason},
            values={**UNCLAIMED, "reason": None},
        )  # fmt: skip
        state = State.PENDING if done else None
    else:
        state = back_or_failed(
            tx, "ended", claim.orchestration_row, claim.task_row, claim.terms, item.reason, guard,
            claim.generation, claim.owner,
        )  # fmt: skip
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
    if item.question is not None:
        open_request(tx, claim.orchestration_row, claim.task_row, item.question)
    else:
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
