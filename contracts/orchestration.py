"""The orchestration as people write it: an objective, a source, tasks and a budget."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, PrivateAttr, ValidationError, field_validator, model_validator

from contracts.base import JSON, Identifier, Name, StrictModel
from contracts.canonical import canonical_bytes, canonical_object
from contracts.checks import Check
from contracts.documents import Document, load_document, validate
from contracts.errors import BadInput, Fault
from contracts.evidence import EvidenceRequirement
from contracts.functions import function_reference
from contracts.terms import (
    AgentSpec,
    Budget,
    Limits,
    Need,
    Resources,
    Shared,
    TakeoverPolicy,
    WorkspaceKind,
    unique,
)

if TYPE_CHECKING:
    from contracts.assignment import Assignment
    from contracts.model_specs import McpServer
    from contracts.prices import Price
    from contracts.results import Result

    Fields = Mapping[str, Any]
    """A document's own words for a value, as they stand in a file."""

    Function = Callable[[Assignment], Result] | Callable[[Assignment], Awaitable[Result]]
    """A child that is a Python function: at the top level of a file, so that another process can take it over."""

__all__ = ["Defaults", "Orchestration", "Source", "Task", "merge"]

VERSION = "coordinator/v1"
Objective = Field(min_length=1, max_length=20_000)


class Source(StrictModel):
    """What the children work on. ``repo``: a git repository or a plain folder, relative to the file."""

    repo: str = Field(default=".", min_length=1)
    ref: str = Field(default="HEAD", min_length=1, pattern=r"^[^-\x00-\x20][^\x00-\x20]*$")

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: Any) -> Any:
        return {"repo": str(value)} if isinstance(value, (str, Path)) else value


class Defaults(Shared):
    """Merged under every task, key by key; lists replace. Only what is said here counts, not a field's default."""

    later: ClassVar[tuple[str, ...]] = (*Shared.later, "on_takeover")

    workspace: WorkspaceKind = "none"
    isolation: Literal["none", "sandbox"] = "sandbox"
    resources: Resources = Resources()
    budget: Budget = Budget()
    limits: Limits = Limits()
    on_takeover: TakeoverPolicy = "fresh"


class Task(Shared):
    """One bounded unit of work, as authored. ``isolation`` has no silent default while there is no sandbox."""

    later: ClassVar[tuple[str, ...]] = (*Shared.later, "on_takeover")

    objective: str = Objective
    agent: AgentSpec
    needs: list[Need] = []
    workspace: WorkspaceKind = "none"
    isolation: Literal["none", "sandbox"] = "sandbox"
    resources: Resources = Resources()
    budget: Budget = Budget()
    limits: Limits = Limits()
    on_takeover: TakeoverPolicy = "fresh"
    required_evidence: list[EvidenceRequirement] = []
    acceptance: list[Check] = []

    if TYPE_CHECKING:
        # What may be said, which is more than what is read then; at run time pydantic's own does this, and faster.
        def __init__(
            self,
            *,
            objective: str,
            agent: AgentSpec | Fields | Function,
            needs: Sequence[Need | str | Fields] = ...,
            workspace: WorkspaceKind = ...,
            isolation: Literal["none", "sandbox"] = ...,
            resources: Resources | Fields = ...,
            budget: Budget | Fields = ...,
            limits: Limits | Fields = ...,
            on_takeover: TakeoverPolicy = ...,
            required_evidence: Sequence[EvidenceRequirement | str | Fields] = ...,
            acceptance: Sequence[Check | Fields] = ...,
            prices: Mapping[str, Price | Fields] = ...,
            mcp_servers: Mapping[str, McpServer | Fields] = ...,
        ) -> None: ...

    @field_validator("agent", mode="before")
    @classmethod
    def _callable(cls, value: Any) -> Any:
        return {"function": function_reference(value)} if callable(value) else value

    @model_validator(mode="after")
    def _unique_names(self) -> Self:
        unique([item.name for item in self.required_evidence], "required_evidence")
        unique([item.task for item in self.needs], "needs")
        return self


