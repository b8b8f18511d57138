"""What a contract for a model must not leave open, and what is said of it and not refused."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.lint import LintReport, lint_orchestration
from contracts.orchestration import Orchestration

CHECK = {"cel": "output.n > 0"}
S = {"s": {"command": ["s"]}}
DELEGATION = {"max_depth": 1, "max_children": 2}
ASKS: dict[str, Any] = {
    "tools": ["run_command"], "commands": [["make"]], "effects": "declared", "needs_approval": ["run_command"],
}  # fmt: skip


def task(**more: Any) -> dict[str, Any]:
    return {
        "objective": "o", "agent": {"anthropic": "m"}, "isolation": "none", "acceptance": [CHECK],
        "budget": {"max_cost_usd": 1}, "workspace": "clone", **more,
    }  # fmt: skip


def lint(one: dict[str, Any], **more: Any) -> LintReport:
    return lint_orchestration(
        Orchestration.model_validate({"name": "n", "objective": "o", "tasks": {"a": one}, **more})
    )


@pytest.mark.parametrize(
    "accepted",
    [
        task(),
        task(agent={"openai": {"model": "m", "base_url": "http://localhost:1/v1", "api": "chat"}}),
        task(resources={"tools": ["run_command"], "commands": [["make"]], "effects": "declared"}),
        task(resources={"tools": ["run_command"], "commands": [["make"]], "effects": "possible"}),
        task(resources={"tools": ["delegate", "request_approval"], "delegation": DELEGATION}),
        task(resources={"tools": ["delegate"], "delegation": DELEGATION}, agent={"scripted": "m:f"}),
        task(resources={"tools": ["mcp__s__x"], "effects": "declared"}, mcp_servers={"s": {"command": ["s"]}}),
        task(resources={"tools": ["mcp__s__" + "x" * 56], "effects": "declared"}, mcp_servers=S),
        task(resources={"tools": ["mcp__s__a.b"], "effects": "declared"}, mcp_servers=S, agent={"scripted": "m:f"}),
        task(resources={"effects": "declared"}, agent={"scripted": "m:f"}),
        task(resources=ASKS),
        task(resources=ASKS, agent={"scripted": "m:f"}),
        task(resources=ASKS, agent={"function": "m:f"}),
        task(resources={**ASKS, "needs_approval": []}, agent={"function": "m:f"}),
        task(
            resources={**ASKS, "tools": ["mcp__s__x"], "needs_approval": ["mcp__s__x"]}, mcp_servers=S, workspace="none"
        ),
        task(budget={"max_turns": 3}),
        task(budget={"max_tokens": 3, "max_tool_calls": 4, "max_wall_s": 5}),
        task(resources={"tools": ["request_approval"]}, workspace="none"),
    ],
)
def test_what_can_be_enforced_is_accepted_without_a_word(accepted: dict[str, Any]) -> None:
    report = lint(accepted)
    assert (report.errors, report.warnings) == ([], [])


@pytest.mark.parametrize(
    ("refused", "faults"),
    [
        (
            task(acceptance=[]),
            ["tasks.a.acceptance: nothing here can be checked, add a check, or evidence with min_origin observed or "
             "verified"],
        ),
        (
            task(resources={"tools": ["run_command"], "effects": "declared"}),
            ["tasks.a.resources.commands: run_command is granted, but no command is, add 'commands: [[python, -m, "
             "pytest]]', or drop run_command"],
        ),
        (
            task(resources={"tools": ["run_command"], "commands": [["x"]], "effects": "declared"}, workspace="none"),
            ["tasks.a.workspace: run_command need a workspace, and this task has none, write 'workspace: clone' or "
             "'workspace: directory'"],
        ),
        (
            task(resources={"tools": ["delegate"]}),
            ["tasks.a.resources.delegation: delegate is granted, but delegation is denied, add 'delegation: "
             "{max_depth: 1, max_children: 5}', or drop delegate"],
        ),
        (
            task(resources={"delegation": DELEGATION}),
            ["tasks.a.resources.delegation: a child delegates by the tool delegate, which only a model or a scripted "
             "child can call, add 'delegate' to its tools"],
        ),
        (
            task(resources={"tools": ["delegate"], "delegation": DELEGATION}, agent={"command": ["x"]}),
            ["tasks.a.resources.delegation: a child delegates by the tool delegate, which only a model or a scripted "
             "child can call, write 'delegation: deny'"],
        ),
        (
            task(resources={"tools": ["mcp__s__x", "mcp__s"], "effects": "declared"}),
            ["tasks.a.resources.tools[0]: no server of tools is called 's', add 'mcp_servers: {s: {command: "
             "[PROGRAM]}}'", "tasks.a.resources.tools[1]: 'mcp__s' names no server and tool, write mcp__SERVER__TOOL"],
        ),
        (
            task(resources={"tools": ["mcp__s__" + "x" * 57, "mcp__s__a.b"], "effects": "declared"}, mcp_servers=S),
            [f"tasks.a.resources.tools[0]: models cannot be offered {'mcp__s__' + 'x' * 57!r}: such a name has at most "
             "64 letters, digits, _ and -, give its server a shorter name, or drop the tool",
             "tasks.a.resources.tools[1]: models cannot be offered 'mcp__s__a.b': such a name has at most 64 letters, "
             "digits, _ and -, give its server a shorter name, or drop the tool"],
        ),
        (
            task(resources={**ASKS, "effects": "possible"}),
            ["tasks.a.resources.effects: a call that waits for a person's yes is an operation, and the effects are "
             "'possible', write 'effects: declared'"],
        ),
        (
            task(resources={**ASKS, "tools": ["run_command", "write_file"],
                            "needs_approval": ["run_command", "write_file", "mcp__s__x", "nonsense"]}),
            ["tasks.a.resources.needs_approval[1]: 'write_file' has no effect outside that a person could be asked "
             "about, name run_command or tools of servers, mcp__SERVER__TOOL",
             "tasks.a.resources.needs_approval[2]: 'mcp__s__x' is not granted (granted: run_command, write_file), add "
             "it to 'tools', or drop it here",
             "tasks.a.resources.needs_approval[3]: 'nonsense' has no effect outside that a person could be asked "
             "about, name run_command or tools of servers, mcp__SERVER__TOOL"],
        ),
        (
            task(resources={**ASKS, "effects": "possible"}, agent={"command": ["x"]}),
            ["tasks.a.resources.needs_approval: people are asked about calls of tools, and this agent is a program of "
             "its own, which calls none, drop it, or let a model or a script do this"],
        ),
        (
            task(budget={"max_tokens": 11}),
            ["tasks.a.budget.max_tokens: 11 goes beyond the budget of the run, at most 10"],
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused_by_name(refused: dict[str, Any], faults: list[str]) -> None:
    assert [str(fault) for fault in lint(refused, budget={"max_tokens": 10}).errors] == faults


@pytest.mark.parametrize("limit", [{"max_wall_s": 5}, {"max_tool_calls": 5}])
def test_a_limit_of_one_attempt_cannot_be_that_of_a_run(limit: dict[str, Any]) -> None:
    [fault] = lint(task(), budget=limit).errors
    assert fault.path == f"budget.{next(iter(limit))}"


@pytest.mark.parametrize(
    ("noted", "path"),
    [
        (task(resources={"tools": ["run_command"], "commands": [["make"]]}), "tasks.a.resources.effects"),
        (task(resources={"tools": ["mcp__s__x"]}, mcp_servers={"s": {"command": ["s"]}}), "tasks.a.resources.effects"),
        (task(budget={}), "tasks.a.budget"),
        (
            task(
                acceptance=[],
                resources={"tools": ["read_file"]},
                required_evidence=[{"name": "x", "kind": "file", "min_origin": "observed"}],
            ),
            "tasks.a.acceptance",
        ),
    ],
)
def test_what_may_be_meant_so_is_said_and_not_refused(noted: dict[str, Any], path: str) -> None:
    report = lint(noted)
    assert (report.errors, [fault.path for fault in report.warnings]) == ([], [path])


def test_a_budget_of_the_run_bounds_a_model_too() -> None:
    assert lint(task(budget={}), budget={"max_cost_usd": 1}).warnings == []
