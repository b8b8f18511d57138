"""What a reader of the store sees: plain values, no rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from contracts.requests import Action, Answer, RequestKind, RequestState
from contracts.states import State
from contracts.terms import Terms
from coordinator.store.issued import terms_of

__all__ = [
    "AttemptView",
    "EventView",
    "RequestView",
    "RunState",
    "RunView",
    "TaskView",
    "TryView",
    "TurnView",
    "Unsettled",
]

RunState = Literal["open", "waiting", "ended"]


@dataclass(frozen=True, slots=True)
class AttemptView:
    """``ended_at`` is None while nobody has seen the child end. ``late``: the result came after the claim was over."""

    row: int
    number: int
    generation: int
    child_run_id: str
    owner: str
    parent_state_version: int
    started_at: datetime
    deadline_at: datetime
    ended: str | None
    ended_at: datetime | None
    manifest_digest: str | None
    decision: str | None
    decision_digest: str | None
    policy_version: str | None
    workspace: str | None
    """Its folder, while it is there."""

    @property
    def late(self) -> bool:
        return self.manifest_digest is not None and self.ended in ("lost", "deadline", "cancelled", "superseded")


@dataclass(frozen=True, slots=True)
class RequestView:
    request_id: str
    run_id: str
    task_id: str
    kind: RequestKind
    question: str
    bound_digest: str | None
    sequence: int
    state: RequestState
    asked_at: datetime
    answer: Answer | None
    action: Action | None
    contract_version: int
    """Of the task row that it is about."""


@dataclass(frozen=True, slots=True)
class Unsettled:
    """Charges that nobody will settle any more: what they were for may have cost as much."""

    charges: int
    micro_usd: int
    tokens: int


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task row with its derived words. ``word`` is what people read; ``state`` is what is stored."""

    row: int
    orchestration_row: int
    run_id: str
    task_id: str
    contract_version: int
    is_current: bool
    parent_task_id: str | None
    delegation_id: str
    _terms: bytes | None
    terms_digest: str
    state: State
    ready: bool
    generation: int
    owner: str | None
    claim_kind: str | None
    lease_until: datetime | None
    reason: str | None
    word: str
    why: str
    attempts: Sequence[AttemptView]
    requests: Sequence[RequestView]
    charged_micro_usd: int = 0
    """Of its budget, with all that was delegated below it; the worst case of what is not settled."""
    charged_tokens: int = 0
    unsettled: Unsettled | None = None
    """What of its own charges was never settled; None: nothing."""
    damage: str = ""
    """What is wrong with the stored bytes of its terms; empty: nothing."""

    @property
    def terms(self) -> Terms:
        """Raises ``Damaged``."""
        return terms_of(self.terms_digest, self._terms)


@dataclass(frozen=True)
class RunView:
    row: int
    run_id: str
    name: str
    sequence: int
    _document: bytes
    authored_digest: str
    orchestration_version: int
    version: int
    head: str | None
    created_at: datetime
    closed_at: datetime | None
    cancelled_at: datetime | None
    state: RunState
    tasks: Sequence[TaskView]
    charged_micro_usd: int = 0
    charged_tokens: int = 0

    @cached_property
    def document(self) -> dict[str, Any]:
        """What is stored besides the tasks: as authored, pins, files. Large where there are many tasks."""
        document: dict[str, Any] = json.loads(self._document)
        return document

    @property
    def objective(self) -> str:
        return str(self.document["objective"])

    @property
    def ok(self) -> bool:
        """Every task accepted, whole."""
        return bool(self.tasks) and all(task.state is State.ACCEPTED for task in self.tasks)


@dataclass(frozen=True, slots=True)
class EventView:
    number: int
    at: datetime
    task_id: str | None
    verb: str
    generation: int | None
    owner: str | None
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TurnView:
    """A turn of a model, without its bytes. ``row`` only grows. ``attempt``: the one that paid for it.

    Tokens and cost are None where the provider did not say; ``answers_digest`` while its calls are not all answered.
    """

    row: int
    task_row: int
    task_id: str
    attempt: int
    conversation: int
    number: int
    late: bool
    model: str
    input_tokens: int | None
    output_tokens: int | None
    cost_micro_usd: int | None
    answered_at: datetime
    finished_at: datetime | None
    response_digest: str
    answers_digest: str | None
    base_commit: str | None
    workspace_tree: str | None


@dataclass(frozen=True, slots=True)
class TryView:
    """A call of a model that brought no answer. ``data``: a ``FailedTry`` as JSON."""

    attempt: int
    charged_at: datetime
    data: bytes
