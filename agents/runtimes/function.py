"""Function children: a Python callable in the worker's process; sync ones in a thread of their own, async ones on the
loop.

They cannot be killed and cannot be sandboxed: at a deadline their result is barred, and the thread may run on.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import importlib
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from contracts.assignment import Assignment
from contracts.canonical import json_faults, sha256_digest
from contracts.errors import CoordinatorError, Refused
from contracts.results import Result
from contracts.terms import AgentSpec

__all__ = ["FunctionRuntime", "NoResult", "SourceChanged"]

_loading = threading.RLock()
_by_digest: dict[str, ModuleType] = {}
_imported: dict[str, str | None] = {}
"""module name -> digest of its source when it was first used here"""


class NoResult(CoordinatorError):
    """The child ended without handing in a result; the text names what came instead."""


class SourceChanged(Refused):
    """The code on disk is no longer what the contract pinned."""


class FunctionRuntime:
    """Calls ``function(assignment)`` and checks that what comes back is a result."""

    def __init__(self, function: Callable[[Assignment], Any]) -> None:
        self._function = function
        self.stoppable = inspect.iscoroutinefunction(function)

    @classmethod
    def load(cls, agent: AgentSpec, *, pins: dict[str, str], pinned_file: Callable[[str], Path]) -> FunctionRuntime:
        """Find the function. Raises ``SourceChanged``, or ``NoResult`` when the file or the name is not there."""
        place, name = agent.function.rsplit(":", 1)
        try:
            if agent.file is not None:
                module = _from_pinned_file(place, pins[place], pinned_file)
            else:
                module = _from_import(place, pins[place])
            function = getattr(module, name)
        except (SourceChanged, NoResult):
            raise
        except BaseException as error:  # a module that exits when it is imported ends this child, not the worker
            raise NoResult(f"cannot load {agent.function}: {type(error).__name__}: {error}") from error
        if not callable(function):
            raise NoResult(f"{agent.function} is not a function")
        return cls(function)

    async def run(self, assignment: Assignment) -> Result:
        if self.stoppable:
            try:
                value = await self._function(assignment)
            except SystemExit as error:  # the loop would pass it on, and end the worker
                raise _exited(error) from error
        else:
            value = await _in_own_thread(self._function, assignment)
        return _checked(value)


def _exited(error: BaseException) -> NoResult:
    return NoResult(f"the function raised {type(error).__name__}: {error}")


def _checked(value: object) -> Result:
    if not isinstance(value, Result):
        what = "nothing" if value is None else f"a {type(value).__name__}"
        ways = "a.completed(…), a.partial(…), a.failed(…) or a.blocked(…)"
        raise NoResult(f"the function returned {what}; it must return {ways}")
    faults = json_faults(value.output)
    for item in value.evidence:
        faults += json_faults(item.data)
    if faults:
        raise NoResult("the result is not JSON: " + "; ".join(str(fault) for fault in faults[:5]))
    return value


async def _in_own_thread(function: Callable[[Assignment], Any], assignment: Assignment) -> Any:
    """Run in a daemon thread: a pool would let children that hang use up its threads, and hold up the exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
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
            problem = _exited(error)
        except Exception as error:
            problem = error
        except BaseException as error:  # SystemExit and the like end this child, not the worker
            problem = _exited(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, problem, value)

    threading.Thread(target=body, name=f"child-{assignment.task_id}", daemon=True).start()
    return await asyncio.shield(future)


def _from_pinned_file(place: str, digest: str, pinned_file: Callable[[str], Path]) -> ModuleType:
    with _loading:
        known = _by_digest.get(digest)
        if known is not None:
            return known
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if file and Path(place).is_absolute() and Path(file) == Path(place) and _digest(Path(file)) == digest:
                _by_digest[digest] = module
                return module
        path = pinned_file(place)
        name = f"coordinator_child_{digest.removeprefix('sha256:')[:16]}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None, path
        assert spec.loader is not None, path
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        _by_digest[digest] = module
        return module


def _from_import(name: str, digest: str) -> ModuleType:
    with _loading:
        module = importlib.import_module(name)
        file = getattr(module, "__file__", None)
        found = _digest(Path(file)) if file else None
        loaded = _imported.setdefault(name, found)
    if found != digest:
        raise SourceChanged(
            f"the source of {name} changed since the contract was issued: pinned {digest}, found {found}; "
            "put it back, or launch a new version of the contract"
        )
    if loaded != digest:
        raise SourceChanged(
            f"this process imported {name} before its source became what the contract pinned: pinned {digest}, "
            f"imported {loaded}; start a new worker"
        )
    return module


def _digest(path: Path) -> str | None:
    try:
        return sha256_digest(path.read_bytes())
    except OSError:
        return None
