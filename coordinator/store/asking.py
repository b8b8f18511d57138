"""Requests to people, and their answers. States move forward only; a repeated answer gets the first one."""

from __future__ import annotations

from sqlalchemy import insert, select, update

from contracts.errors import NotFound, WrongState
from contracts.states import State
from coordinator.store import tables as t
from coordinator.store.database import Blob, Tx
from coordinator.store.operating import settle_by_answer
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
    known = select(t.request.c.id).where(
        t.request.c.orchestration_id == orchestration_row, t.request.c.dedupe_key == question.dedupe_key
    )
    if tx.conn.execute(known).first() is None:
        sequence = next_sequence(tx, orchestration_row)
        run_id = tx.conn.execute(
            select(t.orchestration.c.run_id).where(t.orchestration.c.id == orchestration_row)
        ).scalar_one()
        request_id = f"{run_id}-q{sequence}"
        tx.conn.execute(
            insert(t.request).values(
                request_id=request_id, orchestration_id=orchestration_row, task_id=task_row, sequence=sequence,
                dedupe_key=question.dedupe_key, kind=question.kind, question_id=tx.document(Blob.of(question.text)),
                bound_digest=question.bound_digest, asked_at=tx.now, state="open",
            )
        )  # fmt: skip
        tx.event(orchestration_row, task_row, "asked", data={"request": request_id, "kind": question.kind})
    refresh_ready(tx, orchestration_row, task_row=task_row)


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
        was = f"answered already ({word})" if now.state == "answered" else "void: what it asked about has ended"
        raise WrongState(f"request {request_id} cannot be answered: it is {was}; needed an open request")
    state = State(tx.conn.execute(select(t.task.c.state).where(t.task.c.id == found.task_id)).scalar_one())
    if changed != 1:
        return Done(state, repeated=True)
    tx.event(found.orchestration_id, found.task_id, "answered", data={"request": request_id, "approved": approved})
    if found.kind == "not_judged":
        state = _settle_not_judged(tx, found.orchestration_id, found.task_id, approved, message)
    if found.kind == "operation":
        settle_by_answer(tx, found.dedupe_key, approved=approved, message=message)
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
