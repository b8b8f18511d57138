"""From an agent in a contract to something that runs."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from agents.llm import ModelRuntime
from agents.runtimes.command import CommandRuntime, Place
from agents.runtimes.function import FunctionRuntime
from agents.runtimes.rendering import render_assignment
from agents.runtimes.scripted import ScriptedRuntime
from contracts.assignment import Assignment
from contracts.errors import Refused
from contracts.results import ProcessRecord, Result
from contracts.terms import AgentSpec, ModelSpec

__all__ = ["Runtime", "build_runtime"]


class Runtime(Protocol):
    """Runs one attempt. Raises ``NoResult`` when the child handed in nothing that is a result."""

    stoppable: bool
    """Whether cancelling ``run`` really ends the child."""

    kills: bool
    """Whether a set cancel signal makes ``run`` end, with every process of the child."""

    all_gone: bool
    """Whether, once ``run`` has ended, nothing of the child can be running any more."""

    processes: list[ProcessRecord]
    """The programs that it started itself, and whose ends it saw."""

    def run(self, assignment: Assignment) -> Result | Awaitable[Result]:
        """Called in a thread of the child's own; what an ``async def`` gives is awaited on the loop."""


def build_runtime(
    agent: AgentSpec, *, pins: dict[str, str], pinned_file: Callable[[str], Path], place: Place
) -> Runtime:
    """The runtime of an agent.

    ``pins`` maps a name of the input snapshot to its digest; ``pinned_file`` gives the path of a pinned file's exact
    bytes; ``place`` is where a program lives. Raises ``Refused`` when a model's key is missing here.
    """
    match agent.kind:
        case "function":
            return FunctionRuntime.of(agent, pins=pins, pinned_file=pinned_file)
        case "scripted":
            return ScriptedRuntime.of(agent, pins=pins, pinned_file=pinned_file)
        case "command":
            assert agent.command is not None
            argv = [str(pinned_file(argument)) if argument in pins else argument for argument in agent.command]
            return CommandRuntime(argv, agent.command, place)
        case "anthropic" | "openai":
            assert agent.model is not None
            return ModelRuntime(agent.model, agent.kind, _key_of(agent.model), render_assignment, pinned_file)


def _key_of(spec: ModelSpec) -> str:
    if spec.api_key_env is None:
        return "no-key-needed"  # the SDKs ask for one all the same
    key = os.environ.get(spec.api_key_env)
    if not key:
        raise Refused(f"the environment variable {spec.api_key_env}, with the key for {spec.model}, is not set")
    return key
