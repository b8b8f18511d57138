"""Addresses: ``RUN``, ``RUN/TASK``, ``RUN/TASK@N``; unique prefixes do, and none means the latest run."""

from __future__ import annotations

import re
from dataclasses import dataclass

from contracts.errors import BadInput, NotFound
from coordinator.results import judged_attempt
from coordinator.store import TaskStore
from coordinator.store.reading import unique_prefix
from coordinator.store.views import AttemptView, RunView, TaskView

__all__ = ["Found", "find", "find_task", "parse_address"]


@dataclass(frozen=True, slots=True)
class Found:
    """What an address names. ``attempt`` is set when it names a task that has one."""

    run: RunView
    task: TaskView | None
    attempt: AttemptView | None


def find(store: TaskStore, address: str | None) -> Found:
    """Resolve an address. Raises ``NotFound`` naming what there is, ``BadInput`` for a malformed one."""
    run_part, task_part, number = parse_address(address)
    row = store.find_run(run_part)
    run = store.run(row)
    if task_part is None:
        return Found(run, None, None)
    task = run.tasks[unique_prefix(task_part, [task.task_id for task in run.tasks], "task")]
    if number is None:
        last = task.attempts[-1] if task.attempts else None
        return Found(run, task, judged_attempt(task) or last)
    for attempt in task.attempts:
        if attempt.number == number:
            return Found(run, task, attempt)
    have = f"it has {len(task.attempts)}" if task.attempts else "it has none yet"
    raise NotFound(f"{run.run_id}/{task.task_id} has no attempt {number}: {have}")


def parse_address(address: str | None) -> tuple[str | None, str | None, int | None]:
    """(run, task, attempt number) as written. Raises ``BadInput`` for a malformed address."""
    run_part, slash, rest = (address or "").partition("/")
    task_part, at, number = rest.partition("@")
    if (slash and not task_part) or (at and not re.fullmatch("[0-9]{1,9}", number)) or "@" in run_part:
        raise BadInput(f"{address!r} is not an address: write RUN, RUN/TASK or RUN/TASK@N")
    return run_part or None, task_part or None, int(number) if at else None


def find_task(store: TaskStore, address: str | None) -> tuple[RunView, TaskView, AttemptView | None]:
    """Like ``find``, for commands that need a task: a run with one task will do. Raises ``NotFound``."""
    found = find(store, address)
    if found.task is not None:
        return found.run, found.task, found.attempt
    if len(found.run.tasks) == 1:
        return find_task(store, f"{found.run.run_id}/{found.run.tasks[0].task_id}")
    names = ", ".join(f"{found.run.run_id}/{task.task_id}" for task in found.run.tasks)
    raise NotFound(f"name a task of {found.run.run_id}: {names}")
