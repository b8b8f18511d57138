"""What a model is told about the result that its contract asks for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator

from contracts.states import Outcome
from tests.model_servers.script import Call

if TYPE_CHECKING:
    from tests.agents.llm.conftest import Stage

ROWS = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"rows": {"type": "array", "items": {"$ref": "#/$defs/row"}}},
    "required": ["rows"],
    "$defs": {"row": {"type": "object", "properties": {"n": {"type": "integer"}, "in": {"$ref": "#/$defs/row"}}}},
}
SHORT = {"type": "object", "maxProperties": 2}
GOOD = {"rows": [{"n": 1, "in": {"n": 2}}]}


def shown(stage: Stage, acceptance: list[Any], **terms: Any) -> dict[str, Any]:
    stage.server.reply(Call("submit_result", {"outcome": "completed", "output": {}}))
    played = stage.play("messages", terms={"acceptance": acceptance, **terms})
    assert played.result.outcome is Outcome.COMPLETED  # the checks judge it, not the loop
    tools: list[dict[str, Any]] = stage.server.requests[-1].body["tools"]
    return next(tool for tool in tools if tool["name"] == "submit_result")


def takes(tool: dict[str, Any], output: Any) -> bool:
    Draft202012Validator.check_schema(tool["input_schema"])
    return Draft202012Validator(tool["input_schema"]).is_valid({"outcome": "completed", "output": output})


def put(stage: Stage, **files: Any) -> None:
    for name, schema in files.items():
        (stage.folder / name).write_text(json.dumps(schema))


def test_the_schema_of_a_check_is_the_schema_of_the_output(stage: Stage) -> None:
    put(stage, rows=ROWS)
    tool = shown(stage, [{"json_schema": "rows"}])
    assert takes(tool, GOOD)
    assert not takes(tool, {})
    assert not takes(tool, {"rows": [{"n": 1, "in": {"n": "2"}}]})


def test_several_schemas_hold_together(stage: Stage) -> None:
    put(stage, rows=ROWS, short=SHORT)
    tool = shown(stage, [{"json_schema": "short"}, {"json_schema": "rows"}, {"cel": "true"}])
    assert takes(tool, GOOD)
    assert not takes(tool, {**GOOD, "a": 1, "b": 2})
    assert not takes(tool, {"rows": [{"n": "1"}]})


def test_what_does_not_judge_the_output_or_cannot_be_moved_is_left_out(stage: Stage) -> None:
    put(stage, rows=ROWS, named={"$id": "https://example.org/a", "$ref": "b"}, large={"const": "x" * 70_000}, yes=True)
    for check in (
        {"json_schema": "rows", "of": "report.json"},
        {"json_schema": "named"},
        {"json_schema": "large"},
        {"json_schema": "yes"},
        {"cel": "true"},
    ):
        output = shown(stage, [check])["input_schema"]["properties"]["output"]
        assert output == {"description": "any JSON value"}, check


def test_a_result_that_is_not_complete_may_be_off_the_schema(stage: Stage) -> None:
    put(stage, rows=ROWS)
    stage.server.reply(Call("submit_result", {"outcome": "partial", "output": {"begun": True}}))
    played = stage.play("chat", terms={"acceptance": [{"json_schema": "rows"}]})
    assert (played.result.outcome, played.result.output) == (Outcome.PARTIAL, {"begun": True})


def test_the_evidence_that_is_owed_is_named(stage: Stage) -> None:
    owed = ["why", {"name": "where", "kind": "citation", "min_origin": "verified"}]
    tool = shown(stage, [{"citations_resolve": "where"}], required_evidence=owed)
    assert tool["description"].endswith("it has to bring the evidence why (note), where (citation, verified)")
    assert "evidence" not in shown(stage, [{"cel": "true"}])["description"]
