"""``submit_result`` as one contract asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from contracts.documents import parse_document
from contracts.evidence import EvidenceItem, EvidenceRequirement
from contracts.states import Outcome
from contracts.tools import CONTROL_TOOLS, Tool

__all__ = ["as_asked_for", "submitting"]

SCHEMA_BYTES_MAX = 64 * 1024


def submitting(contract: Mapping[str, Any]) -> Tool:
    """With the outcomes that this contract knows, the fields of a piece of evidence, and what evidence is owed."""
    tool = CONTROL_TOOLS["submit_result"]
    known = (*contract["result_protocol"]["submitted_states"], Outcome.BLOCKED)
    outcomes = [outcome for outcome in tool.properties["outcome"]["enum"] if outcome in known]
    evidence = {"type": "array", "items": EvidenceItem.model_json_schema()}
    owed = [_owed(EvidenceRequirement.model_validate(item)) for item in contract["required_evidence"]]
    summary = f"{tool.summary}; it has to bring the evidence {', '.join(owed)}" if owed else tool.summary
    properties = {**tool.properties, "outcome": {"enum": outcomes}, "evidence": evidence}
    return tool._replace(summary=summary, properties=properties)


def as_asked_for(tool: Tool, contract: Mapping[str, Any], pinned_file: Callable[[str], Path]) -> Tool:
    """For a model to see: with the schemas that the checks hold the output against.

    Not for checking a call: a result that is not complete may be off them. Raises what ``pinned_file`` raises.
    """
    names = [
        check["json_schema"] for check in contract.get("acceptance", ()) if "json_schema" in check and "of" not in check
    ]
    files = [(name, pinned_file(name).read_bytes()) for name in dict.fromkeys(names)]
    if not files or sum(len(data) for _, data in files) > SCHEMA_BYTES_MAX:
        return tool
    schemas = [parse_document(data, file=name, format="json").value for name, data in files]
    alone = len(schemas) == 1
    places = [f"#/properties/output{'' if alone else f'/allOf/{index}'}" for index in range(len(schemas))]
    if not all(isinstance(schema, dict) and _can_be_moved(schema) for schema in schemas):
        return tool
    moved = [_moved(schema, place) for schema, place in zip(schemas, places, strict=True)]
    for schema in moved:
        schema.pop("$schema", None)
    output = moved[0] if alone else {"allOf": moved}
    return tool._replace(properties={**tool.properties, "output": output})


def _owed(item: EvidenceRequirement) -> str:
    origin = "" if item.min_origin == "claimed" else f", {item.min_origin}"
    return f"{item.name} ({item.kind}{origin})"


def _can_be_moved(value: Any) -> bool:
    """Whether all that it refers to is named by its place in it."""
    if isinstance(value, dict):
        reference = value.get("$ref", "#")
        if isinstance(reference, str) and reference != "#" and not reference.startswith("#/"):
            return False
        named = {"$id", "$anchor", "$dynamicRef", "$dynamicAnchor"}
        if any(isinstance(value.get(key), str) for key in named):
            return False
        return all(map(_can_be_moved, value.values()))
    return all(map(_can_be_moved, value)) if isinstance(value, list) else True


def _moved(value: Any, place: str) -> Any:
    """With what it refers to named by its new place."""
    if isinstance(value, dict):
        return {
            key: place + item[1:] if key == "$ref" and isinstance(item, str) else _moved(item, place)
            for key, item in value.items()
        }
    return [_moved(item, place) for item in value] if isinstance(value, list) else value
