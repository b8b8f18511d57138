"""Few tries more, at growing distances, never past the time that is left."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agents.llm.failures import CallFailed
from agents.llm.limiter import PATIENCE_S

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
    from stamina._config import CONFIG
    from stamina.instrumentation import set_on_retry_hooks

    # Each try is in the journal. By itself the library would print to the standard output of the host program; whether
    # the host has chosen otherwise only its private part tells without starting what it would print with.
    if CONFIG._on_retry is None:
        set_on_retry_hooks(())
    tries = 0

    def wait(error: Exception) -> bool | float:
        nonlocal tries
        tries += 1
        if not isinstance(error, CallFailed) or not error.retryable:
            return False
        least_s = error.retry_after_s
        if least_s is None:
            least_s = min(WAIT_FIRST_S * 2 ** (tries - 1), WAIT_MAX_S)
        # Later than announced, and not all at once: the others were told the same.
        wait_s = least_s + random.uniform(0.1, JITTER_S)  # noqa: S311 - spreads load, keeps no secret
        return wait_s if wait_s < min(time_left_s(), PATIENCE_S) else False

    async for one in stamina.retry_context(on=wait, attempts=TRIES_MAX, timeout=None):
        with one:
            return await attempt(one.num)
    raise AssertionError("the last failure is raised")
