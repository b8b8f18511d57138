"""Few tries more, at growing distances, never past the time that is left."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agents.llm.failures import CallFailed

__all__ = ["TRIES_MAX", "with_retries"]

TRIES_MAX = 6
"""With the waits below, an overload of a minute is outlasted."""

WAIT_FIRST_S = 2.0
WAIT_MAX_S = 32.0
JITTER_S = 2.0

T = TypeVar("T")


async def with_retries(attempt: Callable[[int], Awaitable[T]], time_left_s: Callable[[], float]) -> T:
    """What ``attempt(number)`` gives, numbers from 1. Raises the last ``CallFailed``, and anything else at once."""
    import stamina  # takes a moment, and most workers have no model
    from stamina.instrumentation import set_on_retry_hooks

    # Each try is in the journal. By itself the library would print to the standard output of the host program.
    set_on_retry_hooks(())

    def wait(error: Exception) -> bool | float:
        if not isinstance(error, CallFailed) or not error.retryable:
            return False
        if error.retry_after_s is None:
            return time_left_s() > WAIT_FIRST_S
        if error.retry_after_s >= time_left_s():
            return False
        # Later than announced, and not all at once: the others were told the same.
        return error.retry_after_s + random.uniform(0.1, JITTER_S)  # noqa: S311 - spreads load, keeps no secret

    async for one in stamina.retry_context(
        on=wait, attempts=TRIES_MAX, timeout=None, wait_initial=WAIT_FIRST_S, wait_max=WAIT_MAX_S, wait_jitter=JITTER_S
    ):
        with one:
            return await attempt(one.num)
    raise AssertionError("the last failure is raised")
