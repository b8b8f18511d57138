"""Lease renewal: one thread a process, so that neither a blocked loop nor a busy child can stop it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from contracts.errors import StaleClaim
from coordinator.store.records import Claim

__all__ = ["LeaseKeeper"]

RETRIES_A_LEASE = 12


class LeaseKeeper:
    """Renews every registered claim at a third of the shortest lease, in one batch.

    ``on_lost`` is called from the keeper's thread, once for a claim that has lost its authority: refused by the
    store, or not renewed in time because the store could not be reached.
    """

    def __init__(
        self,
        renew: Callable[[Sequence[Claim]], Sequence[int | StaleClaim]],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._renew = renew
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._claims: dict[str, tuple[Claim, Callable[[StaleClaim], None], float]] = {}
        self._due = float("inf")
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)
        self._thread.start()

    def add(self, claim: Claim, on_lost: Callable[[StaleClaim], None]) -> None:
        with self._changed:
            lease_s = claim.terms.limits.lease_s
            if not self._claims:
                self._due = float("inf")
            self._claims[claim.token] = (claim, on_lost, self._monotonic() + lease_s)
            due = self._monotonic() + lease_s / 3
            if due < self._due:
                self._due = due
                self._changed.notify()

    def remove(self, claim: Claim) -> bool:
        """Unregister, before submitting. False when the claim was lost already."""
        with self._changed:
            return self._claims.pop(claim.token, None) is not None

    def tokens(self) -> list[str]:
        """Of the claims that are kept."""
        with self._changed:
            return list(self._claims)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (not self._claims or self._monotonic() < self._due):
                    self._changed.wait(self._due - self._monotonic() if self._claims else None)
                if self._closed:
                    return
                batch = list(self._claims.values())
                self._due = self._monotonic() + min(claim.terms.limits.lease_s for claim, _, _ in batch) / 3
            self._renew_batch(batch)

    def _renew_batch(self, batch: list[tuple[Claim, Callable[[StaleClaim], None], float]]) -> None:
        started = self._monotonic()
        try:
            outcomes = self._renew([claim for claim, _, _ in batch])
        except Exception as error:
            # The store is away, and this thread must outlive whatever that looks like. It may be back just before a
            # lease ends, so the next try comes soon. A lease that has run out by our own clock must be taken for lost.
            with self._changed:
                shortest_s = min(claim.terms.limits.lease_s for claim, _, _ in batch)
                self._due = min(self._due, self._monotonic() + shortest_s / RETRIES_A_LEASE)
            for claim, on_lost, until in batch:
                if self._monotonic() >= until and self.remove(claim):
                    on_lost(
                        StaleClaim(
                            f"the lease of {claim.address} ran out while the store could not be reached: {error}"
                        )
                    )
            return
        for (claim, on_lost, _), outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, StaleClaim):
                if self.remove(claim):
                    on_lost(outcome)
            else:
                with self._changed:
                    if claim.token in self._claims:
                        self._claims[claim.token] = (claim, on_lost, started + claim.terms.limits.lease_s)
