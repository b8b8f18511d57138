"""Requests to people, and their answers. States move forward only; a repeated answer gets the first one."""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, insert, or_, select, update

from contracts.errors import NotFound, WrongState
from contracts.states import State
from coordinator.store import tables as t
from coordinator.store.cancelling import cancel
from coordinator.store.database import Blob, Tx
from coordinator.store.operating import settle_by_answer, used_up
from coordinator.store.records import Done, Question
from coordinator.store.transitions import (
    UNCLAIMED,
    Move,
    advance_one,
    lock_orchestrations,
    next_sequence,
    refresh_ready,
)

__all__ = ["answer", "open_request"]


def open_request(tx: Tx, orchestration_row: int, task_row: int, question: Question) -> None:
    """Ask once: the dedupe key makes a repeated call the same request.

    Locks the run, which the caller should have done before it locked the task.
    """
    lock_orchestrations(tx, [orchestration_row])
    known = t.request.c.dedupe_key == question.dedupe_key
    if question.action is not None:
        _void_other_calls(tx, task_row, question)
        known = and_(t.request.c.task_id == task_row, t.request.c.bound_digest == question.bound_digest, _stands())
    of_run = t.request.c.orchestration_id == orchestration_row
    if tx.conn.execute(select(t.request.c.id).where(of_run, known)).first() is None:
        sequence = next_sequence(tx, orchestration_row)
        dedupe_key = question.dedupe_key if question.action is None else f"{question.dedupe_key}:{sequence}"
        run_id = tx.conn.execute(
            select(t.orchestration.c.run_id).where(t.orchestration.c.id == orchestration_row)
        ).scalar_one()
        request_id = f"{run_id}-q{sequence}"
        tx.conn.execute(
            insert(t.request).values(
                request_id=request_id, orchestration_id=orchestration_row, task_id=task_row, sequence=sequence,
                dedupe_key=dedupe_key, kind=question.kind, question_id=tx.document(Blob.of(question.text)),
                bound_digest=question.bound_digest, asked_at=tx.now, state="open",
                action_id=None if question.action is None else tx.document(Blob.of(question.action.model_dump())),
            )
        )  # fmt: skip
        tx.event(orchestration_row, task_row, "asked", data={"request": request_id, "kind": question.kind})
    refresh_ready(tx, orchestration_row, task_row=task_row)


def _stands() -> ColumnElement[bool]:
    """What was asked about a call, and the answer to it can still be of use."""
    answered = and_(t.request.c.state == "answered", ~used_up())
    return and_(t.request.c.action_id.is_not(None), or_(t.request.c.state == "open", answered))


def _void_other_calls(tx: Tx, task_row: int, question: Question) -> None:
    """Another call is asked about: what was approved before is not what the child is doing now. A no stands."""
    no = and_(t.request.c.state == "answered", ~t.request.c.approved)
    others = (t.request.c.task_id == task_row, t.request.c.bound_digest != question.bound_digest, _stands(), ~no)
    query = select(t.request.c.id, t.request.c.request_id, t.request.c.orchestration_id).where(*others)
    for row in tx.conn.execute(query).all():
        tx.conn.execute(update(t.request).where(t.request.c.id == row.id).values(state="void"))
        tx.event(row.orchestration_id, task_row, "voided", data={"request": row.request_id})


def answer(tx: Tx, request_id: str, *, approved: bool, message: str) -> Done:
    """Record a person's reply and let the task go on. Raises ``NotFound``, ``WrongState``."""
    found = tx.conn.execute(select(t.request).where(t.request.c.request_id == request_id)).first()
    if found is None:
        raise NotFound(f"no request is called {request_id!r}; `coordinator status` lists the open ones")
    lock_orchestrations(tx, [found.orchestration_id])
    reply = tx.document(Blob.of(message))
    changed = tx.conn.execute(
        update(t.request)
        .where(t.request.c.id == found.id, t.request.c.state == "open")
        .values(state="answered", approved=approved, answer_id=reply, answered_at=tx.now)
    ).rowcount
    now = tx.conn.execute(select(t.request).where(t.request.c.id == found.id)).one()
    if changed != 1 and not (now.state == "answered" and bool(now.approved) == approved and now.answer_id == reply):
        word = "approved" if now.approved else "rejected"
        ended = "void: what it asked about has ended or changed"
        was = f"answered already ({word})" if now.state == "answered" else ended
        raise WrongState(f"request {request_id} cannot be answered: it is {was}; needed an open request")
    state = State(tx.conn.execute(select(t.task.c.state).where(t.task.c.id == found.task_id)).scalar_one())
    if changed != 1:
        return Done(state, repeated=True)
    tx.event(found.orchestration_id, found.task_id, "answered", data={"request": request_id, "approved": approved})
    if found.kind == "not_judged":
        state = _settle_not_judged(tx, found.orchestration_id, found.task_id, approved, message)
    if found.kind == "operation":
        settle_by_answer(tx, found.dedupe_key, approved=approved, message=message)
    if found.kind == "damaged" and not approved:
        cancel(tx, found.orchestration_id, found.task_id, message or "its contract is damaged")
        return Done(State.CANCELLED)
    refresh_ready(tx, found.orchestration_id, task_row=found.task_id)
    return Done(state)


def _settle_not_judged(tx: Tx, orchestration_row: int, task_row: int, approved: bool, message: str) -> State:
    if approved:
        tx.conn.execute(update(t.task).where(t.task.c.id == task_row).values(gate_tries=0))
        return State.SUBMITTED
    reason = "a person rejected it after it could not be judged" + (f": {message}" if message else "")
    values = {**UNCLAIMED, "reason": reason}
    advance_one(tx, "rejected", Move(task_row, orchestration_row, values=values, data={"reason": reason}))
    return State.FAILED
