"""From an agent in a contract to something that runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from agents.runtimes.function import FunctionRuntime
from contracts.assignment import Assignment
from contracts.results import Result
from contracts.terms import AgentSpec

__all__ = ["Runtime", "build_runtime"]


class Runtime(Protocol):
    """Runs one attempt. Raises ``NoResult`` when the child handed in nothing that is a result."""

    stoppable: bool
    """Whether cancelling ``run`` really ends the child."""

    async def run(self, assignment: Assignment) -> Result: ...


def build_runtime(agent: AgentSpec, *, pins: dict[str, str], pinned_file: Callable[[str], Path]) -> Runtime:
    """The runtime of an agent.

    ``pins`` maps a name of the input snapshot to its digest; ``pinned_file`` gives the path of a pinned file's exact
    bytes.
    """
    return FunctionRuntime.load(agent, pins=pins, pinned_file=pinned_file)
