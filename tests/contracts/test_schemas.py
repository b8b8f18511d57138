"""The exported JSON Schemas: valid, as wide as the models for what people write, and closed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from contracts.documents import parse_document
from contracts.orchestration import Orchestration
from contracts.results import Decision, Manifest
from contracts.schemas import SCHEMAS, json_schema

AUTHORED = """\
schema: coordinator/v1
name: audit
objective: Show who calls a symbol.
source: .
inputs: {symbol: a.b, "two words": [1, {x: null}]}
budget: {max_cost_usd: 2.0}
defaults:
  isolation: none
  resources: {tools: [read_file], network: deny, read_scope: ["**"], effects: none}
  limits: {deadline_s: 60, lease_s: 2.5}
tasks:
  callers:
    objective: List every caller.
    agent: {function: "audit.py:find_callers"}
    required_evidence: [{name: inventory, kind: citation, min_origin: observed, schema: c.json}, coverage gaps]
    acceptance: [{json_schema: callers.schema.json}, {cel: "output.n > 0", when: each}, {approval: Well?}]
  report:
    needs: [callers, {task: other, partial_ok: true}]
    objective: Write report.md.
    agent: {function: "audit.py:report"}
    resources: {network: ["a.example:443"], delegation: {max_depth: 1, max_children: 2}, write_scope: [report.md]}
    budget: {max_turns: 3, max_cost_usd: 0.5}
    acceptance: [{sections: [Summary], of: report.md, when: end}, {paths_unchanged: [tests/]}]
    workspace: clone
  tests:
    objective: Run the suite.
    agent: {command: [python, run_tests.py]}
    workspace: directory
    resources: {commands: [[make]], needs_approval: [run_command]}
    acceptance: [{command: [python, -m, pytest], timeout_s: 5, env: {A: b}}, {citations_resolve: x}]
  play: {objective: o, agent: {scripted: "play.py:work"}}
  other: {objective: o, agent: {function: "m:f"}, source_free: x}
"""
DELEGATION = {
    "child_run_id": "child-204",
    "parent_run_id": "run-108",
    "delegation_id": "delegation-77",
    "contract_version": 3,
    "parent_state_version": 41,
    "task_id": "audit",
    "objective": "Find callers.",
    "input_snapshot": {"repo_ref": "payments@a81c2f9"},
    "resources": {"tools": ["read_file"], "network": "deny", "write_scope": [], "delegation": "deny"},
    "budget": {"max_turns": 12, "max_cost_usd": 0.8},
    "required_evidence": ["caller inventory"],
    "result_protocol": {"submitted_states": ["completed"], "parent_decisions": ["accepted", "rejected"]},
}
MANIFEST = {
    "schema": "coordinator/manifest/v1",
    "run_id": "audit",
    "task_id": "callers",
    "contract_version": 1,
    "child_run_id": "callers-1",
    "attempt": 1,
    "claim_generation": 2,
    "terms_digest": "sha256:00",
    "outcome": "completed",
    "output": {"n": 1},
    "message": "",
    "evidence": [{"name": "x", "kind": "file", "path": "a", "origin": "observed", "seen_in_calls": [1]}],
    "artifacts": [{"name": "a", "digest": "sha256:00", "size_bytes": 0, "media_type": "text/plain"}],
    "gaps": [],
    "assumptions": [],
    "next_action": "",
    "observed_calls": [{"number": 1, "tool": "read_file", "arguments": {"path": "a"}, "ok": True, "at": "2030"}],
    "read_set": {"a": "sha256:00"},
    "content_digest": "sha256:00",
    "isolation": "none",
    "unenforced": "all",
    "redactions": 0,
    "started_at": "2030-01-01T00:00:00Z",
    "finished_at": "2030-01-01T00:00:01Z",
}
DECISION = {
    "decision": "accepted",
    "checks": [{"check": "cel", "check_digest": "d", "subject_digest": "d", "outcome": "passed"}],
    "evidence": [{"name": "x", "kind": "file", "min_origin": "observed", "found_origin": None, "ok": False}],
    "bound": {
        "terms_digest": "d",
        "manifest_digest": "d",
        "candidate_tree": None,
        "policy_version": "d",
        "head": None,
        "generation_submitted": 1,
        "generation_gated": 2,
    },
    "unenforced": "",
    "decided_at": "2030",
}


def authored() -> dict[str, Any]:
    value: dict[str, Any] = parse_document(AUTHORED, file="a.yaml", format="yaml").value
    del value["tasks"]["other"]["source_free"]
    return value


def examples() -> dict[str, dict[str, Any]]:
    texts = {"orchestration": authored(), "delegation": DELEGATION, "manifest": MANIFEST, "decision": DECISION}
    return {name: json.loads(json.dumps(value)) for name, value in texts.items()}


def model_accepts(name: str, value: Any) -> bool:
    try:
        SCHEMAS[name].model_validate(value)
    except ValidationError:
        return False
    return True


def schema_accepts(name: str, value: Any) -> bool:
    return bool(Draft202012Validator(json_schema(name)).is_valid(value))


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_is_valid_and_can_be_written_as_a_file(name: str, tmp_path: Path) -> None:
    schema = json_schema(name)
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    path = tmp_path / f"{name}.schema.json"
    path.write_text(json.dumps(schema))
    assert json.loads(path.read_text()) == schema


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_people_write_is_accepted_by_schema_and_model(name: str) -> None:
    value = examples()[name]
    assert [error.message for error in Draft202012Validator(json_schema(name)).iter_errors(value)] == []
    assert model_accepts(name, value)


def test_what_the_models_write_is_accepted_by_their_schemas() -> None:
    documents = {
        "orchestration": Orchestration.model_validate(authored()).document(),
        "manifest": Manifest.model_validate(MANIFEST).canonical(),
        "decision": Decision.model_validate(DECISION).canonical(),
    }
    for name, document in documents.items():
        assert [error.message for error in Draft202012Validator(json_schema(name)).iter_errors(document)] == [], name


def mappings(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    items: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    inside = [place for key, item in items for place in mappings(item, (*path, key))]
    return [path, *inside] if isinstance(value, dict) else inside


FREE = ("inputs", "input_snapshot", "output", "arguments", "read_set", "tasks", "env")
"""What holds keys of the writer's own."""


