"""The context projection: what one attempt sees, and what of its parent's state is left out."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import select

from contracts.assignment import Assignment, EarlierOperation, Feedback, NeededResult
from contracts.delegation import Binding, render_contract
from contracts.ports import ArtifactStore, CancelSignal, Tools
from contracts.requests import Answer
from contracts.results import Finding
from coordinator.store import TaskStore
from coordinator.store import tables as t
from coordinator.store.database import Tx, from_micros
from coordinator.store.judging import accepted_results, last_repair
from coordinator.store.operating import settled_operations
from coordinator.store.records import Claim
from coordinator.store.task_reading import requests_of
from coordinator.store.views import RequestView

__all__ = ["build_assignment", "contract_of"]


@dataclass(frozen=True, slots=True)
class _Seen:
    results: Sequence[tuple[str, str, str]]
    repair: tuple[int, dict[str, object], str] | None
    answers: Sequence[tuple[str, Answer]]
    others: Sequence[str]
    operations: Sequence[EarlierOperation]


def contract_of(claim: Claim) -> dict[str, object]:
    """The delegation contract of an attempt, as JSON."""
    binding = Binding(
        child_run_id=claim.child_run_id,
        parent_run_id=claim.run_id,
        delegation_id=claim.delegation_id,
        parent_state_version=claim.parent_state_version,
        claim_generation=claim.generation_submitted or claim.generation,
    )
    return render_contract(claim.terms, binding)


def build_assignment(
    store: TaskStore,
    claim: Claim,
    *,
    tools: Tools,
    cancel: CancelSignal,
    artifacts: ArtifactStore,
    files_missing: Collection[str] = (),
) -> Assignment:
    """Everything that the child of this claim gets. Raises ``Damaged`` when an accepted result was altered.

    ``files_missing``: keys of the operations whose files are not in its workspace.
    """

    def look(tx: Tx) -> _Seen:
        answers = [
            (item.question, item.answer)
            for item in requests_of(tx, claim.orchestration_row, task_id=claim.task_id)
            if item.answer is not None and (item.kind == "input" or _is_about_a_call_of(claim, item))
        ]
        names = select(t.task.c.key).where(t.task.c.orchestration_id == claim.orchestration_row, t.task.c.is_current)
        others = [key for key in tx.conn.execute(names.limit(1000)).scalars() if key != claim.task_id]
        done = settled_operations(tx, claim, files_missing)
        return _Seen(accepted_results(tx, claim), last_repair(tx, claim.task_row), answers, others, done)

    # A first attempt without needs has no past to look up; in a wide fan-out that is nearly every child.
    fresh = claim.attempt == 1 and not claim.terms.needs
    seen: _Seen = _Seen((), None, (), (), ()) if fresh else store.read_with(look)
    needs = {}
    for task_id, state, digest in seen.results:
        manifest = json.loads(store.bytes_of(digest))
        needs[task_id] = NeededResult(
            task_id=task_id,
            output=manifest["output"],
            artifacts={item["name"]: item["digest"] for item in manifest["artifacts"]},
            manifest_digest=digest,
            partial=state == "partial",
            gaps=tuple(manifest["gaps"]),
        )
    feedback = None
    if seen.repair is not None:
        number, decision, digest = seen.repair
        findings = [Finding.model_validate(item) for item in decision["feedback"]]  # type: ignore[attr-defined]
        feedback = Feedback(attempt=number, reason=str(decision["reason"]), findings=findings, manifest_digest=digest)
    return Assignment(
        run_id=claim.run_id,
        task_id=claim.task_id,
        child_run_id=claim.child_run_id,
        attempt=claim.attempt,
        generation=claim.generation,
        contract=contract_of(claim),
        objective=claim.terms.objective,
        inputs=dict(claim.terms.inputs),
        needs=needs,
        feedback=feedback,
        answers=seen.answers,
        left_out=[f"result of {key}" for key in seen.others if key not in needs] or ["results of all other tasks"],
        deadline_at=from_micros(claim.deadline_at),
        tools=tools,
        cancel=cancel,
        artifacts=artifacts,
        operations=seen.operations,
    )


def _is_about_a_call_of(claim: Claim, item: RequestView) -> bool:
    same_terms = item.action is not None and item.action.terms_digest == claim.terms_digest
    return same_terms and item.state == "answered"
