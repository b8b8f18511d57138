"""A model's turns as they are stored and paid for, whoever the provider is."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field

from contracts.base import StrictModel
from contracts.results import ArtifactEntry

__all__ = [
    "CallRecord",
    "FailedTry",
    "ModelCall",
    "ModelUsage",
    "StoredTurn",
    "ToolAnswer",
    "TurnResponse",
    "call_key",
    "turn_of_key",
]


def call_key(conversation: int, turn: int, index: int) -> str:
    """What names a call of a model within its task for ever. ``index``: within its turn."""
    return f"{conversation}:{turn}:{index}"


def turn_of_key(key: str) -> tuple[int, int] | None:
    """The conversation and the turn of a call; None for a key that names no call of a model."""
    found = re.fullmatch(r"([0-9]+):([0-9]+):[0-9]+", key)
    return None if found is None else (int(found[1]), int(found[2]))


class ModelUsage(StrictModel):
    """Tokens of one call. ``input_tokens`` is all input; cached reads and writes are parts of it.

    Anthropic's count leaves cached input out and OpenAI's has it in; adapters normalise to this (as OpenTelemetry's
    ``gen_ai.usage.*`` does).
    """

    input_tokens: int = Field(ge=0)
    cached_input_tokens: int = Field(default=0, ge=0)
    cache_write_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(ge=0)

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class ModelCall(StrictModel):
    """A tool call that a model asked for. ``arguments`` is None where they were not a JSON object; ``malformed`` then
    says why. ``call_id`` is the provider's, made unique within its turn."""

    call_id: str
    name: str
    arguments: dict[str, Any] | None
    malformed: str = ""


class TurnResponse(StrictModel):
    """What a model answered. ``raw``: the provider's own content, to be sent back exactly as it came."""

    text: str
    calls: list[ModelCall]
    stop: Literal["calls", "end", "length", "refusal", "pause", "other"]
    model: str
    """The model as the provider names it in its answer."""
    provider_request_id: str | None = None
    raw: list[Any]
    last: str | None = None
    """Why it was asked for a result and offered nothing else; None: it was offered everything."""


class ToolAnswer(StrictModel):
    """What one call of a turn was answered."""

    call_id: str
    text: str
    is_error: bool = False
    whole: ArtifactEntry | None = None
    """Where the text was cut: the artifact that holds all of it."""


class CallRecord(StrictModel):
    """One try to reach the model. ``billed``: whether the provider may charge for it."""

    number: int
    """Of the try, from 1, within its turn."""
    started_at: str
    elapsed_s: float
    outcome: str
    """``answered``, or what went wrong in a word: ``rate_limited``, ``overloaded``, ``dropped`` …"""
    status: int | None = None
    billed: Literal["yes", "no", "unknown"] = "no"
    """Where it is unknown, the worst case stays charged."""
    waited_s: float = 0.0
    """For an overloaded provider, or for time to pass after the try before."""
    said: str = ""
    """What went wrong, in the provider's words or the client's."""


class FailedTry(StrictModel):
    """A try without an answer, as it is kept whatever becomes of its turn. ``turn``: the number of that."""

    turn: int
    record: CallRecord


class StoredTurn(StrictModel):
    """A turn from the journal. ``answers`` is None while its tools have not all been answered."""

    number: int
    """From 1, within its conversation."""
    request_digest: str
    response: TurnResponse
    usage: ModelUsage | None
    cost_micro_usd: int | None
    tries: list[CallRecord]
    answers: list[ToolAnswer] | None
    workspace_tree: str | None = None
