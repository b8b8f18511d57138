"""The tool loop: what a child that works by tool calls is shown and answered, whoever thinks for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agents.broker.arguments import argument_faults
from agents.broker.broker import Broker
from agents.broker.errors import ServerFailed, ToolRefused, Unanswered
from agents.broker.submitting import as_asked_for, submitting
from contracts.assignment import Assignment
from contracts.canonical import sha256_digest, well_formed
from contracts.errors import CoordinatorError, OperationUnsettled, StaleClaim, StoreUnavailable
from contracts.evidence import EvidenceItem
from contracts.ports import ArtifactRef, ChildEnd
from contracts.results import Result
from contracts.states import Outcome
from contracts.tools import CONTROL_TOOLS, ToolReply, arguments_of

__all__ = ["ToolLoop"]

REPLY_CHARS_MAX = 50_000
MESSAGE_CHARS_MAX = 2_000

ENDS_THE_ATTEMPT = (StaleClaim, StoreUnavailable, OperationUnsettled, ServerFailed)
"""Nothing that a child could do would help: it is not answered, it ends."""


class ToolLoop:
    """Answers the calls of one attempt until ``result`` is there. For one thread at a time.

    Whatever is wrong with a call is an answer that says so, never an exception; except for what ends the attempt:
    ``StaleClaim``, ``StoreUnavailable``, ``OperationUnsettled``, ``ServerFailed``.
    """

    def __init__(
        self, assignment: Assignment, broker: Broker, pinned_file: Callable[[str], Path] | None = None
    ) -> None:
        """With ``pinned_file``, the path of a pinned file's exact bytes, ``tools`` shows what the checks ask of the
        output."""
        self._assignment = assignment
        self._pinned_file = pinned_file
        self._broker = broker
        self._control = {**CONTROL_TOOLS, "submit_result": submitting(assignment.contract)}
        self._tools: list[dict[str, Any]] | None = None
        self._whole: ArtifactRef | None = None
        self.result: Result | None = None
        """What was handed in by an accepted ``submit_result``, or *blocked* with the question that nobody has answered
        yet."""

    def limit_time(self, time_left_s: Callable[[], float]) -> None:
        """What a call waits for from now on, a program or a server, is waited for no longer than this says."""
        self._broker.limit_time(time_left_s)

    def tools(self) -> list[dict[str, Any]]:
        """``[{name, description, input_schema}]`` of the granted tools, then of those that need no grant; the same
        each time.

        The first time it starts the servers that some tools need, and blocks for as long. Raises ``ServerFailed``.
        """
        if self._tools is None:
            control = dict(self._control)
            if self._pinned_file is not None:
                asked_for = as_asked_for(control["submit_result"], self._assignment.contract, self._pinned_file)
                control["submit_result"] = asked_for
            self._tools = self._broker.offered() + [
                {"name": tool.name, "description": tool.summary, "input_schema": arguments_of(tool)}
                for tool in control.values()
            ]
        return self._tools

    def call(self, name: str, arguments: Mapping[str, Any], key: str | None = None) -> ToolReply:
        """One call; ``key`` names it for ever, as in ``Broker.call``.

        A result that is too long is cut with a note, and the whole is kept as the artifact that the note names.
        """
        name = name if isinstance(name, str) else repr(name)
        try:
            if self.result is not None or name in self._control:
                return ToolReply(self._say(name, arguments))
            self._whole = None
            text = self._shown(name, self._broker.call(name, arguments, key))
            return ToolReply(text, whole=self._whole)
        except Unanswered as error:
            self.result = self._assignment.blocked(error.question)
            return _wrong(str(error))
        except ENDS_THE_ATTEMPT:
            raise
        except CoordinatorError as error:
            return _wrong(str(error))
        except FileNotFoundError as error:
            return _wrong(f"there is no file {str(error)!r}")
        except Exception as error:
            return _wrong(f"{type(error).__name__}: {error}")

    def _shown(self, tool: str, value: Any) -> str:
        if isinstance(value, list) and tool != "await_children":
            text, shown = _whole_items(value)
            if shown == len(value):
                return text
            kept = self._kept(tool, "[" + ",\n ".join(_json(item) for item in value) + "]")
            return f"{text}\n[cut here: these are the first {shown:,} of {len(value):,} items; {kept}; ask for less]"
        text = well_formed(_as_text(tool, value)) or "(empty)"
        if len(text) <= REPLY_CHARS_MAX:
            return text
        kept, half = self._kept(tool, text), REPLY_CHARS_MAX // 2
        more = "; search_code finds lines in it" if tool == "read_file" else ""
        note = f"[cut here: {len(text) - 2 * half:,} of {len(text):,} characters are left out; {kept}{more}]"
        return f"{text[:half]}\n{note}\n{text[-half:]}"

    def _kept(self, tool: str, text: str) -> str:
        """Keep the whole of a result, and say where. The name is made from the text: the same one means the same."""
        name = f"result-of-{tool}-{sha256_digest(text.encode()).removeprefix('sha256:')[:12]}.txt"
        self._whole = self._assignment.artifact(name, text)
        return f"the whole is kept as the artifact {name}"

    def _say(self, name: str, arguments: Mapping[str, Any]) -> str:
        with self._broker.recorded(name, arguments):
            if self.result is not None:
                raise ToolRefused("the result was handed in already: the work is over, and no further call is served")
            faults = argument_faults(arguments_of(self._control[name]), arguments)
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


def _as_text(tool: str, value: Any) -> str:
    match tool:
        case "run_command":
            exit_status, output = value
            how = f"exit status {exit_status}" if exit_status is not None else "no exit status"
            return f"{how}\n{output}" if output else f"{how}; it wrote nothing"
        case "request_approval":
            approved, message = value
            return f"{'approved' if approved else 'rejected'}{': ' if message else ''}{message}"
        case "delegate":
            return f"delegated as the task {value}; await_children gives its result"
        case "await_children":
            return "\n".join(_json(_end_document(end)) for end in value)
    assert value is None or isinstance(value, str), type(value)
    return "done" if value is None else value


def _end_document(end: ChildEnd) -> dict[str, Any]:
    return {
        "delegation_id": end.delegation_id,
        "end": end.word,
        "reason": end.reason,
        "output": end.output,
        "artifacts": dict(end.artifacts),
        "gaps": list(end.gaps),
    }


def _json(value: Any) -> str:
    return well_formed(json.dumps(value, ensure_ascii=False))


def _whole_items(items: Sequence[Any]) -> tuple[str, int]:
    """JSON, an item a line, as many whole items as there is room for; and how many these are."""
    lines: list[str] = []
    chars = 0
    for item in items:
        line = _json(item)
        chars += len(line) + 2
        if chars > REPLY_CHARS_MAX:
            break
        lines.append(line)
    return "[" + ",\n ".join(lines) + "]", len(lines)


def _faults(error: ValidationError, place: str) -> list[str]:
    return [
        f"{'.'.join(str(part) for part in (place, *fault['loc']) if part != '')}: {fault['msg']}"
        for fault in error.errors(include_url=False, include_input=False)
    ]


def _wrong(text: str) -> ToolReply:
    clean = well_formed(text)
    return ToolReply(clean if len(clean) <= MESSAGE_CHARS_MAX else f"{clean[:MESSAGE_CHARS_MAX]} …", is_error=True)
