"""An event loop with virtual time: one seed orders everything, and simulated processes can be killed or stopped on it.

What production gives to threads runs in this one thread, at a time that the seed chooses; a callback of a process that
is dead never runs, and one of a process that is stopped (as by SIGSTOP) waits until it goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import selectors
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Crash", "Process", "StuckError", "VirtualLoop", "current", "dispose"]

current: ContextVar[Process | None] = ContextVar("simulated_process", default=None)
"""The process in whose name something runs; None for the simulation itself."""


class Crash(BaseException):
    """The current process dies here. Not an ``Exception``: nothing in production may handle it."""


class StuckError(AssertionError):
    """Nothing is left that could ever run."""


@dataclass(eq=False, slots=True)
class Process:
    """One operating system process, as far as others can tell."""

    name: str
    commands: bool = False
    alive: bool = True
    stopped: bool = False
    went_on_at: float = 0.0
    """When it was last woken from a stop."""
    waiting: list[_Call] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Call:
    owner: Process
    callback: Callable[..., object]
    args: tuple[Any, ...]
    context: Context
    handle: asyncio.Handle | None = None


class _JumpingSelector(selectors.DefaultSelector):
    """Waits by moving the clock."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise StuckError("every task waits, and nothing will wake one")
        self.loop.now += max(timeout, 0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """``now``: seconds since the loop began, what production reads as the monotonic clock."""

    def __init__(self, chance: random.Random, *, job_delay_s: float) -> None:
        self.now = 0.0
        self._chance = chance
        self._job_delay_s = job_delay_s
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)
        self.tasks: list[asyncio.Task[Any]] = []
        self.set_task_factory(self._make_task)

    def _make_task(self, _loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        # Kept: what a killed process leaves in mid-air would be closed by the garbage collector, and so run on.
        self.tasks.append(asyncio.Task(coroutine, loop=self, **options))
        return self.tasks[-1]

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        context = context if context is not None else copy_context()
        owner = context.get(current)
        if owner is None:
            return super().call_soon(callback, *args, context=context)
        call = _Call(owner, callback, args, context)
        call.handle = super().call_soon(self._perform, call, context=context)
        return call.handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        context = context if context is not None else copy_context()
        owner = context.get(current)
        if owner is None:
            return super().call_at(when, callback, *args, context=context)
        call = _Call(owner, callback, args, context)
        handle = super().call_at(when, self._perform, call, context=context)
        call.handle = handle
        return handle

    def _perform(self, call: _Call) -> None:
        if not call.owner.alive:
            return
        if call.owner.stopped:
            call.owner.waiting.append(call)
        else:
            call.callback(*call.args)

    def go_on(self, process: Process) -> None:
        """A stopped process wakes: what was due meanwhile happens now, in its order."""
        process.stopped, process.went_on_at = False, self.now
        calls, process.waiting = process.waiting, []
        for call in calls:
            super().call_soon(self._catch_up, call, context=call.context)

    def _catch_up(self, call: _Call) -> None:
        if call.handle is None or not call.handle.cancelled():
            self._perform(call)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future: asyncio.Future[Any] = self.create_future()
        self.call_later(self._delay(), self._job, future, func, args)
        return future

    def _delay(self) -> float:
        # Mostly at once, as in the order of the calls; at times so late that much happens before.
        return 0.0 if self._chance.random() < 0.6 else self._chance.expovariate(1 / self._job_delay_s)

    def _job(self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        result, problem = None, None
        try:
            result = func(*args)
        except Crash:
            return
        except Exception as error:
            problem = error
        self.call_later(self._delay(), _settle, future, result, problem)


def _settle(future: asyncio.Future[Any], result: Any, problem: Exception | None) -> None:
    if future.done():
        return
    if problem is not None:
        future.set_exception(problem)
    else:
        future.set_result(result)


def dispose(loop: VirtualLoop) -> None:
    """Let go of what killed processes left in mid-air, without a word."""
    for task in loop.tasks:
        if task.done():
            continue
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        coroutine = task.get_coro()
        for _ in range(20):
            # What handles GeneratorExit like an error goes on to its next await; then again.
            with contextlib.suppress(BaseException):
                coroutine.close()  # type: ignore[union-attr]
                break
    loop.close()
