"""Requests: messages that await a person's reply, correlated by ``request_id``."""

from __future__ import annotations

from typing import Literal

from contracts.base import Identifier, StrictModel

__all__ = ["Answer", "Request", "RequestKind", "RequestState"]

RequestKind = Literal["approval", "input", "not_judged", "operation"]
"""``approval``: a check asks. ``input``: a child is blocked. ``not_judged``: the gate erred three times.
``operation``: a side effect was sent, and nobody knows what came of it."""

RequestState = Literal["open", "answered", "void"]
"""Moves forward only: open, then answered, or void when what it was about has changed or ended."""


class Answer(StrictModel):
    """A person's reply."""

    approved: bool
    message: str = ""


class Request(StrictModel):
    """``bound_digest``: what an approval is good for, the content judged. ``sequence`` grows within a run."""

    request_id: Identifier
    run_id: str
    task_id: Identifier
    kind: RequestKind
    question: str
    bound_digest: str | None
    sequence: int
    state: RequestState
    answer: Answer | None = None
