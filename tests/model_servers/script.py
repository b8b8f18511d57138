"""What a test tells the fake model server to answer, in words that belong to no provider."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Say:
    """A piece of text."""

    text: str


@dataclass(frozen=True, slots=True)
class Think:
    """A piece of reasoning, which must come back unchanged; the Chat API has none and leaves it out."""

    text: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The model says that it will not."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call. Arguments that are a string are sent as they are, well-formed or not; None is sent as null.

    Without an id it gets one that no other call of the server has.
    """

    name: str
    arguments: Mapping[str, object] | str | None = field(default_factory=dict)
    id: str | None = None

    def arguments_text(self) -> str | None:
        if self.arguments is None or isinstance(self.arguments, str):
            return self.arguments
        return json.dumps(self.arguments)


Part = Say | Think | Refuse | Call


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens. `input` counts all of them, the cached ones and the ones written to the cache too.

    None for `cached` or `reasoning` leaves out the object that would hold it, as servers do that copy an API.
    """

    input: int = 100
    output: int = 10
    cached: int | None = 0
    cache_written: int = 0
    reasoning: int | None = 0


Cut = Literal["no_bytes", "no_body", "first_event", "mid_event", "no_end", "error_event"]


@dataclass(frozen=True, slots=True)
class Wire:
    """How an answer travels. A stopped server ends every delay.

    The cuts: `no_bytes` closes the connection without an answer; `no_body` after the headers; `first_event` after
    the first event of a stream or the first byte of a plain body; `mid_event` in the middle of an event or of the
    body; `no_end` ends a stream in good order but without its last events, and a plain body in the middle of its
    JSON, with a length that fits; `error_event` ends a stream with the provider's own event for an error.
    """

    first_byte_after_s: float = 0.0
    between_events_s: float = 0.0
    cut: Cut | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with status 200.

    `stop` is one of `end`, `calls`, `length`, `pause`, `refusal`, `filter`, `context`, or any other word, which is
    sent as it is; None follows from the parts. `usage` None leaves it out. `extra` is laid over the body of the
    answer, key by key at its top; a stream carries it in each event that has the whole answer (Responses), in
    the first (Messages), or in every chunk (Chat).
    """

    parts: tuple[Part, ...] = ()
    stop: str | None = None
    usage: Usage | None = field(default_factory=Usage)
    extra: Mapping[str, object] = field(default_factory=dict)
    wire: Wire = field(default_factory=Wire)

    @property
    def stops(self) -> str:
        if self.stop is not None:
            return self.stop
        if any(isinstance(part, Refuse) for part in self.parts):
            return "refusal"
        return "calls" if any(isinstance(part, Call) for part in self.parts) else "end"


@dataclass(frozen=True, slots=True)
class Failure:
    """An HTTP error with the provider's own body; `code` and `message` replace the usual ones for the status."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    code: str | None = None
    message: str | None = None
    wire: Wire = field(default_factory=Wire)


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes as they are: an HTML page, a redirect, a body with the wrong content type."""

    body: bytes = b""
    status: int = 200
    content_type: str = "text/html; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)
    wire: Wire = field(default_factory=Wire)


Answer = Reply | Failure | Raw
