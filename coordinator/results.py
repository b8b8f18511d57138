"""What a caller of the Python API gets back."""

from __future__ import annotations

from collections.abc import Mapping
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
    """How a task stands. ``output`` and ``manifest`` are those of the judged result, and None before there is one.

    Documents are read from the store, digests checked, when they are first asked for: those of a wide run are many.
    They raise ``Damaged``, and ``StoreUnavailable`` when the store is not there any more.
    """

    task_id: str
    state: State
    outcome: str
    """``accepted``, ``partial``, ``failed``, ``cancelled``, ``blocked`` …: the word that people read."""
    reason: str
    attempts: int
    decision_digest: str | None
    manifest_digest: str | None
    _store: TaskStore = field(repr=False)

    @cached_property
    def decision(self) -> Decision | None:
        data = self._bytes_of(self.decision_digest)
        return None if data is None else Decision.model_validate_json(data)

    @cached_property
    def manifest(self) -> Manifest | None:
        data = self._bytes_of(self.manifest_digest)
        return None if data is None else Manifest.model_validate_json(data)

    def _bytes_of(self, digest: str | None) -> bytes | None:
        return None if digest is None else self._store.bytes_of(digest)

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


def task_result(store: TaskStore, task: TaskView) -> TaskResult:
    judged = judged_attempt(task)
    return TaskResult(
        task.task_id,
        task.state,
        task.word,
        task.why,
        len(task.attempts),
        decision_digest=judged.decision_digest if judged is not None else None,
        manifest_digest=judged.manifest_digest if judged is not None else None,
        _store=store,
    )


def run_result(store: TaskStore, row: int) -> RunResult:
    run = store.run(row)
    return RunResult(run.run_id, run.state, {task.task_id: task_result(store, task) for task in run.tasks})
