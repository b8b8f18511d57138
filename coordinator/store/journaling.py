"""The turns of models: each is a fact as soon as it is paid for, and may be gone on from by whoever holds the task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, insert, select, update

from contracts.errors import StaleClaim, WrongState
from contracts.turns import ModelUsage
from coordinator.store import tables as t
from coordinator.store.database import Blob, Tx, from_micros
from coordinator.store.records import Claim
from coordinator.store.transitions import holds, lock_tasks, stale
from coordinator.store.views import TurnView

__all__ = [
    "BROKEN_OFF",
    "Answered",
    "Earlier",
    "EndedAttempt",
    "SentOperation",
    "answered",
    "earlier_of",
    "finished",
    "turns_in",
]

UNDERWAY = frozenset({"lost", "released", "blocked", "deadline"})
"""Ends of an attempt that say nothing against going on where it was."""

BROKEN_OFF = frozenset({"failed", "no_result"})
"""Ends that may be the model's own, or those of its provider."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A turn on its way into the store. ``conversation``: the number of the attempt in which it began."""

    claim: Claim
    conversation: int
    number: int
    response: Blob
    model: str
    usage: ModelUsage | None
    cost_micro_usd: int | None


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """``word``: how it ended. ``manifest_digest``: of what it handed in, with a question too."""

    number: int
    word: str
    manifest_digest: str | None


@dataclass(frozen=True, slots=True)
class SentOperation:
    """A side effect that has left. ``attempt``: the number of the one that sent it."""

    attempt: int
    key: str
    tool: str
    succeeded: bool


@dataclass(frozen=True, slots=True)
class Earlier:
    """What the attempts before one were at. ``attempts``: newest first, back to the last that handed in a result or
    ended in a way that nobody goes on from. ``turns``: of these, in order; late ones belong to nobody's conversation.
    ``operations``: of the task, whenever they were sent."""

    attempts: Sequence[EndedAttempt]
    turns: Sequence[TurnView]
    operations: Sequence[SentOperation]


def answered(tx: Tx, item: Answered) -> StaleClaim | None:
    """Store a turn that was paid for. Repeating it changes nothing.

    From a stale holder it is kept too, marked late; the answer is then why its holder may not go on.
    """
    claim = item.claim
    lock_tasks(tx, [claim.task_row])
    known = select(t.turn.c.id).where(t.turn.c.attempt_id == claim.attempt_row, t.turn.c.number == item.number)
    late = None if holds(tx, claim) else stale(tx, claim, "going on with")
    if tx.conn.execute(known).first() is not None:
        return late
    usage = item.usage
    tx.conn.execute(
        insert(t.turn).values(
            task_id=claim.task_row, attempt_id=claim.attempt_row, conversation=item.conversation, number=item.number,
            late=late is not None, base_commit=claim.head, model=item.model, response_id=tx.document(item.response),
            input_tokens=usage.input_tokens if usage else None, output_tokens=usage.output_tokens if usage else None,
            cost_micro_usd=item.cost_micro_usd, answered_at=tx.now,
        )
    )  # fmt: skip
    if late is not None:
        data = {"attempt": claim.attempt, "turn": item.number, "late": True}
        tx.event(claim.orchestration_row, claim.task_row, "late_turn", owner=claim.owner, data=data)
    return late


def finished(
    tx: Tx,
    claim: Claim,
    conversation: int,
    number: int,
    answers: Blob,
    workspace_tree: str | None,
    wholes: Sequence[Blob] = (),
) -> None:
    """Every call of a turn is answered. ``wholes``: artifacts that the answers name. Repeating it changes nothing.
    Raises ``StaleClaim``, ``WrongState``."""
    lock_tasks(tx, [claim.task_row])
    if not holds(tx, claim):
        raise stale(tx, claim, "going on with")
    document = tx.document(answers)
    for whole in wholes:
        tx.document(whole)
    same = (
        t.turn.c.task_id == claim.task_row, t.turn.c.conversation == conversation, t.turn.c.number == number,
        ~t.turn.c.late,
    )  # fmt: skip
    done = tx.conn.execute(
        update(t.turn)
        .where(*same, t.turn.c.answers_id.is_(None))
        .values(answers_id=document, workspace_tree=workspace_tree, finished_at=tx.now)
    ).rowcount
    if done == 1:
        return
    found = tx.conn.execute(select(t.turn.c.answers_id).where(*same)).first()
    if found is None or found.answers_id != document:
        state = "not stored" if found is None else "answered already, otherwise"
        raise WrongState(f"turn {number} of {claim.address} is {state}; needed one whose calls are unanswered")


