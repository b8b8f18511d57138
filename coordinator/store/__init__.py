"""The task store."""

from __future__ import annotations

from coordinator.store.task_store import Damaged, TaskStore, Tick, TickOutcome

__all__ = ["Damaged", "TaskStore", "Tick", "TickOutcome"]
