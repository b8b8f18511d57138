"""Claims: won by one conditional UPDATE, renewed in batches, taken back when the lease is over or the owner is gone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    Row,
    Select,
    and_,
    bindparam,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from contracts.errors import StaleClaim
from contracts.states import ClaimKind, State
from contracts.terms import Terms
from coordinator.store import tables as t
from coordinator.store.asking import open_request
from coordinator.store.damaged import terms_if_whole, whole_ones
from coordinator.store.database import Tx
from coordinator.store.issued import terms_of
from coordinator.store.operating import unsettled_questions
from coordinator.store.records import Claim, Question
from coordinator.store.transitions import (
    UNCLAIMED,
    Guard,
    Move,
    advance,
    advance_one,
    busy_overlap,
    guard_of,
    lock_tasks,
    refresh_ready,
    run_guarded,
    stale,
    try_lock_orchestration,
)

__all__ = ["MAX_GATE_TRIES", "claim", "claims_spent", "due", "owners", "reap", "renew"]

MAX_GATE_TRIES = 3
COUNTED_ENDS = frozenset({"lost", "failed", "cancelled", "unknown", "no_result", "deadline"})
"""Ends of an attempt that use up one of ``max_claims``."""


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
    values: dict[str, Any] = {"now": tx.now}
    if runs is not None:
        values["of_runs"] = list(runs)
    return any(tx.conn.execute(query, values).first() is not None for query in _due_queries(runs is not None))


@cache
def _due_queries(of_runs: bool) -> Sequence[Select[Any]]:
    """Work, results and leases that are over: an index each, which SQLite would not use for all three in one."""
    free = and_(t.task.c.ready, t.task.c.owner.is_(None))
    work = and_(t.task.c.state == State.PENDING.value, free, ~busy_overlap())
    results = and_(t.task.c.state == State.SUBMITTED.value, free)
    expired = and_(t.claimed(), t.task.c.lease_until <= bindparam("now"))
    queries = [select(literal(1)).select_from(t.task).where(found).limit(1) for found in (work, results, expired)]
    if of_runs:
        queries = [
            query.where(t.task.c.orchestration_id.in_(bindparam("of_runs", expanding=True))) for query in queries
        ]
    return queries


_OWNERS = select(t.task.c.owner).where(t.claimed()).distinct()


def owners(tx: Tx) -> list[str]:
    """Of live claims."""
    return list(tx.conn.execute(_OWNERS).scalars())


def reap(tx: Tx, *, gone: Sequence[str] = (), owner: str = "", held: Collection[str] | None = None) -> None:
    """Take back claims whose lease is over, or whose owner is proved to be gone or (``held``) does not know of them."""
    values: dict[str, Any] = {"now": tx.now}
    owners = [*gone, *([] if held is None else [owner])]
    if owners:
        values["owners"] = owners
    rows = tx.conn.execute(_takeable(tx.postgres, bool(owners)), values)
    # Not sorted by the database: SQLite would walk through all tasks rather than sort a few.
    for row in sorted(rows, key=lambda row: int(row.id)):
        unheard = row.owner == owner and held is not None and row.lease_until > tx.now
        if unheard and row.token in (held or ()):
            continue
        if unheard:
            _give_back_unheard(tx, row)
            continue
        if row.lease_until > tx.now:
            why = f"worker {row.owner} is gone (its lock is free)"
        else:
            why = f"the lease of worker {row.owner} ran out"
        if row.claim_kind == ClaimKind.GATE:
            _take_back_gate(tx, row, why)
        else:
            _take_back_work(tx, row, why)


@cache
def _takeable(lock: bool, of_owners: bool) -> Select[Any]:
    over = t.task.c.lease_until <= bindparam("now")
    if of_owners:
        over = or_(over, t.task.c.owner.in_(bindparam("owners", expanding=True)))
    query = (
        select(
            t.task.c.id, t.task.c.orchestration_id, t.task.c.generation, t.task.c.token, t.task.c.owner,
            t.task.c.claim_kind, t.task.c.lease_until, t.task.c.gate_tries, t.document.c.digest, t.document.c.data,
        )
        .join(t.document, t.document.c.id == t.task.c.terms_id)
        .where(and_(t.claimed(), over))
    )  # fmt: skip
    return query.with_for_update(of=t.task, skip_locked=True, key_share=True) if lock else query


def _give_back_unheard(tx: Tx, row: Row[Any]) -> None:
    """The owner never got the answer to its claim: nothing was begun under it, and it is no try."""
    why = f"the answer to the claim never reached {row.owner}"
    if row.claim_kind == ClaimKind.GATE:
        advance_one(tx, "gate_released", _taken_back(row, {**UNCLAIMED, "+gate_tries": -1}, why), guards=["same_claim"])
        return
    advance_one(tx, "released", _taken_back(row, {**UNCLAIMED, "reason": None}, why), guards=["same_claim"])
    tx.conn.execute(
        update(t.attempt)
        .where(t.attempt.c.task_id == row.id, t.attempt.c.generation == row.generation, t.attempt.c.ended.is_(None))
        .values(ended="released", ended_at=tx.now)
    )
    refresh_ready(tx, row.orchestration_id, task_row=row.id)


def _taken_back(row: Row[Any], values: Mapping[str, Any], why: str) -> Move:
    same = {"generation": row.generation, "token": row.token}
    return Move(row.id, row.orchestration_id, same, values, row.generation, row.owner, {"reason": why})


def _take_back_gate(tx: Tx, row: Row[Any], why: str) -> None:
    # Where many deaths are allowed for, those of judges are too.
    terms = terms_if_whole(row.digest, row.data)
    asks = terms is not None and row.gate_tries >= max(MAX_GATE_TRIES, terms.limits.max_claims)
    if asks and not try_lock_orchestration(tx, row.orchestration_id):
        return  # a later tick takes it back
    taken = advance_one(tx, "gate_lost", _taken_back(row, UNCLAIMED, why), guards=["same_claim"])
    if taken and asks:
        open_request(tx, row.orchestration_id, row.id, not_judged_question(row.id, row.generation, row.gate_tries, why))


def _take_back_work(tx: Tx, row: Row[Any], why: str) -> None:
    terms = terms_if_whole(row.digest, row.data)
    questions = unsettled_questions(tx, row.id, terms)
    if questions and not try_lock_orchestration(tx, row.orchestration_id):
        return  # a later tick takes it back
    tx.conn.execute(
        update(t.attempt)
        .where(t.attempt.c.task_id == row.id, t.attempt.c.generation == row.generation, t.attempt.c.ended.is_(None))
        .values(ended="lost")
    )
    taken = back_or_failed(
        tx, "lost", terms, lambda values, reason: _taken_back(row, values, reason), "same_claim", why,
        waits=bool(questions),
    )  # fmt: skip
    if taken is None:
        return  # ended a moment ago, with its parent
    for question in questions:
        open_request(tx, row.orchestration_id, row.id, question)
    refresh_ready(tx, row.orchestration_id, task_row=row.id)  # what it needs may have been replaced meanwhile


def back_or_failed(
    tx: Tx,
    verb: str,
    terms: Terms | None,
    move: Callable[[Mapping[str, Any], str], Move],
    guard: Guard,
    why: str,
    *,
    waits: bool = False,
) -> State | None:
    """Back to pending, or failed when the claims are used up. None: the guard did not hold.

    ``move``: makes the move from the columns to set and the reason. ``waits``: nobody knows yet what it has done
    outside, so it has not failed. ``terms`` None: nobody knows how many claims there may be.
    """
    spent = claims_spent(tx, move({}, "").task_row)
    reason = None
    state = State.PENDING
    if terms is not None and spent >= terms.limits.max_claims and not waits:
        verb, state = "exhausted", State.FAILED
        reason = f"{spent} of {terms.limits.max_claims} claims ended without a result; the last: {why}"
    done = advance_one(tx, verb, move({**UNCLAIMED, "reason": reason}, reason or why), target=state, guards=[guard])
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
        rows = whole_ones(tx, _candidates(tx, ClaimKind.GATE, gate, runs, lock=True))
        # A result whose judge has died may be what killed it: it is judged alone, so that it takes no other with it.
        untried = [row for row in rows if row.gate_tries == 0]
        won += _take(tx, untried or rows[:1], owner, ClaimKind.GATE, new_id)
    if work:
        serialised: set[int] = set()
        if tx.postgres:  # those that must not run side by side are claimed under their run's lock, or by a later tick
            wanted = {row.orchestration_id for row in _candidates(tx, ClaimKind.WORK, work, runs) if row.overlaps}
            serialised = {row for row in sorted(wanted) if try_lock_orchestration(tx, row)}
        rows = whole_ones(tx, _candidates(tx, ClaimKind.WORK, work, runs, lock=True))
        taken = _take(tx, [row for row in rows if not row.overlaps], owner, ClaimKind.WORK, new_id)
        for row in rows:  # one by one, so that each sees those taken a moment ago
            if row.overlaps and (not tx.postgres or row.orchestration_id in serialised):
                taken += _take(tx, [row], owner, ClaimKind.WORK, new_id)
        won += sorted(taken, key=lambda claim: claim.task_row)
    return won


def _candidates(
    tx: Tx, kind: ClaimKind, limit: int, runs: Sequence[int] | None, *, lock: bool = False
) -> Sequence[Row[Any]]:
    query = _candidates_query(kind, runs is not None, tx.postgres and lock)
    values: dict[str, Any] = {"at_most": limit}
    if runs is not None:
        values["of_runs"] = list(runs)
    return tx.conn.execute(query, values).all()


@cache
def _candidates_query(kind: ClaimKind, of_runs: bool, lock: bool) -> Select[Any]:
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
        .where(t.task.c.state == state.value, t.task.c.ready, t.task.c.owner.is_(None))
        .order_by(t.task.c.id)
        .limit(bindparam("at_most"))
    )  # fmt: skip
    if of_runs:
        query = query.where(t.task.c.orchestration_id.in_(bindparam("of_runs", expanding=True)))
    if kind is ClaimKind.WORK:
        query = query.where(~busy_overlap())
    if lock:
        query = query.with_for_update(of=t.task, skip_locked=True, key_share=True)
    return query


def _take(tx: Tx, rows: Sequence[Row[Any]], owner: str, kind: ClaimKind, new_id: Callable[[], str]) -> list[Claim]:
    gates = kind is ClaimKind.GATE
    moves = []
    for row in rows:
        lease_s = terms_of(row.digest, row.data).limits.lease_s
        values = {
            "generation": row.generation + 1, "owner": owner, "token": new_id(), "claim_kind": str(kind),
            "lease_until": tx.now + int(lease_s * 1_000_000),
        }  # fmt: skip
        if gates:
            values["gate_tries"] = row.gate_tries + 1
        moves.append(
            Move(row.id, row.orchestration_id, {"row_version": row.row_version}, values, row.generation + 1, owner)
        )
    guards: Sequence[Guard] = ["free", "no_overlap"] if any(row.overlaps for row in rows) and not gates else ["free"]
    made = advance(tx, "gate_claimed" if gates else "claimed", moves, guards=guards)
    won = [(row, move) for row, move, ok in zip(rows, moves, made, strict=True) if ok]
    if not won:
        return []
    attempts = _submitted_attempts(tx, won) if gates else _new_attempts(tx, won, owner, new_id)
    return [
        Claim(
            orchestration_row=row.orchestration_id,
            task_row=row.id,
            run_id=row.run_id,
            task_id=row.key,
            kind=kind,
            generation=move.values["generation"],
            token=move.values["token"],
            owner=owner,
            lease_until=move.values["lease_until"],
            claimed_at=tx.now,
            delegation_id=row.delegation_id,
            terms=terms_of(row.digest, row.data),
            terms_digest=row.digest,
            head=row.head,
            **attempts[row.id],
        )
        for row, move in won
    ]


_LAST_NUMBERS = (
    select(t.attempt.c.task_id, func.max(t.attempt.c.number).label("number"))
    .where(t.attempt.c.task_id.in_(bindparam("of_tasks", expanding=True)))
    .group_by(t.attempt.c.task_id)
)
_NEW_ROWS = select(t.attempt.c.id, t.attempt.c.task_id).where(
    t.attempt.c.child_run_id.in_(bindparam("children", expanding=True))
)


def _new_attempts(
    tx: Tx, won: Sequence[tuple[Row[Any], Move]], owner: str, new_id: Callable[[], str]
) -> dict[int, dict[str, Any]]:
    tasks = [row.id for row, _ in won]
    last = {row.task_id: row.number for row in tx.conn.execute(_LAST_NUMBERS, {"of_tasks": tasks})}
    attempts: dict[int, dict[str, Any]] = {}
    for row, _ in won:
        deadline_s = terms_of(row.digest, row.data).limits.deadline_s
        attempts[row.id] = {
            "attempt": last.get(row.id, 0) + 1,
            "child_run_id": f"child-{new_id()[:12]}",
            "deadline_at": tx.now + int(deadline_s * 1_000_000),
            "parent_state_version": row.version,
        }
    tx.conn.execute(
        insert(t.attempt),
        [
            {
                "task_id": row.id, "number": attempts[row.id]["attempt"], "generation": move.values["generation"],
                "child_run_id": attempts[row.id]["child_run_id"], "owner": owner, "parent_state_version": row.version,
                "started_at": tx.now, "deadline_at": attempts[row.id]["deadline_at"],
            }
            for row, move in won
        ],
    )  # fmt: skip
    children = [attempt["child_run_id"] for attempt in attempts.values()]
    for found in tx.conn.execute(_NEW_ROWS, {"children": children}):
        attempts[found.task_id]["attempt_row"] = found.id
    return attempts


_SUBMITTED = (
    select(t.attempt, t.document.c.digest)
    .join(t.document, t.document.c.id == t.attempt.c.manifest_id)
    .where(t.attempt.c.task_id.in_(bindparam("of_tasks", expanding=True)), t.attempt.c.ended == "submitted")
    .order_by(t.attempt.c.number)
)


def _submitted_attempts(tx: Tx, won: Sequence[tuple[Row[Any], Move]]) -> dict[int, dict[str, Any]]:
    """Of each task the newest result that was submitted."""
    return {
        found.task_id: {
            "attempt_row": found.id,
            "attempt": found.number,
            "child_run_id": found.child_run_id,
            "deadline_at": found.deadline_at,
            "parent_state_version": found.parent_state_version,
            "manifest_digest": found.digest,
            "generation_submitted": found.generation,
        }
        for found in tx.conn.execute(_SUBMITTED, {"of_tasks": [row.id for row, _ in won]})
    }


_RENEW = (
    update(t.task)
    .where(t.task.c.id == bindparam("b_task"), guard_of("fence"))
    .values(lease_until=bindparam("v_lease_until"))
)


def renew(tx: Tx, claims: Sequence[Claim]) -> list[int | StaleClaim]:
    """Prolong leases. For each claim the new end (microseconds), or ``StaleClaim``."""
    lock_tasks(tx, [item.task_row for item in claims])
    until = [tx.now + int(item.terms.limits.lease_s * 1_000_000) for item in claims]
    rows = [
        {
            "b_task": item.task_row, "g_generation": item.generation, "g_token": item.token, "g_now": tx.now,
            "v_lease_until": end,
        }
        for item, end in zip(claims, until, strict=True)
    ]  # fmt: skip
    renewed = run_guarded(tx, _RENEW, rows)
    return [end if ok else stale(tx, item, "renewing") for item, end, ok in zip(claims, until, renewed, strict=True)]
