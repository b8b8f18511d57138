"""Function children: a Python callable in the worker's process; sync ones in a thread of their own, async ones on
the loop.

They cannot be killed and cannot be sandboxed: at a deadline their result is barred, and the thread may run on.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.broker import Unanswered
from agents.runtimes.errors import NoResult
from agents.runtimes.loading import load_callable
from agents.runtimes.threads import exited, in_own_thread
from contracts.assignment import Assignment
from contracts.canonical import json_faults
from contracts.results import ProcessRecord, Result
from contracts.terms import AgentSpec

__all__ = ["FunctionRuntime"]


class FunctionRuntime:
    """Calls ``function(assignment)`` and checks that what comes back is a result."""

    kills = False
    all_gone = True

    stoppable = False

    def __init__(self, load: Callable[[], Callable[[Assignment], Any]]) -> None:
        """``load`` finds the function. It may run the child's code, so it is called in the child's own thread."""
        self.processes: list[ProcessRecord] = []
        self._load = load

    @classmethod
    def of(cls, agent: AgentSpec, *, pins: dict[str, str], pinned_file: Callable[[str], Path]) -> FunctionRuntime:
        """``run`` then raises like ``load_callable``, too."""
        return cls(lambda: load_callable(agent, pins=pins, pinned_file=pinned_file))

    async def run(self, assignment: Assignment) -> Result:
        try:
            value = await in_own_thread(self._start, assignment)
            if isinstance(value, _OnTheLoop):
                self.stoppable = True
                value = await value.function(assignment)
        except Unanswered as error:
            return assignment.blocked(error.question)
        except SystemExit as error:  # the loop would pass it on, and end the worker
            raise exited(error) from error
        return _checked(value)

    def _start(self, assignment: Assignment) -> Any:
        function = self._load()
        return _OnTheLoop(function) if inspect.iscoroutinefunction(function) else function(assignment)


@dataclass(frozen=True, slots=True)
class _OnTheLoop:
    """An async function: found in a thread, run on the loop."""

    function: Callable[[Assignment], Awaitable[Any]]


def _checked(value: object) -> Result:
    if not isinstance(value, Result):
        what = "nothing" if value is None else f"a {type(value).__name__}"
        wanted = "a.completed(…), a.partial(…), a.failed(…) or a.blocked(…)"
        raise NoResult(f"the function returned {what}; it must return {wanted}")
    faults = json_faults(value.output)
    for item in value.evidence:
        faults += json_faults(item.data)
    if faults:
        raise NoResult("the result is not JSON: " + "; ".join(str(fault) for fault in faults[:5]))
    return value
