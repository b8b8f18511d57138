"""Evidence: what is owed, what is handed in, and the one table of who can produce which kind at which origin."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator

from contracts.base import JSON, Name, StrictModel

__all__ = ["EVIDENCE_TABLE", "EvidenceItem", "EvidenceKind", "EvidenceRequirement", "Origin", "OriginName", "Producers"]

EvidenceKind = Literal["output", "citation", "command", "file", "artifact", "note"]
OriginName = Literal["claimed", "observed", "verified"]


class Origin(IntEnum):
    """How far a piece of evidence can be trusted; a later one includes the earlier."""

    claimed = 0
    observed = 1
    verified = 2


class Producers(NamedTuple):
    """What lets evidence reach an origin: one of these tools granted, checks in the contract, agents, or a workspace.

    All empty: anybody can.
    """

    tools: frozenset[str] = frozenset()
    checks: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()
    workspace: bool = False

    @property
    def anyone(self) -> bool:
        return not (self.tools or self.checks or self.agents or self.workspace)


ANYONE = Producers()
_READ_OR_WRITTEN = Producers(tools=frozenset({"read_file", "write_file", "edit_file"}), workspace=True)

EVIDENCE_TABLE: dict[str, dict[str, Producers]] = {
    "note": {"claimed": ANYONE},
    "output": {"claimed": ANYONE},
    # Observed: the runtime started the program itself and saw its end. Verified: the gate ran it again.
    "command": {
        "claimed": ANYONE,
        "observed": Producers(
            tools=frozenset({"run_command"}), agents=frozenset({"command"}), checks=frozenset({"command"})
        ),
        "verified": Producers(checks=frozenset({"command"})),
    },
    # The coordinator itself stores the bytes (observed) and the gate hashes them again (verified).
    "artifact": {"claimed": ANYONE, "observed": ANYONE, "verified": ANYONE},
    # Observed: the broker served or wrote that file, or it is in the candidate that was snapshotted.
    # Verified: the gate read it again from the judged tree.
    "file": {"claimed": ANYONE, "observed": _READ_OR_WRITTEN, "verified": _READ_OR_WRITTEN},
    # Observed: the broker served that file to this child. Verified: the gate looked up line, text and symbol again.
    "citation": {
        "claimed": ANYONE,
        "observed": Producers(tools=frozenset({"read_file", "search_code"}), checks=frozenset({"citations_resolve"})),
        "verified": Producers(checks=frozenset({"citations_resolve"})),
    },
}
"""kind -> origin -> producers. An origin that is absent cannot be reached by that kind."""


class EvidenceRequirement(StrictModel):
    """One piece of evidence that the child owes.

    A plain string ``X`` means ``{name: X, kind: note, min_origin: claimed}``; a requirement of kind
    ``note`` is met by an item of any kind. ``schema`` names a JSON Schema file for the item's ``data``.
    """

    name: Name
    kind: EvidenceKind = "note"
    min_origin: OriginName = "claimed"
    schema_file: str | None = Field(default=None, alias="schema", min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    def document(self) -> str | dict[str, Any]:
        """The shortest form that means the same."""
        full = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return self.name if set(full) == {"name"} else full


class EvidenceItem(StrictModel):
    """One piece of evidence as the child hands it in. Its origin is not the child's to say."""

    name: Name
    kind: EvidenceKind = "note"
    text: str = ""
    data: JSON = None
    path: str | None = None
    line: int | None = Field(default=None, ge=1)
    symbol: str | None = None
    digest: str | None = None
    artifact: str | None = None
