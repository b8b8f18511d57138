"""The tool loop: what a child that works by tool calls is shown and answered, whoever thinks for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from agents.broker.arguments import argument_faults
from agents.broker.broker import Broker
from agents.broker.errors import ToolRefused
from contracts.assignment import Assignment
from contracts.canonical import well_formed
from contracts.errors import CoordinatorError
from contracts.evidence import EvidenceItem
from contracts.results import Result
from contracts.states import Outcome
from contracts.tools import CONTROL_TOOLS, TOOLS, Tool, ToolReply, arguments_of

__all__ = ["ToolLoop"]

REPLY_CHARS_MAX = 50_000
MESSAGE_CHARS_MAX = 2_000


class ToolLoop:
    """Answers the calls of one attempt until ``result`` is there. For one thread.

    Whatever is wrong with a call is an answer that says so, never an exception.
    """

    def __init__(self, assignment: Assignment, broker: Broker) -> None:
        self._assignment = assignment
        self._broker = broker
        self._granted = [TOOLS[name] for name in assignment.contract["resources"]["tools"] if name in TOOLS]
        self._control = {**CONTROL_TOOLS, "submit_result": _submitting(assignment.contract)}
        self.result: Result | None = None
        """What was handed in by an accepted ``submit_result``."""

    def tools(self) -> list[dict[str, Any]]:
        """``[{name, description, input_schema}]`` of the granted tools, then of those that need no grant."""
        return [
            {"name": tool.name, "description": tool.summary, "input_schema": arguments_of(tool)}
            for tool in (*self._granted, *self._control.values())
        ]

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolReply:
        """One call. A result that is too long is cut with a note; the record has the digest of the whole."""
        name = name if isinstance(name, str) else repr(name)
        try:
            if self.result is not None or name in self._control:
                return ToolReply(self._say(name, arguments))
            return ToolReply(_as_text(self._broker.call(name, arguments)))
        except CoordinatorError as error:
            return _wrong(str(error))
        except FileNotFoundError as error:
            return _wrong(f"there is no file {str(error)!r}")
        except Exception as error:
            return _wrong(f"{type(error).__name__}: {error}")

    def _say(self, name: str, arguments: Mapping[str, Any]) -> str:
        with self._broker.recorded(name, arguments):
            if self.result is not None:
                raise ToolRefused("the result was handed in already: the work is over, and no further call is served")
            faults = argument_faults(self._control[name], arguments)
            if faults:
                raise ToolRefused(f"the arguments of {name} are wrong: {'; '.join(faults)}")
            return self._sayings[name](self, arguments)

    def _note_assumption(self, arguments: Mapping[str, Any]) -> str:
        self._assignment.assume(arguments["text"])
        return "noted"

    def _note_gap(self, arguments: Mapping[str, Any]) -> str:
        self._assignment.gap(arguments["text"])
        return "noted"

    def _submit_result(self, arguments: Mapping[str, Any]) -> str:
        if arguments["outcome"] == Outcome.BLOCKED and not arguments.get("question", "").strip():
            raise ToolRefused("blocked needs a question: what does a person have to answer?")
        faults: list[str] = []
        items: list[EvidenceItem] = []
        for index, item in enumerate(arguments.get("evidence", ())):
            try:
                items.append(EvidenceItem.model_validate(item))
            except ValidationError as error:
                faults += _faults(error, f"evidence[{index}]")
        noted = self._assignment.partial()
        try:
            result = Result(
                **{key: value for key, value in arguments.items() if key != "evidence"},
                evidence=[*noted.evidence, *items],
                artifacts=noted.artifacts,
                gaps=noted.gaps,
                assumptions=noted.assumptions,
            )
        except ValidationError as error:
            faults += _faults(error, "")
        if faults:
            raise ToolRefused(f"the result was not taken: {'; '.join(faults[:10])}")
        self.result = result
        return "the result was handed in; whether it is accepted is decided by the parent's checks"

    _sayings: Mapping[str, Callable[[ToolLoop, Mapping[str, Any]], str]] = {
        "note_assumption": _note_assumption,
        "note_gap": _note_gap,
        "submit_result": _submit_result,
    }


def _submitting(contract: Mapping[str, Any]) -> Tool:
    """``submit_result`` with the outcomes that this contract knows, and with the fields of a piece of evidence."""
    tool = CONTROL_TOOLS["submit_result"]
    known = (*contract["result_protocol"]["submitted_states"], Outcome.BLOCKED)
    outcomes = [outcome for outcome in tool.properties["outcome"]["enum"] if outcome in known]
    evidence = {"type": "array", "items": EvidenceItem.model_json_schema()}
    return tool._replace(properties={**tool.properties, "outcome": {"enum": outcomes}, "evidence": evidence})


def _as_text(value: object) -> str:
    if value is None:
        return "done"
    if isinstance(value, str):
        return _cut(value) if value else "(empty)"
    assert isinstance(value, Sequence), type(value)
    return _list_as_text(value)


def _cut(text: str) -> str:
    if len(text) <= REPLY_CHARS_MAX:
        return text
    what = f"these are the first {REPLY_CHARS_MAX:,} of {len(text):,} characters; search_code finds lines in the rest"
    return f"{text[:REPLY_CHARS_MAX]}\n[cut here: {what}]"


def _list_as_text(items: Sequence[Any]) -> str:
    """JSON, an item a line, whole items only."""
    lines: list[str] = []
    chars = 0
    for item in items:
        line = well_formed(json.dumps(item, ensure_ascii=False))
        chars += len(line) + 2
        if chars > REPLY_CHARS_MAX:
            break
        lines.append(line)
    text = "[" + ",\n ".join(lines) + "]"
    if len(lines) < len(items):
        text += f"\n[cut here: these are the first {len(lines):,} of {len(items):,} items; ask for less at a time]"
    return text


def _faults(error: ValidationError, place: str) -> list[str]:
    return [
        f"{'.'.join(str(part) for part in (place, *fault['loc']) if part != '')}: {fault['msg']}"
        for fault in error.errors(include_url=False, include_input=False)
    ]


def _wrong(text: str) -> ToolReply:
    clean = well_formed(text)
    return ToolReply(clean if len(clean) <= MESSAGE_CHARS_MAX else f"{clean[:MESSAGE_CHARS_MAX]} …", is_error=True)
