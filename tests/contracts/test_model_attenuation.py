"""What a child may hand on of models, commands, servers, checks and limits: never more than it has."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.attenuation import Grant, attenuation_faults
from contracts.orchestration import Task
from contracts.terms import Terms

SERVER = {"command": ["files"], "credentials": ["FILES_KEY"]}
PARENT: dict[str, Any] = {
    "objective": "o",
    "agent": {"anthropic": {"model": "big", "instructions": "Plan."}},
    "isolation": "none",
    "resources": {
        "tools": ["read_file", "run_command", "mcp__files__read"], "commands": [["python", "-m", "pytest"], ["make"]],
        "models": ["small"], "delegation": {"max_depth": 1, "max_children": 3},
    },
    "budget": {"max_cost_usd": 1.0, "max_tokens": 1000, "max_tool_calls": 10, "max_wall_s": 60, "max_turns": 5},
    "mcp_servers": {"files": SERVER},
    "acceptance": [{"command": ["./check", "-v"], "env": {"A": "b"}}, {"json_schema": "out.json"}],
    "required_evidence": [{"name": "e", "schema": "e.json"}],
}  # fmt: skip
CHILD: dict[str, Any] = {
    "objective": "o",
    "agent": {"anthropic": {"model": "small", "temperature": 1}},
    "isolation": "none",
    "resources": {"tools": ["read_file"]},
    "budget": PARENT["budget"],
    "acceptance": [{"cel": "true"}],
}


def faults(child: dict[str, Any], parent: dict[str, Any] = PARENT) -> list[str]:
    """Paths of what goes beyond; the parent as issued terms, the child as proposed."""
    has = Grant.of(Terms.model_validate({"task_id": "p", "contract_version": 1, **parent}))
    return [fault.path for fault in attenuation_faults(has, Grant.of(Task.model_validate({**CHILD, **child})))]


@pytest.mark.parametrize(
    "narrower",
    [
        {},
        {"agent": {"anthropic": {"model": "big", "instructions": "Work."}}},
        {"agent": PARENT["agent"]},
        {"resources": {"tools": ["run_command"], "commands": [["make"], ["make", "test"]]}},
        {"resources": {"commands": [["python", "-m", "pytest", "-x"]]}},
        {"resources": {"models": ["small", "big"]}},
        {"resources": {"tools": ["mcp__files__read"]}, "mcp_servers": {"files": SERVER}},
        {"mcp_servers": {"other": {"command": ["never", "started"]}}},
        {"budget": {"max_cost_usd": 0, "max_tokens": 1, "max_tool_calls": 1, "max_wall_s": 0.5, "max_turns": 1}},
        {"acceptance": [{"command": ["make", "test"]}, {"command": ["./check", "-v"], "env": {"A": "b"}}]},
        {"acceptance": [{"json_schema": "out.json"}, {"json_schema": "e.json"}]},
        {"required_evidence": [{"name": "other", "schema": "out.json"}]},
    ],
)
def test_a_child_within_its_parents_reach_is_accepted(narrower: dict[str, Any]) -> None:
    assert faults(narrower) == []


def budget(**more: Any) -> dict[str, Any]:
    return {"budget": {**PARENT["budget"], **more}}


@pytest.mark.parametrize(
    ("wider", "path"),
    [
        ({"agent": {"anthropic": "huge"}}, "agent"),
        ({"agent": {"openai": "small"}}, "agent"),
        ({"agent": {"anthropic": {"model": "small", "base_url": "https://evil.example"}}}, "agent"),
        ({"agent": {"anthropic": {"model": "small", "api_key_env": "AWS_SECRET_ACCESS_KEY"}}}, "agent"),
        ({"agent": {"command": ["sh", "-c", "anything"]}}, "agent"),
        ({"agent": {"function": "os:system"}}, "agent"),
        ({"agent": {"file": "/etc/passwd"}}, "agent"),
        ({"agent": {"file": "/etc/passwd", "anthropic": "small"}}, "agent"),
        ({"resources": {"models": ["huge"]}}, "models"),
        ({"resources": {"commands": [["python"]]}}, "commands"),
        ({"resources": {"commands": [["python", "-c", "x"]]}}, "commands"),
        ({"resources": {"commands": [["makes"]]}}, "commands"),
        ({"resources": {"tools": ["delegate"]}}, "tools"),
        ({"resources": {"tools": ["mcp__files__write"]}, "mcp_servers": {"files": SERVER}}, "tools"),
        ({"resources": {"tools": ["mcp__files__read"]}}, "mcp_servers.files"),
        (
            {"resources": {"tools": ["mcp__files__read"]}, "mcp_servers": {"files": {"command": ["evil"]}}},
            "mcp_servers.files",
        ),
        (
            {"resources": {"tools": ["mcp__files__read"]}, "mcp_servers": {"files": {**SERVER, "credentials": ["X"]}}},
            "mcp_servers.files",
        ),
        (budget(max_tokens=1001), "budget.max_tokens"),
        (budget(max_tokens=None), "budget.max_tokens"),
        (budget(max_tool_calls=11), "budget.max_tool_calls"),
        (budget(max_wall_s=60.5), "budget.max_wall_s"),
        ({"acceptance": [{"command": ["sh", "-c", "x"]}]}, "acceptance[0].command"),
        ({"acceptance": [{"command": ["make"], "env": {"MAKEFLAGS": "--eval=x"}}]}, "acceptance[0].command"),
        ({"acceptance": [{"command": ["./check", "-v"]}]}, "acceptance[0].command"),
        ({"acceptance": [{"json_schema": "/etc/passwd"}]}, "acceptance"),
        ({"required_evidence": [{"name": "e", "schema": "../x.json"}]}, "acceptance"),
    ],
)
def test_whatever_goes_beyond_the_parents_reach_is_refused_and_named(wider: dict[str, Any], path: str) -> None:
    assert faults(wider) == [f"resources.{path}"]


APPROVED = {
    **PARENT,
    "resources": {**PARENT["resources"], "effects": "declared", "needs_approval": ["run_command", "mcp__files__read"]},
}  # fmt: skip
MAKES: dict[str, Any] = {"tools": ["run_command"], "commands": [["make"]], "effects": "declared"}


@pytest.mark.parametrize(
    ("child", "beyond"),
    [
        ({}, []),
        ({"resources": {**MAKES, "needs_approval": ["run_command"]}}, []),
        ({"resources": {**MAKES, "needs_approval": ["run_command", "mcp__files__read"]}}, []),
        ({"resources": {"commands": [["make"]]}}, []),
        ({"resources": MAKES}, ["needs_approval"]),
        ({"resources": {**MAKES, "needs_approval": ["mcp__files__read"]}}, ["needs_approval"]),
        (
            {"resources": {"tools": ["mcp__files__read"], "effects": "declared"}, "mcp_servers": {"files": SERVER}},
            ["needs_approval"],
        ),
        # The gate would run it for the parent, and nobody would have said yes.
        ({"acceptance": [{"command": ["make", "test"]}]}, ["acceptance[0].command"]),
        ({"acceptance": [{"command": ["./check", "-v"], "env": {"A": "b"}}]}, []),
    ],
)
def test_what_a_parent_needs_a_yes_for_its_children_need_one_for(child: dict[str, Any], beyond: list[str]) -> None:
    assert faults(child, APPROVED) == [f"resources.{path}" for path in beyond]


def test_a_child_may_need_a_yes_where_its_parent_needs_none() -> None:
    effects = {**PARENT, "resources": {**PARENT["resources"], "effects": "declared"}}
    assert faults({"resources": {**MAKES, "needs_approval": ["run_command"]}}, effects) == []


def test_a_parent_that_is_no_model_grants_models_where_their_providers_are() -> None:
    parent = {**PARENT, "agent": {"scripted": "play.py:work"}}
    assert faults({"agent": {"anthropic": "small"}}, parent) == []
    assert faults({"agent": {"openai": "small"}}, parent) == []
    assert faults({"agent": {"scripted": "play.py:work"}}, parent) == []
    assert faults({"agent": {"scripted": "play.py:other"}}, parent) == ["resources.agent"]
    elsewhere = {"openai": {"model": "small", "base_url": "https://evil.example"}}
    assert faults({"agent": elsewhere}, parent) == ["resources.agent"]


PRICE = {"input_mtok_usd": 3, "output_mtok_usd": 15}
CHEAPER = {"input_mtok_usd": 3, "output_mtok_usd": 14.999999}
BIG = {"agent": PARENT["agent"]}


@pytest.mark.parametrize(
    ("child", "stated", "beyond"),
    [
        ({"prices": {"small": PRICE}}, {"small": PRICE, "big": PRICE}, []),
        (
            {"prices": {"small": {**PRICE, "cached_input_mtok_usd": None}, "big": PRICE}},
            {"small": PRICE, "big": PRICE},
            [],
        ),
        ({}, {"big": PRICE}, []),
        ({**BIG, "prices": {"big": PRICE}}, {"big": PRICE}, []),
        ({"prices": {"small": CHEAPER}}, {"small": PRICE}, ["small"]),
        ({"prices": {"small": {**PRICE, "cached_input_mtok_usd": 0}}}, {"small": PRICE}, ["small"]),
        ({"prices": {"small": {"input_mtok_usd": 0, "output_mtok_usd": 0}}}, {}, ["small"]),
        ({}, {"small": PRICE}, ["small"]),
        ({"prices": {"small": PRICE, "big": CHEAPER}}, {"small": PRICE, "big": PRICE}, ["big"]),
        ({"resources": {"models": ["big"]}, "prices": {"small": PRICE}}, {"small": PRICE, "big": PRICE}, ["big"]),
    ],
)
def test_a_model_costs_a_child_what_it_costs_its_parent(
    child: dict[str, Any], stated: dict[str, Any], beyond: list[str]
) -> None:
    assert faults(child, {**PARENT, "prices": stated}) == [f"resources.prices.{model}" for model in beyond]


def test_a_program_states_prices_where_its_grant_states_none() -> None:
    def beyond(own: dict[str, Any], **granted: Any) -> list[str]:
        program = Grant.model_validate({"isolation": "none", "resources": PARENT["resources"], **granted})
        task = Task.model_validate({**CHILD, "budget": {}, "prices": own})
        return [fault.path for fault in attenuation_faults(program, Grant.of(task))]

    assert beyond({"small": PRICE}) == []
    assert beyond({"small": PRICE}, prices={"small": PRICE}) == []
    assert beyond({"small": CHEAPER}, prices={"small": PRICE}) == ["resources.prices.small"]


def test_a_program_names_agents_and_checks_itself_but_its_grant_limits_models() -> None:
    program = Grant.model_validate({"isolation": "none", "resources": {"tools": ["read_file"], "models": ["small"]}})

    def beyond(**more: Any) -> list[str]:
        task = Task.model_validate({**CHILD, "budget": {}, **more})
        return [fault.path for fault in attenuation_faults(program, Grant.of(task))]

    assert beyond(agent={"function": "m:f"}, acceptance=[{"command": ["any"]}]) == []
    assert beyond(agent={"openai": {"model": "small", "base_url": "http://localhost:1"}}) == []
    assert beyond(agent={"anthropic": "big"}) == ["resources.agent"]
