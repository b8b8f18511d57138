"""The one guarded UPDATE, with its event: every change of a task's state goes through here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

from sqlalchemy import ColumnElement, Update, and_, bindparam, exists, func, literal, or_, select, update

from contracts.canonical import well_formed
from contracts.errors import StaleClaim
from contracts.states import FINAL_STATES, OPEN_STATES, State, sources_of, targets_of
from coordinator.store import tables as t
from coordinator.store.database import Tx
from coordinator.store.records import Claim, Done

__all__ = [
    "UNCLAIMED",
    "advance",
    "bump_version",
    "cancel_row",
    "fence",
    "first_answer",
    "lock_orchestrations",
    "lock_tasks",
    "next_sequence",
    "refresh_ready",
    "stale",
    "storable",
]

UNCLAIMED: dict[str, None] = {"owner": None, "token": None, "claim_kind": None, "lease_until": None}


def fence(claim: Claim, now: int) -> ColumnElement[bool]:
    """Authority: task, generation and token match, and the lease has not ended. Names prove nothing."""
    return and_(
        t.task.c.generation == claim.generation,
        t.task.c.token == claim.token,
        t.task.c.lease_until > now,
    )


def advance(
    tx: Tx,
    verb: str,
    *,
    task_row: int,
    orchestration_row: int,
    target: State | None = None,
    where: Sequence[ColumnElement[bool]] = (),
    generation: int | None = None,
    owner: str | None = None,
    data: Mapping[str, Any] | None = None,
    values: Mapping[str, Any] | None = None,
) -> bool:
    """Take a task through ``verb`` if it is where the table of transitions says, and record it. False: it was not."""
    targets = targets_of(verb)
    state = target if target is not None else next(iter(targets))
    assert state in targets, (verb, state)
    settled = {"ready": False} if state in FINAL_STATES else {}
    if values and values.get("reason"):
        values = {**values, "reason": storable(values["reason"])}
    if data and data.get("reason"):
        data = {**data, "reason": storable(data["reason"])}
    changed = tx.conn.execute(
        update(t.task)
        .where(t.task.c.id == task_row, t.task.c.state.in_(sorted(sources_of(verb))), *where)
        .values(state=str(state), row_version=t.task.c.row_version + 1, **(values or {}), **settled)
    ).rowcount
    if changed != 1:
        return False
    tx.event(orchestration_row, task_row, verb, generation=generation, owner=owner, data=data)
    if state in FINAL_STATES:
        void_requests(tx, task_row)
        _close_children(tx, task_row, orchestration_row, f"its parent is {state}")
    return True


_OPEN_CHILDREN = (
    select(t.task.c.id)
    .where(t.task.c.parent_id == bindparam("parent"), t.task.c.state.in_(sorted(OPEN_STATES)))
    .order_by(t.task.c.id)
)


def _close_children(tx: Tx, parent_row: int, orchestration_row: int, reason: str) -> None:
    """A child delegated by a child lives and dies with its parent's task row."""
    for row in tx.conn.execute(_OPEN_CHILDREN, {"parent": parent_row}).scalars().all():
        cancel_row(tx, row, orchestration_row, reason)


def cancel_row(tx: Tx, task_row: int, orchestration_row: int, reason: str) -> bool:
    """Cancel one task and its children. Its worker may still run: the attempt ends without a time of stopping."""
    cancelled = advance(
        tx, "cancelled", task_row=task_row, orchestration_row=orchestration_row,
        data={"reason": reason} if reason else None, values={**UNCLAIMED, "reason": reason or None},
    )  # fmt: skip
    if cancelled:
        tx.conn.execute(
            update(t.attempt)
            .where(t.attempt.c.task_id == task_row, t.attempt.c.ended.is_(None))
            .values(ended="cancelled")
        )
    return cancelled


def storable(reason: str) -> str:
    """Every database can hold it: no half surrogate pair (canonical JSON), no NUL (PostgreSQL)."""
    return well_formed(reason).replace("\0", "\\u0000")


_VOID_REQUESTS = (
    update(t.request)
    .where(t.request.c.task_id == bindparam("of_task"), t.request.c.state == "open")
    .values(state="void")
)


def void_requests(tx: Tx, task_row: int) -> None:
    """What was asked about a task that has ended needs no answer any more."""
    tx.conn.execute(_VOID_REQUESTS, {"of_task": task_row})


def refresh_ready(tx: Tx, orchestration_row: int, *, task_row: int | None = None, needing: str | None = None) -> None:
    """Recompute ``ready`` of one task, or of the tasks that need a key: needs met, and no question open."""
    if task_row is not None:
        tx.conn.execute(_refresh("task"), {"chosen_task": task_row})
    elif needing is not None:
        tx.conn.execute(_refresh("needing"), {"chosen_run": orchestration_row, "chosen_key": needing})
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
            t.need.c.needed_key == bindparam("chosen_key"),
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


def lock_tasks(tx: Tx, rows: Sequence[int]) -> None:
    """Take row locks in one order, so that two batches cannot wait for each other."""
    if tx.postgres and rows:
        query = select(t.task.c.id).where(t.task.c.id.in_(sorted(set(rows))))
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
