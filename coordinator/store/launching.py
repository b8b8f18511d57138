"""How runs and tasks come into being: launched whole, delegated one by one, or replaced by a new contract version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import ColumnElement, and_, bindparam, func, insert, or_, select, text, update

from contracts.errors import Refused, WrongState
from contracts.scopes import scopes_overlap
from contracts.states import OPEN_STATES, State
from contracts.terms import Budget, Delegation, Terms
from coordinator.store import tables as t
from coordinator.store.damaged import terms_if_whole
from coordinator.store.database import Blob, Tx, in_parts
from coordinator.store.family import descendants, lineage_of
from coordinator.store.issued import remember_terms, terms_of
from coordinator.store.reading import run_is_open
from coordinator.store.records import Claim, Delegated, NewChild, NewRun, NewTask
from coordinator.store.transitions import (
    UNCLAIMED,
    Move,
    advance_one,
    bump_version,
    cancel_rows,
    holds,
    lock_orchestrations,
    lock_tasks,
    refresh_ready,
    stale,
)

__all__ = ["amend", "close_run", "create_run", "delegate"]

NO_BUDGET = Budget()


def open_runs_named(tx: Tx, name: str) -> list[int]:
    """Rows of the open runs of this name, the newest first."""
    query = select(t.orchestration.c.id).where(t.orchestration.c.name == name).order_by(t.orchestration.c.id.desc())
    return [row for row in tx.conn.execute(query).scalars() if run_is_open(tx, row)]


def create_run(tx: Tx, new: NewRun, *, beside_open: bool) -> str | None:
    """Make a run and all its tasks; its id. None: a run of this name is open (unless one beside it is wanted)."""
    if tx.postgres:  # names and numbers are given to one program at a time
        tx.conn.execute(text("SELECT pg_advisory_xact_lock(4207110327)"))
    newest = tx.conn.execute(
        select(t.orchestration.c.id, t.orchestration.c.sequence)
        .where(t.orchestration.c.name == new.name)
        .order_by(t.orchestration.c.sequence.desc())
        .limit(1)
    ).first()
    if not beside_open and open_runs_named(tx, new.name):
        return None
    sequence = 1 if newest is None else newest.sequence + 1
    run_id = new.name if sequence == 1 else f"{new.name}-{sequence}"
    taken = set(tx.conn.execute(select(t.orchestration.c.run_id).where(t.orchestration.c.run_id == run_id)).scalars())
    while run_id in taken:  # "a" launched twice meets a run that is named "a-2"
        sequence += 1
        run_id = f"{new.name}-{sequence}"
        taken = set(
            tx.conn.execute(select(t.orchestration.c.run_id).where(t.orchestration.c.run_id == run_id)).scalars()
        )
    tx.documents(new.files)
    row = tx.conn.execute(
        insert(t.orchestration).values(
            run_id=run_id, name=new.name, sequence=sequence, document_id=tx.document(new.document),
            authored_digest=new.authored_digest, head=new.head, created_at=tx.now,
            closed_at=tx.now if new.closed else None, orchestration_version=1, version=0, **_limits(new.budget),
        )
    ).inserted_primary_key[0]  # type: ignore[index]  # fmt: skip
    tx.event(row, None, "created", data={"tasks": len(new.tasks)})
    rows = _insert_tasks(tx, row, new.tasks, parent_row=None)
    _insert_overlaps(tx, [(rows[a], rows[b]) for a, b in new.overlaps])
    return run_id


def _limits(budget: Budget) -> dict[str, int | None]:
    return {"limit_micro_usd": budget.max_cost_micro_usd, "limit_tokens": budget.max_tokens}


def _insert_tasks(
    tx: Tx,
    orchestration_row: int,
    tasks: Sequence[NewTask],
    *,
    parent_row: int | None,
) -> dict[str, int]:
    """task id -> row."""
    rows: dict[str, int] = {}
    for some in in_parts(tasks):  # so that what a wide run needs for it does not grow with it
        rows |= _insert_some(tx, orchestration_row, some, parent_row)
        tx.flush()
    return rows


def _insert_some(tx: Tx, orchestration_row: int, tasks: Sequence[NewTask], parent_row: int | None) -> Mapping[str, int]:
    blobs = [Blob.of(new.terms.canonical()) for new in tasks]
    documents = tx.documents(blobs)
    tx.conn.execute(
        insert(t.task),
        [
            {
                "orchestration_id": orchestration_row, "key": new.terms.task_id,
                "contract_version": new.terms.contract_version, "is_current": True, "parent_id": parent_row,
                "delegation_id": new.delegation_id, "terms_id": documents[blob.digest], "state": State.PENDING.value,
                "ready": not new.terms.needs, "row_version": 0, "generation": 0, "gate_tries": 0,
                **_limits(new.terms.budget),
            }
            for new, blob in zip(tasks, blobs, strict=True)
        ],
    )  # fmt: skip
    keys = [new.terms.task_id for new in tasks]
    rows = {row.key: row.id for row in tx.conn.execute(_CURRENT, {"of_run": orchestration_row, "of_keys": keys})}
    needs = [
        {
            "task_id": rows[new.terms.task_id], "needed_key": need.task, "orchestration_id": orchestration_row,
            "partial_ok": need.partial_ok,
        }
        for new in tasks
        for need in new.terms.needs
    ]  # fmt: skip
    if needs:
        tx.conn.execute(insert(t.need), needs)
    for new, blob in zip(tasks, blobs, strict=True):
        remember_terms(blob.digest, new.terms)
        data = {"contract_version": new.terms.contract_version, "terms": blob.digest}
        tx.event(orchestration_row, rows[new.terms.task_id], "issued", data=data)
    return rows


_CURRENT = select(t.task.c.id, t.task.c.key).where(
    t.task.c.orchestration_id == bindparam("of_run"),
    t.task.c.key.in_(bindparam("of_keys", expanding=True)),
    t.task.c.is_current,
)


def _insert_overlaps(tx: Tx, pairs: Sequence[tuple[int, int]]) -> None:
    both = sorted({*pairs, *((b, a) for a, b in pairs)})
    if both:
        tx.conn.execute(insert(t.overlap), [{"task_id": a, "other_id": b} for a, b in both])


def _overlaps_with(tx: Tx, task_row: int, terms: Terms, others: ColumnElement[bool]) -> list[tuple[int, int]]:
    """Pairs of a task with the others whose write scopes meet its own. Its ancestors, which wait for it, are none."""
    if not terms.resources.write_scope:
        return []
    lineage = set(lineage_of(tx, task_row))
    query = select(t.task.c.id, t.document.c.digest, t.document.c.data).join(
        t.document, t.document.c.id == t.task.c.terms_id
    )
    pairs = []
    for row in tx.conn.execute(query.where(others, t.task.c.state.in_(sorted(OPEN_STATES)))):
        other = terms_if_whole(row.digest, row.data)  # of one whose terms are damaged nobody knows what it may write
        if row.id not in lineage and (
            other is None or scopes_overlap(terms.resources.write_scope, other.resources.write_scope)
        ):
            pairs.append((task_row, row.id))
    return pairs


def delegate(
    tx: Tx, orchestration_row: int, items: Sequence[NewTask], *, parent: Claim | None, files: Sequence[Blob]
) -> list[Delegated]:
    """Add children. The same ``delegation_id`` with the same terms is the same child; with others it is refused.

    Locks the run, as cancel does, so that no child is born under a cancelled parent.
    Raises ``Refused``, ``StaleClaim``, ``WrongState``.
    """
    lock_orchestrations(tx, [orchestration_row])
    if parent is not None:
        lock_tasks(tx, [parent.task_row])
        if not holds(tx, parent):
            raise stale(tx, parent, "delegating for")
    return [
        _delegated_before(tx, orchestration_row, item, parent) or _issue(tx, orchestration_row, item, parent, files)
        for item in items
    ]


def delegate_each(tx: Tx, items: Sequence[NewChild]) -> list[Delegated | Refused]:
    """The same for what programs delegate, whose runs are locked already: one outcome for each."""
    made: list[Delegated | Refused] = []
    for item in items:
        try:
            known = _delegated_before(tx, item.orchestration_row, item.task, None)
        except Refused as refusal:
            made.append(refusal)
        else:
            made.append(known or _issue(tx, item.orchestration_row, item.task, None, item.files))
    return made


def _delegated_before(tx: Tx, orchestration_row: int, item: NewTask, parent: Claim | None) -> Delegated | None:
    """The child that was made for this delegation; None: one may be made. Raises ``Refused``, ``WrongState``."""
    run = tx.conn.execute(_STANDING, {"of_run": orchestration_row}).one()
    digest = item.terms.digest
    known = tx.conn.execute(_DELEGATED, {"of_run": orchestration_row, "of_id": item.delegation_id}).first()
    if known is not None:
        if known.digest != digest:
            raise Refused(
                f"delegation {item.delegation_id!r} of {run.run_id} was issued with other terms: "
                f"found {known.digest}, asked {digest}; use a new delegation_id for other work"
            )
        return Delegated(known.key, item.delegation_id, digest, repeated=True)
    if run.cancelled_at is not None or (run.closed_at is not None and parent is None):
        word = "cancelled" if run.cancelled_at is not None else "closed"
        raise WrongState(f"{run.run_id} takes no new child: it is {word}; needed an open run")
    _refuse_taken(tx, orchestration_row, item.terms)
    if parent is not None:
        _refuse_too_many(tx, parent.task_row)
    return None


def _issue(tx: Tx, orchestration_row: int, item: NewTask, parent: Claim | None, files: Sequence[Blob]) -> Delegated:
    tx.documents(files)
    rows = _insert_tasks(tx, orchestration_row, [item], parent_row=parent.task_row if parent else None)
    here = t.task.c.orchestration_id == orchestration_row
    _insert_overlaps(tx, _overlaps_with(tx, rows[item.terms.task_id], item.terms, here))
    if item.terms.needs:  # some may be met already
        refresh_ready(tx, orchestration_row, task_row=rows[item.terms.task_id])
    return Delegated(item.terms.task_id, item.delegation_id, item.terms.digest, repeated=False)


_STANDING = select(t.orchestration.c.run_id, t.orchestration.c.cancelled_at, t.orchestration.c.closed_at).where(
    t.orchestration.c.id == bindparam("of_run")
)
_DELEGATED = (
    select(t.task.c.key, t.document.c.digest)
    .join(t.document, t.document.c.id == t.task.c.terms_id)
    .where(
        t.task.c.orchestration_id == bindparam("of_run"),
        t.task.c.delegation_id == bindparam("of_id"),
        t.task.c.is_current,
    )
)


def _refuse_too_many(tx: Tx, parent_row: int) -> None:
    """Raise ``Refused`` when a task that would be above one more child may have no more of them below it."""
    above = tx.conn.execute(
        select(t.task.c.id, t.task.c.key, t.document.c.digest, t.document.c.data)
        .join(t.document, t.document.c.id == t.task.c.terms_id)
        .where(t.task.c.id.in_(lineage_of(tx, parent_row)))
        .order_by(t.task.c.id.desc())
    )
    for row in above.all():
        granted = terms_of(row.digest, row.data).resources.delegation
        if isinstance(granted, Delegation) and len(descendants(tx, [row.id])) >= granted.max_children:
            raise Refused(f"{row.key} may have {granted.max_children} children in all, and has them")


def _refuse_taken(tx: Tx, orchestration_row: int, terms: Terms) -> None:
    """Raise ``Refused`` when a task of this run has the id already, or had this contract version of it."""
    rows = tx.conn.execute(_VERSIONS, {"of_run": orchestration_row, "of_key": terms.task_id}).all()
    if any(row.is_current for row in rows):
        raise Refused(f"task id {terms.task_id!r} is in use in this run; use another task_id for other work")
    if any(row.contract_version == terms.contract_version for row in rows):
        newest = max(row.contract_version for row in rows)
        raise Refused(
            f"task {terms.task_id!r} had contract version {terms.contract_version} before; "
            f"needed one above {newest}, the newest"
        )


_VERSIONS = select(t.task.c.is_current, t.task.c.contract_version).where(
    t.task.c.orchestration_id == bindparam("of_run"), t.task.c.key == bindparam("of_key")
)


def close_run(tx: Tx, orchestration_row: int) -> None:
    """No further child will be delegated: the run ends when its tasks have."""
    tx.conn.execute(
        update(t.orchestration)
        .where(t.orchestration.c.id == orchestration_row, t.orchestration.c.closed_at.is_(None))
        .values(closed_at=tx.now)
    )


def amend(
    tx: Tx,
    orchestration_row: int,
    *,
    expected_version: int,
    document: Blob,
    authored_digest: str,
    replaced: Sequence[NewTask],
    removed: Sequence[str],
    overlaps: Sequence[tuple[str, str]],
    files: Sequence[Blob],
    head: str | None,
    keeps_head: bool = False,
    budget: Budget = NO_BUDGET,
) -> int:
    """Make a new orchestration version; its number. Open rows that it replaces are superseded and lose their claims.

    ``keeps_head``: the head stays what it is by then, for results are accepted while the caller prepares this.

    Raises ``WrongState`` when somebody else made a version in between, ``Refused`` for a task id that a child has.
    """
    lock_orchestrations(tx, [orchestration_row])
    tx.documents(files)
    changed = tx.conn.execute(
        update(t.orchestration)
        .where(
            t.orchestration.c.id == orchestration_row,
            t.orchestration.c.orchestration_version == expected_version,
            t.orchestration.c.cancelled_at.is_(None),
        )
        .values(
            orchestration_version=expected_version + 1,
            document_id=tx.document(document),
            authored_digest=authored_digest,
            **_limits(budget),
            **({} if keeps_head else {"head": head}),
        )
    ).rowcount
    if changed != 1:
        raise WrongState(f"needed an open run at orchestration version {expected_version}; it was changed meanwhile")
    tx.event(orchestration_row, None, "amended", data={"orchestration_version": expected_version + 1})
    lock_tasks(tx, [row for row, _ in _current_rows(tx, orchestration_row).values()])
    current = _current_rows(tx, orchestration_row)  # a task may have ended while its lock was waited for
    for key in [*removed, *(new.terms.task_id for new in replaced)]:
        if key in current:
            _supersede(tx, orchestration_row, *current[key])
    for new in replaced:
        _refuse_taken(tx, orchestration_row, new.terms)
    rows = _insert_tasks(tx, orchestration_row, replaced, parent_row=None)
    current = _current_rows(tx, orchestration_row)
    of_run = t.task.c.orchestration_id == orchestration_row
    # What the caller says nothing of stays as it is: a program may have delegated more since it looked.
    told = {*(key for pair in overlaps for key in pair), *rows}
    known = [current[key][0] for key in sorted(told)]
    tx.conn.execute(t.overlap.delete().where(t.overlap.c.task_id.in_(known), t.overlap.c.other_id.in_(known)))
    pairs = [(current[a][0], current[b][0]) for a, b in overlaps]
    for new in replaced:
        others = and_(of_run, or_(t.task.c.parent_id.is_not(None), t.task.c.id.not_in(known)))
        pairs += _overlaps_with(tx, rows[new.terms.task_id], new.terms, others)
    _insert_overlaps(tx, pairs)
    refresh_ready(tx, orchestration_row)
    bump_version(tx, orchestration_row)
    return expected_version + 1


def _current_rows(tx: Tx, orchestration_row: int) -> Mapping[str, tuple[int, str]]:
    query = select(t.task.c.key, t.task.c.id, t.task.c.state).where(
        t.task.c.orchestration_id == orchestration_row, t.task.c.is_current, t.task.c.parent_id.is_(None)
    )
    return {row.key: (row.id, row.state) for row in tx.conn.execute(query)}


def _supersede(tx: Tx, orchestration_row: int, task_row: int, state: str) -> None:
    if state in {open_state.value for open_state in OPEN_STATES}:
        values = {**UNCLAIMED, "reason": "replaced by a new contract version"}
        ended = advance_one(tx, "superseded", Move(task_row, orchestration_row, values=values))
        assert ended, task_row
        tx.conn.execute(
            update(t.attempt)
            .where(t.attempt.c.task_id == task_row, t.attempt.c.ended.is_(None))
            .values(ended="superseded")
        )
    # With their parent's row its children leave too: the new contract version may use their ids again.
    below = descendants(tx, [task_row])
    cancel_rows(tx, [(row, orchestration_row) for row in reversed(below)], "its parent was replaced")
    tx.conn.execute(update(t.task).where(t.task.c.id.in_([task_row, *below])).values(is_current=False))


def newest_contract_version(tx: Tx, orchestration_row: int, key: str) -> int:
    query = select(func.coalesce(func.max(t.task.c.contract_version), 0)).where(
        t.task.c.orchestration_id == orchestration_row, t.task.c.key == key
    )
    return int(tx.conn.execute(query).scalar_one())
