"""The delegation contract: it loads as it is published, and is rendered again from terms and binding."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from contracts.delegation import Binding, DelegationContract, render_contract
from contracts.documents import load_document, parse_document, validate
from contracts.errors import BadInput
from contracts.terms import Budget, Delegation, Terms

PUBLISHED = """\
{"child_run_id": "child-204", "parent_run_id": "run-108", "delegation_id": "delegation-77", "contract_version": 3,
 "parent_state_version": 41, "task_id": "audit-webhook-mapping",
 "objective": "Find callers that depend on the legacy payment-state mapping.",
 "input_snapshot": {"repo_ref": "payments@a81c2f9", "spec_ref": "artifact://spec/payment-state-v2"},
 "resources": {"tools": ["read_file", "search_code", "run_readonly_tests"], "network": "deny", "write_scope": [], \
"delegation": "deny"},
 "budget": {"max_turns": 12, "max_cost_usd": 0.8},
 "required_evidence": ["caller inventory", "file and symbol references", "coverage gaps", "child trace ID"],
 "result_protocol": {"submitted_states": ["completed", "partial", "failed", "cancelled", "unknown"],
                     "parent_decisions": ["accepted", "rejected", "repair_required"]}}
"""
PUBLISHED_YAML = """\
child_run_id: child-204
parent_run_id: run-108
delegation_id: delegation-77
contract_version: 3
parent_state_version: 41
task_id: audit-webhook-mapping
objective: Find callers that depend on the legacy payment-state mapping.
input_snapshot:
  repo_ref: payments@a81c2f9
  spec_ref: artifact://spec/payment-state-v2
resources:
  tools: [read_file, search_code, run_readonly_tests]
  network: deny
  write_scope: []
  delegation: deny
budget:
  max_turns: 12
  max_cost_usd: 0.8
required_evidence:
  - caller inventory
  - file and symbol references
  - coverage gaps
  - child trace ID
result_protocol:
  submitted_states: [completed, partial, failed, cancelled, unknown]
  parent_decisions: [accepted, rejected, repair_required]
