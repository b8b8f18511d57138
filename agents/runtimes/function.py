"""Function children: a Python callable in the worker's process; sync ones in the thread of the child, async ones on
the loop.

They cannot be killed and cannot be sandboxed: at a deadline their result is barred, and the thread may run on.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from agents.broker import Unanswered
from agents.runtimes.errors import NoResult, kept_in
from agents.runtimes.loading import load_callable
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

    def run(self, assignment: Assignment) -> Result | Coroutine[Any, Any, Result]:
        with kept_in():
            function = self._load()
            if inspect.iscoroutinefunction(function):
                self.stoppable = True
                return _on_the_loop(function, assignment)
            try:
                return _checked(function(assignment))
            except Unanswered as error:
                return assignment.blocked(error.question)


async def _on_the_loop(function: Callable[[Assignment], Awaitable[Any]], assignment: Assignment) -> Result:
    try:
        return _checked(await function(assignment))
    except Unanswered as error:
        return assignment.blocked(error.question)
    except SystemExit as error:  # the loop would pass it on, and end the worker
        raise NoResult(f"the child raised SystemExit: {error}") from error


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
