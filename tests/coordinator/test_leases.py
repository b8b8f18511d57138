"""Renewal: together for all claims of a process, at a third of the shortest lease."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from contracts.errors import StaleClaim, StoreUnavailable
from coordinator.leases import LeaseKeeper
from coordinator.store.records import Claim

LEASE_S = 0.375
"""Its parts are exact in binary. The keeper's threads look again after so many real seconds, at a clock that stands."""

KEEPER, WATCH = "lease-keeper", "lease-watch"


class Clock:
    """Goes on by hand only, so that no lease is over because the machine is slow."""

    def __init__(self) -> None:
        self._now_s = 1_000.0
        self._read: dict[str, float] = {}

    def __call__(self) -> float:
        now_s = self._now_s
        self._read[threading.current_thread().name] = now_s
        return now_s

    def go_on(self, seconds: float, keeper: LeaseKeeper, *looks: str) -> None:
        """Returns when each thread of ``looks`` has seen it, and has let go of what it found nothing to do for."""
        self._now_s += seconds
        until(lambda: all(self._read.get(name) == self._now_s for name in looks))
        keeper.tokens()  # they look and decide under its lock


class Renewals:
    """Stands where the store stands, and says what a test wants."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.batches: list[tuple[float, list[str]]] = []
        self.answer: Callable[[Claim], int | StaleClaim] = lambda claim: 1
        self.error: Exception | None = None

    def __call__(self, claims: Sequence[Claim]) -> list[int | StaleClaim]:
        error, answer = self.error, self.answer
        self.batches.append((self.clock(), [claim.task_id for claim in claims]))
        if error is not None:
            raise error
        return [answer(claim) for claim in claims]

    def come(self, number: int) -> None:
        until(lambda: len(self.batches) >= number)


class Told:
    """What was said of lost claims, and when."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.of: list[tuple[str, float, str]] = []

    def __call__(self, claim: Claim) -> Callable[[StaleClaim], None]:
        return lambda error: self.of.append((claim.task_id, self.clock(), str(error)))

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.of]


@pytest.fixture
def ticks() -> Clock:
    return Clock()


@pytest.fixture
def renewals(ticks: Clock) -> Renewals:
    return Renewals(ticks)


@pytest.fixture
def told(ticks: Clock) -> Told:
    return Told(ticks)


@pytest.fixture
def keeper(renewals: Renewals, ticks: Clock) -> Iterator[LeaseKeeper]:
    made = LeaseKeeper(renewals, monotonic=ticks)
    yield made
    made.close()


@pytest.fixture
def claim(build: Any, sqlite_store: Any) -> Callable[..., Claim]:
    def make(name: str, lease_s: float) -> Claim:
        sqlite_store.create_run(build.run(build.task(name, limits={"lease_s": lease_s}), name=f"run-{name}"))
        (made,) = sqlite_store.claim("w", work=1)
        return made  # type: ignore[no-any-return]

    return make


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_claims_are_renewed_together_at_a_third_of_the_shortest_lease(
    keeper: LeaseKeeper, renewals: Renewals, ticks: Clock, told: Told, claim: Any
) -> None:
    long, short = claim("long", 60), claim("short", LEASE_S)
    keeper.add(long, told(long))
    keeper.add(short, told(short))
    for number in (1, 2, 3):
        ticks.go_on(LEASE_S * 7 / 24, keeper, KEEPER)
        assert len(renewals.batches) == number - 1
        ticks.go_on(LEASE_S / 24, keeper, KEEPER)
        renewals.come(number)
    assert renewals.batches == [(1_000 + LEASE_S / 3 * number, ["long", "short"]) for number in (1, 2, 3)]


def test_a_claim_that_was_removed_is_not_renewed_and_was_not_lost(
    keeper: LeaseKeeper, renewals: Renewals, ticks: Clock, told: Told, claim: Any
) -> None:
    one, other = claim("one", LEASE_S), claim("other", LEASE_S)
    keeper.add(one, told(one))
    keeper.add(other, told(other))
    assert keeper.remove(one)
    assert not keeper.remove(one)
    for number in range(1, 5):
        ticks.go_on(LEASE_S / 3, keeper, WATCH)
        renewals.come(number)
    assert all(names == ["other"] for _, names in renewals.batches)
    assert told.of == []


def test_a_lost_claim_is_told_once_and_the_others_live_on(
    keeper: LeaseKeeper, renewals: Renewals, ticks: Clock, told: Told, claim: Any
) -> None:
    renewals.answer = lambda claim: StaleClaim("gone") if claim.task_id == "lost" else 1
    lost, kept = claim("lost", LEASE_S), claim("kept", LEASE_S)
    for item in (lost, kept):
        keeper.add(item, told(item))
    for number in range(1, 5):
        ticks.go_on(LEASE_S / 3, keeper, WATCH)
        renewals.come(number)
    assert [(name, text) for name, _, text in told.of] == [("lost", "gone")]
    assert not keeper.remove(lost)
    assert keeper.remove(kept)


