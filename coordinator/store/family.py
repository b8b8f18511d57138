"""Who delegated whom: the tasks above one, and those below."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, select

from coordinator.store import tables as t
from coordinator.store.database import Tx, in_parts

__all__ = ["descendants", "lineage_of"]

_PARENT = select(t.task.c.parent_id).where(t.task.c.id == bindparam("of_task"))
_CHILDREN = select(t.task.c.id).where(t.task.c.parent_id.in_(bindparam("parents", expanding=True)))


def lineage_of(tx: Tx, task_row: int) -> list[int]:
    """The task and its ancestors, the eldest first."""
    lineage: list[int] = []
    row: int | None = task_row
    while row is not None:
        lineage.insert(0, row)
        row = tx.conn.execute(_PARENT, {"of_task": row}).scalar_one()
    return lineage


def descendants(tx: Tx, rows: Sequence[int]) -> list[int]:
    """Rows of all tasks delegated below these, parents before children."""
    found: dict[int, None] = {}
    level = list(rows)
    while level:
        below: list[int] = []
        for some in in_parts(level):
            children = tx.conn.execute(_CHILDREN, {"parents": some})
            below += [row for row in children.scalars() if row not in found]
        found.update(dict.fromkeys(below))
        level = below
    return list(found)
