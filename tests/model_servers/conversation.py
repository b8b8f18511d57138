"""What a request says, in words that belong to no provider, and the faults in the order of its messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

JSON = dict[str, Any]
Kind = Literal["system", "user", "assistant", "reasoning", "call", "result"]
TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Item:
    """One thing said. `message` counts the messages (or input items) of the request from 0."""

    kind: Kind
    text: str
    message: int
    id: str = ""
    name: str = ""
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    """A request, read. `tool_choice` is `auto`, `none`, `any`, or the name of the one tool that may be called."""

    model: str
    stream: bool
    max_tokens: int | None
    tools: Mapping[str, JSON]  # the schema of its arguments, by the tool's name
    tool_choice: str
    items: Sequence[Item]
    faults: Sequence[str] = ()
    usage_in_stream: bool = True

    @property
    def turns(self) -> int:
        """How many times the model has answered in it."""
        return sum(1 for _ in self._answers())

    def _answers(self) -> Iterator[Item]:
        before: Item | None = None
        for item in self.items:
            by_model = item.kind in ("assistant", "reasoning", "call")
            if by_model and (before is None or before.kind not in ("assistant", "reasoning", "call")):
                yield item
            before = item

    @property
    def system(self) -> str:
        return "\n".join(item.text for item in self.items if item.kind == "system")

    @property
    def text(self) -> str:
        """All that the user said."""
        return "\n".join(item.text for item in self.items if item.kind == "user")

    @property
    def results(self) -> Mapping[str, str]:
        """The results of tool calls, by the id of the call."""
        return {item.id: item.text for item in self.items if item.kind == "result"}

    @property
    def calls(self) -> Sequence[Item]:
        return [item for item in self.items if item.kind == "call"]


def order_faults(items: Sequence[Item], tools: Iterable[str], tool_choice: str) -> Iterator[str]:
    """What holds for all three APIs: calls and results answer each other one to one, and nothing comes between."""
    waiting: dict[str, Item] = {}
    seen: set[str] = set()
    said = [item for item in items if item.kind != "system"]
    if not said or said[0].kind != "user":
        yield "the first message is not the user's"
    for item in said:
        if item.kind == "call":
            if item.id in seen:
                yield f"two tool calls have the id {item.id!r}"
            seen.add(item.id)
            waiting[item.id] = item
        elif item.kind == "result":
            if item.id not in waiting:
                yield f"a tool result for {item.id!r}, which is no open tool call"
            waiting.pop(item.id, None)
        elif item.kind == "user" and waiting:
            yield f"tool calls without a result: {sorted(waiting)}"
            waiting.clear()
    if waiting:
        yield f"tool calls without a result: {sorted(waiting)}"
    offered = list(tools)
    for name in offered:
        if not TOOL_NAME.fullmatch(name):
            yield f"the tool name {name!r} is not made of 1 to 64 letters, digits, _ and -"
    if tool_choice not in ("auto", "none", "any", *offered):
        yield f"the chosen tool {tool_choice!r} is not offered"
    if tool_choice not in ("auto", "none") and not offered:
        yield "a tool must be called, and none is offered"


def duplicates(names: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield f"two tools have the name {name!r}"
        seen.add(name)


def shape_faults(params: TypeAdapter[Any], allowed: Iterable[str], body: JSON) -> Iterator[str]:
    """What the SDK's own types for a request say."""
    for key in sorted(set(body) - set(allowed) - {"stream"}):
        yield f"{key}: the API has no such field"
    try:
        _exhaust(params.validate_python({key: value for key, value in body.items() if key != "stream"}))
    except ValidationError as error:
        yield from _tellings(error)
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        yield "a surrogate without its other half is no text"


def _tellings(error: ValidationError) -> Iterator[str]:
    """The first faults, without those of the members of a union that were not meant."""
    details = error.errors(include_url=False, include_input=False, include_context=False)
    others = [detail["loc"][:-1] for detail in details if detail["loc"] and detail["loc"][-1] in ("type", "role")]
    meant = [detail for detail in details if not any(detail["loc"][: len(other)] == other for other in others)]
    for detail in (meant or details)[:3]:
        steps = [str(step) for step in detail["loc"] if "[" not in str(step)]  # not the long names of unions
        yield f"{'.'.join(steps)}: {detail['msg']}"


def _exhaust(value: Any) -> None:
    # What the SDKs call an Iterable is checked only as it is read.
    if isinstance(value, dict):
        for one in value.values():
            _exhaust(one)
    elif not isinstance(value, str | bytes) and hasattr(value, "__iter__") and not hasattr(value, "model_fields"):
        for one in value:
            _exhaust(one)


def text_of(content: Any) -> str:
    """The text of a content that is a string or a list of blocks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(block.get("text") or block.get("refusal") or "" for block in content if isinstance(block, dict))