def turns(tx: Tx, *conditions: ColumnElement[bool]) -> list[TurnView]:
    """The turns for which these hold, as they were stored; late ones too."""
    response, answers = t.document.alias("r"), t.document.alias("a")
    query = (
        select(
            t.turn, t.task.c.key, t.attempt.c.number.label("attempt"), response.c.digest.label("response"),
            answers.c.digest.label("answers"),
        )
        .join(t.task, t.task.c.id == t.turn.c.task_id)
        .join(t.attempt, t.attempt.c.id == t.turn.c.attempt_id)
        .join(response, response.c.id == t.turn.c.response_id)
        .outerjoin(answers, answers.c.id == t.turn.c.answers_id)
        .where(*conditions)
        .order_by(t.turn.c.id)
    )  # fmt: skip
    return [
        TurnView(
            row=row.id, task_row=row.task_id, task_id=row.key, attempt=row.attempt, conversation=row.conversation,
            number=row.number, late=bool(row.late), model=row.model, input_tokens=row.input_tokens,
            output_tokens=row.output_tokens, cost_micro_usd=row.cost_micro_usd,
            answered_at=from_micros(row.answered_at),
            finished_at=None if row.finished_at is None else from_micros(row.finished_at),
            response_digest=row.response, answers_digest=row.answers, base_commit=row.base_commit,
            workspace_tree=row.workspace_tree,
        )
        for row in tx.conn.execute(query)
    ]  # fmt: skip


def turns_in(tx: Tx, orchestration_row: int, *, task_row: int | None = None, after: int = 0) -> list[TurnView]:
    """The turns of a run, or of one task row; only those ``after`` a row of them."""
    of_task = [] if task_row is None else [t.turn.c.task_id == task_row]
    return turns(tx, t.task.c.orchestration_id == orchestration_row, t.turn.c.id > after, *of_task)


def earlier_of(tx: Tx, claim: Claim) -> Earlier | None:
    """None: they were at nothing."""
    of_task = (t.attempt.c.task_id == claim.task_row, t.attempt.c.number < claim.attempt)
    query = (
        select(t.attempt.c.number, t.attempt.c.ended, t.document.c.digest)
        .outerjoin(t.document, t.document.c.id == t.attempt.c.manifest_id)
        .where(*of_task)
        .order_by(t.attempt.c.number.desc())
    )
    attempts = []
    for row in tx.conn.execute(query):
        if row.ended not in UNDERWAY | BROKEN_OFF:
            break
        attempts.append(EndedAttempt(row.number, row.ended, row.digest))
    spoken: list[TurnView] = []
    if attempts:
        since = t.attempt.c.number >= attempts[-1].number
        spoken = turns(tx, t.turn.c.task_id == claim.task_row, *of_task, since, ~t.turn.c.late)
    sent = (
        select(t.attempt.c.number, t.operation.c.key, t.operation.c.tool, t.operation.c.state)
        .join(t.attempt, t.attempt.c.id == t.operation.c.attempt_id)
        .where(t.operation.c.task_id == claim.task_row, t.operation.c.state != "prepared")
        .order_by(t.operation.c.id)
    )
    operations = [
        SentOperation(row.number, row.key, row.tool, row.state == "succeeded") for row in tx.conn.execute(sent)
    ]
    return Earlier(attempts, spoken, operations) if attempts or operations else None
