"""Claims: won by one conditional UPDATE, renewed in batches, taken back when the lease is over or the owner is gone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, exists, func, insert, literal, or_, select, update

from contracts.errors import StaleClaim
from contracts.states import ClaimKind, State
from contracts.terms import Terms
from coordinator.store import tables as t
from coordinator.store.asking import open_request
from coordinator.store.database import Tx, intact
from coordinator.store.records import Claim, Question
from coordinator.store.transitions import (
    UNCLAIMED,
    advance,
    fence,
    lock_orchestrations,
    lock_tasks,
    refresh_ready,
    stale,
)

__all__ = ["MAX_GATE_TRIES", "claim", "claims_spent", "due", "reap", "renew", "terms_of"]

MAX_GATE_TRIES = 3
COUNTED_ENDS = frozenset({"lost", "failed", "cancelled", "unknown", "no_result", "deadline"})
"""Ends of an attempt that use up one of ``max_claims``."""

_terms_by_digest: dict[str, Terms] = {}


def terms_of(digest: str, data: bytes) -> Terms:
    """Parsed terms; immutable, so parsed once. Raises ``Damaged``."""
    known = _terms_by_digest.get(digest)
    if known is None:
        if len(_terms_by_digest) > 10_000:
            _terms_by_digest.clear()
        known = _terms_by_digest[digest] = Terms.from_canonical(json.loads(intact(digest, data)))
    return known


def claims_spent(tx: Tx, task_row: int) -> int:
    """Claims to work that ended without a submission or a release, since the last submission."""
    query = select(t.attempt.c.ended).where(t.attempt.c.task_id == task_row).order_by(t.attempt.c.number.desc())
    spent = 0
    for (ended,) in tx.conn.execute(query):
        if ended == "submitted":
            break
        spent += ended in COUNTED_ENDS
    return spent


def due(tx: Tx, *, runs: Sequence[int] | None) -> bool:
    """Whether a claim would find anything: cheap, and takes no write lock."""
    free = and_(t.task.c.ready, t.task.c.owner.is_(None))
    results = and_(t.task.c.state == State.SUBMITTED.value, free)
    work = and_(t.task.c.state == State.PENDING.value, free, ~_busy_overlap())
    expired = and_(t.claimed(), t.task.c.lease_until <= tx.now)
    for condition in (results, work, expired):
        query = select(literal(1)).select_from(t.task).where(condition, *_of_runs(runs)).limit(1)
        if tx.conn.execute(query).first() is not None:
            return True
    return False


def reap(tx: Tx, *, gone: Sequence[str] = ()) -> None:
    """Take back claims whose lease is over, or whose owner is proved to be gone."""
    over = t.task.c.lease_until <= tx.now
    condition = and_(t.claimed(), or_(over, t.task.c.owner.in_(gone)) if gone else over)
    query = select(t.task, t.document.c.digest, t.document.c.data).where(condition)
    query = query.join(t.document, t.document.c.id == t.task.c.terms_id)
    if tx.postgres:
        query = query.with_for_update(of=t.task, skip_locked=True, key_share=True)
    # Not sorted by the database: SQLite would walk through all tasks rather than sort a few.
    for row in sorted(tx.conn.execute(query), key=lambda row: int(row.id)):
        same = [t.task.c.generation == row.generation, t.task.c.token == row.token]
        if row.lease_until > tx.now:
            why = f"worker {row.owner} is gone (its lock is free)"
        else:
            why = f"the lease of worker {row.owner} ran out"
        if row.claim_kind == ClaimKind.GATE:
            _take_back_gate(tx, row, same, why)
        else:
            _take_back_work(tx, row, same, why)


def _take_back_gate(tx: Tx, row: Row[Any], same: list[ColumnElement[bool]], why: str) -> None:
    taken = advance(
        tx, "gate_lost", task_row=row.id, orchestration_row=row.orchestration_id, where=same,
        generation=row.generation, owner=row.owner, data={"reason": why}, values=UNCLAIMED,
    )  # fmt: skip
    # Where many deaths are allowed for, those of judges are too.
    limit = max(MAX_GATE_TRIES, terms_of(row.digest, row.data).limits.max_claims)
    if taken and row.gate_tries >= limit:
        open_request(tx, row.orchestration_id, row.id, not_judged_question(row.id, row.generation, row.gate_tries, why))


def _take_back_work(tx: Tx, row: Row[Any], same: list[ColumnElement[bool]], why: str) -> None:
    tx.conn.execute(
        update(t.attempt)
        .where(t.attempt.c.task_id == row.id, t.attempt.c.generation == row.generation, t.attempt.c.ended.is_(None))
        .values(ended="lost")
    )
    terms = terms_of(row.digest, row.data)
    back_or_failed(tx, "lost", row.orchestration_id, row.id, terms, why, same, row.generation, row.owner)
    refresh_ready(tx, row.orchestration_id, task_row=row.id)  # what it needs may have been replaced meanwhile


def back_or_failed(
    tx: Tx,
    verb: str,
    orchestration_row: int,
    task_row: int,
    terms: Terms,
    why: str,
    where: Sequence[ColumnElement[bool]],
    generation: int,
    owner: str,
) -> State | None:
    """Back to pending, or failed when the claims are used up. None: the guard did not hold."""
    spent = claims_spent(tx, task_row)
    reason = None
    state = State.PENDING
    if spent >= terms.limits.max_claims:
        verb, state = "exhausted", State.FAILED
        reason = f"{spent} of {terms.limits.max_claims} claims ended without a result; the last: {why}"
    done = advance(
        tx, verb, task_row=task_row, orchestration_row=orchestration_row, target=state, where=where,
        generation=generation, owner=owner, data={"reason": reason or why}, values={**UNCLAIMED, "reason": reason},
    )  # fmt: skip
    return state if done else None


def not_judged_question(task_row: int, generation: int, tries: int, why: str) -> Question:
    text = (
        f"The result could not be judged in {tries} tries; the last: {why}. "
        "Approve to judge it again, reject to fail the task."
    )
    return Question("not_judged", text, None, f"not_judged:{task_row}:{generation}")


def claim(
    tx: Tx,
    owner: str,
    *,
    work: int,
    gate: int,
    runs: Sequence[int] | None,
    new_id: Callable[[], str],
) -> list[Claim]:
    """Claim up to ``gate`` results to judge and ``work`` tasks to work on. A lost race is simply not in the list."""
    won: list[Claim] = []
    if gate:
        rows = _candidates(tx, ClaimKind.GATE, gate, runs, lock=True)
        # A result whose judge has died may be what killed it: it is judged alone, so that it takes no other with it.
        untried = [row for row in rows if row.gate_tries == 0]
        for row in untried or rows[:1]:
            won += _take(tx, row, owner, ClaimKind.GATE, new_id)
    if work:
        serialised: set[int] = set()
        if tx.postgres:  # those that must not run side by side are claimed under their run's lock, taken before theirs
            serialised = {row.orchestration_id for row in _candidates(tx, ClaimKind.WORK, work, runs) if row.overlaps}
            lock_orchestrations(tx, sorted(serialised))
        for row in _candidates(tx, ClaimKind.WORK, work, runs, lock=True):
            if not tx.postgres or not row.overlaps or row.orchestration_id in serialised:
                won += _take(tx, row, owner, ClaimKind.WORK, new_id)
    return won


def _of_runs(runs: Sequence[int] | None) -> list[ColumnElement[bool]]:
    return [] if runs is None else [t.task.c.orchestration_id.in_(runs)]


def _busy_overlap() -> ColumnElement[bool]:
    other = t.task.alias("other")
    return exists(
        select(literal(1))
        .select_from(t.overlap.join(other, other.c.id == t.overlap.c.other_id))
        .where(t.overlap.c.task_id == t.task.c.id, other.c.state.in_(["running", "submitted"]))
    )


def _candidates(
    tx: Tx, kind: ClaimKind, limit: int, runs: Sequence[int] | None, *, lock: bool = False
) -> list[Row[Any]]:
    state = State.PENDING if kind is ClaimKind.WORK else State.SUBMITTED
    overlaps = exists(select(literal(1)).select_from(t.overlap).where(t.overlap.c.task_id == t.task.c.id))
    query = (
        select(
            t.task.c.id, t.task.c.orchestration_id, t.task.c.key, t.task.c.generation, t.task.c.row_version,
            t.task.c.delegation_id, t.task.c.gate_tries, t.document.c.digest, t.document.c.data,
            t.orchestration.c.run_id, t.orchestration.c.version, t.orchestration.c.head, overlaps.label("overlaps"),
        )
        .join(t.document, t.document.c.id == t.task.c.terms_id)
        .join(t.orchestration, t.orchestration.c.id == t.task.c.orchestration_id)
        .where(t.task.c.state == state.value, t.task.c.ready, t.task.c.owner.is_(None), *_of_runs(runs))
        .order_by(t.task.c.id)
        .limit(limit)
    )  # fmt: skip
    if kind is ClaimKind.WORK:
        query = query.where(~_busy_overlap())
    if tx.postgres and lock:
        query = query.with_for_update(of=t.task, skip_locked=True, key_share=True)
    return list(tx.conn.execute(query))


def _take(tx: Tx, row: Row[Any], owner: str, kind: ClaimKind, new_id: Callable[[], str]) -> list[Claim]:
    terms = terms_of(row.digest, row.data)
    generation = row.generation + 1
    lease_until = tx.now + int(terms.limits.lease_s * 1_000_000)
    token = new_id()
    where = [t.task.c.row_version == row.row_version, t.task.c.owner.is_(None)]
    values: dict[str, Any] = {
        "generation": generation, "owner": owner, "token": token, "claim_kind": str(kind), "lease_until": lease_until,
    }  # fmt: skip
    if kind is ClaimKind.GATE:
        verb = "gate_claimed"
        values["gate_tries"] = row.gate_tries + 1
    else:
        verb = "claimed"
        if row.overlaps:
            where.append(~_busy_overlap())  # also against those taken a moment ago, in this very batch
    if not advance(
        tx, verb, task_row=row.id, orchestration_row=row.orchestration_id, where=where, generation=generation,
        owner=owner, values=values,
    ):  # fmt: skip
        return []
    if kind is ClaimKind.GATE:
        attempt = _submitted_attempt(tx, row.id)
    else:
        attempt = _new_attempt(tx, row, generation, terms, owner, new_id)
    return [
        Claim(
            orchestration_row=row.orchestration_id,
            task_row=row.id,
            run_id=row.run_id,
            task_id=row.key,
            kind=kind,
            generation=generation,
            token=token,
            owner=owner,
            lease_until=lease_until,
            claimed_at=tx.now,
            delegation_id=row.delegation_id,
            terms=terms,
            terms_digest=row.digest,
            head=row.head,
            **attempt,
        )
    ]


def _new_attempt(
    tx: Tx, row: Row[Any], generation: int, terms: Terms, owner: str, new_id: Callable[[], str]
) -> dict[str, Any]:
    query = select(func.coalesce(func.max(t.attempt.c.number), 0)).where(t.attempt.c.task_id == row.id)
    number = int(tx.conn.execute(query).scalar_one()) + 1
    child_run_id = f"child-{new_id()[:12]}"
    deadline_at = tx.now + int(terms.limits.deadline_s * 1_000_000)
    inserted = tx.conn.execute(
        insert(t.attempt).values(
            task_id=row.id, number=number, generation=generation, child_run_id=child_run_id, owner=owner,
            parent_state_version=row.version, started_at=tx.now, deadline_at=deadline_at,
        )
    )  # fmt: skip
    return {
        "attempt_row": inserted.inserted_primary_key[0],  # type: ignore[index]
        "attempt": number,
        "child_run_id": child_run_id,
        "deadline_at": deadline_at,
        "parent_state_version": row.version,
    }


def _submitted_attempt(tx: Tx, task_row: int) -> dict[str, Any]:
    query = (
        select(t.attempt, t.document.c.digest)
        .join(t.document, t.document.c.id == t.attempt.c.manifest_id)
        .where(t.attempt.c.task_id == task_row, t.attempt.c.ended == "submitted")
        .order_by(t.attempt.c.number.desc())
        .limit(1)
    )
    found = tx.conn.execute(query).one()
    return {
        "attempt_row": found.id,
        "attempt": found.number,
        "child_run_id": found.child_run_id,
        "deadline_at": found.deadline_at,
        "parent_state_version": found.parent_state_version,
        "manifest_digest": found.digest,
        "generation_submitted": found.generation,
    }


def renew(tx: Tx, claims: Sequence[Claim]) -> list[int | StaleClaim]:
    """Prolong leases. For each claim the new end (microseconds), or ``StaleClaim``."""
    lock_tasks(tx, [item.task_row for item in claims])
    outcomes: list[int | StaleClaim] = []
    for item in claims:
        until = tx.now + int(item.terms.limits.lease_s * 1_000_000)
        renewed = tx.conn.execute(
            update(t.task).where(t.task.c.id == item.task_row, fence(item, tx.now)).values(lease_until=until)
        ).rowcount
        outcomes.append(until if renewed == 1 else stale(tx, item, "renewing"))
    return outcomes
