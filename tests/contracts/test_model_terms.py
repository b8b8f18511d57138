"""Terms for models: every new key is read strictly, and terms that use none of them keep their digests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from contracts.canonical import digest_of
from contracts.delegation import Binding, DelegationContract, render_contract
from contracts.errors import BadInput
from contracts.model_specs import mcp_server_of, servers_used
from contracts.orchestration import Orchestration, Task
from contracts.prices import Price
from contracts.schemas import json_schema
from contracts.terms import AgentSpec, AnthropicSpec, Budget, OpenAISpec, Terms
from contracts.turns import ModelUsage

BASE: dict[str, Any] = {"task_id": "a", "contract_version": 1, "objective": "o"}
OLD: list[tuple[dict[str, Any], str]] = [
    ({}, "sha256:fc4f962cbbda51bccb53cc81bb1745754e5b3f16543da0351ffedd2815f3fe72"),
    (
        {
            "agent": {"function": "m:f"}, "budget": {"max_turns": 3, "max_cost_usd": 0.8}, "workspace": "clone",
            "resources": {
                "tools": ["read_file"], "effects": "possible", "delegation": {"max_depth": 1, "max_children": 2},
            },
            "limits": {"lease_s": 3}, "inputs": {"a": 1}, "needs": ["b"], "acceptance": [{"cel": "true"}],
        },
        "sha256:513ff62969ca580a983fbb2e51bf8987969aa683da0a059c39a3c615c24bbf4a",
    ),
    ({"agent": {"command": ["sh", "x"]}}, "sha256:d9e2063863215fcdaf9f1afe25f9298b3f64ffaa07d2900f59afba5252836a1e"),
]  # fmt: skip
NEW: dict[str, Any] = {
    "agent": {
        "openai": {
            "model": "qwen3:0.6b", "base_url": "http://127.0.0.1:11434/v1", "api": "chat", "api_key_env": None,
            "max_output_tokens": 512, "temperature": 0.5, "stream": False, "timeout_s": 30, "instructions": "Be brief.",
        }
    },
    "resources": {
        "tools": ["run_command", "mcp__files__read"], "commands": [["python", "-m", "pytest"], ["make"]],
        "models": ["other"], "needs_approval": ["mcp__files__read"],
    },
    "budget": {"max_cost_usd": 0.5, "max_tokens": 1000, "max_tool_calls": 7, "max_wall_s": 9.5},
    "on_takeover": "continue",
    "prices": {"qwen3:0.6b": {"input_mtok_usd": 0.1, "output_mtok_usd": 2, "cached_input_mtok_usd": 0.0375}},
    "mcp_servers": {"files": {"command": ["server", "--x"], "credentials": ["FILES_KEY"]}},
}  # fmt: skip


def terms(**more: Any) -> Terms:
    return Terms.model_validate({**BASE, **more})


@pytest.mark.parametrize(("fields", "digest"), OLD)
def test_terms_without_the_new_keys_keep_their_digest(fields: dict[str, Any], digest: str) -> None:
    assert terms(**fields).digest == digest
    said_by_default = {"on_takeover": "fresh", "prices": {}, "mcp_servers": {}}
    budget = {**fields.get("budget", {}), "max_tokens": None, "max_tool_calls": None, "max_wall_s": None}
    resources = {**fields.get("resources", {}), "commands": [], "models": [], "needs_approval": []}
    assert terms(**{**fields, **said_by_default, "budget": budget, "resources": resources}).digest == digest


def test_an_orchestration_without_the_new_keys_means_the_same_content_as_before() -> None:
    value = {
        "name": "n", "objective": "o", "source": ".", "budget": {"max_cost_usd": 2},
        "defaults": {"isolation": "none", "resources": {"tools": ["read_file"]}},
        "tasks": {"a": {"objective": "o", "agent": {"scripted": "m:f"}}},
    }  # fmt: skip
    digest = digest_of(Orchestration.model_validate(value).document())
    assert digest == "sha256:64c121484d34fb2d98dff6cbc97566a7f743e5e5c0310aaa5575b76ae686f092"


def test_terms_with_every_new_key_come_back_from_their_canonical_form() -> None:
    full = terms(**NEW)
    canonical = full.canonical()
    assert Terms.from_canonical(canonical) == full
    assert Terms.from_canonical(canonical).digest == full.digest
    assert canonical["budget"] == {
        "max_turns": None, "max_cost_micro_usd": 500_000, "max_tokens": 1000, "max_tool_calls": 7, "max_wall_s": 9.5,
    }  # fmt: skip
    assert canonical["prices"]["qwen3:0.6b"] == {
        "input_mtok_micro_usd": 100_000, "output_mtok_micro_usd": 2_000_000, "cached_input_mtok_micro_usd": 37_500,
    }  # fmt: skip
    assert canonical["agent"]["openai"]["api_key_env"] is None  # not the default, which null would become


@pytest.mark.parametrize(
    "change",
    [
        {"on_takeover": "fresh"},
        {"prices": {}},
        {"mcp_servers": {}},
        {"budget": {**NEW["budget"], "max_tokens": 1001}},
        {"budget": {**NEW["budget"], "max_wall_s": None}},
        {"resources": {**NEW["resources"], "commands": [["make"]]}},
        {"resources": {**NEW["resources"], "models": []}},
        {"resources": {**NEW["resources"], "needs_approval": []}},
        {"resources": {**NEW["resources"], "needs_approval": ["run_command"]}},
        {"agent": {"openai": {**NEW["agent"]["openai"], "api_key_env": "OPENAI_API_KEY"}}},
        {"agent": {"openai": {**NEW["agent"]["openai"], "model": "qwen3:1.7b"}}},
        {"agent": {"openai": {**NEW["agent"]["openai"], "instructions": "Be long."}}},
    ],
)
def test_every_new_key_is_in_the_digest(change: dict[str, Any]) -> None:
    assert terms(**{**NEW, **change}).digest != terms(**NEW).digest


def test_a_child_is_shown_what_is_not_default_and_the_contract_loads_again() -> None:
    binding = Binding(child_run_id="c", parent_run_id="p", delegation_id="d", parent_state_version=1)
    shown = render_contract(terms(**NEW), binding)
    assert shown["on_takeover"] == "continue"
    assert shown["mcp_servers"]["files"]["credentials"] == ["FILES_KEY"]
    assert DelegationContract.model_validate(shown).split()[0] == terms(**NEW)
    plain = render_contract(terms(), binding)
    assert not {"on_takeover", "prices", "mcp_servers"} & set(plain)
    assert not {"commands", "models", "needs_approval"} & set(plain["resources"])


@pytest.mark.parametrize(
    ("agent", "kind", "model"),
    [
        ({"anthropic": "claude-x"}, "anthropic", AnthropicSpec(model="claude-x")),
        ({"openai": {"model": "m"}}, "openai", OpenAISpec(model="m", api="responses", api_key_env="OPENAI_API_KEY")),
        ({"file": "a.md"}, "anthropic", None),
        ({"file": "a.md", "openai": {"model": "m", "api": "chat"}}, "openai", OpenAISpec(model="m", api="chat")),
    ],
)
def test_models_and_files_are_agents(agent: dict[str, Any], kind: str, model: Any) -> None:
    spec = AgentSpec.model_validate(agent)
    assert (spec.kind, spec.model, spec.reference, spec.file) == (kind, model, None, None)
    assert spec.label() == ("a.md" if model is None else model.model)
    assert AgentSpec.model_validate(spec.document()) == spec


def test_the_defaults_of_a_model_are_written_out() -> None:
    assert AgentSpec.model_validate({"anthropic": "m"}).document() == {
        "anthropic": {
            "model": "m", "max_output_tokens": 4096, "stream": True, "timeout_s": 120,
            "api_key_env": "ANTHROPIC_API_KEY",
        }
    }  # fmt: skip


FILE = """\
schema: coordinator/v1
name: n
objective: o
prices: {m: {input_mtok_usd: 1, output_mtok_usd: 2}}
mcp_servers: {s: {command: [x]}}
defaults: {isolation: none, on_takeover: continue, prices: {n: {input_mtok_usd: 3, output_mtok_usd: 4}}}
tasks:
  a: {objective: o, agent: {anthropic: m}}
  b:
    objective: o
    agent: {openai: {model: m}}
    on_takeover: fresh
    prices: {m: {input_mtok_usd: 9, output_mtok_usd: 9}}
