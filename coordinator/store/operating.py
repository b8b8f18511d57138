"""Side effects outside: recorded as prepared, then as sent before they leave, then settled by what came of them.

An operation that was sent and is not settled when its attempt ends is a question to a person, and its task waits.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import ColumnElement, bindparam, exists, insert, literal, select, update

from contracts.assignment import EarlierOperation
from contracts.canonical import well_formed
from contracts.errors import Refused, WrongState
from contracts.terms import Terms
from coordinator.store import tables as t
from coordinator.store.database import Blob, Tx, intact
from coordinator.store.records import Claim, Question
from coordinator.store.transitions import holds, lock_orchestrations, lock_tasks, refresh_ready, stale

__all__ = [
    "Settled",
    "may_leave_operations",
    "prepare",
    "send",
    "settle",
    "settle_by_answer",
    "settled_operations",
    "unsettled_questions",
    "used_up",
]

OperationState = Literal["prepared", "sent", "succeeded", "failed"]
QUESTION = "operation:"
"""How the dedupe keys of these requests begin; the row follows."""


@dataclass(frozen=True, slots=True)
class Settled:
    """An operation as it stands. ``outcome`` is None while it is not settled."""

    row: int
    state: OperationState
    outcome: str | None


def prepare(tx: Tx, claim: Claim, key: str, tool: str, arguments: Blob) -> Settled:
    """Record what is to be sent; or what became of it, when it was recorded before. Raises ``StaleClaim``, and
    ``WrongState`` when the key was given to a call of another tool."""
    _authorised(tx, claim)
    of_key = (t.operation.c.task_id == claim.task_row, t.operation.c.key == key)
    known = _find(tx, *of_key)
    if known is not None:
        other = tx.conn.execute(select(t.operation.c.tool).where(*of_key)).scalar_one()
        if other != tool:
            raise WrongState(f"operation {key!r} of {claim.address} is a call of {other}; needed one of {tool}")
        return known
    made = tx.conn.execute(
        insert(t.operation).values(
            task_id=claim.task_row, attempt_id=claim.attempt_row, key=key, tool=tool,
            arguments_id=tx.document(arguments), state="prepared", prepared_at=tx.now,
        )
    ).inserted_primary_key  # fmt: skip
    assert made is not None
    return Settled(int(made[0]), "prepared", None)


def send(tx: Tx, claim: Claim, row: int, action_digest: str | None = None) -> bool:
    """Record that it leaves now. Only one holder ever gets to do that. Raises ``StaleClaim``, ``WrongState``.

    Where the contract asks for a person's yes, one to this very action is used up with it. False: there is none left,
    and nothing was recorded. Raises ``Refused`` with the words of a person who said no to it.
    """
    _authorised(tx, claim)
    own = (t.operation.c.id == row, t.operation.c.task_id == claim.task_row, t.operation.c.state == "prepared")
    tool = tx.conn.execute(select(t.operation.c.tool).where(*own)).scalar()
    guards, approval = list(own), None
    if tool in claim.terms.resources.needs_approval:
        approval = _usable_yes(tx, claim, tool, action_digest)
        if approval is None:
            return False
        guards.append(exists(select(literal(1)).where(t.request.c.id == approval, *_yes_to(claim, action_digest))))
    sent = tx.conn.execute(
        update(t.operation)
        .where(*guards)
        .values(state="sent", attempt_id=claim.attempt_row, sent_at=tx.now, approval_id=approval)
    ).rowcount
    if sent != 1:
        raise WrongState(f"operation {row} of {claim.address} was sent already; needed one that is prepared")
    _event(tx, claim, row, "sent")
    return True


def used_up() -> ColumnElement[bool]:
    """A yes with which an operation was sent."""
    sent = t.operation.alias("sent_with")
    return exists(select(literal(1)).where(sent.c.approval_id == t.request.c.id))


def _yes_to(claim: Claim, action_digest: str | None) -> list[ColumnElement[bool]]:
    return [
        t.request.c.task_id == claim.task_row, t.request.c.action_id.is_not(None), t.request.c.state == "answered",
        t.request.c.approved, t.request.c.bound_digest == action_digest, ~used_up(),
    ]  # fmt: skip


def _usable_yes(tx: Tx, claim: Claim, tool: str, action_digest: str | None) -> int | None:
    """The newest answer to this very action decides."""
    newest = tx.conn.execute(
        select(t.request.c.id, t.request.c.approved, used_up().label("used_up"), t.document.c.digest, t.document.c.data)
        .join(t.document, t.document.c.id == t.request.c.answer_id)
        .where(
            t.request.c.task_id == claim.task_row, t.request.c.action_id.is_not(None),
            t.request.c.bound_digest == action_digest, t.request.c.state == "answered",
        )
        .order_by(t.request.c.id.desc())
        .limit(1)
    ).first()  # fmt: skip
    if newest is None or (newest.approved and newest.used_up):
        return None
    if not newest.approved:
        message = json.loads(intact(newest.digest, newest.data))
        raise Refused(f"{tool} was not called: a person said no to this call" + (f": {message}" if message else ""))
    return int(newest.id)


def settle(tx: Tx, claim: Claim, row: int, *, ok: bool, outcome: Blob) -> None:
    """What came of it: a fact, from a stale holder too. What settled it first stands.

    A question to a person about it is void; the task goes on.
    """
    lock_orchestrations(tx, [claim.orchestration_row])
    lock_tasks(tx, [claim.task_row])
    state = "succeeded" if ok else "failed"
    if not _settled(tx, row, state, outcome):
        return
    _event(tx, claim, row, state)
    asked = tx.conn.execute(
        update(t.request)
        .where(t.request.c.orchestration_id == claim.orchestration_row, t.request.c.state == "open",
               t.request.c.dedupe_key == f"{QUESTION}{row}")
        .values(state="void")
    ).rowcount  # fmt: skip
    if asked:
        refresh_ready(tx, claim.orchestration_row, task_row=claim.task_row)


def settle_by_answer(tx: Tx, dedupe_key: str, *, approved: bool, message: str) -> None:
    """A person says whether it happened; the message is what the child is told of it."""
    row = int(dedupe_key.removeprefix(QUESTION))
    told = message or ("it happened, says a person" if approved else "it did not happen, says a person")
    _settled(tx, row, "succeeded" if approved else "failed", Blob.of(told))


def may_leave_operations(terms: Terms) -> bool:
    """Whether there can be anything to ask about when an attempt ends."""
    return terms.resources.effects == "declared"


def unsettled_questions(tx: Tx, task_row: int, terms: Terms | None) -> list[Question]:
    """What a person has to be asked about a task that nobody works on any more. ``terms`` None: they are not known."""
    if terms is not None and not may_leave_operations(terms):
        return []
    found = tx.conn.execute(_UNSETTLED, {"of_task": task_row})
    return [
        Question(
            "operation",
            f"{row.tool} was called with {_shown(intact(row.digest, row.data))} and nobody saw what came of it. "
            "Approve if it happened, reject if it did not; the message is what the child is told of it.",
            None,
            f"{QUESTION}{row.id}",
        )
        for row in found
    ]


def settled_operations(tx: Tx, claim: Claim, files_missing: Collection[str] = ()) -> list[EarlierOperation]:
    """What became of the side effects of a task so far, newest first; long texts are cut, and say so.

    ``files_missing``: keys of those whose files are not in the workspace that is told of them.
    """
    if not may_leave_operations(claim.terms):
        return []
    asked, said = t.document.alias("asked"), t.document.alias("said")
    query = (
        select(
            t.operation.c.key, t.operation.c.tool, t.operation.c.state, asked.c.digest.label("asked_digest"),
            asked.c.data.label("asked"), said.c.digest.label("said_digest"), said.c.data.label("said"),
        )
        .join(asked, asked.c.id == t.operation.c.arguments_id)
        .join(said, said.c.id == t.operation.c.outcome_id)
        .where(t.operation.c.task_id == claim.task_row)
        .order_by(t.operation.c.id.desc())
        .limit(SHOWN_MAX)
    )  # fmt: skip
    found = []
    for row in tx.conn.execute(query):
        arguments = _shown(intact(row.asked_digest, row.asked))
        outcome = _cut(json.loads(intact(row.said_digest, row.said)))
        ok = row.state == "succeeded"
        found.append(EarlierOperation(row.tool, arguments, ok, outcome, files_missing=row.key in files_missing))
    return found


_UNSETTLED = (
    select(t.operation.c.id, t.operation.c.tool, t.document.c.digest, t.document.c.data)
    .join(t.document, t.document.c.id == t.operation.c.arguments_id)
    .where(t.operation.c.task_id == bindparam("of_task"), t.operation.c.state == "sent")
    .order_by(t.operation.c.id)
)
SHOWN_CHARS_MAX = 2_000
SHOWN_MAX = 2_000
"""More operations than an assignment has room for as text."""


def _shown(arguments: bytes) -> str:
    return _cut(well_formed(json.dumps(json.loads(arguments), ensure_ascii=False)))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]} …"


def _authorised(tx: Tx, claim: Claim) -> None:
    lock_tasks(tx, [claim.task_row])
    if not holds(tx, claim):
        raise stale(tx, claim, "sending for")


def _find(tx: Tx, *conditions: object) -> Settled | None:
    query = (
        select(t.operation.c.id, t.operation.c.state, t.document.c.digest, t.document.c.data)
        .outerjoin(t.document, t.document.c.id == t.operation.c.outcome_id)
        .where(*conditions)  # type: ignore[arg-type]
    )
    row = tx.conn.execute(query).first()
    if row is None:
        return None
    return Settled(row.id, row.state, None if row.digest is None else json.loads(intact(row.digest, row.data)))


def _settled(tx: Tx, row: int, state: str, outcome: Blob) -> bool:
    changed = tx.conn.execute(
        update(t.operation)
        .where(t.operation.c.id == row, t.operation.c.state == "sent")
        .values(state=state, outcome_id=tx.document(outcome), settled_at=tx.now)
    ).rowcount
    return changed == 1


def _event(tx: Tx, claim: Claim, row: int, word: str) -> None:
    data = {"operation": row, "attempt": claim.attempt}
    tx.event(claim.orchestration_row, claim.task_row, f"operation_{word}", owner=claim.owner, data=data)
