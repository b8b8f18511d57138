"""Terms: what is agreed for one task, immutable and named by digest. Every attempt shares them."""

from __future__ import annotations

import shlex
from collections import Counter
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PlainSerializer, StringConstraints, model_validator

from contracts.base import JSON, Argument, Identifier, Name, PathPattern, StrictModel
from contracts.canonical import digest_of
from contracts.checks import Check
from contracts.errors import VersionRefused
from contracts.evidence import EvidenceRequirement

__all__ = [
    "AgentSpec",
    "Budget",
    "Delegation",
    "Limits",
    "Need",
    "Resources",
    "ResultProtocol",
    "Terms",
    "WorkspaceKind",
]

MICRO = 1_000_000
SCHEMA_VERSION = "coordinator/v1"


def _whole_micros(value: float) -> float:
    if Decimal(repr(value)) * MICRO % 1:
        raise ValueError("money is counted in micro-USD: at most six decimals")
    return value


HostPort = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.-]+:[0-9]{1,5}$")]
SnapshotName = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+$")]
ToolName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_.:-]{0,99}$")]
CredentialName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")]
FunctionReference = Annotated[str, StringConstraints(pattern=r"^[^:\x00-\x1f]+:[A-Za-z_][A-Za-z0-9_]*$")]
WorkspaceKind = Literal["none", "directory", "clone"]
USD = Annotated[
    float,
    Field(ge=0, le=1_000_000_000, allow_inf_nan=False),
    AfterValidator(_whole_micros),
    PlainSerializer(lambda value: int(value) if value == int(value) else value, return_type=float | int),
]


class Delegation(StrictModel):
    """How far a child may delegate in its turn: levels below it, and children in all."""

    max_depth: int = Field(ge=1, le=100)
    max_children: int = Field(ge=1, le=1_000_000)


class Resources(StrictModel):
    """The grant: what the child may touch. Absent means the narrower thing.

    ``network``: ``deny`` or a list of ``host:port``. ``credentials``: names only, never values. ``effects``: whether
    the child may change anything outside: ``none``, ``declared`` (each one an operation) or ``possible``.
    """

    tools: list[ToolName] = []
    network: Literal["deny"] | list[HostPort] = "deny"
    read_scope: list[PathPattern] = ["**"]
    write_scope: list[PathPattern] = []
    credentials: list[CredentialName] = []
    delegation: Literal["deny"] | Delegation = "deny"
    effects: Literal["none", "declared", "possible"] = "none"


class Budget(StrictModel):
    """Upper bounds. ``None``: this contract sets none of its own."""

    max_turns: int | None = Field(default=None, ge=1)
    max_cost_usd: USD | None = None

    @property
    def max_cost_micro_usd(self) -> int | None:
        return None if self.max_cost_usd is None else int(Decimal(repr(self.max_cost_usd)) * MICRO)


class Limits(StrictModel):
    """Separate limits; renewing a lease moves none of the others.

    ``deadline_s``: for one attempt. ``lease_s``: how long a claim lives without renewal. ``max_claims``: claims to
    work that may end without a submission, since the last one. ``max_repairs``: times a result may be sent back.
    """

    deadline_s: float = Field(default=60, gt=0, le=31_536_000, allow_inf_nan=False)
    lease_s: float = Field(default=15, ge=0.2, le=86_400, allow_inf_nan=False)
    max_claims: int = Field(default=3, ge=1, le=10_000)
    max_repairs: int = Field(default=2, ge=0, le=10_000)


AgentKind = Literal["function", "command", "scripted"]
AGENT_KINDS: tuple[AgentKind, ...] = ("function", "command", "scripted")


