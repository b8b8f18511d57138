"""Tasks as people and programs read them: with their attempts, what was asked about them, and a word for how each
stands."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Row, Select, and_, bindparam, or_, select

from contracts.requests import Action, Answer
from contracts.states import State
from coordinator.store import tables as t
from coordinator.store.charging import unsettled_of
from coordinator.store.database import Tx, from_micros, in_parts, intact
from coordinator.store.issued import damage_of, terms_of
from coordinator.store.views import AttemptView, RequestView, TaskView

__all__ = ["is_moving", "requests_of", "task_ids", "task_pages", "task_view", "tasks_of"]


def is_moving(tx: Tx, orchestration_row: int, key: str) -> bool:
    """Whether a task may still change by itself: cheap, for those who wait for it."""
    row = tx.conn.execute(_STANDING, {"of_run": orchestration_row, "of_key": key}).one()
    return row.state == State.RUNNING.value or bool(row.ready)


_STANDING = select(t.task.c.state, t.task.c.ready).where(
    t.task.c.orchestration_id == bindparam("of_run"), t.task.c.key == bindparam("of_key"), t.task.c.is_current
)


def task_view(
    tx: Tx, orchestration_row: int, *, key: str | None = None, delegation_id: str | None = None
) -> TaskView | None:
    """One current task, by its id or by that of its delegation."""
    run = tx.conn.execute(_RUN, {"of_run": orchestration_row}).one()
    named = ("key", key) if key is not None else ("delegation_id", delegation_id)
    return next(iter(tasks_of(tx, run, False, named)), None)


_RUN = select(t.orchestration).where(t.orchestration.c.id == bindparam("of_run"))


def task_ids(tx: Tx, orchestration_row: int) -> list[str]:
    query = select(t.task.c.key).where(t.task.c.orchestration_id == orchestration_row, t.task.c.is_current)
    return list(tx.conn.execute(query.order_by(t.task.c.id)).scalars())


def task_pages(tx: Tx, orchestration_row: int) -> Iterator[Sequence[TaskView]]:
    """The current tasks in the order of issue, a part at a time, for those who keep little of each."""
    run = tx.conn.execute(_RUN, {"of_run": orchestration_row}).one()
    current = select(t.task.c.id).where(t.task.c.orchestration_id == orchestration_row, t.task.c.is_current)
    rows = tx.conn.execute(current.order_by(t.task.c.id)).scalars().all()
    for page in in_parts(rows):
        yield tasks_of(tx, run, False, ("id", (page[0], page[-1])))


Named = tuple[str, str | tuple[int, int] | None]
"""A column of the task table, and what it holds in the tasks that are meant; of ``id``, the first and the last."""


def _values(orchestration_row: int, named: Named | None) -> dict[str, Any]:
    values: dict[str, Any] = {"of_run": orchestration_row}
    if named is not None and isinstance(named[1], tuple):
        values["of_first"], values["of_last"] = named[1]
    elif named is not None:
        values["of_name"] = named[1]
    return values


def _of(query: Select[Any], column: str | None) -> Select[Any]:
    if column is None:
        return query
    if column == "id":
        return query.where(t.task.c.id.between(bindparam("of_first"), bindparam("of_last")))
    return query.where(t.task.c[column] == bindparam("of_name"))


@cache
def _tasks_query(column: str | None, superseded: bool) -> Select[Any]:
    query = (
        select(t.task, t.document.c.digest, t.document.c.data)
        .join(t.document, t.document.c.id == t.task.c.terms_id)
        .where(t.task.c.orchestration_id == bindparam("of_run"))
        .order_by(t.task.c.id)
    )
    return _of(query if superseded else query.where(t.task.c.is_current), column)


def tasks_of(tx: Tx, run: Row[Any], superseded: bool, named: Named | None = None) -> list[TaskView]:
    """``named``: only these; their needs and parents are looked up."""
    query = _tasks_query(named[0] if named else None, superseded)
    rows = tx.conn.execute(query, _values(run.id, named)).all()
    attempts = _attempts(tx, run.id, named)
    requests: dict[str, list[RequestView]] = defaultdict(list)
    for item in _requests(tx, run.id, named):
        requests[item.task_id].append(item)
    around: Sequence[Any] = rows if named is None else _around(tx, run.id, rows)
    keys = {row.id: row.key for row in around}
    unsettled = unsettled_of(tx, [row.id for row in rows if row.charged_micro_usd or row.charged_tokens])
    states = {row.key: State(row.state) for row in around if row.is_current}
    views = []
    for row in rows:
        own = attempts.get(row.id, [])
        damage = damage_of(row.digest, row.data)
        word, why = _word(tx, row, own, requests[row.key] if row.is_current else [], states, damage)
        views.append(
            TaskView(
                row=row.id, orchestration_row=run.id, run_id=run.run_id, task_id=row.key,
                contract_version=row.contract_version, is_current=bool(row.is_current),
                parent_task_id=keys.get(row.parent_id), delegation_id=row.delegation_id,
                _terms=row.data, terms_digest=row.digest, state=State(row.state),
                ready=bool(row.ready), generation=row.generation, owner=row.owner, claim_kind=row.claim_kind,
                lease_until=None if row.lease_until is None else from_micros(row.lease_until),
                reason=row.reason, word=word, why=why, attempts=own, requests=requests[row.key],
                charged_micro_usd=row.charged_micro_usd, charged_tokens=row.charged_tokens,
                unsettled=unsettled.get(row.id), damage=damage,
            )
        )  # fmt: skip
    return views


def _around(tx: Tx, orchestration_row: int, rows: Sequence[Any]) -> Sequence[Any]:
    """Parents and needs of these, as far as the words about them go."""
    if not rows:
        return []
    parents = [row.parent_id for row in rows if row.parent_id is not None]
    values = {"of_run": orchestration_row, "parents": parents, "tasks": [row.id for row in rows]}
    return tx.conn.execute(_AROUND, values).all()


_NEEDED = select(t.need.c.needed_key).where(t.need.c.task_id.in_(bindparam("tasks", expanding=True)))
_AROUND = select(t.task.c.id, t.task.c.key, t.task.c.state, t.task.c.is_current).where(
    t.task.c.orchestration_id == bindparam("of_run"),
    or_(t.task.c.id.in_(bindparam("parents", expanding=True)), t.task.c.key.in_(_NEEDED)),
)


def _word(
    tx: Tx,
    row: Row[Any],
    attempts: Sequence[AttemptView],
    requests: Sequence[RequestView],
    states: Mapping[str, State],
    damage: str,
) -> tuple[str, str]:
    """What people read for a state, and why. ``damage``: of its terms, which are read only where there is none."""
    asked = [item for item in requests if item.state == "open"]
    last = attempts[-1] if attempts else None
    unconfirmed = last is not None and last.ended in ("deadline", "cancelled", "superseded") and last.ended_at is None
    still = (
        f"attempt {last.number} was told to stop and may still be running in {last.owner}"
        if unconfirmed and last
        else ""
    )
    if row.state == State.CANCELLED.value:
        return ("cancelled", f"not yet confirmed stopped: {still}" if still else row.reason or "")
    if State(row.state) not in (State.PENDING, State.RUNNING, State.SUBMITTED):
        return row.state, row.reason or damage
    if asked:
        return "waiting", f"request {asked[0].request_id} is open: {asked[0].question}"
    if row.owner is not None and row.lease_until <= tx.now:
        return "lease ran out", f"{row.owner} did not renew; any worker may take over"
    if row.state == State.SUBMITTED.value:
        return ("being judged" if row.owner else "submitted"), ""
    if row.state == State.RUNNING.value:
        return "running", ""
    if damage:
        return "damaged", damage
    if not row.ready:
        missing = []
        for need in terms_of(row.digest, row.data).needs:
            state = states.get(need.task)
            if state is State.ACCEPTED or (state is State.PARTIAL and need.partial_ok):
                continue
            missing.append(f"{need.task} ({state or 'absent'})")
        return "blocked", f"needs {', '.join(missing)}"
    if still:
        return "pending", still
    unseen = last is not None and last.ended in ("lost", "unknown")
    if last is not None and unseen and terms_of(row.digest, row.data).resources.effects != "none":
        return "unknown", f"nobody saw the end of attempt {last.number}, and it may have had effects"
    if last is not None and last.decision == "repair_required":
        return "pending", f"attempt {last.number} was sent back for repair"
    if last is not None:
        return "pending", f"attempt {last.number} ended: {last.ended}"
    return "pending", ""


@cache
def _attempts_query(column: str | None) -> Select[Any]:
    manifest, decision = t.document.alias("m"), t.document.alias("d")
    query = (
        select(
            t.attempt,
            manifest.c.digest.label("manifest"),
            decision.c.digest.label("decided"),
            t.workspace.c.folder,
        )
        .join(t.task, t.task.c.id == t.attempt.c.task_id)
        .outerjoin(t.workspace, and_(t.workspace.c.attempt_id == t.attempt.c.id, t.workspace.c.removed_at.is_(None)))
        .outerjoin(manifest, manifest.c.id == t.attempt.c.manifest_id)
        .outerjoin(decision, decision.c.id == t.attempt.c.decision_id)
        .where(t.task.c.orchestration_id == bindparam("of_run"))
        .order_by(t.attempt.c.task_id, t.attempt.c.number)
    )
    return _of(query, column)


def _attempts(tx: Tx, orchestration_row: int, named: Named | None = None) -> dict[int, list[AttemptView]]:
    query = _attempts_query(named[0] if named else None)
    found: dict[int, list[AttemptView]] = defaultdict(list)
    for row in tx.conn.execute(query, _values(orchestration_row, named)):
        found[row.task_id].append(
            AttemptView(
                row=row.id, number=row.number, generation=row.generation, child_run_id=row.child_run_id,
                owner=row.owner, parent_state_version=row.parent_state_version, started_at=from_micros(row.started_at),
                deadline_at=from_micros(row.deadline_at), ended=row.ended,
                ended_at=None if row.ended_at is None else from_micros(row.ended_at), manifest_digest=row.manifest,
                decision=row.decision, decision_digest=row.decided, policy_version=row.policy_version,
                workspace=row.folder,
            )
        )  # fmt: skip
    return found


@cache
def _requests_query(column: str | None) -> Select[Any]:
    question, reply, action = t.document.alias("q"), t.document.alias("a"), t.document.alias("c")
    query = (
        select(
            t.request,
            t.task.c.key,
            t.task.c.contract_version,
            t.orchestration.c.run_id,
            question.c.data.label("question"),
            question.c.digest.label("question_digest"),
            reply.c.data.label("reply"),
            reply.c.digest.label("reply_digest"),
            action.c.data.label("action"),
            action.c.digest.label("action_digest"),
        )
        .join(t.task, t.task.c.id == t.request.c.task_id)
        .join(t.orchestration, t.orchestration.c.id == t.request.c.orchestration_id)
        .join(question, question.c.id == t.request.c.question_id)
        .outerjoin(reply, reply.c.id == t.request.c.answer_id)
        .outerjoin(action, action.c.id == t.request.c.action_id)
        .where(t.request.c.orchestration_id == bindparam("of_run"))
        .order_by(t.request.c.sequence)
    )
    return _of(query, column)


def requests_of(tx: Tx, orchestration_row: int, *, task_id: str | None = None) -> list[RequestView]:
    """What was asked in a run, or about one of its tasks, in order."""
    return _requests(tx, orchestration_row, None if task_id is None else ("key", task_id))


def _requests(tx: Tx, orchestration_row: int, named: Named | None) -> list[RequestView]:
    return [
        RequestView(
            request_id=row.request_id, run_id=row.run_id, task_id=row.key, kind=row.kind,
            question=json.loads(intact(row.question_digest, row.question)),
            bound_digest=row.bound_digest, sequence=row.sequence, state=row.state, asked_at=from_micros(row.asked_at),
            answer=None if row.reply is None else Answer(
                approved=bool(row.approved), message=json.loads(intact(row.reply_digest, row.reply))
            ),
            contract_version=row.contract_version,
            action=None if row.action is None else Action.model_validate_json(intact(row.action_digest, row.action)),
        )
        for row in tx.conn.execute(_requests_query(named[0] if named else None), _values(orchestration_row, named))
    ]  # fmt: skip
