"""A store that is away for a while: how long to wait before the next try, and what is said meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from contracts.errors import StoreUnavailable

__all__ = ["Outage"]

FIRST_WAIT_S = 0.1
WAIT_MAX_S = 2.0
"""Short: a lease that has not run out yet may do so before the next try."""
SAY_AGAIN_S = 60.0
LOGGER = logging.getLogger("coordinator.worker")


class Outage:
    """Counts the failures in a row of one worker, and tells of the first, of each new cause, of the first result that
    it keeps, and of the end."""

    def __init__(self, owner: str, jitter: Callable[[float, float], float]) -> None:
        self._owner = owner
        self._jitter = jitter
        self._failures = 0
        self._since = 0.0
        self._said: tuple[str, bool] | None = None
        self._say_again_at = 0.0

    def failed(self, error: StoreUnavailable, *, finished: int) -> float:
        """How long to wait, in seconds. ``finished``: how many results are kept in memory until it is over."""
        now = time.monotonic()
        if not self._failures:
            self._since = now
        self._failures += 1
        said = (str(error), finished > 0)
        if said != self._said or now >= self._say_again_at:
            self._said, self._say_again_at = said, now + SAY_AGAIN_S
            kept = f"; it keeps {finished} finished for then" if finished else ""
            LOGGER.warning("%s waits, starts nothing new and tries again by itself%s: %s", self._owner, kept, error)
        longest = min(FIRST_WAIT_S * 2.0 ** min(self._failures - 1, 10), WAIT_MAX_S)
        return longest * self._jitter(0.5, 1.0)

    def over(self) -> None:
        """The store took something."""
        if self._failures:
            LOGGER.warning("%s goes on: the store is back after %.1f s", self._owner, time.monotonic() - self._since)
            self._failures, self._said = 0, None
