"""Threads for children: one to itself for each, whatever the others do."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from coordinator.threads import in_own_thread

SAID: ContextVar[str] = ContextVar("said", default="nothing")


def test_each_child_has_a_thread_to_itself_that_bears_its_name() -> None:
    async def many(count: int) -> list[str]:
        together = threading.Barrier(count)

        def child() -> str:
            together.wait(30)
            return threading.current_thread().name

        return await asyncio.gather(*(in_own_thread(child, f"child-{number}") for number in range(count)))

    for count in (5, 20, 40, 10):  # more than were left idle, and fewer
        assert asyncio.run(many(count)) == [f"child-{number}" for number in range(count)]


def test_children_that_hang_hold_up_no_other() -> None:
    released = threading.Event()
    hanging = threading.Barrier(9)

    def hang() -> None:
        hanging.wait(60)
        released.wait(60)

    async def both() -> None:
        slow = [asyncio.ensure_future(in_own_thread(hang, "hangs")) for _ in range(8)]
        await in_own_thread(lambda: hanging.wait(60), "sees them hang")
        assert [await in_own_thread(lambda number=number: number, "quick") for number in range(30)] == list(range(30))  # type: ignore[misc]
        assert not any(one.done() for one in slow)
        released.set()
        await asyncio.gather(*slow)

    asyncio.run(both())


def test_what_one_child_leaves_in_its_context_the_next_does_not_see() -> None:
    def child() -> str:
        seen = SAID.get()
        SAID.set("something")
        return seen

    async def some() -> list[str]:
        return [await in_own_thread(child, "child") for _ in range(5)]

    assert asyncio.run(some()) == ["nothing"] * 5


def test_an_error_reaches_who_waits_and_the_thread_serves_on() -> None:
    async def some() -> str:
        with pytest.raises(ZeroDivisionError):
            await in_own_thread(lambda: str(1 / 0), "fails")
        return await in_own_thread(lambda: "next", "next")

    assert asyncio.run(some()) == "next"


def test_a_thread_that_is_done_serves_the_next_child() -> None:
    async def some() -> set[int]:
        return {await in_own_thread(threading.get_ident, "child") for _ in range(200)}

    assert len(asyncio.run(some())) < 200


def test_cancelling_who_waits_does_not_end_the_child_and_its_end_disturbs_nobody() -> None:
    go = threading.Event()
    problems: list[dict[str, Any]] = []
    thread: list[int] = []

    def child() -> None:
        go.wait(60)
        thread.append(threading.get_ident())

    async def some() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
        waiting = asyncio.ensure_future(in_own_thread(child, "child"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go.set()
        while [await in_own_thread(threading.get_ident, "next")] != thread:  # until its thread serves on
            pass

    asyncio.run(some())
    assert problems == []
