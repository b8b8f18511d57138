"""What blocks, off the loop; and once begun, never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["in_thread"]

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """Run in a thread of its own. Cancelled meanwhile, this ends when the thread has ended, and not before: of a child
    that has ended nothing runs any more."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(error: BaseException | None, value: Any) -> None:
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def body() -> None:
        value: Any = None
        problem: BaseException | None = None
        try:
            value = context.run(function)
        except StopIteration as error:  # no future can carry it
            problem = RuntimeError(str(error))
        except BaseException as error:
            problem = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, problem, value)

    threading.Thread(target=body, name="model-call", daemon=True).start()
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({future})
        future.exception()
        raise
