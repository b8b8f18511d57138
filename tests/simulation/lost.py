"""Answers that are lost on their way: the call was committed, and its caller is told that the store is away."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from contracts.errors import StoreUnavailable
from tests.simulation.loop import Process, current

__all__ = ["LostCalls"]


@dataclass
class LostCalls:
    """``left``: how many more are lost, of which a row of renewals counts as one."""

    chance: random.Random
    left: int
    now: Callable[[], float]
    is_calm: Callable[[], bool]
    say: Callable[[str], None]
    _deaf_until: dict[Process, float] = field(default_factory=dict)

    def perhaps(self, verb: str) -> None:
        """Raises ``StoreUnavailable`` when the answer to this call is lost."""
        if self.left > 0 and not self.is_calm() and self.chance.random() < 0.3:
            self.left -= 1
            self._lose(verb)

    def perhaps_renewals(self, lease_s: float) -> None:
        """The same, and then what this process renews stays unanswered for a while, perhaps past its leases."""
        process = current.get()
        assert process is not None
        if self.now() < self._deaf_until.get(process, 0.0):
            self._lose("renew")
        if self.left > 0 and not self.is_calm() and self.chance.random() < 0.2:
            self.left -= 1
            self._deaf_until[process] = self.now() + self.chance.uniform(0, 2 * lease_s)
            self._lose("renew")

    def _lose(self, verb: str) -> None:
        self.say(f"the answer to {verb} is lost")
        raise StoreUnavailable("the answer is lost; the store could not be reached")