class AgentSpec(StrictModel):
    """Who does the work. Exactly one of the kinds is set.

    ``function`` and ``scripted``: ``"module:name"`` or ``"file.py:name"``. ``command``: the arguments of a program, no
    shell; files beside the orchestration are pinned, and ``python`` is the coordinator's interpreter.
    """

    function: FunctionReference | None = None
    command: list[Argument] | None = Field(default=None, min_length=1)
    scripted: FunctionReference | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        found = [kind for kind in AGENT_KINDS if getattr(self, kind) is not None]
        if len(found) != 1:
            what = " and ".join(found) if found else "none"
            raise ValueError(f"an agent is exactly one of {', '.join(AGENT_KINDS)}; found {what}")
        return self

    @property
    def kind(self) -> AgentKind:
        return next(kind for kind in AGENT_KINDS if getattr(self, kind) is not None)

    @property
    def reference(self) -> str | None:
        """The ``place:name`` of a function or script; None for a command."""
        return self.function or self.scripted

    @property
    def file(self) -> str | None:
        """The file part of ``file.py:name``; None for a module and for a command."""
        place = self.reference.rsplit(":", 1)[0] if self.reference else ""
        return place if place.endswith(".py") else None

    def label(self) -> str:
        """For people."""
        return self.reference or shlex.join(self.command or [])

    def document(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_none=True)


class Need(StrictModel):
    """A task whose accepted result this one needs. Plain ``X`` means ``{task: X}``."""

    task: Identifier
    partial_ok: bool = False

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: Any) -> Any:
        return {"task": value} if isinstance(value, str) else value

    def document(self) -> str | dict[str, Any]:
        return {"task": self.task, "partial_ok": True} if self.partial_ok else self.task


SubmittedState = Literal["completed", "partial", "failed", "cancelled", "unknown"]
ParentDecision = Literal["accepted", "rejected", "repair_required"]


class ResultProtocol(StrictModel):
    """Which words a child may end with, and which the parent answers with."""

    submitted_states: list[SubmittedState] = Field(
        default=["completed", "partial", "failed", "cancelled", "unknown"], min_length=1
    )
    parent_decisions: list[ParentDecision] = Field(default=["accepted", "rejected", "repair_required"], min_length=1)


class Terms(StrictModel):
    """What is agreed. In canonical form every default is written out and money is integer micro-USD.

    ``input_snapshot`` maps a name to a pin: ``repo_ref: name@<commit>``, ``<file>: <file>@sha256:<hex>``.
    ``inputs`` is data for the child, never instructions.
    """

    schema_version: Literal["coordinator/v1"] = Field(default="coordinator/v1", alias="schema")
    task_id: Identifier
    contract_version: int = Field(ge=1)
    objective: str = Field(min_length=1, max_length=20_000)
    input_snapshot: dict[SnapshotName, str] = {}
    inputs: dict[Name, JSON] = {}
    agent: AgentSpec | None = None
    needs: list[Need] = []
    workspace: WorkspaceKind = "none"
    isolation: Literal["none", "sandbox"] = "sandbox"
    resources: Resources = Resources()
    budget: Budget = Budget()
    limits: Limits = Limits()
    required_evidence: list[EvidenceRequirement] = []
    acceptance: list[Check] = []
    result_protocol: ResultProtocol = ResultProtocol()

    @model_validator(mode="after")
    def _unique_names(self) -> Self:
        unique([item.name for item in self.required_evidence], "required_evidence")
        unique([item.task for item in self.needs], "needs")
        return self

    def canonical(self) -> dict[str, Any]:
        """The JSON value that is hashed and stored."""
        value = self.model_dump(mode="json", by_alias=True)
        value["budget"] = {"max_turns": self.budget.max_turns, "max_cost_micro_usd": self.budget.max_cost_micro_usd}
        value["agent"] = self.agent.document() if self.agent is not None else None
        value["acceptance"] = [check.document() for check in self.acceptance]
        return value

    @classmethod
    def from_canonical(cls, value: dict[str, Any]) -> Terms:
        """Inverse of ``canonical``. Raises ``VersionRefused`` for a version that this program does not know."""
        if value.get("schema") != SCHEMA_VERSION:
            raise VersionRefused(
                f"terms have the schema {value.get('schema')!r}; this program knows {SCHEMA_VERSION!r}"
            )
        budget = dict(value["budget"])
        micros = budget.pop("max_cost_micro_usd")
        budget["max_cost_usd"] = None if micros is None else micros / MICRO
        return cls.model_validate({**value, "budget": budget})

    @property
    def digest(self) -> str:
        return digest_of(self.canonical())


def unique(names: list[str], what: str) -> None:
    """Refuse a list in which a name stands twice."""
    doubled = sorted(name for name, count in Counter(names).items() if count > 1)
    if doubled:
        raise ValueError(f"{what} names {', '.join(repr(name) for name in doubled)} more than once")