@pytest.mark.parametrize("name", SCHEMAS)
def test_an_unknown_field_is_refused_in_every_mapping(name: str) -> None:
    places = [path for path in mappings(examples()[name]) if not (path and path[-1] in FREE)]
    places = [path for path in places if path[:1] != ("inputs",)]
    assert len(places) > 3
    for path in places:
        value = target = examples()[name]
        for part in path:
            target = target[part]  # type: ignore[index]
        target["surprise"] = 1
        assert not schema_accepts(name, value), path
        assert not model_accepts(name, value), path


def leave_out(name: str, *path: str) -> dict[str, Any]:
    value = examples()[name]
    target = value
    for part in path[:-1]:
        target = target[part]
    del target[path[-1]]
    return value


def test_a_file_without_schema_version_tasks_or_agent_is_refused_by_the_schema() -> None:
    for path in (("schema",), ("name",), ("objective",), ("tasks",), ("tasks", "report", "agent")):
        assert not schema_accepts("orchestration", leave_out("orchestration", *path)), path
    assert not schema_accepts("orchestration", authored() | {"tasks": {}})
    assert not schema_accepts("orchestration", authored() | {"schema": "coordinator/v2"})


def test_a_lone_contract_needs_no_schema_version() -> None:
    assert "schema" not in DELEGATION
    assert schema_accepts("delegation", DELEGATION)
    assert schema_accepts("delegation", {**DELEGATION, "schema": "coordinator/v1"})
    assert not schema_accepts("delegation", {**DELEGATION, "schema": "coordinator/v2"})


@pytest.mark.parametrize(
    "change",
    [
        {"name": "two words"},
        {"budget": {"max_cost_usd": -1}},
        {"budget": {"max_cost_usd": "1"}},
        {"defaults": {"isolation": None}},
        {"defaults": {"resources": {"network": "allow"}}},
        {"defaults": {"resources": {"needs_approval": "run_command"}}},
        {"defaults": {"resources": {"needs_approval": ["two words"]}}},
        {"tasks": {"two words": {"objective": "o", "agent": {"function": "m:f"}}}},
        {"tasks": {"a": {"objective": "o", "agent": {"function": "m:f"}, "needs": [""]}}},
        {"tasks": {"a": {"objective": "o", "agent": {"function": "m:f"}, "required_evidence": ["a\nb"]}}},
        {"tasks": {"a": {"objective": "o", "agent": {"function": "m:f"}, "workspace": "worktree"}}},
        {"tasks": {"a": {"objective": "o", "agent": {"command": []}}}},
        {"tasks": {"a": {"objective": "o", "agent": {"command": "x"}}}},
        {"tasks": {"a": {"objective": "o", "agent": {"function": "m:f"}, "acceptance": [{"command": "x"}]}}},
        {
            "tasks": {
                "a": {
                    "objective": "o",
                    "agent": {"function": "m:f"},
                    "acceptance": [{"command": ["x"], "timeout_s": 0}],
                }
            }
        },
        {
            "tasks": {
                "a": {
                    "objective": "o",
                    "agent": {"function": "m:f"},
                    "acceptance": [{"command": ["x"], "env": {"A=": "b"}}],
                }
            }
        },
        {"tasks": {"a": {"objective": "o", "agent": {"function": "m:f"}, "acceptance": [{"paths_unchanged": []}]}}},
        {"tasks": None},
        {"source": ""},
        {"inputs": {"": 1}},
    ],
)
def test_what_the_model_refuses_by_form_the_schema_refuses_too(change: dict[str, Any]) -> None:
    assert not model_accepts("orchestration", authored() | change)
    assert not schema_accepts("orchestration", authored() | change)


def test_the_schema_does_not_depend_on_where_it_was_made(tmp_path: Path) -> None:
    before = json.dumps(json_schema("orchestration"))
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        assert json.dumps(json_schema("orchestration")) == before
    finally:
        os.chdir(here)