"""
BINDING = Binding(child_run_id="c", parent_run_id="p", delegation_id="d", parent_state_version=0)


def load(text: str, name: str) -> DelegationContract:
    document = parse_document(text, file=name, format="json" if name.endswith("json") else "yaml")
    return validate(DelegationContract, document)


def terms(**more: Any) -> Terms:
    return Terms.model_validate({"task_id": "t", "contract_version": 1, "objective": "Do it.", **more})


@pytest.mark.parametrize(("name", "text"), [("c.json", PUBLISHED), ("c.yaml", PUBLISHED_YAML), ("c.yaml", PUBLISHED)])
def test_the_published_contract_loads_and_is_rendered_again_word_for_word(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    own, binding = validate(DelegationContract, load_document(path)).split()
    rendered = render_contract(own, binding)
    assert rendered == json.loads(PUBLISHED)
    assert json.dumps(rendered) == json.dumps(json.loads(PUBLISHED))  # the order of fields and the form of numbers too


def test_the_published_contract_has_one_digest_in_both_formats() -> None:
    assert load(PUBLISHED, "c.json").split()[0].digest == load(PUBLISHED_YAML, "c.yaml").split()[0].digest


def test_a_lone_contract_may_say_its_schema_version_but_only_a_known_one() -> None:
    stated = load(f"schema: coordinator/v1\n{PUBLISHED_YAML}", "c.yaml")
    assert stated.split()[0].digest == load(PUBLISHED_YAML, "c.yaml").split()[0].digest
    with pytest.raises(BadInput, match=r"^c\.yaml:1:9: schema: 'coordinator/v2' .*'coordinator/v1'$"):
        load(f"schema: coordinator/v2\n{PUBLISHED_YAML}", "c.yaml")


def test_the_digest_does_not_depend_on_the_order_of_keys_or_on_shorthands() -> None:
    short = terms(required_evidence=["inventory"], needs=["other"], budget={"max_cost_usd": 1}, inputs={"a": 1, "b": 2})
    long = Terms.model_validate(
        {
            "result_protocol": {
                "parent_decisions": ["accepted", "rejected", "repair_required"],
                "submitted_states": ["completed", "partial", "failed", "cancelled", "unknown"],
            },
            "limits": {"max_repairs": 2, "max_claims": 3, "lease_s": 15.0, "deadline_s": 60},
            "budget": {"max_cost_usd": 1.0, "max_turns": None},
            "inputs": {"b": 2, "a": 1},
            "needs": [{"partial_ok": False, "task": "other"}],
            "required_evidence": [{"min_origin": "claimed", "kind": "note", "name": "inventory", "schema": None}],
            "resources": {"effects": "none", "tools": [], "network": "deny", "read_scope": ["**"]},
            "objective": "Do it.",
            "contract_version": 1,
            "task_id": "t",
            "schema": "coordinator/v1",
        }
    )
    assert short.digest == long.digest
    assert short.digest != terms(required_evidence=["inventory"], needs=["other"]).digest


PATTERN = st.sampled_from(["a", "b/", "**/*.md"])
NAME = st.sampled_from(["one", "two words", "drei-µ"])
MICROS = st.integers(0, 10**15)
TERMS = st.builds(
    terms,
    objective=st.sampled_from(["Find it.", "Zähle alles.\nDann berichte."]),
    input_snapshot=st.dictionaries(NAME, st.sampled_from(["repo@abc", "x@sha256:00"]), max_size=2),
    inputs=st.dictionaries(
        NAME, st.none() | st.integers(-5, 5) | st.lists(st.text(max_size=3), max_size=2), max_size=2
    ),
    agent=st.none() | st.just({"function": "file.py:name"}),
    needs=st.lists(st.sampled_from(["a", {"task": "b", "partial_ok": True}]), unique_by=str),
    isolation=st.sampled_from(["none", "sandbox"]),
    resources=st.fixed_dictionaries(
        {},
        optional={
            "tools": st.lists(st.sampled_from(["read_file", "x"]), max_size=2),
            "network": st.sampled_from(["deny", [], ["host:1"]]),
            "read_scope": st.lists(PATTERN, max_size=2),
            "write_scope": st.lists(PATTERN, max_size=2),
            "credentials": st.just(["KEY"]),
            "delegation": st.sampled_from(["deny", {"max_depth": 1, "max_children": 2}]),
            "effects": st.sampled_from(["none", "declared", "possible"]),
        },
    ),
    budget=st.fixed_dictionaries(
        {}, optional={"max_turns": st.integers(1, 9), "max_cost_usd": MICROS.map(lambda micros: micros / 1_000_000)}
    ),
    limits=st.fixed_dictionaries(
        {}, optional={"deadline_s": st.sampled_from([1, 2.5]), "max_repairs": st.integers(0, 3)}
    ),
    required_evidence=st.lists(
        st.sampled_from(["x", {"name": "y", "kind": "file", "min_origin": "observed", "schema": "s.json"}]),
        unique_by=str,
    ),
    acceptance=st.lists(
        st.sampled_from([{"cel": "true"}, {"sections": ["A"], "of": "r.md", "when": "end"}, {"approval": "Well?"}]),
        max_size=2,
    ),
)


@given(TERMS)
def test_terms_come_back_from_their_canonical_form_with_the_same_digest(own: Terms) -> None:
    again = Terms.from_canonical(json.loads(json.dumps(own.canonical())))
    assert again == own
    assert again.digest == own.digest


@given(TERMS, st.none() | st.integers(1, 9))
def test_a_rendered_contract_loads_as_the_same_terms_and_binding(own: Terms, generation: int | None) -> None:
    binding = BINDING.model_copy(update={"claim_generation": generation})
    rendered = render_contract(own, binding)
    loaded, bound = load(json.dumps(rendered), "c.json").split()
    assert (loaded, bound) == (own, binding)
    assert loaded.digest == own.digest
    assert render_contract(loaded, bound) == rendered


def test_a_default_is_not_written_into_the_document_of_a_child() -> None:
    assert set(render_contract(terms(), BINDING)) == set(json.loads(PUBLISHED))
    assert render_contract(terms(budget={"max_turns": None}), BINDING)["budget"] == {}
    assert render_contract(terms(needs=[{"task": "a", "partial_ok": False}]), BINDING)["needs"] == ["a"]
    assert "limits" not in render_contract(terms(limits={"max_claims": 3}), BINDING)
    assert render_contract(terms(limits={"max_claims": 4}), BINDING)["limits"] == {"max_claims": 4}


@pytest.mark.parametrize(
    ("usd", "micros"),
    [(0, 0), (0.8, 800_000), (1, 1_000_000), (0.000001, 1), (2.675, 2_675_000), (0.1 + 0.2 - 0.0, None), (1e9, 10**15)],
)
def test_money_is_whole_micro_dollars(usd: float, micros: int | None) -> None:
    if micros is None:  # 0.30000000000000004 is no sum of money
        with pytest.raises(ValidationError, match="at most six decimals"):
            Budget(max_cost_usd=usd)
    else:
        assert Budget(max_cost_usd=usd).max_cost_micro_usd == micros


@pytest.mark.parametrize(
    "usd", [0.0000001, 0.1234567, -0.01, -1, math.nan, math.inf, -math.inf, 1e10, True, "0.8", None]
)
def test_money_that_cannot_be_counted_is_refused(usd: Any) -> None:
    if usd is None:
        assert Budget(max_cost_usd=None).max_cost_micro_usd is None  # no limit of its own is no sum
        return
    with pytest.raises(ValidationError):
        Budget(max_cost_usd=usd)


def test_money_beside_a_fault_has_its_place_in_the_file() -> None:
    with pytest.raises(BadInput, match=r"^c\.yaml:18:17: budget\.max_cost_usd: 0\.1234567: .*at most six decimals$"):
        load(PUBLISHED_YAML.replace("0.8", "0.1234567"), "c.yaml")


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**53, 1e20, "\udce9", {1, 2}, {1: 2}])
def test_inputs_that_would_not_come_back_from_the_store_as_they_were_are_refused(value: Any) -> None:
    with pytest.raises(ValidationError, match="inputs"):
        terms(inputs={"deep": {"x": [value]}})


def test_inputs_as_deep_as_a_document_may_be_are_accepted() -> None:
    text = "[" * 40 + "]" * 40
    assert terms(inputs={"deep": json.loads(text)}).digest.startswith("sha256:")


@pytest.mark.parametrize(
    "wrong",
    [
        {"task_id": "../up"},
        {"task_id": "-x"},
        {"contract_version": 0},
        {"contract_version": True},
        {"contract_version": "1"},
        {"objective": ""},
        {"resources": {"write_scope": ["../x"]}},
        {"resources": {"read_scope": ["/etc"]}},
        {"resources": {"network": "allow"}},
        {"resources": {"network": ["*"]}},
        {"resources": {"credentials": ["KEY=value"]}},
        {"resources": {"tools": ["read_file", 1]}},
        {"resources": {"delegation": {"max_depth": 0, "max_children": 1}}},
        {"agent": {"function": "no_colon"}},
        {"required_evidence": ["x", {"name": "x", "kind": "file"}]},
        {"needs": ["a", "a"]},
        {"limits": {"lease_s": 0}},
        {"limits": {"deadline_s": math.inf}},
        {"acceptance": [{}]},
        {"acceptance": [{"cel": "true", "approval": "?"}]},
        {"acceptance": [{"cel": "true", "of": "report.md"}]},
        {"schema": "coordinator/v2"},
        {"schema_version": "coordinator/v1"},
        {"isolation": None},
        {"workspace": "worktree"},
        {"agent": {}},
        {"agent": {"command": []}},
        {"agent": {"command": "python run.py"}},
        {"agent": {"command": ["a\0b"]}},
        {"agent": {"command": [1]}},
        {"agent": {"scripted": "no_colon"}},
        {"agent": {"command": ["x"], "function": "m:f"}},
        {"agent": {"scripted": "m:f", "function": "m:f"}},
        {"acceptance": [{"command": []}]},
        {"acceptance": [{"command": "pytest -q"}]},
        {"acceptance": [{"command": ["pytest"], "timeout_s": 0}]},
        {"acceptance": [{"command": ["pytest"], "timeout_s": math.inf}]},
        {"acceptance": [{"command": ["pytest"], "env": {"A=B": "c"}}]},
        {"acceptance": [{"command": ["pytest"], "env": {"A": 1}}]},
        {"acceptance": [{"command": ["pytest"], "of": "report.md"}]},
        {"acceptance": [{"command": ["pytest"], "cel": "true"}]},
        {"acceptance": [{"cel": "true", "timeout_s": 5}]},
        {"acceptance": [{"cel": "true", "env": {"A": "b"}}]},
        {"acceptance": [{"paths_unchanged": []}]},
        {"acceptance": [{"paths_unchanged": ["/etc"]}]},
        {"acceptance": [{"paths_unchanged": ["../x"]}]},
        {"acceptance": [{"paths_unchanged": ["tests/"], "of": "x"}]},
        {"acceptance": [{"citations_resolve": ""}]},
        {"acceptance": [{"citations_resolve": ["callers"]}]},
        {"acceptance": [{"citations_resolve": "callers", "timeout_s": 5}]},
        {"surprise": 1},
    ],
)
def test_terms_that_could_be_misread_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        terms(**wrong)


def test_terms_do_not_change_after_they_were_checked() -> None:
    own = terms()
    with pytest.raises(ValidationError):
        own.objective = "Another."


def test_delegation_is_a_number_of_levels_and_children() -> None:
    own = terms(resources={"delegation": {"max_depth": 2, "max_children": 3}})
    assert own.resources.delegation == Delegation(max_depth=2, max_children=3)


@pytest.mark.parametrize("workspace", ["none", "directory", "clone"])
@pytest.mark.parametrize(
    ("agent", "kind", "file", "label"),
    [
        ({"function": "audit.py:find"}, "function", "audit.py", "audit.py:find"),
        ({"scripted": "play.py:work"}, "scripted", "play.py", "play.py:work"),
        ({"scripted": "pkg.mod:work"}, "scripted", None, "pkg.mod:work"),
        ({"command": ["python", "run it.py", ""]}, "command", None, "python 'run it.py' ''"),
    ],
)
def test_every_kind_of_agent_and_workspace_is_kept_in_the_canonical_form(
    agent: dict[str, Any], kind: str, file: str | None, label: str, workspace: str
) -> None:
    own = terms(agent=agent, workspace=workspace)
    assert own.agent is not None
    assert (own.agent.kind, own.agent.file, own.agent.label()) == (kind, file, label)
    assert own.canonical()["agent"] == agent
    assert Terms.from_canonical(json.loads(json.dumps(own.canonical()))) == own


@pytest.mark.parametrize(
    ("check", "kind", "label"),
    [
        ({"command": ["python", "-m", "pytest", "-q"]}, "command", "command python -m pytest -q"),
        ({"command": ["a b", ""], "timeout_s": 0.5, "env": {"A": "", "_b": "c"}}, "command", "command 'a b' ''"),
        ({"command": ["x"], "when": "end"}, "command", "command x"),
        ({"paths_unchanged": ["tests/", "**/conftest.py"]}, "paths_unchanged", "paths_unchanged"),
        ({"citations_resolve": "caller inventory"}, "citations_resolve", "citations_resolve of caller inventory"),
    ],
)
def test_every_kind_of_check_says_as_much_as_was_written_and_no_more(
    check: dict[str, Any], kind: str, label: str
) -> None:
    own = terms(acceptance=[check])
    assert (own.acceptance[0].kind, own.acceptance[0].label()) == (kind, label)
    assert own.canonical()["acceptance"] == [check]
    assert Terms.from_canonical(own.canonical()).digest == own.digest
    assert (
        terms(acceptance=[{"command": ["x"], "timeout_s": 60}]).digest == terms(acceptance=[{"command": ["x"]}]).digest
    )
    assert (
        terms(acceptance=[{"command": ["x"], "timeout_s": 61}]).digest != terms(acceptance=[{"command": ["x"]}]).digest
    )
