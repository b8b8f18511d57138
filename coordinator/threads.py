"""Threads for children. Each child has one to itself while it works; what is left idle serves the next."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["in_own_thread"]

T = TypeVar("T")
Job = Callable[[], None]

IDLE_S = 5.0
"""How long a thread waits for the next child."""


class _Threads:
    """Daemon threads without a limit: a pool would let children that hang use up its threads, and hold up the exit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle = 0
        """Threads that wait and were promised nothing."""
        self._promised: queue.SimpleQueue[Job] = queue.SimpleQueue()

    def start(self, job: Job) -> None:
        with self._lock:
            found = self._idle > 0
            self._idle -= found
        if found:
            self._promised.put(job)
        else:
            threading.Thread(target=self._work, args=(job,), daemon=True).start()

    def _work(self, job: Job) -> None:
        while True:
            job()
            with self._lock:
                self._idle += 1
            try:
                job = self._promised.get(timeout=IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._idle > 0:
                        self._idle -= 1
                        return
                job = self._promised.get()


_THREADS = _Threads()


async def in_own_thread(function: Callable[[], T], name: str) -> T:
    """Run in a thread that nothing else uses meanwhile. Cancelling this does not end the function."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(error: BaseException | None, value: T | None) -> None:
        if error is None:
            future.set_result(value)  # type: ignore[arg-type]
        else:
            future.set_exception(error)

    def job() -> None:
        threading.current_thread().name = name
        value, problem = None, None
        try:
            value = context.run(function)
        except BaseException as error:
            problem = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, problem, value)

    _THREADS.start(job)
    return await asyncio.shield(future)
