"""A multi-agent coordinator: children work under delegation contracts, and what is accepted is true and can be shown.

Names are loaded when they are used, so that importing this package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contracts.assignment import Assignment
    from contracts.errors import BadInput, CoordinatorError, Refused, StaleClaim
    from contracts.orchestration import Orchestration, Source, Task
    from contracts.results import Result
    from contracts.tools import ToolReply, ToolUse
    from coordinator.api import AsyncCoordinator, Coordinator
    from coordinator.results import NotAccepted, RunResult, TaskResult

_HOMES = {
    "Assignment": "contracts.assignment",
    "AsyncCoordinator": "coordinator.api",
    "BadInput": "contracts.errors",
    "Coordinator": "coordinator.api",
    "CoordinatorError": "contracts.errors",
    "NotAccepted": "coordinator.results",
    "Orchestration": "contracts.orchestration",
    "Refused": "contracts.errors",
    "Result": "contracts.results",
    "RunResult": "coordinator.results",
    "Source": "contracts.orchestration",
    "StaleClaim": "contracts.errors",
    "Task": "contracts.orchestration",
    "TaskResult": "coordinator.results",
    "ToolReply": "contracts.tools",
    "ToolUse": "contracts.tools",
}

__all__ = [
    "Assignment",
    "AsyncCoordinator",
    "BadInput",
    "Coordinator",
    "CoordinatorError",
    "NotAccepted",
    "Orchestration",
    "Refused",
    "Result",
    "RunResult",
    "Source",
    "StaleClaim",
    "Task",
    "TaskResult",
    "ToolReply",
    "ToolUse",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'coordinator' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
