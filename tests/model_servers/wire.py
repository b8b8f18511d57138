"""What the three APIs have in common on the wire."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tests.model_servers.conversation import JSON, Conversation
from tests.model_servers.script import Reply


class Ids:
    """Ids that no two answers of one server share."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new(self, prefix: str) -> str:
        return f"{prefix}{next(self._numbers):08d}"


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event; `ends` says that it belongs to the end of the stream, after all content."""

    data: JSON | str
    name: str | None = None
    ends: bool = False

    def encode(self) -> bytes:
        data = self.data if isinstance(self.data, str) else json.dumps(self.data)
        return (f"event: {self.name}\n" if self.name else "").encode() + f"data: {data}\n\n".encode()


class Api(Protocol):
    name: str
    path: str
    request_id_header: str

    def read(self, body: JSON, *, paused: bool) -> Conversation: ...

    def key_of(self, headers: Mapping[str, str]) -> str: ...

    def plain(self, reply: Reply, asked: Conversation, ids: Ids) -> JSON: ...

    def events(self, reply: Reply, asked: Conversation, ids: Ids) -> Sequence[Event]: ...

    def error(self, status: int, code: str | None, message: str | None, request_id: str) -> JSON: ...

    def error_event(self) -> Event: ...


def bearer_of(headers: Mapping[str, str]) -> str:
    return headers.get("authorization", "").removeprefix("Bearer").strip()


Text = TypeVar("Text", str, bytes)


def pieces(text: Text, count: int = 3) -> Sequence[Text]:
    """The text in a few pieces, none of them empty."""
    size = max(1, -(-len(text) // count))
    return [text[start : start + size] for start in range(0, len(text), size)]
