"""Scripted children: a Python generator plays the model, and is shown and answered exactly what a model would be.

``def play(view): reply = yield ToolUse("read_file", {"path": "a.py"})``. It runs in a thread of the worker like a
function, and is stopped between two calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.broker import Broker, ToolLoop
from agents.runtimes.errors import NoResult, kept_in
from agents.runtimes.loading import load_callable
from agents.runtimes.rendering import render_assignment
from contracts.assignment import Assignment
from contracts.results import ProcessRecord, Result
from contracts.terms import AgentSpec
from contracts.tools import ToolReply, ToolUse

__all__ = ["ScriptedRuntime", "View"]


@dataclass(frozen=True, slots=True)
class View:
    """What a model sees before its first turn. ``tools``: ``[{name, description, input_schema}]``."""

    assignment_text: str
    tools: list[dict[str, Any]]


Answer = ToolReply | list[ToolReply] | None


class ScriptedRuntime:
    """Drives ``script(view)``: a ``ToolUse`` that it yields is answered by a ``ToolReply``, a list of them by a list.

    A yield is a turn. The child ends with the turn in which ``submit_result`` was taken; a budget of turns that is
    used up hands in *partial* with what was noted.
    """

    stoppable = False
    kills = False
    all_gone = True

    def __init__(self, load: Callable[[], Callable[[View], Any]], label: str) -> None:
        """``load`` finds the script. It may run the child's code, so it is called in the child's own thread."""
        self.processes: list[ProcessRecord] = []
        self._load = load
        self._label = label

    @classmethod
    def of(cls, agent: AgentSpec, *, pins: dict[str, str], pinned_file: Callable[[str], Path]) -> ScriptedRuntime:
        """``run`` then raises like ``load_callable``, too."""
        return cls(lambda: load_callable(agent, pins=pins, pinned_file=pinned_file), agent.label())

    def run(self, assignment: Assignment) -> Result:
        with kept_in():
            return self._play(assignment)

    def _play(self, assignment: Assignment) -> Result:
        broker = assignment.tools
        if not isinstance(broker, Broker):
            raise TypeError(f"a scripted child works through the broker, not through a {type(broker).__name__}")
        loop = ToolLoop(assignment, broker)
        script = self._load()(View(render_assignment(assignment), loop.tools()))
        if not isinstance(script, Generator):
            raise NoResult(f"{self._label} is not a generator function: it must yield ToolUse(…)")
        try:
            return self._drive(script, loop, assignment)
        finally:
            # What the script does when it is closed comes after its end.
            with contextlib.suppress(BaseException):
                script.close()

    def _drive(self, script: Generator[Any, Answer, Any], loop: ToolLoop, assignment: Assignment) -> Result:
        max_turns: int | None = assignment.contract["budget"].get("max_turns")
        answer: Answer = None
        turns = 0
        while True:
            if assignment.cancel.is_set():
                return _stopped(assignment)
            if turns == max_turns:
                what = f"the budget of {max_turns} turns was used up before a result was handed in"
                return assignment.partial(message=what, next_action="go on from what was noted, with more turns")
            try:
                asked = script.send(answer)
            except StopIteration:
                raise NoResult(f"{self._label} ended without submit_result") from None
            turns += 1
            uses = asked if isinstance(asked, list) else [asked]
            strange = [use for use in uses if not isinstance(use, ToolUse)]
            if strange:
                what = f"yielded a {type(strange[0]).__name__}; it must yield ToolUse(…) or a list of them"
                raise NoResult(f"{self._label} {what}")
            replies: list[ToolReply] = []
            for use in uses:
                if assignment.cancel.is_set() and loop.result is None:
                    return _stopped(assignment)
                replies.append(loop.call(use.name, use.arguments))
            if loop.result is not None:
                return loop.result
            answer = replies if isinstance(asked, list) else replies[0]


def _stopped(assignment: Assignment) -> Result:
    return assignment.cancelled(f"stopped between two calls: {assignment.cancel.reason}")
