"""Lease renewal: in threads of their own, so that neither a blocked loop nor a busy child can stop it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from contracts.errors import StaleClaim
from coordinator.store.records import Claim

__all__ = ["LeaseKeeper"]

RETRIES_A_LEASE = 12
SILENCE = "no answer came"


class LeaseKeeper:
    """Renews every registered claim at a third of the shortest lease, in one batch.

    ``on_lost`` is called from a thread of the keeper, once for a claim that has lost its authority: refused by the
    store, or not renewed in time because the store could not be reached. For that a second thread watches: a store
    that stands still gives no answer to the first, not even an error.
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
        self._due = self._watched_until = float("inf")
        self._trouble = SILENCE
        """What is known of the renewals since the last one that came about."""
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name="lease-keeper", daemon=True),
            threading.Thread(target=self._watch, name="lease-watch", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def add(self, claim: Claim, on_lost: Callable[[StaleClaim], None]) -> None:
        with self._changed:
            lease_s = claim.terms.limits.lease_s
            if not self._claims:
                self._due = float("inf")
            until = self._monotonic() + lease_s
            self._claims[claim.token] = (claim, on_lost, until)
            due = self._monotonic() + lease_s / 3
            if due < self._due or until < self._watched_until:
                self._due, self._watched_until = min(due, self._due), min(until, self._watched_until)
                self._changed.notify_all()

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
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

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
            # lease ends, so the next try comes soon.
            with self._changed:
                shortest_s = min(claim.terms.limits.lease_s for claim, _, _ in batch)
                self._due = min(self._due, self._monotonic() + shortest_s / RETRIES_A_LEASE)
                self._trouble = str(error)
            return
        with self._changed:
            self._trouble = SILENCE
        for (claim, on_lost, _), outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, StaleClaim):
                if self.remove(claim):
                    on_lost(outcome)
            else:
                with self._changed:
                    if claim.token in self._claims:
                        self._claims[claim.token] = (claim, on_lost, started + claim.terms.limits.lease_s)

    def _watch(self) -> None:
        """A lease that has run out by our own clock must be taken for lost, whatever the store would say."""
        while True:
            with self._changed:
                while not self._closed:
                    self._watched_until = min((until for _, _, until in self._claims.values()), default=float("inf"))
                    if self._monotonic() >= self._watched_until:
                        break
                    self._changed.wait(self._watched_until - self._monotonic() if self._claims else None)
                if self._closed:
                    return
                # One at a time: while one is told, a renewal may prolong the others.
                claim, on_lost, _ = min(self._claims.values(), key=lambda kept: kept[2])
                self.remove(claim)
                trouble = self._trouble
            on_lost(StaleClaim(f"the lease of {claim.address} ran out while the store could not be reached: {trouble}"))
