"""Overload of a provider: all of an account wait, out of step, and the first that is answered ends it."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from agents.llm.failures import CallFailed, status_failure
from agents.llm.limiter import (
    BACKOFF_MAX_S,
    JITTER_MAX_S,
    JITTER_MIN_S,
    LOOK_S,
    PATIENCE_S,
    Account,
    Limiter,
    Limiters,
    Permit,
)


class World:
    """A clock that goes on only when everybody sleeps, to the one who wakes first; and a provider with a limit.

    ``asked``: when each request came, and whether it was answered. ``down_until_s``: until when none is.
    """

    def __init__(self, seed: int = 1) -> None:
        self.now_s = 1_000.0
        self.asked: list[tuple[float, bool]] = []
        self.down_until_s = 0.0
        self.headers: dict[str, str] = {}
        self.status = 429
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._number = 0
        chance = random.Random(seed)
        self.limiter = Limiter(monotonic=lambda: self.now_s, sleep=self.sleep, uniform=chance.uniform)

    async def sleep(self, seconds: float) -> None:
        self._number += 1
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now_s + seconds, self._number, woken))
        await woken

    async def until_done(self, *children: Any) -> list[Any]:
        tasks = [asyncio.ensure_future(child) for child in children]
        while not all(task.done() for task in tasks):
            for _ in range(20):
                await asyncio.sleep(0)
            if self._sleepers:
                at_s, _, woken = heapq.heappop(self._sleepers)
                if not woken.cancelled():
                    self.now_s = max(self.now_s, at_s)
                    woken.set_result(None)
        return await asyncio.gather(*tasks, return_exceptions=True)

    async def child(
        self,
        *,
        takes_s: float = 0.05,
        time_left_s: Callable[[], float] = lambda: 1e9,
        patience_s: float = PATIENCE_S,
        stopped: Callable[[], bool] = lambda: False,
    ) -> float:
        """Asks until it is answered; when that was."""
        while True:
            permit = await self.limiter.wait(time_left_s, patience_s, stopped)
            patience_s -= permit.waited_s
            ok = self.now_s >= self.down_until_s
            self.asked.append((self.now_s, ok))
            await self.sleep(takes_s)
            if ok:
                self.limiter.answered(permit)
                return self.now_s
            self.limiter.refused(permit, status_failure(self.status, "slow down", "", self.headers))

    def gaps(self, requests: list[float]) -> list[float]:
        return [after - before for before, after in itertools.pairwise(requests)]


def failure(seconds: str | None = None) -> CallFailed:
    return status_failure(429, "slow down", "", {} if seconds is None else {"retry-after": seconds})


@pytest.mark.parametrize("seed", range(5))
def test_ten_children_wait_as_announced_and_come_back_one_by_one(seed: int) -> None:
    world = World(seed)
    world.headers, world.down_until_s = {"retry-after": "20"}, world.now_s + 20
    asyncio.run(world.until_done(*(world.child() for _ in range(10))))
    again = [at_s for at_s, _ in world.asked[10:]]
    assert len(again) == 10  # nobody was refused twice
    assert min(again) >= 1_000 + 0.05 + 20 + JITTER_MIN_S
    assert min(world.gaps(again)) > 0
    assert max(again) < 1_000 + 20 + 3 * JITTER_MAX_S  # the first one opened it: nobody waits longer than needed


def test_who_is_told_first_keeps_the_others_from_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.headers, world.down_until_s = {"retry-after": "20"}, world.now_s + 20

    async def later() -> float:
        await world.sleep(1)
        return await world.child()

    asyncio.run(world.until_done(world.child(), *(later() for _ in range(9))))
    assert len(world.asked) == 1 + 10
    assert min(at_s for at_s, _ in world.asked[1:]) > 1_020


@pytest.mark.parametrize("announced", [None, "1"])
def test_an_overload_of_a_minute_is_outlasted_by_few_requests(announced: str | None) -> None:
    world = World()
    world.status = 529
    world.headers = {} if announced is None else {"retry-after": announced}
    world.down_until_s = world.now_s + 60
    ends = asyncio.run(world.until_done(*(world.child() for _ in range(10))))
    assert all(isinstance(end, float) for end in ends)
    refused = [at_s for at_s, ok in world.asked if not ok]
    assert len(refused) <= 10 + 8  # all at once at first, then one by one at growing distances
    assert max(ends) < 1_060 + 2 * BACKOFF_MAX_S


def test_waits_grow_and_end_in_a_provider_that_is_unavailable() -> None:
    world = World()
    world.down_until_s = float("inf")
    [end] = asyncio.run(world.until_done(world.child()))
    assert isinstance(end, CallFailed)
    assert str(end).startswith("provider unavailable: rate limited (HTTP 429): slow down; the next try would be in ")
    gaps = world.gaps([at_s for at_s, _ in world.asked])
    assert gaps[:4] == sorted(gaps[:4])
    assert PATIENCE_S - 2 * BACKOFF_MAX_S < world.now_s - 1_000 <= PATIENCE_S + 5
    assert len(world.asked) < 20


def test_an_hour_is_not_waited_for_by_anybody_and_another_account_is_not_concerned() -> None:
    world = World()
    world.headers, world.down_until_s = {"retry-after": "3600"}, float("inf")
    ends = asyncio.run(world.until_done(world.child(), world.child()))
    ends += asyncio.run(world.until_done(world.child()))
    assert [str(end).endswith("; the provider asks to wait 3600 s") for end in ends] == [True] * 3
    assert len(world.asked) == 2  # the last one has not even asked
    limiters = Limiters()
    one = Account("openai", "http://x/v1", "KEY")
    assert limiters.of(one) is limiters.of(Account("openai", "http://x/v1", "KEY"))
    others = [
        Account("openai", "http://y/v1", "KEY"),
        Account("openai", "http://x/v1", "B"),
        Account("anthropic", None, "KEY"),
    ]
    assert limiters.of(one) not in [limiters.of(other) for other in others]


def test_a_wait_that_the_time_left_does_not_hold_is_not_begun() -> None:
    world = World()
    world.headers, world.down_until_s = {"retry-after": "30"}, float("inf")
    [end] = asyncio.run(world.until_done(world.child(time_left_s=lambda: 1_025 - world.now_s)))
    assert isinstance(end, CallFailed)
    assert end.word == "provider_unavailable"
    assert world.now_s < 1_001


async def give_up(world: World, how: str) -> None:
    """Wait, never ask, and leave."""
    end_s = 1_009.0 if how == "at once" else 1_013.0
    stopped = (lambda: world.now_s > 1_005) if how == "stopped" else (lambda: False)
    waiting = asyncio.ensure_future(world.limiter.wait(lambda: end_s - world.now_s, PATIENCE_S, stopped))
    if how == "cancelled":
        await world.sleep(5)
        waiting.cancel()
    with contextlib.suppress(CallFailed, asyncio.CancelledError):
        await waiting


@pytest.mark.parametrize("how", ["at once", "late", "stopped", "cancelled"])
def test_who_gives_up_keeps_nobody_waiting(how: str) -> None:
    world = World()
    world.limiter.refused(Permit(world.now_s, 0.0), failure("10"))
    asyncio.run(world.until_done(*(give_up(world, how) for _ in range(100))))
    assert world.now_s < 1_013 + 1
    assert asyncio.run(world.until_done(world.child()))[0] < 1_013 + 2 * JITTER_MAX_S


def test_children_who_have_time_left_when_the_account_opens_are_answered_however_many_they_are() -> None:
    world = World()
    world.headers, world.down_until_s = {"retry-after": "10"}, world.now_s + 10
    children = (world.child(time_left_s=lambda: 1_045 - world.now_s) for _ in range(60))
    ends = asyncio.run(world.until_done(*children))
    assert all(isinstance(end, float) for end in ends)
    assert max(ends) < 1_010 + 3 * JITTER_MAX_S


@pytest.mark.parametrize(("time_left_s", "patience_s"), [(20.0, PATIENCE_S), (1e9, 20.0)])
def test_who_waits_in_vain_does_so_until_its_time_is_over_and_is_told_nothing_of_the_announced_wait(
    time_left_s: float, patience_s: float
) -> None:
    world = World()
    world.limiter.refused(Permit(world.now_s, 0.0), failure("10"))
    left_s = lambda: 1_000 + time_left_s - world.now_s  # noqa: E731

    async def ask() -> Permit:
        return await world.limiter.wait(left_s, patience_s, lambda: False)

    ends = asyncio.run(world.until_done(*(ask() for _ in range(100))))
    asked = [end for end in ends if isinstance(end, Permit)]
    in_vain = [end for end in ends if isinstance(end, CallFailed)]
    assert 1_010 < asked[0].given_s < 1_012 + LOOK_S
    assert 5 <= len(asked) == len({permit.given_s for permit in asked}) < 90  # nobody opens it: one by one
    assert len(asked) + len(in_vain) == 100
    # Not at its very end, which would be taken for the reason.
    assert 1_020 - LOOK_S <= world.now_s < 1_020
    assert {str(end) for end in in_vain} == {
        "provider unavailable: rate limited (HTTP 429): slow down; 20 s were waited for it in vain"
    }


def test_who_has_no_time_left_keeps_nobody_from_asking() -> None:
    world = World()
    world.limiter.refused(Permit(world.now_s, 0.0), failure("10"))
    world.now_s += 20
    late = (world.limiter.wait(lambda: 0.0, PATIENCE_S, lambda: False) for _ in range(5))
    ends = asyncio.run(world.until_done(*late, world.child()))
    assert [isinstance(end, CallFailed) for end in ends] == [True] * 5 + [False]
    assert world.asked[0][0] == 1_020


def test_an_announced_wait_that_is_shorter_than_the_growing_one_is_not_named_as_the_reason() -> None:
    world = World()
    for _ in range(6):
        world.limiter.refused(Permit(world.now_s, 0.0), failure("1"))
        world.now_s += BACKOFF_MAX_S + JITTER_MAX_S
    world.limiter.refused(Permit(world.now_s, 0.0), failure("1"))
    [end] = asyncio.run(world.until_done(world.child(time_left_s=lambda: 30.0)))
    assert "slow down; the next try would be in 6" in str(end)


def test_who_has_little_time_left_when_it_opens_asks_within_it() -> None:
    world = World()
    world.limiter = Limiter(monotonic=lambda: world.now_s, sleep=world.sleep, uniform=lambda low, high: high)
    world.limiter.refused(Permit(world.now_s, 0.0), failure("10"))

    async def hurried() -> Permit:
        return await world.limiter.wait(lambda: 1_013 - world.now_s, PATIENCE_S, lambda: False)

    _, permit = asyncio.run(world.until_done(world.child(takes_s=0.6), hurried()))
    assert 1_012.6 < permit.given_s < 1_013


def test_no_wait_at_all_is_announced_and_nobody_asks_at_once() -> None:
    world = World()
    world.headers, world.down_until_s = {"retry-after": "0"}, world.now_s + 0.01
    asyncio.run(world.until_done(*(world.child() for _ in range(10))))
    again = [at_s for at_s, _ in world.asked[10:]]
    assert min(again) >= 1_000 + 0.05 + JITTER_MIN_S
    assert min(world.gaps(again)) > 0


def test_a_child_that_is_told_to_stop_waits_no_longer() -> None:
    world = World()
    world.headers, world.down_until_s = {"retry-after": "30"}, float("inf")
    [end] = asyncio.run(world.until_done(world.child(stopped=lambda: world.now_s > 1_003)))
    assert isinstance(end, CallFailed)
    assert end.word == "stopped"
    assert world.now_s < 1_004


def test_what_was_asked_before_the_refusal_does_not_open() -> None:
    world = World()
    earlier = Permit(world.now_s, 0.0)
    world.now_s += 1
    world.limiter.refused(Permit(world.now_s, 0.0), failure("20"))
    world.now_s += 1
    world.limiter.answered(earlier)
    permits = asyncio.run(world.until_done(world.limiter.wait(lambda: 1e9, PATIENCE_S, lambda: False)))
    assert permits[0].given_s > 1_021


@pytest.mark.parametrize("announced", ["-5", "soon", "1e999", "Mon, 01 Jan 2024 00:00:00 GMT"])
def test_an_announced_wait_that_makes_no_sense_is_waited_for_as_if_none_was(announced: str) -> None:
    world = World()
    world.headers, world.down_until_s = {"retry-after": announced}, world.now_s + 1
    asyncio.run(world.until_done(world.child()))
    assert 1_002 < world.asked[1][0] < 1_002 + 2 * JITTER_MAX_S


def test_an_outage_of_days_makes_no_longer_waits() -> None:
    world = World()
    for _ in range(2_000):
        world.limiter.refused(Permit(world.now_s, 0.0), failure())
        world.now_s += BACKOFF_MAX_S
    assert asyncio.run(world.until_done(world.child()))[0] < world.now_s + 2 * JITTER_MAX_S


def test_an_announcement_of_years_shuts_nobody_out_for_ever() -> None:
    world = World()
    world.limiter.refused(Permit(world.now_s, 0.0), failure("1e12"))
    world.now_s += 86_401
    assert asyncio.run(world.until_done(world.child()))[0] < world.now_s + JITTER_MAX_S
