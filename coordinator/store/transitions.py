"""The one guarded UPDATE, with its event: every change of a task's state goes through here, many at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from sqlalchemy import ColumnElement, Update, and_, bindparam, exists, func, literal, or_, select, update

from contracts.canonical import well_formed
from contracts.errors import StaleClaim
from contracts.states import FINAL_STATES, OPEN_STATES, State, sources_of, targets_of
from coordinator.store import tables as t
from coordinator.store.database import AT_ONCE_MAX, Tx, in_parts
from coordinator.store.records import Claim, Done

__all__ = [
    "UNCLAIMED",
    "Guard",
    "Move",
    "advance",
    "advance_one",
    "bump_version",
    "busy_overlap",
    "cancel_rows",
    "first_answer",
    "guard_of",
    "holds",
    "lock_orchestrations",
    "lock_tasks",
    "move_of",
    "next_sequence",
    "refresh_ready",
    "run_guarded",
    "stale",
    "storable",
    "try_lock_orchestration",
]

UNCLAIMED: dict[str, None] = {"owner": None, "token": None, "claim_kind": None, "lease_until": None}


def busy_overlap() -> ColumnElement[bool]:
    """A task whose write scope meets this one's is being worked on or judged."""
    other = t.task.alias("other")
    return exists(
        select(literal(1))
        .select_from(t.overlap.join(other, other.c.id == t.overlap.c.other_id))
        .where(t.overlap.c.task_id == t.task.c.id, or_(other.c.state == "running", other.c.state == "submitted"))
    )


_SAME_CLAIM = and_(t.task.c.generation == bindparam("g_generation"), t.task.c.token == bindparam("g_token"))

Guard = Literal["same_claim", "fence", "in_time", "free", "no_overlap", "same_content", "same_terms"]

_GUARDS: dict[Guard, ColumnElement[bool]] = {
    "same_claim": _SAME_CLAIM,
    # Authority: task, generation and token match, and the lease has not ended. Names prove nothing.
    "fence": and_(_SAME_CLAIM, t.task.c.lease_until > bindparam("g_now")),
    "in_time": exists(
        select(literal(1)).where(t.attempt.c.id == bindparam("g_attempt"), t.attempt.c.deadline_at > bindparam("g_now"))
    ),
    "free": and_(t.task.c.row_version == bindparam("g_row_version"), t.task.c.owner.is_(None)),
    "no_overlap": ~busy_overlap(),
    "same_content": exists(
        select(literal(1))
        .select_from(t.attempt.join(t.document, t.document.c.id == t.attempt.c.manifest_id))
        .where(
            t.attempt.c.id == bindparam("g_attempt"),
            t.attempt.c.ended == "submitted",
            t.attempt.c.generation == bindparam("g_submitted"),
            t.document.c.digest == bindparam("g_manifest"),
        )
    ),
    "same_terms": t.task.c.terms_id.in_(select(t.document.c.id).where(t.document.c.digest == bindparam("g_terms"))),
}


@dataclass(frozen=True, slots=True)
class Move:
    """One task on its way through a verb. ``guard``: what its guards compare with, by the name of the parameter."""

    task_row: int
    orchestration_row: int
    guard: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    """Columns to set besides the state; the same ones in every move of a call. ``+column`` adds to it."""
    generation: int | None = None
    owner: str | None = None
    data: Mapping[str, Any] | None = None
    """Of the event."""


def move_of(
    claim: Claim, now: int, *, values: Mapping[str, Any], data: Mapping[str, Any] | None = None, **guard: Any
) -> Move:
    """A move that the holder of a claim makes, with what the fence compares."""
    return Move(
        claim.task_row,
        claim.orchestration_row,
        {"generation": claim.generation, "token": claim.token, "now": now, **guard},
        values,
        claim.generation,
        claim.owner,
        data,
    )


