"""A stand-in for ``threading`` in which a thread's loop runs on the event loop, from one wait to the next.

It fits threads that keep all their state outside of their functions and wait on one condition: then a function can be
left at a wait, and begun again when the wait would have ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace, TracebackType
from typing import Any

from tests.simulation.loop import Crash

__all__ = ["of"]


class _Parked(BaseException):
    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout


class _Condition:
    def __init__(self) -> None:
        self.wake: list[Callable[[], None]] = []

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def notify_all(self) -> None:
        for wake in self.wake:
            wake()

    def wait(self, timeout: float | None = None) -> None:
        raise _Parked(timeout)


def of(loop: asyncio.AbstractEventLoop) -> Any:
    """What to put in the place of ``threading`` in a module."""

    class Thread:
        def __init__(self, *, target: Callable[[], None], name: str, daemon: bool) -> None:
            self._target = target
            self._timer: asyncio.Handle | None = None
            target.__self__._changed.wake.append(self._soon)  # type: ignore[attr-defined]

        def start(self) -> None:
            self._soon()

        def join(self) -> None: ...

        def _soon(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_soon(self._go)

        def _go(self) -> None:
            self._timer = None
            try:
                self._target()
            except _Parked as parked:
                if self._timer is None and parked.timeout is not None:
                    self._timer = loop.call_later(max(parked.timeout, 0), self._go)
            except Crash:
                pass

    return SimpleNamespace(Thread=Thread, Condition=_Condition)
