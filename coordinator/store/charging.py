"""Money and tokens: charged in every budget up the tree before they are spent, settled after. The sums stand on the
rows of tasks and runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, Table, and_, bindparam, func, insert, or_, select, update

from contracts.canonical import MAX_SAFE_INTEGER
from contracts.errors import BudgetExhausted
from contracts.ports import Worst
from contracts.prices import MICRO
from coordinator.store import tables as t
from coordinator.store.database import Tx, from_micros, in_parts
from coordinator.store.family import lineage_of
from coordinator.store.records import Claim
from coordinator.store.transitions import holds, lock_orchestrations, lock_tasks, stale
from coordinator.store.views import TryView, Unsettled

__all__ = ["failed_tries", "left", "left_of_own", "reserve", "settle", "unsettled_of"]


def _fits(table: Table) -> ColumnElement[bool]:
    return and_(
        or_(table.c.limit_micro_usd.is_(None),
            table.c.charged_micro_usd + bindparam("micro_usd") <= table.c.limit_micro_usd),
        or_(table.c.limit_tokens.is_(None), table.c.charged_tokens + bindparam("tokens") <= table.c.limit_tokens),
    )  # fmt: skip


def _added(table: Table) -> dict[str, Any]:
    return {
        "charged_micro_usd": table.c.charged_micro_usd + bindparam("micro_usd"),
        "charged_tokens": table.c.charged_tokens + bindparam("tokens"),
    }


_OF_TASKS = t.task.c.id.in_(bindparam("tasks", expanding=True))
_OF_RUN = t.orchestration.c.id == bindparam("run")
_ADD_TO_TASKS = update(t.task).where(_OF_TASKS).values(_added(t.task))
_ADD_TO_RUN = update(t.orchestration).where(_OF_RUN).values(_added(t.orchestration))
_CHARGE_TASKS = _ADD_TO_TASKS.where(_fits(t.task))
_CHARGE_RUN = _ADD_TO_RUN.where(_fits(t.orchestration))

_UNHEARD = (
    select(t.charge.c.id)
    .where(
        t.charge.c.attempt_id == bindparam("attempt"),
        t.charge.c.id > bindparam("after"),
        t.charge.c.worst_micro_usd == bindparam("micro_usd"),
        t.charge.c.worst_tokens == bindparam("tokens"),
        t.charge.c.settled_at.is_(None),
    )
    .order_by(t.charge.c.id)
    .limit(1)
)


def reserve(tx: Tx, claim: Claim, worst: Worst, *, after: int | None = None) -> int:
    """Charge the worst case in the budgets of the task, of its ancestors and of its run, or in none; its number.

    ``after``: for a call that may come again, the number of the last charge of this attempt that its caller was told
    of, or 0: one of the same amount that was made since and is not settled is this call's, and is not made again.

    Raises ``BudgetExhausted`` that names the budget, ``StaleClaim``.
    """
    lock_orchestrations(tx, [claim.orchestration_row])
    lineage = lineage_of(tx, claim.task_row)
    lock_tasks(tx, lineage)
    if not holds(tx, claim):
        raise stale(tx, claim, "charging")
    if after is not None:
        of = {"attempt": claim.attempt_row, "after": after, "micro_usd": worst.micro_usd, "tokens": worst.tokens}
        unheard = tx.conn.execute(_UNHEARD, of).scalar()
        if unheard is not None:
            return int(unheard)
    values = {"micro_usd": worst.micro_usd, "tokens": worst.tokens, "run": claim.orchestration_row, "tasks": lineage}
    together = tx.conn.begin_nested()
    charged = tx.conn.execute(_CHARGE_TASKS, _only(values, "tasks")).rowcount
    charged += tx.conn.execute(_CHARGE_RUN, _only(values, "run")).rowcount
    if charged != len(lineage) + 1:
        together.rollback()
        raise BudgetExhausted(_refusal(tx, claim, lineage, worst))
    together.commit()
    made = tx.conn.execute(
        insert(t.charge).values(
            task_id=claim.task_row, attempt_id=claim.attempt_row, worst_micro_usd=worst.micro_usd,
            worst_tokens=worst.tokens, micro_usd=worst.micro_usd, tokens=worst.tokens, charged_at=tx.now,
        )
    ).inserted_primary_key  # fmt: skip
    assert made is not None
    return int(made[0])


def settle(tx: Tx, number: int, spent: Worst | None, failed: bytes | None = None) -> None:
    """Replace the worst case by what it was, once; a fact, whoever brings it. More than the worst case is counted too.

    ``spent`` None: nobody knows, and the worst case stands. ``failed``: the try that brought no answer. Repeated, both
    are what they were first.
    """
    row = tx.conn.execute(select(t.charge).where(t.charge.c.id == number)).one()
    run = tx.conn.execute(select(t.task.c.orchestration_id).where(t.task.c.id == row.task_id)).scalar_one()
    lock_orchestrations(tx, [run])
    lineage = lineage_of(tx, row.task_id)
    lock_tasks(tx, lineage)
    if failed is not None and row.failed is None:
        tx.conn.execute(update(t.charge).where(t.charge.c.id == number).values(failed=failed))
    if spent is None:
        return
    settled = tx.conn.execute(
        update(t.charge)
        .where(t.charge.c.id == number, t.charge.c.settled_at.is_(None))
        .values(micro_usd=spent.micro_usd, tokens=spent.tokens, settled_at=tx.now)
    ).rowcount
    if settled != 1:
        return
    values = {
        "micro_usd": spent.micro_usd - row.worst_micro_usd, "tokens": spent.tokens - row.worst_tokens,
        "run": run, "tasks": lineage,
    }  # fmt: skip
    tx.conn.execute(_ADD_TO_TASKS, _only(values, "tasks"))
    tx.conn.execute(_ADD_TO_RUN, _only(values, "run"))


def failed_tries(tx: Tx, task_row: int) -> list[TryView]:
    """The model calls of a task that brought no answer, in order."""
    query = (
        select(t.attempt.c.number, t.charge.c.charged_at, t.charge.c.failed)
        .join(t.attempt, t.attempt.c.id == t.charge.c.attempt_id)
        .where(t.charge.c.task_id == task_row, t.charge.c.failed.is_not(None))
        .order_by(t.charge.c.id)
    )
    return [TryView(row.number, from_micros(row.charged_at), row.failed) for row in tx.conn.execute(query)]


def unsettled_of(tx: Tx, task_rows: Sequence[int]) -> dict[int, Unsettled]:
    """By task row: what will not be settled, because the attempt has ended, or its failure is recorded."""
    found: dict[int, Unsettled] = {}
    for some in in_parts(task_rows):
        for row in tx.conn.execute(_UNSETTLED, {"of_tasks": some}):
            found[row.task_id] = Unsettled(row.charges, int(row.micro_usd), int(row.tokens))
    return found


_UNSETTLED = (
    select(
        t.charge.c.task_id, func.count().label("charges"), func.sum(t.charge.c.micro_usd).label("micro_usd"),
        func.sum(t.charge.c.tokens).label("tokens"),
    )
    .join(t.attempt, t.attempt.c.id == t.charge.c.attempt_id)
    .where(
        t.charge.c.task_id.in_(bindparam("of_tasks", expanding=True)),
        t.charge.c.settled_at.is_(None),
        or_(t.attempt.c.ended.is_not(None), t.charge.c.failed.is_not(None)),
    )
    .group_by(t.charge.c.task_id)
)  # fmt: skip


def left(tx: Tx, claim: Claim) -> Worst:
    """The least that is left in any budget up the tree; nothing is left of one that was overrun."""
    rows = _budgets(tx, claim.orchestration_row, lineage_of(tx, claim.task_row))
    return Worst(
        min(_left(row.limit_micro_usd, row.charged_micro_usd) for row in rows),
        min(_left(row.limit_tokens, row.charged_tokens) for row in rows),
    )


def left_of_own(tx: Tx, claim: Claim) -> Worst:
    """What is left in the task's own budget."""
    row = tx.conn.execute(select(t.task).where(t.task.c.id == claim.task_row)).one()
    return Worst(_left(row.limit_micro_usd, row.charged_micro_usd), _left(row.limit_tokens, row.charged_tokens))


