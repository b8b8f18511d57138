"""What ``--json`` prints of runs, tasks and attempts: these keys are kept."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from coordinator.store.claiming import COUNTED_ENDS
from coordinator.store.views import AttemptView, EventView, RequestView, RunView, TaskView

__all__ = ["attempt_value", "claims_spent", "event_value", "repairs_used", "request_value", "run_value", "task_value"]


def claims_spent(task: TaskView) -> int:
    """Claims to work that ended with nothing, since the last submission: what ``max_claims`` counts."""
    spent = 0
    for attempt in reversed(task.attempts):
        if attempt.ended == "submitted":
            break
        spent += attempt.ended in COUNTED_ENDS
    return spent


def repairs_used(task: TaskView) -> int:
    """Results that were sent back: what ``max_repairs`` counts. The one that ended the task was not sent back."""
    judged_so = sum(attempt.decision == "repair_required" for attempt in task.attempts)
    return min(judged_so, task.terms.limits.max_repairs)


def run_value(run: RunView) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "name": run.name,
        "state": run.state,
        "ok": run.ok,
        "objective": run.objective,
        "orchestration_version": run.orchestration_version,
        "authored_digest": run.authored_digest,
        "head": run.head,
        "source": run.document.get("source"),
        "created_at": run.created_at,
        "closed_at": run.closed_at,
        "cancelled_at": run.cancelled_at,
        "charged_micro_usd": run.charged_micro_usd,
        "charged_tokens": run.charged_tokens,
        "tasks": [task_value(task) for task in run.tasks],
    }


def _agreed(task: TaskView) -> dict[str, Any]:
    limits, budget = task.terms.limits, task.terms.budget
    return {
        "needs": [need.task for need in task.terms.needs],
        "isolation": task.terms.isolation,
        "max_claims": limits.max_claims,
        "repairs_used": repairs_used(task),
        "max_repairs": limits.max_repairs,
        "max_cost_usd": budget.max_cost_usd,
        "max_tokens": budget.max_tokens,
        "max_turns": budget.max_turns,
    }


def task_value(task: TaskView) -> dict[str, Any]:
    """What its terms say is left out where they are damaged."""
    return {
        "task_id": task.task_id,
        "address": f"{task.run_id}/{task.task_id}",
        "contract_version": task.contract_version,
        "is_current": task.is_current,
        "state": str(task.state),
        "word": task.word,
        "why": task.why,
        "owner": task.owner,
        "claim_kind": task.claim_kind,
        "generation": task.generation,
        "lease_until": task.lease_until,
        "parent_task_id": task.parent_task_id,
        "delegation_id": task.delegation_id,
        "terms_digest": task.terms_digest,
        **({"damage": task.damage} if task.damage else _agreed(task)),
        "claims_spent": claims_spent(task),
        "charged_micro_usd": task.charged_micro_usd,
        "charged_tokens": task.charged_tokens,
        "unsettled": None if task.unsettled is None else asdict(task.unsettled),
        "attempts": [attempt_value(attempt) for attempt in task.attempts],
        "requests": [request_value(request) for request in task.requests],
    }


def attempt_value(attempt: AttemptView) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "generation": attempt.generation,
        "child_run_id": attempt.child_run_id,
        "owner": attempt.owner,
        "parent_state_version": attempt.parent_state_version,
        "started_at": attempt.started_at,
        "deadline_at": attempt.deadline_at,
        "ended": attempt.ended,
        "ended_at": attempt.ended_at,
        "late": attempt.late,
        "manifest_digest": attempt.manifest_digest,
        "decision": attempt.decision,
        "decision_digest": attempt.decision_digest,
        "policy_version": attempt.policy_version,
        "workspace": attempt.workspace,
    }


def request_value(request: RequestView) -> dict[str, Any]:
    return {
        "request_id": request.request_id,
        "task_id": request.task_id,
        "kind": request.kind,
        "state": request.state,
        "question": request.question,
        "bound_digest": request.bound_digest,
        "action": request.action,
        "sequence": request.sequence,
        "asked_at": request.asked_at,
        "answer": request.answer,
    }


def event_value(event: EventView) -> dict[str, Any]:
    return {
        "number": event.number,
        "at": event.at,
        "task_id": event.task_id,
        "verb": event.verb,
        "generation": event.generation,
        "owner": event.owner,
        "data": event.data,
    }
