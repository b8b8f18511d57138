"""What goes into the store's methods and what comes out of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from contracts.requests import Action
from contracts.results import Decision, Finding, Manifest
from contracts.states import ClaimKind, State
from contracts.terms import Budget, Terms
from coordinator.store.database import Blob

__all__ = [
    "Claim",
    "Delegated",
    "Done",
    "Ending",
    "EndingWord",
    "HeadMoved",
    "NewChild",
    "NewRun",
    "NewTask",
    "Question",
    "Submission",
    "Verdict",
]


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to work on a task, or to gate it. Authority needs generation, token and a live lease together.

    ``lease_until`` and ``deadline_at`` are microseconds of the database's clock. ``attempt_row`` and what follows is,
    for a gating claim, the attempt whose result is judged.
    """

    orchestration_row: int
    task_row: int
    run_id: str
    task_id: str
    kind: ClaimKind
    generation: int
    token: str
    owner: str
    lease_until: int
    claimed_at: int
    delegation_id: str
    terms: Terms
    terms_digest: str
    attempt_row: int
    attempt: int
    child_run_id: str
    deadline_at: int
    parent_state_version: int
    head: str | None
    manifest_digest: str | None = None
    generation_submitted: int | None = None

    @property
    def address(self) -> str:
        return f"{self.run_id}/{self.task_id}"


@dataclass(frozen=True, slots=True)
class Submission:
    """A result with its manifest, on its way to the gate. ``artifacts`` are durable or inline."""

    claim: Claim
    manifest: Manifest
    artifacts: Sequence[Blob] = ()


EndingWord = Literal["failed", "cancelled", "unknown", "no_result", "deadline", "released", "blocked"]


@dataclass(frozen=True, slots=True)
class Question:
    """What a person is asked. ``bound_digest``: what an approval is good for."""

    kind: Literal["approval", "input", "not_judged", "operation", "damaged"]
    text: str
    bound_digest: str | None
    dedupe_key: str
    action: Action | None = None
    """The call that it is about. It is asked as long as no answer to it can still be used."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an attempt without a submission. ``stopped``: somebody saw the child end."""

    claim: Claim
    word: EndingWord
    reason: str
    stopped: bool = True
    manifest: Manifest | None = None
    artifacts: Sequence[Blob] = ()
    question: Question | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision, and what it asks of people. ``no_progress``: the repair changed nothing."""

    claim: Claim
    decision: Decision
    questions: Sequence[Question] = ()
    no_progress: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """The change was made, now or by an earlier identical call."""

    state: State
    repeated: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HeadMoved:
    """The accepted tree is another one than was judged: judge again."""

    found: str | None
    judged: str | None


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task row to be made."""

    terms: Terms
    delegation_id: str


@dataclass(frozen=True, slots=True)
class NewChild:
    """A task that a program delegates to its run. ``files``: what its terms name."""

    orchestration_row: int
    task: NewTask
    files: Sequence[Blob] = ()


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be made. ``closed``: no further task will be delegated to it by a program."""

    name: str
    document: Blob
    authored_digest: str
    head: str | None
    closed: bool
    tasks: Sequence[NewTask]
    overlaps: Sequence[tuple[str, str]] = ()
    files: Sequence[Blob] = ()
    budget: Budget = field(default_factory=Budget)


@dataclass(frozen=True, slots=True)
class Delegated:
    """A child under its ``delegation_id``; ``repeated``: it was there already."""

    task_id: str
    delegation_id: str
    terms_digest: str
    repeated: bool


@dataclass(frozen=True, slots=True)
class RepairHistory:
    """What the gate must know of earlier judgements of a task."""

    repairs: int
    last_content_digest: str | None
    last_findings: Sequence[Finding] = ()
    answers: Mapping[str, tuple[bool, str]] = field(default_factory=dict)
    """bound digest -> (approved, message)"""
