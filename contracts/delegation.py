"""The delegation contract: the JSON document that a child gets, rendered from terms and binding.

The twelve fields of its published form are always there; what this project adds is there when it says something
other than its default.
"""

from __future__ import annotations

from copy import copy
from typing import Any

from pydantic import Field

from contracts.base import Identifier, StrictModel
from contracts.terms import Resources, Terms

__all__ = ["Binding", "DelegationContract", "render_contract"]


class Binding(StrictModel):
    """What ties terms to one attempt: who works on it, under which generation, for which state of the parent."""

    child_run_id: Identifier
    parent_run_id: Identifier
    delegation_id: Identifier
    parent_state_version: int = Field(ge=0)
    claim_generation: int | None = Field(default=None, ge=1)


class DelegationContract(Binding, Terms):
    """A delegation contract as it stands in a file of its own: loads from JSON or YAML of the same shape."""

    def split(self) -> tuple[Terms, Binding]:
        return (
            Terms.model_construct(_fields_set=None, **{name: getattr(self, name) for name in Terms.model_fields}),
            Binding.model_construct(_fields_set=None, **{name: getattr(self, name) for name in Binding.model_fields}),
        )


_ADDED = (
    "inputs",
    "agent",
    "needs",
    "workspace",
    "isolation",
    "limits",
    "on_takeover",
    "prices",
    "mcp_servers",
    "acceptance",
)
_DEFAULT_RESOURCES = Resources().model_dump(mode="json", include={"tools", "network", "write_scope", "delegation"})
"""What a grant says even where it is the default."""


def render_contract(terms: Terms, binding: Binding) -> dict[str, Any]:
    """The JSON document for the child, in the published order of its fields."""
    stated = terms.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    resources = _DEFAULT_RESOURCES | stated.get("resources", {})
    document: dict[str, Any] = {
        "child_run_id": binding.child_run_id,
        "parent_run_id": binding.parent_run_id,
        "delegation_id": binding.delegation_id,
        "contract_version": terms.contract_version,
        "parent_state_version": binding.parent_state_version,
        "task_id": terms.task_id,
        "objective": terms.objective,
        "input_snapshot": dict(terms.input_snapshot),
        "resources": {key: copy(resources[key]) for key in Resources.model_fields if key in resources},
        "budget": stated.get("budget", {}),
        "required_evidence": [item.document() for item in terms.required_evidence],
        "result_protocol": terms.result_protocol.model_dump(mode="json"),
    }
    if terms.agent is not None:
        stated["agent"] = terms.agent.document()
    stated["needs"] = [need.document() for need in terms.needs]
    stated["acceptance"] = [check.document() for check in terms.acceptance]
    for key in _ADDED:
        if stated.get(key):
            document[key] = stated[key]
    if binding.claim_generation is not None:
        document["claim_generation"] = binding.claim_generation
    return document
