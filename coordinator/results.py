"""What a caller of the Python API gets back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Self

from contracts.errors import CoordinatorError
from contracts.results import Decision, Manifest
from contracts.states import State
from coordinator.store import TaskStore
from coordinator.store.database import Tx, in_parts
from coordinator.store.reading import run_id, run_state
from coordinator.store.task_reading import task_pages
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


class _Standing(NamedTuple):
    """A task without the documents of its judged attempt, which are named instead."""

    task_id: str
    state: State
    outcome: str
    reason: str
    attempts: int
    decision_digest: str | None
    manifest_digest: str | None

    @classmethod
    def of(cls, task: TaskView) -> Self:
        judged = judged_attempt(task)
        digests = (judged.decision_digest, judged.manifest_digest) if judged is not None else (None, None)
        return cls(task.task_id, task.state, task.word, task.why, len(task.attempts), *digests)


def _results(store: TaskStore, standing: Sequence[_Standing]) -> dict[str, TaskResult]:
    found: dict[str, TaskResult] = {}
    for some in in_parts(standing):
        stored = store.many_bytes_of({digest for one in some for digest in one[-2:] if digest is not None})
        for one in some:
            documents = (stored.get(digest) if digest is not None else None for digest in one[-2:])
            found[one.task_id] = TaskResult(*one[:-2], *documents)
    return found


def task_result(store: TaskStore, task: TaskView) -> TaskResult:
    """Reads its documents, digests checked. Raises ``Damaged``."""
    return _results(store, [_Standing.of(task)])[task.task_id]


def run_result(store: TaskStore, row: int) -> RunResult:
    """The same of a whole run."""

    def look(tx: Tx) -> tuple[str, RunState, list[_Standing]]:
        standing = [_Standing.of(task) for page in task_pages(tx, row) for task in page]
        return run_id(tx, row), run_state(tx, row), standing

    name, state, standing = store.read_with(look)
    return RunResult(name, state, _results(store, standing))
