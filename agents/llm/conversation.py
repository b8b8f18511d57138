"""A conversation with a model in words that belong to no provider, rebuilt from its turns and from nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from contracts.turns import ModelCall, ToolAnswer, TurnResponse

__all__ = ["Answered", "Conversation", "Message", "ModelRequest", "Raw", "Said", "Spoken", "served_calls"]

NOTHING = "(nothing)"

ASK_FOR_RESULT = (
    "Nobody reads text outside of tool calls. If the work is done, or cannot be done, hand in the result by calling "
    "submit_result; else go on by calling tools."
)
ASK_AFTER_CUT = (
    "Your last answer was cut off by the limit on its length, and none of its tool calls was carried out. Go on in "
    "smaller steps: fewer calls at a time, shorter arguments, less text."
)
ASK_AFTER_REFUSAL = (
    "You refused. If you will not do the task, or part of it, say so by calling submit_result with the outcome failed "
    "or partial and the reason as its message; else go on."
)
ASK_TO_GO_ON = "Go on."
RESULT_WAS_NOT_THE_END = (
    "The result that you handed in was not the end. The data blocks of the first message hold what is known since, "
    "such as feedback or a person's answer. Go on from there, and hand in a result again."
)


@dataclass(frozen=True, slots=True)
class Said:
    """Words of the coordinator."""

    text: str

    def document(self) -> dict[str, Any]:
        return {"user": self.text}


@dataclass(frozen=True, slots=True)
class Spoken:
    """What a turn said, where its own content cannot be sent back: it was cut off, refused or empty."""

    text: str

    def document(self) -> dict[str, Any]:
        return {"assistant": self.text}


@dataclass(frozen=True, slots=True)
class Raw:
    """The provider's own content of a turn."""

    content: Sequence[Any]

    def document(self) -> dict[str, Any]:
        return {"raw": list(self.content)}


@dataclass(frozen=True, slots=True)
class Answered:
    """The answers to every call of the turn before, in order."""

    answers: Sequence[ToolAnswer]

    def document(self) -> dict[str, Any]:
        return {"answers": [answer.model_dump(exclude={"whole"}) for answer in self.answers]}


Message = Said | Spoken | Raw | Answered


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request. ``tools``: ``[{name, description, input_schema}]``; ``forced``: one of them has to be called."""

    system: str
    messages: Sequence[Message]
    tools: Sequence[dict[str, Any]]
    forced: bool
    used_call_ids: frozenset[str]
    """Of earlier turns: no new call may have one of them."""

    def document(self) -> dict[str, Any]:
        return {
            "system": self.system,
            "messages": [message.document() for message in self.messages],
            "tools": list(self.tools),
            "forced": self.forced,
        }


def served_calls(response: TurnResponse) -> Sequence[ModelCall]:
    """The calls that are carried out: none of an answer that was cut off, for its last call may be half of one."""
    return () if response.stop in ("length", "refusal") else response.calls


class Conversation:
    """The messages so far."""

    def __init__(self, first: str) -> None:
        self.messages: list[Message] = [Said(first)]
        self.call_ids: set[str] = set()

    def add(self, response: TurnResponse, answers: Sequence[ToolAnswer]) -> None:
        """A turn that is over. ``answers``: to each of its served calls."""
        calls = served_calls(response)
        self.call_ids |= {call.call_id for call in response.calls}
        paused = response.stop == "pause" and bool(response.raw)
        if calls or paused or (response.text.strip() and response.stop in ("end", "other", "calls")):
            self._add_raw(response.raw)
        else:
            # Half a call has no answer, and an empty message is refused: neither may be sent back.
            self._add_spoken(response.text.strip() or NOTHING)
        if calls:
            self.messages.append(Answered(answers))
            if any(was_handed_in(call, answer) for call, answer in zip(calls, answers, strict=True)):
                self.messages.append(Said(RESULT_WAS_NOT_THE_END))
        elif not paused:
            self.messages.append(Said(_ASK_AFTER.get(response.stop, ASK_FOR_RESULT)))

    def with_notice(self, notice: str) -> Sequence[Message]:
        """The messages with words at their end that hold for the next turn only."""
        *before, last = self.messages
        if isinstance(last, Said):
            return [*before, Said(f"{last.text}\n\n{notice}")]
        return [*before, last, Said(notice)]

    def _add_raw(self, content: Sequence[Any]) -> None:
        last = self.messages[-1]
        if isinstance(last, Raw):  # the turn before was paused: the two are one
            self.messages[-1] = Raw([*last.content, *content])
        else:
            self.messages.append(Raw(content))

    def _add_spoken(self, text: str) -> None:
        if isinstance(self.messages[-1], Raw):
            self.messages.append(Said(ASK_TO_GO_ON))
        self.messages.append(Spoken(text))


_ASK_AFTER = {"length": ASK_AFTER_CUT, "refusal": ASK_AFTER_REFUSAL, "pause": ASK_TO_GO_ON}


def was_handed_in(call: ModelCall, answer: ToolAnswer) -> bool:
    return call.name == "submit_result" and not answer.is_error
