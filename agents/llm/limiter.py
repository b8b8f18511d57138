"""An overloaded provider: once one child of this process is told to wait, all of the same account do, out of step."""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agents.llm.failures import CallFailed

__all__ = ["LIMITERS", "PATIENCE_S", "Account", "Limiter", "Limiters", "Permit"]

PATIENCE_S = 600.0
"""The most that one turn waits in all before its provider counts as unavailable."""

BACKOFF_FIRST_S = 2.0
BACKOFF_MAX_S = 64.0
ANNOUNCED_MAX_S = 86_400.0
"""A longer wait is an outage, or nonsense that must not shut a provider out for ever."""

JITTER_MIN_S = 0.1
JITTER_MAX_S = 2.0
LOOK_S = 0.25
"""How often those who wait look whether they still have to."""


@dataclass(frozen=True, slots=True)
class Account:
    """Whom a provider counts as one. ``provider``: whose API is spoken; ``key_env``: the variable with the key."""

    provider: str
    base_url: str | None
    key_env: str | None


@dataclass(frozen=True, slots=True)
class Permit:
    """For one request. ``given_s``: a reading of the limiter's clock; ``waited_s``: how long it was waited for."""

    given_s: float
    waited_s: float


class Limiter:
    """When the children of one account may ask. Open, it costs nothing; children may be in several threads and loops.

    A refusal closes it for the announced time, or for a growing one. Those who wait then go one by one, each some time
    after the one before; the first that is answered opens it, and the others follow within ``JITTER_MAX_S``. Nobody
    has a place in a queue: who gives up keeps nobody waiting.
    """

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._monotonic = monotonic
        self._sleep = sleep
        self._uniform = uniform
        self._lock = threading.Lock()
        self._refusal: CallFailed | None = None
        """The last one; None: open."""
        self._waves = 0
        """Of refusals in a row, those that were asked for together counting once."""
        self._closed_s = -math.inf
        self._opens_s = -math.inf
        """When the first may ask after the last refusal."""
        self._asks_s: float | None = None
        """The announced wait, if that is what the opening comes from."""
        self._next_s = -math.inf
        """When the next one may ask while it is closed."""

    async def wait(self, time_left_s: Callable[[], float], patience_s: float, stopped: Callable[[], bool]) -> Permit:
        """Wait until a request may be made. Raises ``CallFailed``: ``provider_unavailable`` at once when the time that
        is left, or ``patience_s``, ends before anybody may ask, else when it is over; ``stopped`` when told to stop."""
        began_s = self._monotonic()
        follows_s: float | None = None
        waited = False
        while True:
            left_s = time_left_s()
            with self._lock:
                now_s = self._monotonic()
                left_s = min(left_s, began_s + patience_s - now_s)
                refusal, opens_s, asks_s = self._refusal, self._opens_s, self._asks_s
                if refusal is not None:
                    follows_s, at_s = None, self._next_s
                    may = at_s <= now_s and left_s > 0
                    if may:
                        self._next_s = now_s + self._jitter()
                else:
                    if follows_s is None:
                        follows_s = now_s + (min(self._jitter(), left_s / 2) if waited else 0.0)
                    at_s, may = follows_s, follows_s <= now_s
            if may:
                return Permit(now_s, now_s - began_s)
            if stopped():
                raise CallFailed("stopped", "told to stop while the provider was waited for", billed="no")
            if refusal is not None and now_s < opens_s and opens_s - now_s >= left_s:
                wait = f"the next try would be in {opens_s - now_s:.0f} s"
                raise _unavailable(refusal, wait if asks_s is None else f"the provider asks to wait {asks_s:.0f} s")
            if refusal is not None and left_s <= LOOK_S:  # just before it is over: the provider is the reason, not time
                raise _unavailable(refusal, f"{now_s - began_s:.0f} s were waited for it in vain")
            waited = True
            await self._sleep(min(at_s - now_s, LOOK_S))

    def refused(self, permit: Permit, failed: CallFailed) -> None:
        """The provider takes no request now."""
        with self._lock:
            now_s = self._monotonic()
            if permit.given_s >= self._closed_s:  # asked since, so it is another refusal and not the same
                self._waves += 1
                self._closed_s = now_s
                backoff_s = min(BACKOFF_FIRST_S * 2.0 ** min(self._waves - 1, 10), BACKOFF_MAX_S)
            else:
                backoff_s = 0.0
            announced_s = failed.retry_after_s
            if announced_s is not None and self._waves == 1:
                backoff_s = 0.0
            wait_s = max(min(announced_s or 0.0, ANNOUNCED_MAX_S), backoff_s)
            self._refusal = failed
            if now_s + wait_s > self._opens_s:
                self._opens_s = now_s + wait_s + self._jitter()
                self._next_s = max(self._next_s, self._opens_s)
                self._asks_s = announced_s if announced_s is not None and announced_s >= backoff_s else None

    def answered(self, permit: Permit) -> None:
        """The provider has answered; what was asked before the last refusal says nothing."""
        with self._lock:
            if permit.given_s >= self._closed_s:
                self._refusal = None
                self._waves = 0

    def _jitter(self) -> float:
        return self._uniform(JITTER_MIN_S, JITTER_MAX_S)


class Limiters:
    """One limiter for each account, made with the same clock, sleep and randomness."""

    def __init__(self, make: Callable[[], Limiter] = Limiter) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: dict[Account, Limiter] = {}

    def of(self, account: Account) -> Limiter:
        with self._lock:
            if account not in self._made:
                self._made[account] = self._make()
            return self._made[account]


LIMITERS = Limiters()
"""Of this process."""


def _unavailable(refusal: CallFailed, wait: str) -> CallFailed:
    return CallFailed("provider_unavailable", f"{refusal}; {wait}", billed="no")
