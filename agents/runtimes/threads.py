"""Children that run in a thread of the worker."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from agents.runtimes.errors import NoResult
from contracts.assignment import Assignment

__all__ = ["exited", "in_own_thread"]

T = TypeVar("T")


def exited(error: BaseException) -> NoResult:
    """For what must not leave the child, such as ``SystemExit``: it would end the worker."""
    return NoResult(f"the child raised {type(error).__name__}: {error}")


async def in_own_thread(function: Callable[[Assignment], T], assignment: Assignment) -> T:
    """Run in a daemon thread: a pool would let children that hang use up its threads, and hold up the exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(error: BaseException | None, value: Any) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def body() -> None:
        value: Any = None
        problem: BaseException | None = None
        try:
            value = context.run(function, assignment)
        except StopIteration as error:  # no future can carry it
            problem = exited(error)
        except Exception as error:
            problem = error
        except BaseException as error:  # SystemExit and the like end this child, not the worker
            problem = exited(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, problem, value)

    threading.Thread(target=body, name=f"child-{assignment.task_id}", daemon=True).start()
    return await asyncio.shield(future)
