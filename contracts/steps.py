"""Named steps that a program passes. Nobody watches, unless a test or a demonstration does; then each is told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

__all__ = ["Watcher", "is_watched", "reached", "watch", "watched"]

Watcher = Callable[[str, str | None, int | None], None]
"""Told the step, and the task and the attempt that it is for where they are known. May raise, or never return."""

_watcher: Watcher | None = None


def reached(step: str, task_id: str | None = None, attempt: int | None = None) -> None:
    """Costs one comparison while nobody watches."""
    if _watcher is not None:
        _watcher(step, task_id, attempt)


def is_watched() -> bool:
    return _watcher is not None


def watch(watcher: Watcher | None) -> Watcher | None:
    """From now on, in every thread of this process. Gives the one before."""
    global _watcher
    before, _watcher = _watcher, watcher
    return before


@contextlib.contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    before = watch(watcher)
    try:
        yield
    finally:
        watch(before)
