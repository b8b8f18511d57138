"""What the gate and the next attempt must know of a task's past."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select

from contracts.results import Finding
from coordinator.store import tables as t
from coordinator.store.database import Tx
from coordinator.store.records import Claim, RepairHistory

__all__ = ["accepted_results", "last_repair", "past_of"]


def last_repair(tx: Tx, task_row: int) -> tuple[int, dict[str, Any], str] | None:
    """(attempt, decision, manifest digest) of the newest result of this task that was sent back."""
    manifest, decision = t.document.alias("m"), t.document.alias("d")
    query = (
        select(t.attempt.c.number, decision.c.data, manifest.c.digest)
        .join(decision, decision.c.id == t.attempt.c.decision_id)
        .join(manifest, manifest.c.id == t.attempt.c.manifest_id)
        .where(t.attempt.c.task_id == task_row, t.attempt.c.decision == "repair_required")
        .order_by(t.attempt.c.number.desc())
        .limit(1)
    )
    row = tx.conn.execute(query).first()
    return None if row is None else (row.number, json.loads(row.data), row.digest)


def past_of(tx: Tx, claims: Sequence[Claim]) -> dict[str, tuple[bytes, RepairHistory]]:
    """token -> (bytes of the manifest to judge, earlier judgements), for all claims of a batch in a few queries."""
    wanted = {claim.manifest_digest for claim in claims}
    query = select(t.document.c.digest, t.document.c.data).where(t.document.c.digest.in_(wanted))
    manifests = {row.digest: row.data for row in tx.conn.execute(query)}
    past = {}
    for claim in claims:
        # A first result without a question to people has no past to look up; in a wide fan-out that is nearly every
        # one.
        fresh = claim.attempt == 1 and not any(check.kind == "approval" for check in claim.terms.acceptance)
        history = RepairHistory(repairs=0, last_content_digest=None) if fresh else _repair_history(tx, claim)
        past[claim.token] = (manifests[claim.manifest_digest], history)
    return past


def _repair_history(tx: Tx, claim: Claim) -> RepairHistory:
    """Earlier judgements of the task, and what people answered about it."""
    repaired = [
        row.data
        for row in tx.conn.execute(
            select(t.document.c.data)
            .join(t.attempt, t.attempt.c.manifest_id == t.document.c.id)
            .where(t.attempt.c.task_id == claim.task_row, t.attempt.c.decision == "repair_required")
            .order_by(t.attempt.c.number)
        )
    ]
    last = last_repair(tx, claim.task_row)
    reply = t.document.alias("reply")
    answered = tx.conn.execute(
        select(t.request.c.bound_digest, t.request.c.approved, reply.c.data)
        .join(reply, reply.c.id == t.request.c.answer_id)
        .where(t.request.c.task_id == claim.task_row, t.request.c.kind == "approval", t.request.c.state == "answered")
    )
    return RepairHistory(
        repairs=len(repaired),
        last_content_digest=json.loads(repaired[-1])["content_digest"] if repaired and repaired[-1] else None,
        last_findings=[Finding.model_validate(item) for item in last[1]["feedback"]] if last else (),
        answers={row.bound_digest: (bool(row.approved), json.loads(row.data)) for row in answered},
    )


def accepted_results(tx: Tx, claim: Claim) -> Sequence[tuple[str, str, str]]:
    """(task id, state, manifest digest) of the accepted results that a task needs."""
    keys = [need.task for need in claim.terms.needs]
    if not keys:
        return ()
    query = (
        select(t.task.c.key, t.task.c.state, t.document.c.digest)
        .join(t.attempt, t.attempt.c.task_id == t.task.c.id)
        .join(t.document, t.document.c.id == t.attempt.c.manifest_id)
        .where(
            t.task.c.orchestration_id == claim.orchestration_row,
            t.task.c.key.in_(keys),
            t.task.c.is_current,
            t.task.c.state.in_(["accepted", "partial"]),
            t.attempt.c.decision == "accepted",
        )
    )
    return [(row.key, row.state, row.digest) for row in tx.conn.execute(query)]