def advance(
    tx: Tx, verb: str, moves: Sequence[Move], *, target: State | None = None, guards: Sequence[Guard] = ()
) -> list[bool]:
    """Take tasks through ``verb`` where the table of transitions and the guards allow it, and record it.

    For each move whether it was made. The row count of the guarded UPDATE alone says so: one for all of them, and
    where that is not their number, one for each.
    """
    if not moves:
        return []
    if len(moves) > AT_ONCE_MAX:
        parts = in_parts(moves)
        return [ok for part in parts for ok in advance(tx, verb, part, target=target, guards=guards)]
    targets = targets_of(verb)
    state = target if target is not None else next(iter(targets))
    assert state in targets, (verb, state)
    statement = _guarded(verb, state, tuple(guards), tuple(moves[0].values))
    rows = [_parameters(move) for move in moves]
    made = run_guarded(tx, statement, rows)
    done = [move for move, ok in zip(moves, made, strict=True) if ok]
    for move in done:
        data = move.data
        if data and data.get("reason"):
            data = {**data, "reason": storable(data["reason"])}
        tx.event(move.orchestration_row, move.task_row, verb, generation=move.generation, owner=move.owner, data=data)
    if state in FINAL_STATES and done:
        void_requests(tx, [move.task_row for move in done])
        _close_children(tx, done, f"its parent is {state}")
    return made


