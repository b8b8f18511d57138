"""JSON Schemas of the documents, for editors and for programs in other languages."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, TypeAdapter

from contracts.base import Identifier, Name
from contracts.delegation import DelegationContract
from contracts.orchestration import Orchestration
from contracts.results import Decision, Manifest

__all__ = ["SCHEMAS", "json_schema"]

SCHEMAS: dict[str, type[BaseModel]] = {
    "orchestration": Orchestration,
    "delegation": DelegationContract,
    "manifest": Manifest,
    "decision": Decision,
}
_SHORTHANDS = {
    "EvidenceRequirement": TypeAdapter(Name).json_schema(),
    "Need": TypeAdapter(Identifier).json_schema(),
    "Source": {"type": "string", "minLength": 1},
    "AnthropicSpec": TypeAdapter(Name).json_schema(),
    "OpenAISpec": TypeAdapter(Name).json_schema(),
}


def json_schema(name: str) -> dict[str, Any]:
    """The schema (draft 2020-12) of one of ``SCHEMAS``, as files are written: shorthands included."""
    schema = SCHEMAS[name].model_json_schema(by_alias=True, mode="validation")
    definitions = schema.get("$defs", {})
    for model, shorthand in _SHORTHANDS.items():
        if model in definitions:
            full = definitions[model]
            about = {"title": model, "description": full.get("description", "")}
            definitions[model] = {"anyOf": [shorthand, full], **about}
    _close(schema)
    if name == "orchestration":
        schema["required"] = ["schema", *schema.get("required", [])]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:coordinator:v1:{name}",
        **schema,
    }


def _close(schema: Any) -> None:
    """A mapping whose keys have a pattern holds no others."""
    if isinstance(schema, dict):
        if "patternProperties" in schema:
            schema["additionalProperties"] = False
        schema = list(schema.values())
    if isinstance(schema, list):
        for item in schema:
            _close(item)