class Orchestration(Shared):
    """The whole piece of work.

    ``inputs`` is data for the children; there is no templating. ``prices`` and ``mcp_servers`` are merged under the
    defaults, and with them under every task.
    """

    schema_version: Literal["coordinator/v1"] = Field(default="coordinator/v1", alias="schema")
    name: Identifier
    objective: str = Objective
    source: Source | None = None
    inputs: dict[Name, JSON] = {}
    budget: Budget = Budget()
    defaults: Defaults = Defaults()
    tasks: dict[Identifier, Task] = Field(json_schema_extra={"minProperties": 1})
    _folder: Path = PrivateAttr(default_factory=Path.cwd)

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            name: str,
            objective: str,
            tasks: Mapping[str, Task | Fields],
            schema: Literal["coordinator/v1"] = ...,
            source: Source | str | Path | Fields | None = ...,
            inputs: Mapping[str, JSON] = ...,
            budget: Budget | Fields = ...,
            defaults: Defaults | Fields = ...,
            prices: Mapping[str, Price | Fields] = ...,
            mcp_servers: Mapping[str, McpServer | Fields] = ...,
        ) -> None: ...

    @property
    def folder(self) -> Path:
        """What file names in it are relative to: the folder of its file, else the working folder."""
        return self._folder

    @model_validator(mode="before")
    @classmethod
    def _merge_defaults(cls, value: Any) -> Any:
        if not isinstance(value, dict) or not isinstance(value.get("tasks"), dict):
            return value
        try:
            shared = Shared.model_validate({key: value[key] for key in Shared.model_fields if key in value})
            defaults = Defaults.model_validate(value.get("defaults", {}))
        except ValidationError:
            return value  # the fault is reported once, where it stands, and not again under every task
        known = merge(shared.model_dump(mode="json", exclude_unset=True), defaults)
        if not known:
            return value
        return {**value, "tasks": {key: merge(known, task) for key, task in value["tasks"].items()}}

    @classmethod
    def from_file(cls, path: str | Path) -> Orchestration:
        """Load a YAML or JSON file. Raises ``BadInput`` with every fault and its place."""
        return cls.from_document(load_document(Path(path)), Path(path).resolve().parent)

    @classmethod
    def from_document(cls, document: Document, folder: Path) -> Orchestration:
        """Check what a file says. Unlike in Python, its ``schema`` has to be said: a file outlives the program."""
        faults: list[Fault] = []
        value = document.value
        said = value if isinstance(value, dict) else {"schema": VERSION}
        version = said.get("schema")
        if "schema" not in said:
            faults.append(document.locate(Fault("schema", "required field is missing", f"add 'schema: {VERSION}'")))
        elif version != VERSION:
            what = f"schema version {version!r:.60} is not known"
            faults.append(document.locate(Fault("schema", what, f"this program knows {VERSION!r}")))
            document = document.with_value({**said, "schema": VERSION})
        try:
            orchestration = validate(cls, document)
        except BadInput as error:
            faults += error.faults
        if faults:
            raise BadInput(sorted(faults, key=lambda fault: (fault.line or 0, fault.column or 0)))
        orchestration._folder = folder
        return orchestration

    def document(self) -> dict[str, Any]:
        """The authored content as a JSON value, with defaults written out: what *the same file* means."""
        return self.model_dump(mode="json", by_alias=True)

    def canonical(self) -> bytes:
        """The canonical form of ``document``, made task by task: a fan-out has thousands, often of one kind."""
        distinct = {id(task): task for task in self.tasks.values()}
        forms = {key: canonical_bytes(task.model_dump(mode="json", by_alias=True)) for key, task in distinct.items()}
        tasks = canonical_object({task_id: forms[id(task)] for task_id, task in self.tasks.items()})
        shared = self.model_dump(mode="json", by_alias=True, exclude={"tasks"})
        return canonical_object({**{key: canonical_bytes(value) for key, value in shared.items()}, "tasks": tasks})


def merge(under: Any, over: Any) -> Any:
    """``over`` laid on ``under``: mappings (of a model: what was set) key by key, everything else replaces."""
    if isinstance(over, BaseModel):
        over = over.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if isinstance(under, dict) and isinstance(over, dict):
        merged = dict(under)
        for key, value in over.items():
            merged[key] = merge(merged[key], value) if key in merged else value
        return merged
    return over
