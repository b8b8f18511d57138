"""Requests: messages that await a person's reply, correlated by ``request_id``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from contracts.base import Identifier, StrictModel
from contracts.canonical import digest_of, sha256_digest

__all__ = ["Action", "Answer", "Request", "RequestKind", "RequestState", "action_digest"]

RequestKind = Literal["approval", "input", "not_judged", "operation", "damaged"]
"""``approval``: a check asks, or a call that needs a person's yes. ``input``: a child is blocked. ``not_judged``: the
gate erred three times. ``operation``: a side effect was sent, and nobody knows what came of it. ``damaged``: the
stored terms of a task are not those of their digest."""

RequestState = Literal["open", "answered", "void"]
"""Moves forward only: open, then answered, or void when what it was about has changed or ended. A yes to a call that
was not used becomes void, too, when another call is asked about instead."""


class Answer(StrictModel):
    """A person's reply."""

    approved: bool
    message: str = ""


class Action(StrictModel):
    """One call of a tool, as the person sees it who is asked about it.

    ``arguments``: their JSON, secrets taken out. ``tree_digest``: of every file of the workspace; None where there is
    none. ``changed``: the first of the ``changed_count`` paths that differ from the base.
    """

    terms_digest: str
    contract_version: int
    tool: str
    arguments: str
    tree_digest: str | None
    changed: list[str] = []
    changed_count: int = 0


def action_digest(terms_digest: str, tool: str, arguments: Mapping[str, Any], tree_digest: str | None) -> str:
    """What a person's yes to a call is good for: this contract version, tool, these arguments, in these files."""
    # Not canonical JSON: what a model sends may hold numbers that have no such form.
    said = sha256_digest(json.dumps(dict(arguments), sort_keys=True).encode())
    return digest_of([terms_digest, tool, said, tree_digest])


class Request(StrictModel):
    """``bound_digest``: what an approval is good for, the content judged or ``action``, the call that a child wants to
    make. ``sequence`` grows within a run."""

    request_id: Identifier
    run_id: str
    task_id: Identifier
    kind: RequestKind
    question: str
    bound_digest: str | None
    sequence: int
    state: RequestState
    answer: Answer | None = None
    action: Action | None = None