def run_guarded(tx: Tx, statement: Update, rows: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Run an UPDATE that names one row for each of these; which of them it changed."""
    if len(rows) > 1:
        together = tx.conn.begin_nested()
        if tx.conn.execute(statement, rows).rowcount == len(rows):
            together.commit()
            return [True] * len(rows)
        together.rollback()
    return [tx.conn.execute(statement, row).rowcount == 1 for row in rows]


def advance_one(tx: Tx, verb: str, move: Move, *, target: State | None = None, guards: Sequence[Guard] = ()) -> bool:
    return advance(tx, verb, [move], target=target, guards=guards)[0]


@cache
def _guarded(verb: str, state: State, guards: tuple[Guard, ...], columns: tuple[str, ...]) -> Update:
    """Built once: putting a statement together costs more than running it."""
    values: dict[str, Any] = {"state": str(state), "row_version": t.task.c.row_version + 1}
    for column in columns:
        name = column.removeprefix("+")
        value = bindparam(f"v_{name}", type_=t.task.c[name].type)
        values[name] = value if name == column else t.task.c[name] + value
    if state in FINAL_STATES:
        values["ready"] = False
    # Not ``IN``: a list of values cannot be part of a statement that is run for many rows.
    legal = or_(*(t.task.c.state == source for source in sorted(sources_of(verb))))
    conditions = [legal, *(_GUARDS[guard] for guard in guards)]
    return update(t.task).where(t.task.c.id == bindparam("b_task"), *conditions).values(values)


def _parameters(move: Move) -> dict[str, Any]:
    row: dict[str, Any] = {"b_task": move.task_row}
    for name, value in move.guard.items():
        row[f"g_{name}"] = value
    for column, value in move.values.items():
        row[f"v_{column.removeprefix('+')}"] = storable(value) if column == "reason" and value else value
    return row


_OPEN_CHILDREN = (
    select(t.task.c.id, t.task.c.orchestration_id)
    .where(t.task.c.parent_id.in_(bindparam("parents", expanding=True)), t.task.c.state.in_(sorted(OPEN_STATES)))
    .order_by(t.task.c.id)
)
_END_CANCELLED = (
    update(t.attempt)
    .where(t.attempt.c.task_id == bindparam("of_task"), t.attempt.c.ended.is_(None))
    .values(ended="cancelled")
)


def _close_children(tx: Tx, parents: Sequence[Move], reason: str) -> None:
    """A child delegated by a child lives and dies with its parent's task row."""
    children = tx.conn.execute(_OPEN_CHILDREN, {"parents": [move.task_row for move in parents]}).all()
    cancel_rows(tx, [(row.id, row.orchestration_id) for row in children], reason)


def cancel_rows(tx: Tx, rows: Sequence[tuple[int, int]], reason: str) -> int:
    """Cancel tasks (row, row of their run) and all below them; how many of these it ended.

    Their workers may still run: their attempts end without a time of stopping.
    """
    values = {**UNCLAIMED, "reason": reason or None}
    data = {"reason": reason} if reason else None
    made = advance(tx, "cancelled", [Move(task, run, values=values, data=data) for task, run in rows])
    ended = [{"of_task": task} for (task, _), ok in zip(rows, made, strict=True) if ok]
    if ended:
        tx.conn.execute(_END_CANCELLED, ended)
    return len(ended)


def storable(reason: str) -> str:
    """Every database can hold it: no half surrogate pair (canonical JSON), no NUL (PostgreSQL)."""
    return well_formed(reason).replace("\0", "\\u0000")


_VOID_REQUESTS = (
    update(t.request)
    .where(t.request.c.task_id.in_(bindparam("of_tasks", expanding=True)), t.request.c.state == "open")
    .values(state="void")
)


def void_requests(tx: Tx, task_rows: Sequence[int]) -> None:
    """What was asked about a task that has ended needs no answer any more."""
    tx.conn.execute(_VOID_REQUESTS, {"of_tasks": list(task_rows)})


def guard_of(guard: Guard) -> ColumnElement[bool]:
    """A guard for another statement than the guarded UPDATE; its parameters are named ``g_…``."""
    return _GUARDS[guard]


def holds(tx: Tx, claim: Claim) -> bool:
    """Whether a claim has authority now."""
    values = {"b_task": claim.task_row, "g_generation": claim.generation, "g_token": claim.token, "g_now": tx.now}
    return tx.conn.execute(_HELD, values).first() is not None


_HELD = select(literal(1)).select_from(t.task).where(t.task.c.id == bindparam("b_task"), _GUARDS["fence"])


def refresh_ready(
    tx: Tx, orchestration_row: int, *, task_row: int | None = None, needing: Sequence[str] | None = None
) -> None:
    """Recompute ``ready`` of one task, of the tasks that need a key, or of a run: needs met, and no question open."""
    if task_row is not None:
        tx.conn.execute(_refresh("task"), {"chosen_task": task_row})
    elif needing is not None:
        tx.conn.execute(_refresh("needing"), {"chosen_run": orchestration_row, "chosen_keys": list(needing)})
    else:
        tx.conn.execute(_refresh("run"), {"chosen_run": orchestration_row})


@cache
def _refresh(which: Literal["task", "needing", "run"]) -> Update:
    """Built once: putting the statement together costs more than running it."""
    needed = t.task.alias("needed")
    unmet = exists(
        select(literal(1))
        .select_from(t.need)
        .where(
            t.need.c.task_id == t.task.c.id,
            ~exists(
                select(literal(1))
                .select_from(needed)
                .where(
                    needed.c.orchestration_id == t.need.c.orchestration_id,
                    needed.c.key == t.need.c.needed_key,
                    needed.c.is_current,
                    or_(
                        needed.c.state == State.ACCEPTED.value,
                        and_(needed.c.state == State.PARTIAL.value, t.need.c.partial_ok),
                    ),
                )
            ),
        )
    )
    asked = exists(
        select(literal(1)).select_from(t.request).where(t.request.c.task_id == t.task.c.id, t.request.c.state == "open")
    )
    if which == "task":
        chosen = t.task.c.id == bindparam("chosen_task")
    elif which == "needing":
        of_run = [
            t.need.c.orchestration_id == bindparam("chosen_run"),
            t.need.c.needed_key.in_(bindparam("chosen_keys", expanding=True)),
        ]
        chosen = t.task.c.id.in_(select(t.need.c.task_id).where(*of_run))
    else:
        chosen = t.task.c.orchestration_id == bindparam("chosen_run")
    waits = and_(t.task.c.state == "pending", unmet)
    is_open = t.task.c.state.in_(sorted(OPEN_STATES))
    return update(t.task).where(chosen, is_open).values(ready=~or_(waits, asked))


def stale(tx: Tx, claim: Claim, doing: str) -> StaleClaim:
    """Say what was found and what was needed."""
    row = tx.conn.execute(
        select(t.task.c.state, t.task.c.generation, t.task.c.lease_until, t.task.c.reason).where(
            t.task.c.id == claim.task_row
        )
    ).one()
    if row.generation != claim.generation:
        found = f"generation {row.generation}"
    elif row.lease_until is not None and row.lease_until <= tx.now:
        found = f"a lease that ended {(tx.now - row.lease_until) / 1e6:.1f} s ago"
    else:
        found = "no live claim"
    return StaleClaim(
        f"{doing} {claim.address} refused: needed {claim.kind} generation {claim.generation} with a live lease; "
        f"found state {row.state}, {found}"
    )


def first_answer(tx: Tx, claim: Claim, verbs: Sequence[str]) -> Done | None:
    """What a call of this generation that ended in one of these verbs was told. None: there was none."""
    tx.flush()  # the first call may be of this very transaction
    query = (
        select(t.event.c.verb, t.event.c.data)
        .where(
            t.event.c.orchestration_id == claim.orchestration_row, t.event.c.task_id == claim.task_row,
            t.event.c.generation == claim.generation, t.event.c.verb.in_(verbs),
        )
        .limit(1)
    )  # fmt: skip
    found = tx.conn.execute(query).first()
    if found is None:
        return None
    reason = json.loads(found.data).get("reason", "") if found.data else ""
    return Done(next(iter(targets_of(found.verb))), repeated=True, reason=reason)


def lock_orchestrations(tx: Tx, rows: Sequence[int]) -> None:
    """Serialise with cancel, delegate and other decisions of these runs (SQLite has one writer anyway).

    Taken before any lock of a task. Not ``FOR UPDATE``: that would also keep out every row that refers to the run.
    """
    if tx.postgres and rows:
        query = select(t.orchestration.c.id).where(t.orchestration.c.id.in_(sorted(set(rows))))
        tx.conn.execute(query.order_by(t.orchestration.c.id).with_for_update(key_share=True)).all()
        tx.look_at_clock()


def try_lock_orchestration(tx: Tx, row: int) -> bool:
    """The same lock, for those who hold locks of tasks already: never waited for, since that could be a deadlock."""
    if not tx.postgres:
        return True
    query = select(t.orchestration.c.id).where(t.orchestration.c.id == row)
    return tx.conn.execute(query.with_for_update(key_share=True, skip_locked=True)).first() is not None


def lock_tasks(tx: Tx, rows: Sequence[int]) -> None:
    """Take row locks in one order, so that two batches cannot wait for each other."""
    if tx.postgres and rows:
        ordered = sorted(set(rows))
        for some in in_parts(ordered):
            query = select(t.task.c.id).where(t.task.c.id.in_(some))
            tx.conn.execute(query.order_by(t.task.c.id).with_for_update(key_share=True)).all()
        tx.look_at_clock()


_BUMP_VERSION = (
    update(t.orchestration)
    .where(t.orchestration.c.id == bindparam("of_run"))
    .values(version=t.orchestration.c.version + 1)
)


def bump_version(tx: Tx, orchestration_row: int) -> None:
    """What children of this run may build on has changed."""
    tx.conn.execute(_BUMP_VERSION, {"of_run": orchestration_row})


def next_sequence(tx: Tx, orchestration_row: int) -> int:
    query = select(func.coalesce(func.max(t.request.c.sequence), 0)).where(
        t.request.c.orchestration_id == orchestration_row
    )
    return int(tx.conn.execute(query).scalar_one()) + 1
