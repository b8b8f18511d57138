"""Decisions: the acceptance row is the authority, and its transaction compares everything that was judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import exists, func, insert, literal, select, update

from contracts.errors import StaleClaim
from contracts.results import Finding
from contracts.states import State
from coordinator.store import tables as t
from coordinator.store.asking import open_request
from coordinator.store.claiming import MAX_GATE_TRIES, not_judged_question
from coordinator.store.database import Blob, Tx
from coordinator.store.records import Claim, Done, HeadMoved, Verdict
from coordinator.store.transitions import (
    UNCLAIMED,
    advance,
    bump_version,
    fence,
    first_answer,
    lock_orchestrations,
    lock_tasks,
    refresh_ready,
    stale,
)

__all__ = ["decide"]

VERBS = (
    "accepted", "accepted_partial", "gate_released", "not_judged", "rejected", "repair_required", "repairs_exhausted",
)  # fmt: skip


def decide(tx: Tx, items: Sequence[Verdict]) -> list[Done | HeadMoved | StaleClaim]:
    """Commit decisions. Repeating one returns its first answer."""
    lock_orchestrations(tx, [item.claim.orchestration_row for item in items])
    lock_tasks(tx, [item.claim.task_row for item in items])
    return [_decide(tx, item) for item in items]


def _decide(tx: Tx, item: Verdict) -> Done | HeadMoved | StaleClaim:
    claim, decision = item.claim, item.decision
    bound = decision.bound
    assert (bound.terms_digest, bound.manifest_digest) == (claim.terms_digest, claim.manifest_digest), claim.address
    assert (bound.generation_gated, bound.generation_submitted) == (claim.generation, claim.generation_submitted)
    decision_id = tx.document(Blob.of(decision.canonical()))
    judged = tx.conn.execute(select(t.attempt.c.decision_id).where(t.attempt.c.id == claim.attempt_row)).scalar_one()
    first = first_answer(tx, claim, VERBS) if judged == decision_id else None
    if first is not None:
        return first
    head = tx.conn.execute(
        select(t.orchestration.c.head).where(t.orchestration.c.id == claim.orchestration_row)
    ).scalar_one()
    if head != bound.head:
        back = _change(tx, item, "gate_released", State.SUBMITTED, "the head moved on", {"gate_tries": 0})
        return HeadMoved(found=head, judged=bound.head) if back else stale(tx, claim, "deciding")
    verb, state, reason, values = _target(tx, item)
    if not _change(tx, item, verb, state, reason, values):
        return stale(tx, claim, "deciding")
    tx.conn.execute(
        update(t.attempt)
        .where(t.attempt.c.id == claim.attempt_row)
        .values(decision=decision.decision, decision_id=decision_id, policy_version=bound.policy_version)
    )
    for run in decision.checks:
        _record_check(tx, claim, run.check_digest, bound.policy_version, run.outcome)
    for question in item.questions:
        open_request(tx, claim.orchestration_row, claim.task_row, question)
    if state in (State.ACCEPTED, State.PARTIAL):
        if decision.new_head is not None:
            # The head was compared above, under the run's lock: what becomes the head is what was judged.
            moved = update(t.orchestration).where(t.orchestration.c.id == claim.orchestration_row)
            tx.conn.execute(moved.values(head=decision.new_head))
        bump_version(tx, claim.orchestration_row)
        refresh_ready(tx, claim.orchestration_row, needing=claim.task_id)
    elif state is State.PENDING:
        refresh_ready(tx, claim.orchestration_row, task_row=claim.task_row)
    elif decision.decision == "not_judged":
        tries = tx.conn.execute(select(t.task.c.gate_tries).where(t.task.c.id == claim.task_row)).scalar_one()
        if tries >= MAX_GATE_TRIES:
            question = not_judged_question(claim.task_row, claim.generation, int(tries), decision.reason)
            open_request(tx, claim.orchestration_row, claim.task_row, question)
    return Done(state, reason=reason)


def _target(tx: Tx, item: Verdict) -> tuple[str, State, str, dict[str, Any]]:
    """The transition that a decision means: (verb, state, reason, columns)."""
    claim, decision = item.claim, item.decision
    match decision.decision:
        case "accepted" if decision.partial:
            return "accepted_partial", State.PARTIAL, "accepted as partial: scope stays open", {}
        case "accepted":
            return "accepted", State.ACCEPTED, "", {}
        case "rejected":
            return "rejected", State.FAILED, decision.reason, {}
        case "not_judged":
            return "not_judged", State.SUBMITTED, decision.reason, {}
        case "waiting":
            return "gate_released", State.SUBMITTED, decision.reason, {"gate_tries": 0}
        case "repair_required":
            repairs = _repairs(tx, claim)
            if item.no_progress:
                why = "no progress: the repaired result and its findings are the same as before"
                return "repairs_exhausted", State.FAILED, f"{why}; {decision.reason}", {}
            if repairs >= claim.terms.limits.max_repairs:
                why = f"{repairs} of {claim.terms.limits.max_repairs} repairs used"
                return "repairs_exhausted", State.FAILED, f"{why}; {decision.reason}", {}
            return "repair_required", State.PENDING, decision.reason, {}


def _repairs(tx: Tx, claim: Claim) -> int:
    query = select(func.count()).where(
        t.attempt.c.task_id == claim.task_row,
        t.attempt.c.decision == "repair_required",
        t.attempt.c.id != claim.attempt_row,
    )
    return int(tx.conn.execute(query).scalar_one())


def _change(tx: Tx, item: Verdict, verb: str, state: State, reason: str, columns: dict[str, Any]) -> bool:
    claim, bound = item.claim, item.decision.bound
    same_content = exists(
        select(literal(1))
        .select_from(t.attempt.join(t.document, t.document.c.id == t.attempt.c.manifest_id))
        .where(
            t.attempt.c.id == claim.attempt_row,
            t.attempt.c.ended == "submitted",
            t.attempt.c.generation == bound.generation_submitted,
            t.document.c.digest == bound.manifest_digest,
        )
    )
    same_terms = t.task.c.terms_id.in_(select(t.document.c.id).where(t.document.c.digest == bound.terms_digest))
    failed = state is State.FAILED
    return advance(
        tx, verb, task_row=claim.task_row, orchestration_row=claim.orchestration_row, target=state,
        where=[fence(claim, tx.now), same_content, same_terms], generation=claim.generation, owner=claim.owner,
        data=_event_data(claim, reason, item.decision.feedback),
        values={**UNCLAIMED, **columns, "reason": reason if failed else None},
    )  # fmt: skip


def _event_data(claim: Claim, reason: str, feedback: Sequence[Finding]) -> dict[str, Any]:
    data: dict[str, Any] = {"attempt": claim.attempt}
    if reason:
        data["reason"] = reason
    if feedback:
        data["findings"] = [f"{finding.check}: {finding.message}" for finding in feedback[:20]]
    return data


def _record_check(tx: Tx, claim: Claim, check_digest: str, policy_version: str, outcome: str) -> None:
    same = [
        t.check_run.c.attempt_id == claim.attempt_row,
        t.check_run.c.check_digest == check_digest,
        t.check_run.c.policy_version == policy_version,
    ]
    if not tx.conn.execute(update(t.check_run).where(*same).values(outcome=outcome, at=tx.now)).rowcount:
        tx.conn.execute(
            insert(t.check_run).values(
                attempt_id=claim.attempt_row, check_digest=check_digest, policy_version=policy_version,
                outcome=outcome, at=tx.now,
            )
        )  # fmt: skip