@pytest.mark.parametrize("error", [StoreUnavailable("the disk is full"), RuntimeError("a fault of the driver")])
def test_a_store_that_is_away_loses_claims_only_when_their_lease_is_over(
    keeper: LeaseKeeper, renewals: Renewals, ticks: Clock, told: Told, claim: Any, error: Exception
) -> None:
    renewals.error = error
    one, two = claim("one", LEASE_S), claim("two", LEASE_S)
    keeper.add(one, told(one))
    ticks.go_on(LEASE_S / 3, keeper, WATCH)
    for _ in range(7):
        ticks.go_on(LEASE_S / 12, keeper, KEEPER, WATCH)
        assert keeper.tokens() == [one.token]
    renewals.come(2)  # it tried again in between
    ticks.go_on(LEASE_S / 12, keeper, WATCH)
    until(lambda: told.of)
    assert [(name, at_s) for name, at_s, _ in told.of] == [("one", 1_000 + LEASE_S)]
    assert "could not be reached" in told.of[0][2]
    assert str(error) in told.of[0][2]
    renewals.error = None
    seen = len(renewals.batches)
    keeper.add(two, told(two))  # and the threads live
    ticks.go_on(LEASE_S / 3, keeper, WATCH)
    renewals.come(seen + 1)
    assert keeper.tokens() == [two.token]


def test_a_store_that_comes_back_in_time_loses_nothing(
    keeper: LeaseKeeper, renewals: Renewals, ticks: Clock, told: Told, claim: Any
) -> None:
    renewals.error = StoreUnavailable("busy")
    one = claim("one", LEASE_S)
    keeper.add(one, told(one))
    ticks.go_on(LEASE_S / 3, keeper, WATCH)
    renewals.come(1)
    renewals.error = None
    ticks.go_on(LEASE_S / 6, keeper, WATCH)
    for number in range(2, 6):
        renewals.come(number)
        ticks.go_on(LEASE_S / 3, keeper, WATCH)
    assert told.of == []
    assert keeper.tokens() == [one.token]


class Still:
    """A store that gives no answer until it is let."""

    def __init__(self, renewals: Renewals) -> None:
        self.over = threading.Event()
        renewals.answer = self

    def __call__(self, claim: Claim) -> int:
        assert self.over.wait(60)
        return 1


def test_a_store_that_stands_still_loses_claims_when_their_lease_is_over(
    keeper: LeaseKeeper, renewals: Renewals, ticks: Clock, told: Told, claim: Any
) -> None:
    still = Still(renewals)
    kept, one, two = claim("kept", 60), claim("one", LEASE_S), claim("two", LEASE_S)
    keeper.add(kept, told(kept))
    keeper.add(one, told(one))
    ticks.go_on(LEASE_S / 3, keeper, WATCH)
    renewals.come(1)
    ticks.go_on(LEASE_S / 2, keeper, WATCH)
    assert keeper.tokens() == [kept.token, one.token]
    ticks.go_on(LEASE_S / 6, keeper, WATCH)
    until(lambda: told.of)
    assert [(name, at_s) for name, at_s, _ in told.of] == [("one", 1_000 + LEASE_S)]
    assert "could not be reached: no answer came" in told.of[0][2]
    keeper.add(two, told(two))
    ticks.go_on(LEASE_S, keeper, WATCH)
    until(lambda: len(told.of) == 2)
    still.over.set()
    keeper.close()
    assert told.names == ["one", "two"]
    assert keeper.remove(kept)


def test_what_went_wrong_before_a_good_renewal_is_not_the_reason_any_more(
    keeper: LeaseKeeper, renewals: Renewals, ticks: Clock, told: Told, claim: Any
) -> None:
    renewals.error = StoreUnavailable("the disk is full")
    one = claim("one", LEASE_S)
    keeper.add(one, told(one))
    ticks.go_on(LEASE_S / 3, keeper, WATCH)
    renewals.come(1)
    renewals.error = None
    ticks.go_on(LEASE_S / 6, keeper, WATCH)
    renewals.come(2)
    still = Still(renewals)  # for the renewals after that one
    ticks.go_on(LEASE_S / 3, keeper, WATCH)
    renewals.come(3)
    ticks.go_on(LEASE_S, keeper, WATCH)
    until(lambda: told.of)
    still.over.set()
    assert told.of[0][2].endswith("could not be reached: no answer came")


def test_a_renewal_that_comes_while_another_loss_is_told_is_not_overlooked(
    keeper: LeaseKeeper, renewals: Renewals, ticks: Clock, told: Told, claim: Any
) -> None:
    still = Still(renewals)
    one, two = claim("one", LEASE_S), claim("two", LEASE_S)

    def renew_the_other(error: StaleClaim) -> None:
        told(one)(error)
        still.over.set()
        renewals.come(2)  # so the first has come about

    keeper.add(one, renew_the_other)
    keeper.add(two, told(two))
    ticks.go_on(LEASE_S / 3, keeper, WATCH)
    renewals.come(1)
    ticks.go_on(LEASE_S * 2 / 3, keeper)
    until(lambda: told.of)
    renewals.come(2)
    ticks.go_on(LEASE_S / 12, keeper, WATCH)
    assert told.names == ["one"]
    assert keeper.tokens() == [two.token]


def test_closing_ends_the_threads(keeper: LeaseKeeper, renewals: Renewals, claim: Any) -> None:
    keeper.add(claim("one", LEASE_S), lambda error: None)
    keeper.close()
    seen = len(renewals.batches)
    assert not {KEEPER, WATCH} & {thread.name for thread in threading.enumerate()}
    assert len(renewals.batches) == seen