def _only(values: dict[str, Any], whose: str) -> dict[str, Any]:
    return {key: values[key] for key in ("micro_usd", "tokens", whose)}


def _left(limit: int | None, charged: int) -> int:
    return MAX_SAFE_INTEGER if limit is None else max(limit - charged, 0)


def _budgets(tx: Tx, orchestration_row: int, lineage: Sequence[int]) -> list[Row[Any]]:
    """The innermost first."""
    columns = ("limit_micro_usd", "limit_tokens", "charged_micro_usd", "charged_tokens")
    of_tasks = select(t.task.c.key.label("name"), *(t.task.c[name] for name in columns)).where(t.task.c.id.in_(lineage))
    of_run = select(t.orchestration.c.run_id.label("name"), *(t.orchestration.c[name] for name in columns)).where(
        t.orchestration.c.id == orchestration_row
    )
    tasks = tx.conn.execute(of_tasks.order_by(t.task.c.id.desc())).all()
    return [*tasks, tx.conn.execute(of_run).one()]


def _refusal(tx: Tx, claim: Claim, lineage: Sequence[int], worst: Worst) -> str:
    """Which budget it is, the innermost of those that have no room."""
    rows = _budgets(tx, claim.orchestration_row, lineage)
    for index, row in enumerate(rows):
        whose = f"run {row.name}" if index == len(rows) - 1 else f"task {row.name}"
        for limit, charged, needed, words in (
            (row.limit_micro_usd, row.charged_micro_usd, worst.micro_usd, _dollars),
            (row.limit_tokens, row.charged_tokens, worst.tokens, _tokens),
        ):
            if limit is not None and charged + needed > limit:
                return (
                    f"the budget of {whose} is exhausted: {words(_left(limit, charged))} of {words(limit)} are left, "
                    f"and the next call may need {words(needed)}"
                )
    raise AssertionError("a charge was refused and every budget has room")


def _dollars(micro_usd: int) -> str:
    return f"{micro_usd / MICRO:.6f}".rstrip("0").rstrip(".") + " USD"


def _tokens(tokens: int) -> str:
    return f"{tokens:,} tokens"
