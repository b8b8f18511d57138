"""Reading: runs, tasks, attempts, events and documents, with the words that are derived and never stored."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import and_, bindparam, func, literal, or_, select

from contracts.errors import NotFound
from contracts.states import OPEN_STATES
from coordinator.store import tables as t
from coordinator.store.database import Tx, from_micros, in_parts, intact
from coordinator.store.task_reading import tasks_of
from coordinator.store.views import EventView, RunState, RunView

__all__ = [
    "documents_bytes",
    "events_of",
    "find_run",
    "newest_run",
    "open_runs",
    "run_id",
    "run_is_open",
    "run_state",
    "run_view",
]


def run_state(tx: Tx, orchestration_row: int) -> RunState:
    """Derived: a run has ended when nothing is eligible, running, submitted or waiting for an answer."""
    run = tx.conn.execute(select(t.orchestration).where(t.orchestration.c.id == orchestration_row)).one()
    active = and_(t.task.c.orchestration_id == orchestration_row, or_(t.task.c.ready, t.task.c.state == "running"))
    if tx.conn.execute(select(literal(1)).select_from(t.task).where(active).limit(1)).first():
        return "open"
    asked = select(literal(1)).select_from(t.request).where(
        t.request.c.orchestration_id == orchestration_row, t.request.c.state == "open"
    )  # fmt: skip
    if tx.conn.execute(asked.limit(1)).first():
        return "waiting"
    return "ended" if run.closed_at is not None or run.cancelled_at is not None else "open"


def run_id(tx: Tx, orchestration_row: int) -> str:
    return str(
        tx.conn.execute(select(t.orchestration.c.run_id).where(t.orchestration.c.id == orchestration_row)).scalar_one()
    )


def run_is_open(tx: Tx, orchestration_row: int) -> bool:
    return run_state(tx, orchestration_row) != "ended"


def open_runs(tx: Tx) -> list[int]:
    """Rows of the runs in which something is active."""
    return sorted({row for query in _ACTIVE for row in tx.conn.execute(query).scalars()})


_ACTIVE = [
    select(t.task.c.orchestration_id).where(active)
    for active in (and_(t.task.c.ready, t.task.c.state.in_(sorted(OPEN_STATES))), t.claimed())  # an index each
]


def newest_run(tx: Tx, name: str | None = None) -> int | None:
    """Row of the latest run, of all or of one name."""
    query = select(t.orchestration.c.id).order_by(t.orchestration.c.id.desc()).limit(1)
    if name is not None:
        query = query.where(t.orchestration.c.name == name)
    return tx.conn.execute(query).scalar()


def find_run(tx: Tx, prefix: str | None) -> int:
    """Row of the run with this id, or whose id alone starts so; None means the latest. Raises ``NotFound``."""
    if prefix is None:
        newest = newest_run(tx)
        if newest is None:
            raise NotFound("there is no run in this store yet; `coordinator run` starts one")
        return newest
    rows = tx.conn.execute(select(t.orchestration.c.id, t.orchestration.c.run_id).order_by(t.orchestration.c.id)).all()
    return int(rows[unique_prefix(prefix, [row.run_id for row in rows], "run")].id)


def unique_prefix(prefix: str, names: Sequence[str], what: str) -> int:
    """Index of the name that is, or alone starts with, the prefix."""
    if prefix in names:
        return list(names).index(prefix)
    found = [index for index, name in enumerate(names) if name.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    listed = ", ".join((names if not found else [names[index] for index in found])[-10:]) or "none"
    problem = f"{prefix!r} fits several {what}s" if found else f"no {what} is called {prefix!r}"
    raise NotFound(f"{problem}: {listed}")


def run_view(tx: Tx, orchestration_row: int, *, superseded: bool = False) -> RunView:
    """A run with its tasks in the order of issue; older contract versions only if asked for."""
    query = (
        select(t.orchestration, t.document.c.digest, t.document.c.data.label("document"))
        .join(t.document, t.document.c.id == t.orchestration.c.document_id)
        .where(t.orchestration.c.id == orchestration_row)
    )
    run = tx.conn.execute(query).one()
    return RunView(
        row=run.id,
        run_id=run.run_id,
        name=run.name,
        sequence=run.sequence,
        _document=intact(run.digest, run.document),
        authored_digest=run.authored_digest,
        orchestration_version=run.orchestration_version,
        version=run.version,
        head=run.head,
        created_at=from_micros(run.created_at),
        closed_at=None if run.closed_at is None else from_micros(run.closed_at),
        cancelled_at=None if run.cancelled_at is None else from_micros(run.cancelled_at),
        state=run_state(tx, orchestration_row),
        tasks=tasks_of(tx, run, superseded),
        charged_micro_usd=run.charged_micro_usd,
        charged_tokens=run.charged_tokens,
    )


def run_document(tx: Tx, orchestration_row: int) -> dict[str, Any]:
    """What is stored of a run besides its tasks: as authored, its pins, its files."""
    query = (
        select(t.document.c.digest, t.document.c.data)
        .join(t.orchestration, t.orchestration.c.document_id == t.document.c.id)
        .where(t.orchestration.c.id == orchestration_row)
    )
    document: dict[str, Any] = json.loads(intact(*tx.conn.execute(query).one()))
    return document


def events_of(tx: Tx, orchestration_row: int, *, after: int = 0) -> list[EventView]:
    """What happened in a run, in order."""
    query = (
        select(t.event, t.task.c.key)
        .outerjoin(t.task, t.task.c.id == t.event.c.task_id)
        .where(t.event.c.orchestration_id == orchestration_row, t.event.c.id > after)
        .order_by(t.event.c.id)
    )
    return [
        EventView(
            number=row.id, at=from_micros(row.at), task_id=row.key, verb=row.verb, generation=row.generation,
            owner=row.owner, data=json.loads(row.data) if row.data else {},
        )
        for row in tx.conn.execute(query)
    ]  # fmt: skip


def documents_bytes(tx: Tx, digests: Collection[str]) -> dict[str, bytes | None]:
    """digest -> inline bytes, None when they are a file; the unknown are left out."""
    wanted = list(digests)
    found: dict[str, bytes | None] = {}
    for some in in_parts(wanted):
        rows = tx.conn.execute(_BYTES, {"wanted": some})
        found.update((row.digest, row.data) for row in rows)
    return found


_BYTES = select(t.document.c.digest, t.document.c.data).where(
    t.document.c.digest.in_(bindparam("wanted", expanding=True))
)


def count_of(tx: Tx, orchestration_row: int) -> dict[str, int]:
    """How many current tasks are in each state."""
    query = (
        select(t.task.c.state, func.count())
        .where(t.task.c.orchestration_id == orchestration_row, t.task.c.is_current)
        .group_by(t.task.c.state)
    )
    return {str(state): int(count) for state, count in tx.conn.execute(query)}
