"""What a worker will bring into the store with its next tick."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from contracts.errors import Refused
from coordinator.store.records import Claim, Delegated, Ending, NewChild, Submission, Verdict

__all__ = ["Inbox"]


@dataclass(slots=True)
class Inbox:
    """What children and the gate have finished since the last tick, and what a program has delegated."""

    submissions: list[Submission] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    stopped: list[Claim] = field(default_factory=list)
    delegations: list[NewChild] = field(default_factory=list)
    _told: list[asyncio.Future[Delegated]] = field(default_factory=list)
    """For each delegation, who waits to hear of it."""

    def __bool__(self) -> bool:
        return len(self) > 0

    def __len__(self) -> int:
        lists = (self.submissions, self.endings, self.verdicts, self.stopped, self.delegations)
        return sum(len(some) for some in lists)

    def put_back(self, earlier: Inbox) -> None:
        """Before what came in since; not what was delegated, for those who wait are told instead."""
        self.submissions[:0] = earlier.submissions
        self.endings[:0] = earlier.endings
        self.verdicts[:0] = earlier.verdicts
        self.stopped[:0] = earlier.stopped

    def delegate(self, child: NewChild) -> asyncio.Future[Delegated]:
        told: asyncio.Future[Delegated] = asyncio.get_running_loop().create_future()
        self.delegations.append(child)
        self._told.append(told)
        return told

    def tell_delegations(self, outcomes: Sequence[Delegated | Refused | BaseException]) -> None:
        for told, outcome in zip(self._told, outcomes, strict=True):
            if told.done():  # whoever waited has been cancelled
                continue
            if isinstance(outcome, BaseException):
                told.set_exception(outcome)
            else:
                told.set_result(outcome)

    def fail_delegations(self, error: BaseException) -> None:
        self.tell_delegations([error] * len(self._told))
