"""What must not follow a wall clock that jumps: the keeping of leases, deadlines, and how often a worker looks.

Measured in the loop's own time, which only grows; a process that was stopped is given credit for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from contracts.errors import StaleClaim
from coordinator.leases import LeaseKeeper
from coordinator.store.records import Claim, Ending
from coordinator.worker import POLL_S
from tests.simulation.loop import Process, current

__all__ = ["Elapsed", "WatchedKeeper"]

CLOSE_S = 0.05
"""What floating point and the order of callbacks may come to."""


@dataclass(slots=True)
class _Held:
    """One claim, as its holder knows it: since when, and when it last tried to renew it, and did."""

    since: float
    tried: float
    renewed: float


@dataclass
class Elapsed:
    """``now``: seconds that have passed, whatever any clock says. ``poll``: by how much a worker's pauses are drawn
    out; ``job_delay_s``: how long what it gives to threads takes on the average."""

    now: Callable[[], float]
    fail: Callable[[str], NoReturn]
    poll: float
    job_delay_s: float
    _held: dict[str, _Held] = field(default_factory=dict)
    _looked: dict[Process, float] = field(default_factory=dict)

    def need(self, holds: object, text: str) -> None:
        if not holds:
            self.fail(f"[13] {text}, by no clock that may jump")

    def _since(self, moment: float) -> float:
        """How long ago that was for the process that runs now."""
        process = current.get()
        return self.now() - (max(moment, process.went_on_at) if process else moment)

    # -- leases --------------------------------------------------------------------------------------------------

    def holds(self, claim: Claim) -> None:
        self._held[claim.token] = _Held(self.now(), self.now(), self.now())

    def tries(self, claims: Sequence[Claim]) -> None:
        """Somebody renews, or lets go of, claims: its holder must not have let them lie for too long."""
        for claim in claims:
            held, least_s = self._held.get(claim.token), claim.terms.limits.lease_s / 3
            if held is not None:
                late_s = self._since(held.tried) - least_s
                self.need(late_s <= CLOSE_S, f"the lease of {claim.task_id} was not renewed for {late_s:g} s too long")
                held.tried = self.now()
                self._kept(claim, held)

    def renewed(self, claims: Sequence[Claim], outcomes: Sequence[int | StaleClaim]) -> None:
        for claim, outcome in zip(claims, outcomes, strict=True):
            if claim.token in self._held and not isinstance(outcome, StaleClaim):
                self._held[claim.token].renewed = self.now()

    def lost(self, claim: Claim, error: StaleClaim) -> None:
        """Its holder was told that it has lost the claim: by the store, or because it could not ask the store."""
        held = self._held[claim.token]
        if "could not be reached" not in str(error):
            return
        lease_s = claim.terms.limits.lease_s
        over_s = self.now() - held.renewed - lease_s
        self.need(over_s >= -CLOSE_S, f"the lease of {claim.task_id} was given up {-over_s:g} s before its end")
        self._kept(claim, held)

    def _kept(self, claim: Claim, held: _Held) -> None:
        lease_s = claim.terms.limits.lease_s
        late_s = self._since(held.renewed + lease_s)
        self.need(late_s <= CLOSE_S, f"the claim on {claim.task_id} was kept {late_s:g} s after its lease")

    # -- deadlines -----------------------------------------------------------------------------------------------

    def ends(self, ending: Ending) -> None:
        """A holder says how an attempt ended."""
        held = self._held.get(ending.claim.token)
        if held is not None and ending.reason.startswith("not done within its deadline"):
            early_s = held.since + ending.claim.terms.limits.deadline_s - self.now()
            self.need(early_s <= CLOSE_S, f"{ending.claim.task_id} was ended {early_s:g} s before its deadline")

    def works(self, claim: Claim) -> None:
        """A child goes on, and nobody has told it to stop."""
        late_s = self._since(self._held[claim.token].since + claim.terms.limits.deadline_s)
        self.need(late_s <= CLOSE_S, f"{claim.task_id} works {late_s:g} s after its deadline")

    # -- pauses --------------------------------------------------------------------------------------------------

    def looks(self) -> None:
        """A worker looks at the store."""
        process = current.get()
        if process is None or process.commands:
            return
        before = self._looked.get(process)
        self._looked[process] = self.now()
        # A look that had nothing to ask is not seen here; the next is. What each job of it takes is up to chance, but
        # never so many times the average.
        most_s = POLL_S / 2 + 1.2 * POLL_S * self.poll + 40 * self.job_delay_s
        if before is not None:
            late_s = self._since(before) - most_s
            self.need(late_s <= CLOSE_S, f"a worker did not look at the store for {late_s:g} s too long")

    def waits(self) -> None:
        """The store was away: a worker takes its time."""
        process = current.get()
        if process is not None:
            self._looked.pop(process, None)


class WatchedKeeper(LeaseKeeper):
    def __init__(self, renew: Callable[[Sequence[Claim]], Any], *, elapsed: Elapsed) -> None:
        self._elapsed = elapsed
        super().__init__(renew, monotonic=elapsed.now)

    def add(self, claim: Claim, on_lost: Callable[[StaleClaim], None]) -> None:
        def lost(error: StaleClaim) -> None:
            self._elapsed.lost(claim, error)
            on_lost(error)

        self._elapsed.holds(claim)
        super().add(claim, lost)

    def remove(self, claim: Claim) -> bool:
        held = super().remove(claim)
        if held:
            self._elapsed.tries([claim])
        return held
