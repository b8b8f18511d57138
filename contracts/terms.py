"""Terms: what is agreed for one task, immutable and named by digest. Every attempt shares them."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    StringConstraints,
    model_serializer,
    model_validator,
)

from contracts.base import JSON, Argument, Identifier, Name, PathPattern, StrictModel
from contracts.canonical import digest_of
from contracts.checks import Check
from contracts.errors import VersionRefused
from contracts.evidence import EvidenceRequirement
from contracts.model_specs import AnthropicSpec, CredentialName, McpServer, McpServerName, ModelSpec, OpenAISpec
from contracts.prices import MICRO, USD, Price, micro_usd

__all__ = [
    "AgentSpec",
    "AnthropicSpec",
    "Budget",
    "Delegation",
    "Limits",
    "ModelSpec",
    "Need",
    "OpenAISpec",
    "Resources",
    "ResultProtocol",
    "Shared",
    "Sparse",
    "TakeoverPolicy",
    "Terms",
    "WorkspaceKind",
]

SCHEMA_VERSION = "coordinator/v1"


HostPort = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.-]+:[0-9]{1,5}$")]
SnapshotName = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+$")]
ToolName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_.:-]{0,99}$")]
FunctionReference = Annotated[str, StringConstraints(pattern=r"^[^:\x00-\x1f]+:[A-Za-z_][A-Za-z0-9_]*$")]
WorkspaceKind = Literal["none", "directory", "clone"]
TakeoverPolicy = Literal["continue", "fresh"]


class Sparse(StrictModel):
    """A document whose ``later`` fields are written only when they say something other than their default.

    They came after the first version: what does not use them keeps its bytes, and so its digest.
    """

    later: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _without_unsaid(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        value: dict[str, Any] = handler(self)
        if not info.exclude_unset:
            fields = type(self).model_fields
            for name in self.later:
                if getattr(self, name) == fields[name].default:
                    value.pop(name, None)
                    value.pop(fields[name].alias or name, None)
        return value


class Delegation(StrictModel):
    """How far a child may delegate in its turn: levels below it, and children in all."""

    max_depth: int = Field(ge=1, le=100)
    max_children: int = Field(ge=1, le=1_000_000)


class Resources(Sparse):
    """The grant: what the child may touch. Absent means the narrower thing.

    ``network``: ``deny`` or a list of ``host:port``. ``credentials``: names only, never values. ``effects``: whether
    the child may change anything outside: ``none``, ``declared`` (each one an operation) or ``possible``.
    ``commands``: what ``run_command`` may run, each the exact words that a command begins with. ``models``: what
    children of this child may use besides its own model. ``needs_approval``: granted tools each call of which needs a
    person's yes to exactly that call.
    """

    later: ClassVar[tuple[str, ...]] = ("commands", "models", "needs_approval")

    tools: list[ToolName] = []
    network: Literal["deny"] | list[HostPort] = "deny"
    read_scope: list[PathPattern] = ["**"]
    write_scope: list[PathPattern] = []
    credentials: list[CredentialName] = []
    delegation: Literal["deny"] | Delegation = "deny"
    effects: Literal["none", "declared", "possible"] = "none"
    commands: list[Annotated[list[Argument], Field(min_length=1)]] = []
    models: list[Name] = []
    needs_approval: list[ToolName] = []


class Budget(Sparse):
    """Upper bounds. ``None``: this contract sets none of its own.

    ``max_cost_usd`` and ``max_tokens`` hold for the task with all its attempts and all that is delegated below it. The
    others hold for one attempt, together with the turns that it goes on from.
    """

    later: ClassVar[tuple[str, ...]] = ("max_tokens", "max_tool_calls", "max_wall_s")

    max_turns: int | None = Field(default=None, ge=1)
    max_cost_usd: USD | None = None
    max_tokens: int | None = Field(default=None, ge=1, le=2**53 - 1)
    max_tool_calls: int | None = Field(default=None, ge=1)
    max_wall_s: float | None = Field(default=None, gt=0, le=31_536_000, allow_inf_nan=False)

    @property
    def max_cost_micro_usd(self) -> int | None:
        return None if self.max_cost_usd is None else micro_usd(self.max_cost_usd)


class Limits(StrictModel):
    """Separate limits; renewing a lease moves none of the others.

    ``deadline_s``: for one attempt. ``lease_s``: how long a claim lives without renewal. ``max_claims``: claims to
    work that may end without a submission, since the last one. ``max_repairs``: times a result may be sent back.
    """

    deadline_s: float = Field(default=60, gt=0, le=31_536_000, allow_inf_nan=False)
    lease_s: float = Field(default=15, ge=0.2, le=86_400, allow_inf_nan=False)
    max_claims: int = Field(default=3, ge=1, le=10_000)
    max_repairs: int = Field(default=2, ge=0, le=10_000)


AgentKind = Literal["function", "command", "scripted", "anthropic", "openai"]
AGENT_KINDS: tuple[AgentKind, ...] = ("function", "command", "scripted", "anthropic", "openai")


class AgentSpec(Sparse):
    """Who does the work. Exactly one of the kinds is set.

    ``function`` and ``scripted``: ``"module:name"`` or ``"file.py:name"``. ``command``: the arguments of a program, no
    shell; files beside the orchestration are pinned, and ``python`` is the coordinator's interpreter. ``anthropic``
    and ``openai``: a model. ``file``: a Markdown file that defines an agent, by itself (the model is then Anthropic's,
    and named there) or beside the model that shall play it; issued terms hold its text as the model's instructions.
    """

    later: ClassVar[tuple[str, ...]] = ("anthropic", "openai", "definition")

    function: FunctionReference | None = None
    command: list[Argument] | None = Field(default=None, min_length=1)
    scripted: FunctionReference | None = None
    anthropic: AnthropicSpec | None = None
    openai: OpenAISpec | None = None
    definition: str | None = Field(
        default=None, alias="file", min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f]+$"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        found: list[str] = [kind for kind in AGENT_KINDS if getattr(self, kind) is not None]
        if self.definition is not None and self.model is None:
            found.append("file")
        if len(found) != 1:
            what = " and ".join(found) if found else "none"
            raise ValueError(f"an agent is exactly one of {', '.join(AGENT_KINDS)}, file; found {what}")
        return self

    @property
    def kind(self) -> AgentKind:
        return next((kind for kind in AGENT_KINDS if getattr(self, kind) is not None), "anthropic")

    @property
    def model(self) -> ModelSpec | None:
        """The model that does the work; None for what is no model, and while only a file says which."""
        return self.anthropic or self.openai

    @property
    def reference(self) -> str | None:
        """The ``place:name`` of a function or script; None for others."""
        return self.function or self.scripted

    @property
    def file(self) -> str | None:
        """The file part of ``file.py:name``; None for a module and for other kinds."""
        place = self.reference.rsplit(":", 1)[0] if self.reference else ""
        return place if place.endswith(".py") else None

    def label(self) -> str:
        """For people."""
        model = self.model.model if self.model is not None else self.definition
        return self.reference or model or shlex.join(self.command or [])

    def document(self) -> dict[str, Any]:
        said = self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"anthropic", "openai"})
        return {**said, self.kind: self.model.document()} if self.model is not None else said


class Shared(Sparse):
    """What an orchestration says for all its tasks, and a task for itself; merged key by key.

    ``prices``: of models by their ids, before any that are known. ``mcp_servers``: of tools, by the name that a grant
    calls them by: ``mcp__NAME__TOOL``.
    """

    later: ClassVar[tuple[str, ...]] = ("prices", "mcp_servers")

    prices: dict[Name, Price] = {}
    mcp_servers: dict[McpServerName, McpServer] = {}


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

    def __deepcopy__(self, memo: object = None) -> Self:
        return self  # as a default it would be copied for each contract, and nothing changes it


class Terms(Shared):
    """What is agreed. In canonical form every default is written out and money is integer micro-USD.

    ``input_snapshot`` maps a name to a pin: ``repo_ref: name@<commit>``, ``<file>: <file>@sha256:<hex>``.
    ``inputs`` is data for the child, never instructions. ``on_takeover``: whether the next holder of a model's work
    continues its conversation or starts afresh.
    """

    later: ClassVar[tuple[str, ...]] = (*Shared.later, "on_takeover")

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
    on_takeover: TakeoverPolicy = "fresh"
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
        value["budget"]["max_cost_micro_usd"] = self.budget.max_cost_micro_usd
        del value["budget"]["max_cost_usd"]
        if self.prices:
            value["prices"] = {model: price.canonical() for model, price in self.prices.items()}
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
        prices = {model: Price.from_canonical(price) for model, price in value.get("prices", {}).items()}
        return cls.model_validate({**value, "budget": budget, "prices": prices})

    @property
    def digest(self) -> str:
        return digest_of(self.canonical())


def unique(names: list[str], what: str) -> None:
    """Refuse a list in which a name stands twice."""
    doubled = sorted(name for name, count in Counter(names).items() if count > 1)
    if doubled:
        raise ValueError(f"{what} names {', '.join(repr(name) for name in doubled)} more than once")
