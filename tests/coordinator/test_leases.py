"""Renewal: together for all claims of a process, at a third of the shortest lease."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from contracts.errors import StaleClaim, StoreUnavailable
from coordinator.leases import LeaseKeeper
from coordinator.store.records import Claim


class Renewals:
    """Stands where the store stands, and says what a test wants."""

    def __init__(self) -> None:
        self.batches: list[tuple[float, list[str]]] = []
        self.answer: Callable[[Claim], int | StaleClaim] = lambda claim: 1
        self.error: Exception | None = None
        self.came = threading.Event()

    def __call__(self, claims: Sequence[Claim]) -> list[int | StaleClaim]:
        self.batches.append((time.monotonic(), [claim.task_id for claim in claims]))
        self.came.set()
        if self.error is not None:
            raise self.error
        return [self.answer(claim) for claim in claims]


@pytest.fixture
def renewals() -> Renewals:
    return Renewals()


@pytest.fixture
def keeper(renewals: Renewals) -> Iterator[LeaseKeeper]:
    made = LeaseKeeper(renewals)
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
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_claims_are_renewed_together_at_a_third_of_the_shortest_lease(
    keeper: LeaseKeeper, renewals: Renewals, claim: Any
) -> None:
    keeper.add(claim("long", 60), lambda error: None)
    assert renewals.batches == []
    added = time.monotonic()
    keeper.add(claim("short", 0.6), lambda error: None)
    until(lambda: len(renewals.batches) >= 3)
    times = [moment for moment, _ in renewals.batches[:3]]
    assert [names for _, names in renewals.batches[:3]] == [["long", "short"]] * 3
    assert times[0] - added >= 0.15
    assert all(later - earlier >= 0.15 for earlier, later in itertools.pairwise(times))


def test_a_claim_that_was_removed_is_not_renewed_and_was_not_lost(
    keeper: LeaseKeeper, renewals: Renewals, claim: Any
) -> None:
    one, other = claim("one", 0.3), claim("other", 0.3)
    keeper.add(one, lambda error: None)
    keeper.add(other, lambda error: None)
    assert keeper.remove(one)
    assert not keeper.remove(one)
    until(lambda: renewals.batches)
    assert all(names == ["other"] for _, names in renewals.batches)


def test_a_lost_claim_is_told_once_and_the_others_live_on(keeper: LeaseKeeper, renewals: Renewals, claim: Any) -> None:
    renewals.answer = lambda claim: StaleClaim("gone") if claim.task_id == "lost" else 1
    told: list[tuple[str, str]] = []
    lost, kept = claim("lost", 0.3), claim("kept", 0.3)
    for item in (lost, kept):
        keeper.add(item, lambda error, name=item.task_id: told.append((name, str(error))))  # type: ignore[misc]
    until(lambda: len(renewals.batches) >= 3)
    assert told == [("lost", "gone")]
    assert not keeper.remove(lost)
    assert keeper.remove(kept)


@pytest.mark.parametrize("error", [StoreUnavailable("the disk is full"), RuntimeError("a fault of the driver")])
def test_a_store_that_is_away_loses_claims_only_when_their_lease_is_over(
    keeper: LeaseKeeper, renewals: Renewals, claim: Any, error: Exception
) -> None:
    renewals.error = error
    told: list[tuple[float, str]] = []
    added = time.monotonic()
    keeper.add(claim("one", 0.45), lambda error: told.append((time.monotonic(), str(error))))
    until(lambda: told)
    assert told[0][0] - added >= 0.45
    assert "could not be reached" in told[0][1]
    assert str(error) in told[0][1]
    assert len(renewals.batches) >= 2  # it tried again in between
    renewals.error = None
    renewals.batches.clear()
    keeper.add(claim("two", 0.3), lambda error: None)  # and the thread lives
    until(lambda: renewals.batches)


def test_a_store_that_comes_back_in_time_loses_nothing(keeper: LeaseKeeper, renewals: Renewals, claim: Any) -> None:
    renewals.error = StoreUnavailable("busy")
    told: list[StaleClaim] = []
    keeper.add(claim("one", 2), told.append)
    until(lambda: renewals.batches)
    renewals.error = None
    until(lambda: len(renewals.batches) >= 5)
    assert told == []


def test_a_store_that_stands_still_loses_claims_when_their_lease_is_over(
    keeper: LeaseKeeper, renewals: Renewals, claim: Any
) -> None:
    answer = threading.Event()
    told: list[tuple[float, str]] = []

    def stand_still(claim: Claim) -> int:
        assert answer.wait(20)
        return 1

    renewals.answer = stand_still
    added = time.monotonic()
    kept = claim("kept", 60)
    keeper.add(kept, lambda error: told.append((0.0, "wrong")))
    keeper.add(claim("one", 0.45), lambda error: told.append((time.monotonic(), str(error))))
    until(lambda: told)
    assert told[0][0] - added >= 0.45
    assert "could not be reached: no answer came" in told[0][1]
    keeper.add(claim("two", 0.3), lambda error: told.append((time.monotonic(), "two")))
    until(lambda: len(told) == 2)
    answer.set()
    keeper.close()
    assert [text for _, text in told[1:]] == ["two"]
    assert keeper.remove(kept)


def test_closing_ends_the_threads(renewals: Renewals, claim: Any) -> None:
    keeper = LeaseKeeper(renewals)
    keeper.add(claim("one", 0.3), lambda error: None)
    keeper.close()
    seen = len(renewals.batches)
    assert not {"lease-keeper", "lease-watch"} & {thread.name for thread in threading.enumerate()}
    assert len(renewals.batches) == seen
