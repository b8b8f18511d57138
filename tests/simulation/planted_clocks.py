"""More faults to plant: elapsed time is read off the wall clock, and calls that were answered to nobody come again."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import false

import coordinator.children
import coordinator.worker
from coordinator.leases import LeaseKeeper
from coordinator.store import charging
from tests.simulation.planted import planted
from tests.simulation.planted_spending import PLANTED

__all__ = ["PLANTED"]


# -- elapsed time ----------------------------------------------------------------------------------------------------


def _reads_the_wall_clock(patch: pytest.MonkeyPatch, function: Any) -> None:
    """``time.time()`` wherever the function says ``time.monotonic()``."""
    names = function.__code__.co_names
    assert "monotonic" in names, function
    other = tuple("time" if name == "monotonic" else name for name in names)
    patch.setattr(function, "__code__", function.__code__.replace(co_names=other))


@planted(r"\[13\] the lease of .* was (not renewed|given up)", clock_steps=3)
def leases_are_kept_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    real = LeaseKeeper.__init__

    def init(keeper: LeaseKeeper, renew: Any, **_: Any) -> None:
        real(keeper, renew, monotonic=lambda: renew.__self__._db._clock().timestamp())

    patch.setattr(LeaseKeeper, "__init__", init)


@planted(r"\[13\] .* was ended .* before its deadline|\[13\] .* works .* after its deadline", clock_steps=3)
def deadlines_are_watched_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    child_class = coordinator.children.Child
    real = child_class.run

    async def run(child: Any, *args: Any) -> None:
        left_s, child.deadline_left_s = child.deadline_left_s, 1e9
        until = child._started_at + timedelta(seconds=left_s)

        async def watch() -> None:
            while child._env.clock() < until:  # noqa: ASYNC110 - no event tells of a clock
                await asyncio.sleep(0.25)
            child.stop("deadline")

        watching = asyncio.ensure_future(watch())
        try:
            await real(child, *args)
        finally:
            watching.cancel()

    patch.setattr(child_class, "run", run)


@planted(r"\[13\] a worker did not look", clock_steps=3, poll=4.0)
def a_worker_pauses_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    _reads_the_wall_clock(patch, coordinator.worker.Worker._loop_until_done)


# -- answers to renewals and charges that are lost -------------------------------------------------------------------


@planted(r"\[13\] the claim on .* was kept", lost_calls=9)
def a_holder_that_hears_nothing_keeps_its_claim(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaseKeeper, "_watch", lambda keeper: None)


@planted(r"\[13\] the lease of .* was given up", lost_calls=9)
def a_holder_that_hears_nothing_once_gives_up(patch: pytest.MonkeyPatch) -> None:
    real = LeaseKeeper._renew_batch

    def renew_batch(keeper: LeaseKeeper, batch: Any) -> None:
        keeper._trouble = ""
        real(keeper, batch)
        if keeper._trouble:
            for token, (claim, on_lost, _) in keeper._claims.items():
                keeper._claims[token] = (claim, on_lost, 0.0)
            keeper._changed.notify_all()

    patch.setattr(LeaseKeeper, "_renew_batch", renew_batch)


@planted(r"\[7\] charge .* was made again", spends=True, lost_calls=9)
def a_charge_whose_answer_was_lost_is_made_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(charging, "_UNHEARD", charging._UNHEARD.where(false()))
