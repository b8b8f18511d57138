"""Cancel: commits first, and reaches every descendant. That a child has stopped is another fact, recorded later."""

from __future__ import annotations

from sqlalchemy import select, update

from contracts.errors import WrongState
from contracts.states import OPEN_STATES, State
from coordinator.store import tables as t
from coordinator.store.database import Tx
from coordinator.store.family import descendants
from coordinator.store.transitions import bump_version, cancel_rows, lock_orchestrations, lock_tasks, storable

__all__ = ["cancel"]


def cancel(tx: Tx, orchestration_row: int, task_row: int | None, reason: str) -> int:
    """Cancel a run or a task with all below it; how many tasks that ended. Raises ``WrongState`` when too late."""
    reason = storable(reason)
    lock_orchestrations(tx, [orchestration_row])
    if task_row is None:
        changed = tx.conn.execute(
            update(t.orchestration)
            .where(t.orchestration.c.id == orchestration_row, t.orchestration.c.cancelled_at.is_(None))
            .values(cancelled_at=tx.now)
        ).rowcount
        rows = sorted(_open_of(tx, orchestration_row))
        if not rows and not changed:
            return 0
        closed = select(t.orchestration.c.closed_at).where(t.orchestration.c.id == orchestration_row)
        if not rows and tx.conn.execute(closed).scalar_one() is not None:
            raise WrongState("too late to cancel: every task of the run has ended; needed at least one that is open")
        tx.event(orchestration_row, None, "run_cancelled", data={"reason": reason} if reason else None)
    else:
        lock_tasks(tx, [task_row])
        row = tx.conn.execute(select(t.task.c.state, t.task.c.key).where(t.task.c.id == task_row)).one()
        if row.state == State.CANCELLED:
            return 0
        if row.state not in {state.value for state in OPEN_STATES}:
            raise WrongState(
                f"too late to cancel {row.key}: found state {row.state}; needed pending, running or submitted"
            )
        rows = [task_row]
    lock_tasks(tx, sorted({*rows, *descendants(tx, rows)}))
    # Looked at again: some may have ended while their locks were waited for. The youngest first, since children are
    # younger than their parents, and each is counted before its parent takes it along.
    still_open = {*rows, *descendants(tx, rows)} & _open_of(tx, orchestration_row)
    ended = cancel_rows(tx, [(row, orchestration_row) for row in sorted(still_open, reverse=True)], reason)
    bump_version(tx, orchestration_row)
    return ended


def _open_of(tx: Tx, orchestration_row: int) -> set[int]:
    query = select(t.task.c.id).where(
        t.task.c.orchestration_id == orchestration_row, t.task.c.state.in_(sorted(OPEN_STATES))
    )
    return set(tx.conn.execute(query).scalars())