"""


def test_prices_servers_and_policy_are_merged_from_the_run_over_defaults_to_the_task(tmp_path: Path) -> None:
    (tmp_path / "o.yaml").write_text(FILE)
    tasks = Orchestration.from_file(tmp_path / "o.yaml").tasks
    a, b = tasks["a"], tasks["b"]
    assert (a.on_takeover, b.on_takeover) == ("continue", "fresh")
    assert [a.prices[model].input_mtok_usd for model in ("m", "n")] == [1, 3]
    assert [b.prices[model].input_mtok_usd for model in ("m", "n")] == [9, 3]
    assert list(a.mcp_servers) == list(b.mcp_servers) == ["s"]


def test_a_task_in_python_that_says_a_default_has_it_over_the_files_default() -> None:
    task = Task(objective="o", agent=AgentSpec(anthropic=AnthropicSpec(model="m")), on_takeover="fresh")
    value = {"name": "n", "objective": "o", "defaults": {"on_takeover": "continue"}, "tasks": {"a": task}}
    assert Orchestration.model_validate(value).tasks["a"].on_takeover == "fresh"


@pytest.mark.parametrize(
    ("line", "place"),
    [
        (
            "  c: {objective: o, agent: {anthropic: {model: m, tempreature: 1}}}",
            "10:51: tasks.c.agent.anthropic.tempreature: unknown field",
        ),
        ("  c: {objective: o, agent: {anthropic: {}}}", "10:40: tasks.c.agent.anthropic.model: required field"),
        ("  c: {objective: o, agent: {anthropic: {model: 1.5}}}", "tasks.c.agent.anthropic.model: 1.5 is not text"),
        ("  c: {objective: o, agent: {openai: {model: m, api: x}}}", "10:53: tasks.c.agent.openai.api: 'x'"),
        ("  c: {objective: o, agent: {anthropic: {model: m, api: chat}}}", "unknown field 'api'"),
        ("  c: {objective: o, agent: {anthropic: m, openai: m}}", "found anthropic and openai"),
        ("  c: {objective: o, agent: {command: [x], file: a.md}}", "found command and file"),
        ("  c: {objective: o, agent: {openai: {model: m, base_url: 'ftp://x'}}}", "tasks.c.agent.openai.base_url"),
        ("  c: {objective: o, agent: {openai: {model: m, base_url: 'https://u:p@x'}}}", "no user, password"),
        ("  c: {objective: o, agent: {openai: {model: m, base_url: 'http://a.example/v1'}}}", "in the clear"),
        ("  c: {objective: o, agent: {openai: {model: m, base_url: 'http://x:99999'}}}", "an address is"),
        ("  c: {objective: o, agent: {openai: {model: m, stream: 'yes'}}}", "10:56: tasks.c.agent.openai.stream"),
        ("  c: {objective: o, agent: {anthropic: m}, on_takeover: resume}", "10:57: tasks.c.on_takeover: 'resume'"),
        ("  c: {objective: o, agent: {anthropic: m}, budget: {max_tokens: 0}}", "tasks.c.budget.max_tokens: 0"),
        ("  c: {objective: o, agent: {anthropic: m}, budget: {max_wall: 3}}", "did you mean 'max_wall_s'?"),
        ("  c: {objective: o, agent: {anthropic: m}, resources: {commands: [make]}}", "tasks.c.resources.commands[0]"),
        ("  c: {objective: o, agent: {anthropic: m}, resources: {commands: [[]]}}", "tasks.c.resources.commands[0]"),
        ("  c: {objective: o, agent: {anthropic: m}, mcp_servers: {a__b: {command: [x]}}}", "tasks.c.mcp_servers.a__b"),
        ("  c: {objective: o, agent: {anthropic: m}, mcp_servers: {a: {}}}", "either a command or a url"),
        (
            "  c: {objective: o, agent: {anthropic: m}, mcp_servers: {a: {command: [x], url: 'https://x'}}}",
            "either a command or a url",
        ),
        (
            "  c: {objective: o, agent: {anthropic: m}, prices: {z: {input_mtok_usd: 1}}}",
            "tasks.c.prices.z.output_mtok_usd: required field is missing",
        ),
        (
            "  c: {objective: o, agent: {anthropic: m}, prices: {m: {input_mtok_usd: 1.0000001, output_mtok_usd: 1}}}",
            "at most six decimals",
        ),
    ],
)
def test_what_is_wrong_with_a_new_key_is_named_where_it_stands(tmp_path: Path, line: str, place: str) -> None:
    (tmp_path / "o.yaml").write_text(FILE.rpartition("  b:")[0] + "\n" + line + "\n")
    with pytest.raises(BadInput) as wrong:
        Orchestration.from_file(tmp_path / "o.yaml")
    [fault] = wrong.value.faults
    assert place in str(fault)
    assert str(fault).startswith(f"{tmp_path / 'o.yaml'}:10:")


def test_a_wrong_price_of_the_run_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "o.yaml").write_text(FILE.replace("prices: {m: {input_mtok_usd: 1,", "prices: {m: {input_mtok_usd: x,"))
    with pytest.raises(BadInput) as wrong:
        Orchestration.from_file(tmp_path / "o.yaml")
    assert [(fault.path, fault.line) for fault in wrong.value.faults] == [("prices.m.input_mtok_usd", 4)]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8080/v1", "http://localhost:11434/v1", "http://[::1]:1/v1", "http://10.0.0.7/v1",
        "http://ollama:11434/v1", "https://api.deepseek.com", "https://models.example:8443/a/b/",
    ],
)  # fmt: skip
def test_servers_of_ones_own_and_of_others_can_be_named(url: str) -> None:
    assert OpenAISpec(model="m", base_url=url).base_url == url


def test_the_schema_takes_what_the_models_take(tmp_path: Path) -> None:
    task = {key: value for key, value in NEW.items() if key != "agent"}
    agents: list[dict[str, Any]] = [NEW["agent"], {"anthropic": "m"}, {"file": "a.md"}, {"file": "a.md", "openai": "m"}]
    value = {
        "schema": "coordinator/v1", "name": "n", "objective": "o", "prices": NEW["prices"],
        "mcp_servers": {"web": {"url": "https://x.example/mcp"}}, "defaults": {"on_takeover": "continue"},
        "tasks": {f"t{number}": {"objective": "o", "agent": agent, **task} for number, agent in enumerate(agents)},
    }  # fmt: skip
    validator = Draft202012Validator(json_schema("orchestration"))
    assert [error.message for error in validator.iter_errors(value)] == []
    document = Orchestration.model_validate(value).document()
    assert [error.message for error in validator.iter_errors(document)] == []
    value["tasks"] = {"a": {"objective": "o", "agent": {"anthropic": {"model": "m", "surprise": 1}}}}
    assert not validator.is_valid(value)


@pytest.mark.parametrize(
    ("tool", "server"),
    [
        ("read_file", None),
        ("mcp__github__get_issue", "github"),
        ("mcp__a__b__c", "a"),
        ("mcp__x", ""),
        ("mcp__x__", ""),
        ("mcp____y", ""),
    ],
)
def test_a_tool_of_a_server_is_named_in_one_way(tool: str, server: str | None) -> None:
    assert mcp_server_of(tool) == server


def test_only_whole_names_of_tools_use_a_server() -> None:
    assert servers_used(["read_file", "mcp__a__x", "mcp__b", "mcp__a__y"]) == {"a"}


COUNT = st.integers(0, 10_000_000)
MONEY = st.integers(0, 100_000_000).map(lambda micros: micros / 1_000_000)
PRICES = st.builds(
    Price,
    input_mtok_usd=MONEY,
    output_mtok_usd=MONEY,
    cached_input_mtok_usd=st.none() | MONEY,
    cache_write_mtok_usd=st.none() | MONEY,
)


@given(PRICES, st.tuples(COUNT, COUNT, COUNT), COUNT)
def test_no_call_costs_more_than_its_worst_case(price: Price, parts: tuple[int, int, int], output: int) -> None:
    plain, cached, written = parts
    usage = ModelUsage(
        input_tokens=plain + cached + written, cached_input_tokens=cached, cache_write_tokens=written,
        output_tokens=output,
    )  # fmt: skip
    cost = price.cost_micro_usd(usage)
    assert 0 <= cost <= price.worst_micro_usd(usage.input_tokens, output)


@given(PRICES)
def test_prices_come_back_from_their_canonical_form(price: Price) -> None:
    assert Price.from_canonical(price.canonical()) == price


def test_a_part_of_a_micro_dollar_is_a_whole_one() -> None:
    price = Price(input_mtok_usd=0.25, output_mtok_usd=10, cached_input_mtok_usd=0.025)
    assert price.cost_micro_usd(ModelUsage(input_tokens=1, output_tokens=0)) == 1
    assert price.cost_micro_usd(ModelUsage(input_tokens=1_000_000, output_tokens=100)) == 251_000
    usage = ModelUsage(input_tokens=1_000_000, cached_input_tokens=1_000_000, output_tokens=0)
    assert price.cost_micro_usd(usage) == 25_000


def test_a_budget_without_numbers_is_no_budget() -> None:
    for field in Budget.model_fields:
        assert getattr(Budget(), field) is None
        with pytest.raises(ValidationError):
            Budget.model_validate({field: -1})
