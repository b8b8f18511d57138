"""What a caller of the Python API gets back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from contracts.errors import CoordinatorError
from contracts.results import Decision, Manifest
from contracts.states import State
from coordinator.store import TaskStore
from coordinator.store.views import AttemptView, RunState, TaskView

__all__ = ["NotAccepted", "RunResult", "TaskResult", "run_result", "task_result"]


class NotAccepted(CoordinatorError):
    """A run ended with something that was not accepted; the text names each task and why."""

    exit_code = 1


@dataclass(frozen=True)
class TaskResult:
    """How a task stands. ``output`` and ``manifest`` are those of the judged result, and None before there is one."""

    task_id: str
    state: State
    outcome: str
    """``accepted``, ``partial``, ``failed``, ``cancelled``, ``blocked`` …: the word that people read."""
    reason: str
    attempts: int
    _decision: bytes | None = field(default=None, repr=False)
    _manifest: bytes | None = field(default=None, repr=False)

    @cached_property
    def decision(self) -> Decision | None:
        return None if self._decision is None else Decision.model_validate_json(self._decision)

    @cached_property
    def manifest(self) -> Manifest | None:
        return None if self._manifest is None else Manifest.model_validate_json(self._manifest)

    @property
    def output(self) -> Any:
        return self.manifest.output if self.manifest is not None else None

    @property
    def accepted(self) -> bool:
        return self.state is State.ACCEPTED


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run stands. ``ok``: every task was accepted, whole."""

    run_id: str
    state: RunState
    tasks: Mapping[str, TaskResult]

    @property
    def ok(self) -> bool:
        return bool(self.tasks) and all(task.accepted for task in self.tasks.values())

    def raise_if_not_accepted(self) -> None:
        """Raise ``NotAccepted`` unless ``ok``."""
        if not self.ok:
            open_ends = [
                f"{task.task_id}: {task.outcome}" + (f" ({task.reason})" if task.reason else "")
                for task in self.tasks.values()
                if not task.accepted
            ]
            raise NotAccepted(f"run {self.run_id} is not accepted: " + ("; ".join(open_ends) or "it has no tasks"))


def judged_attempt(task: TaskView) -> AttemptView | None:
    """The attempt whose result counts: the newest that was decided on, else the newest submitted."""
    decided = [attempt for attempt in task.attempts if attempt.decision is not None]
    submitted = [attempt for attempt in task.attempts if attempt.ended == "submitted"]
    return decided[-1] if decided else submitted[-1] if submitted else None


def task_results(store: TaskStore, tasks: Sequence[TaskView]) -> dict[str, TaskResult]:
    """Read the decisions and manifests of tasks, digests checked. Raises ``Damaged``."""
    judged = {task.task_id: judged_attempt(task) for task in tasks}
    wanted = {
        digest
        for attempt in judged.values() if attempt is not None
        for digest in (attempt.decision_digest, attempt.manifest_digest) if digest is not None
    }  # fmt: skip
    stored = store.many_bytes_of(wanted)
    found: dict[str, TaskResult] = {}
    for task in tasks:
        attempt = judged[task.task_id]
        decision = stored.get(attempt.decision_digest or "") if attempt is not None else None
        manifest = stored.get(attempt.manifest_digest or "") if attempt is not None else None
        found[task.task_id] = TaskResult(
            task.task_id, task.state, task.word, task.why, len(task.attempts), decision, manifest
        )
    return found


def task_result(store: TaskStore, task: TaskView) -> TaskResult:
    return task_results(store, [task])[task.task_id]


def run_result(store: TaskStore, row: int) -> RunResult:
    run = store.run(row)
    return RunResult(run.run_id, run.state, task_results(store, run.tasks))
