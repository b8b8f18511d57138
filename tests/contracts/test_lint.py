"""What is wrong with an orchestration although its form is right: all of it at once; and what is right, left alone."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from contracts.checks import CHECK_KINDS
from contracts.delegation import DelegationContract
from contracts.errors import Fault
from contracts.evidence import EVIDENCE_TABLE, EvidenceItem, Origin
from contracts.lint import find_circles, lint_contract, lint_orchestration, overlapping_tasks
from contracts.orchestration import Orchestration
from contracts.terms import AGENT_KINDS
from contracts.tools import TOOLS

AGENT = {"function": "work.py:work"}
CHECK = {"cel": "output.n > 0"}
READING = ["list_files", "read_file", "search_code"]
KNOWN = (
    "known: list_files, read_file, search_code, write_file, edit_file, git_diff, run_command, request_approval, "
    "delegate, and mcp__SERVER__TOOL"
)
UNCHECKED = "acceptance: nothing here can be checked, add a check, or evidence with min_origin observed or verified"


def task(**more: Any) -> dict[str, Any]:
    return {"objective": "o", "agent": AGENT, "isolation": "none", "acceptance": [CHECK], **more}


def work(tasks: dict[str, Any], **more: Any) -> Orchestration:
    return Orchestration.model_validate({"name": "n", "objective": "o", "tasks": tasks, **more})


def errors(tasks: dict[str, Any], **more: Any) -> list[str]:
    return [str(fault) for fault in lint_orchestration(work(tasks, **more)).errors]


def warnings(tasks: dict[str, Any]) -> list[Fault]:
    report = lint_orchestration(work(tasks))
    assert report.errors == []
    return report.warnings


def evidence(kind: str, min_origin: str, *tools: str, **more: Any) -> dict[str, Any]:
    owed = {"name": "x", "kind": kind, "min_origin": min_origin}
    return task(**{"acceptance": [], "required_evidence": [owed], "resources": {"tools": list(tools)}, **more})


@pytest.mark.parametrize(
    "accepted",
    [
        task(),
        task(acceptance=[{"approval": "Well?"}]),
        task(acceptance=[{"sections": ["A"], "of": "a.md", "when": "end"}]),
        task(acceptance=[{"json_schema": "s.json"}]),
        task(acceptance=[{"cel": "evidence.exists(e, e.kind == 'note') && has(output.x) && contract.task_id != 'x'"}]),
        task(required_evidence=["a note", {"name": "c", "kind": "command"}, {"name": "o", "kind": "output"}]),
        evidence("artifact", "observed"),
        evidence("artifact", "verified"),
        evidence("file", "observed", "read_file"),
        evidence("file", "verified", "list_files", "read_file"),
        evidence("citation", "observed", "search_code"),
        evidence("citation", "observed", "read_file"),
        evidence("citation", "verified", acceptance=[{"citations_resolve": "x"}]),
        evidence("citation", "observed", acceptance=[{"citations_resolve": "x"}]),
        evidence("command", "verified", acceptance=[{"command": ["pytest"]}]),
        evidence("command", "observed", acceptance=[{"command": ["pytest"]}]),
        evidence("command", "observed", agent={"command": ["run.sh"]}),
        evidence("file", "verified", workspace="clone"),
        evidence("file", "observed", "write_file", workspace="directory"),
        task(required_evidence=["x"], acceptance=[{"citations_resolve": "x"}]),
        task(acceptance=[{"command": ["pytest"], "timeout_s": 5, "env": {"A": "b"}}]),
        task(acceptance=[{"paths_unchanged": ["tests/"]}], workspace="clone"),
        task(agent={"scripted": "play.py:work"}, resources={"tools": ["write_file", "git_diff"]}, workspace="clone"),
        task(agent={"command": ["sh", "x"]}, workspace="directory", resources={"write_scope": ["out/"]}),
        task(resources={"tools": READING, "effects": "possible", "network": ["a.example:443"]}),
        task(
            agent={"scripted": "play.py:work"},
            resources={
                "tools": list(TOOLS),
                "commands": [["make"]],
                "delegation": {"max_depth": 1, "max_children": 1},
                "effects": "declared",
                "needs_approval": ["run_command"],
            },
            workspace="clone",
        ),
        task(budget={"max_cost_usd": 2, "max_turns": 5}),
        task(budget={"max_turns": 1}),
        task(needs=["other"]),
        task(needs=[{"task": "other", "partial_ok": True}]),
    ],
)
def test_what_can_be_launched_is_accepted(accepted: dict[str, Any]) -> None:
    budget = {"max_cost_usd": 2, "max_turns": 5}
    report = lint_orchestration(work({"a": accepted, "other": task()}, budget=budget))
    assert (report.errors, report.warnings) == ([], [])


@pytest.mark.parametrize(
    ("refused", "fault"),
    [
        (
            task(acceptance=[]),
            f"tasks.a.{UNCHECKED}",
        ),
        (
            task(acceptance=[], required_evidence=["a note"]),
            f"tasks.a.{UNCHECKED}",
        ),
        (
            evidence("file", "observed", "list_files"),
            "tasks.a.required_evidence[0]: no granted tool and no check can make file evidence observed "
            "(granted: list_files), grant edit_file or read_file or write_file",
        ),
        (
            evidence("citation", "observed"),
            "tasks.a.required_evidence[0]: no granted tool and no check can make citation evidence observed "
            "(granted: none), grant read_file or search_code, or add the check citations_resolve",
        ),
        (
            evidence("citation", "verified", *READING),
            "tasks.a.required_evidence[0]: no granted tool and no check can make citation evidence verified "
            "(granted: list_files, read_file, search_code), add the check citations_resolve",
        ),
        (
            evidence(
                "citation",
                "verified",
                required_evidence=[
                    {"name": "x", "kind": "citation", "min_origin": "verified"},
                    "y",
                ],
                acceptance=[{"citations_resolve": "y"}],
            ),
            "tasks.a.required_evidence[0]: no granted tool and no check can make citation evidence verified "
            "(granted: none), add the check citations_resolve",
        ),
        (
            evidence("command", "observed", *READING),
            "tasks.a.required_evidence[0]: no granted tool and no check can make command evidence observed "
            "(granted: list_files, read_file, search_code), grant run_command, or add the check command",
        ),
        (
            evidence("command", "verified", agent={"command": ["run.sh"]}),
            "tasks.a.required_evidence[0]: no granted tool and no check can make command evidence verified "
            "(granted: none), add the check command",
        ),
        (
            evidence("note", "observed"),
            "tasks.a.required_evidence[0]: nothing makes note evidence observed, at most claimed",
        ),
        (
            task(acceptance=[{"citations_resolve": "callers"}], required_evidence=["caller inventory"]),
            "tasks.a.acceptance[0].citations_resolve: no required evidence is called 'callers', "
            "known: caller inventory",
        ),
        (
            task(acceptance=[CHECK, {"citations_resolve": "callers"}]),
            "tasks.a.acceptance[1].citations_resolve: no required evidence is called 'callers', known: none",
        ),
        (
            task(acceptance=[{"paths_unchanged": ["tests/"]}]),
            "tasks.a.acceptance[0].paths_unchanged: without a workspace the child can change no path, "
            "give the task a workspace, or drop the check",
        ),
        (
            task(resources={"tools": ["read_file", "write_file", "git_diff"]}),
            "tasks.a.workspace: write_file, git_diff need a workspace, and this task has none, "
            "write 'workspace: clone' or 'workspace: directory'",
        ),
        (
            task(resources={"tools": ["read_file", "run_tests"]}),
            f"tasks.a.resources.tools[1]: no tool is called 'run_tests', {KNOWN}",
        ),
        (
            task(isolation="sandbox"),
            "tasks.a.isolation: there is no sandbox yet, so this isolation cannot be enforced, "
            "write 'isolation: none' and take the risk openly",
        ),
        (
            task(resources={"delegation": {"max_depth": 1, "max_children": 1}}),
            "tasks.a.resources.delegation: a child delegates by the tool delegate, which only a model or a scripted "
            "child can call, write 'delegation: deny'",
        ),
        (
            task(resources={"effects": "declared"}),
            "tasks.a.resources.effects: only calls of tools are recorded as operations, and this agent is a program "
            "of its own, write 'effects: possible'",
        ),
        (
            task(acceptance=[CHECK, {"cel": "output.n > nothing"}]),
            "tasks.a.acceptance[1].cel: 'output.n > nothing': 1:12: undeclared reference to 'nothing' "
            "(in container ''), it sees output, evidence, contract and observed",
        ),
        (
            task(acceptance=[{"cel": "output"}]),
            "tasks.a.acceptance[0].cel: 'output': it gives DYN, not a yes or no: compare it with something, "
            "it sees output, evidence, contract and observed",
        ),
        (task(needs=["othr"]), "tasks.a.needs[0]: no task is called 'othr', did you mean 'other'?"),
        (task(needs=["zzz"]), "tasks.a.needs[0]: no task is called 'zzz', known: other"),
        (task(needs=["other", "a"]), "tasks.a.needs[1]: a task cannot need itself, remove it"),
        (
            task(budget={"max_cost_usd": 2.000001}),
            "tasks.a.budget.max_cost_usd: 2.000001 goes beyond the budget of the run, at most 2.0",
        ),
        (task(budget={"max_turns": 6}), "tasks.a.budget.max_turns: 6 goes beyond the budget of the run, at most 5"),
    ],
)
def test_what_no_launch_could_make_good_is_refused_by_name(refused: dict[str, Any], fault: str) -> None:
    assert errors({"a": refused, "other": task()}, budget={"max_cost_usd": 2, "max_turns": 5}) == [fault]


def test_a_budget_without_one_of_the_run_is_free() -> None:
    assert errors({"a": task(budget={"max_cost_usd": 1000, "max_turns": 1000})}) == []


def test_a_task_that_is_there_already_may_be_needed() -> None:
    report = lint_orchestration(work({"a": task(needs=["earlier", "never"])}), known_tasks=["earlier"])
    assert [str(fault) for fault in report.errors] == ["tasks.a.needs[1]: no task is called 'never', known: none"]


def test_everything_is_said_at_once() -> None:
    found = errors(
        {
            "a": task(needs=["b", "nobody"], acceptance=[], isolation="sandbox"),
            "b": task(needs=["a"], resources={"tools": ["x", "y"]}, acceptance=[{"cel": "("}, {"cel": "1"}]),
            "c": task(needs=["c"], budget={"max_turns": 9}),
            "d": task(needs=["e"]),
            "e": task(needs=["d"]),
        },
        budget={"max_turns": 1},
    )
    assert [line.partition(": ")[0] for line in found] == [
        "tasks.a.acceptance",
        "tasks.a.isolation",
        "tasks.a.needs[1]",
        "tasks.b.resources.tools[0]",
        "tasks.b.resources.tools[1]",
        "tasks.b.acceptance[0].cel",
        "tasks.b.acceptance[1].cel",
        "tasks.c.needs[0]",
        "tasks.c.budget.max_turns",
        "tasks.a.needs",
        "tasks.d.needs",
    ]


def test_a_circle_is_named_from_dependent_to_need_from_the_first_task_on() -> None:
    tasks = {"x": task(), "b": task(needs=["x", "d"]), "c": task(needs=["b"]), "d": task(needs=["c"])}
    assert errors(tasks) == ["tasks.b.needs: the needs go in a circle: b -> d -> c -> b, break one of them"]


def test_circles_apart_are_all_found_and_a_long_one_is_cut() -> None:
    assert find_circles({"a": ["b"], "b": ["a"], "c": ["d", "a"], "d": ["c"], "e": ["a", "e", "gone"]}) == [
        ["a", "b"],
        ["c", "d"],
    ]
    ring = {f"t{number}": task(needs=[f"t{(number + 1) % 50}"]) for number in range(50)}
    (line,) = errors(ring)
    assert "t0 -> t1 ->" in line
    assert "… 35 more … -> t45" in line
    assert line.endswith("t49 -> t0, break one of them")


def write(*scope: str, needs: tuple[str, ...] = ()) -> dict[str, Any]:
    return task(resources={"write_scope": list(scope)}, needs=list(needs))


def test_write_scopes_that_meet_between_tasks_side_by_side_are_a_warning() -> None:
    found = warnings({"a": write("out/"), "b": write("x", "out/b.md"), "c": write("other/")})
    assert [str(fault) for fault in found] == [
        "tasks.a.resources.write_scope: its write scope meets that of 'b', "
        "so the two are never worked on at the same time"
    ]


@pytest.mark.parametrize(
    "tasks",
    [
        {"a": write("out/a"), "b": write("out/b")},
        {"a": write("out/*.md"), "b": write("out/*.json")},
        {"a": write("out/"), "b": write("out/", needs=("a",))},
        {"a": write("out/", needs=("b",)), "b": write("out/")},
        {"a": write("out/"), "m": task(needs=["a"]), "b": write("out/", needs=("m",))},
        {"a": write("out/", "out/x"), "b": task()},
    ],
)
def test_write_scopes_apart_or_one_after_the_other_are_no_warning(tasks: dict[str, Any]) -> None:
    assert warnings(tasks) == []
    assert overlapping_tasks(work(tasks).tasks) == []


def test_every_pair_that_must_not_run_together_is_found_once() -> None:
    tasks = {"a": write("**"), "b": write("x/", "y"), "c": write("x/1", "x/2"), "d": write("z", needs=("a",))}
    assert sorted(overlapping_tasks(work(tasks).tasks)) == [("a", "b"), ("a", "c"), ("b", "c")]


def test_very_many_overlaps_are_cut() -> None:
    found = warnings({f"t{number}": write("out/") for number in range(40)})
    assert len(found) == 101
    assert found[-1].message == "more write scopes meet"


@pytest.mark.parametrize("shape", ["chain", "ring", "wide", "fan in"])
def test_five_thousand_tasks_take_no_recursion_and_no_long_time(shape: str) -> None:
    count = 5000
    needs: dict[str, list[str]] = {
        "chain": [[], *([f"t{number}"] for number in range(count - 1))],
        "ring": [[f"t{(number + 1) % count}"] for number in range(count)],
        "wide": [[] for _ in range(count)],
        "fan in": [[f"t{number}" for number in range(1, count)], *([] for _ in range(count - 1))],
    }[shape]  # type: ignore[assignment]
    tasks = {
        f"t{number}": task(needs=its, resources={"write_scope": [f"out/{number}.md"]})
        for number, its in enumerate(needs)
    }
    begin = time.monotonic()
    report = lint_orchestration(work(tasks))
    assert time.monotonic() - begin < 10
    assert len(report.errors) == (shape == "ring")
    assert report.warnings == []


PUBLISHED = {
    "child_run_id": "child-204",
    "parent_run_id": "run-108",
    "delegation_id": "delegation-77",
    "contract_version": 3,
    "parent_state_version": 41,
    "task_id": "audit-webhook-mapping",
    "objective": "Find callers that depend on the legacy payment-state mapping.",
    "input_snapshot": {"repo_ref": "payments@a81c2f9", "spec_ref": "artifact://spec/payment-state-v2"},
    "resources": {
        "tools": ["read_file", "search_code", "run_readonly_tests"],
        "network": "deny",
        "write_scope": [],
        "delegation": "deny",
    },
    "budget": {"max_turns": 12, "max_cost_usd": 0.8},
    "required_evidence": ["caller inventory", "file and symbol references", "coverage gaps", "child trace ID"],
}


def test_a_lone_contract_is_judged_by_the_same_rules() -> None:
    own, _ = DelegationContract.model_validate(PUBLISHED).split()
    assert [str(fault) for fault in lint_contract(own)] == [
        f"resources.tools[2]: no tool is called 'run_readonly_tests', {KNOWN}",
        UNCHECKED,
    ]
    better = json.loads(json.dumps(PUBLISHED).replace(', "run_readonly_tests"', "")) | {"acceptance": [CHECK]}
    assert lint_contract(DelegationContract.model_validate(better).split()[0]) == []


def test_the_table_of_evidence_accounts_for_every_kind_and_names_only_tools_that_exist() -> None:
    kinds = EvidenceItem.model_json_schema()["properties"]["kind"]["enum"]
    assert set(EVIDENCE_TABLE) == set(kinds)
    for kind, origins in EVIDENCE_TABLE.items():
        assert set(origins) <= {origin.name for origin in Origin}, kind
        assert origins["claimed"].anyone, f"anybody can claim {kind}"
        for who in origins.values():
            assert who.tools <= set(TOOLS)
            assert who.checks <= set(CHECK_KINDS)
            assert who.agents <= set(AGENT_KINDS)
        # An origin includes the earlier ones, so none may be left out between two.
        reached = sorted(Origin[name] for name in origins)
        assert reached == list(Origin)[: len(reached)]


def test_only_citations_can_be_resolved() -> None:
    owed = [{"name": "x", "kind": "file", "min_origin": "claimed"}]

    found = errors({"a": task(required_evidence=owed, acceptance=[{"citations_resolve": "x"}])})

    assert found == [
        "tasks.a.acceptance[0].citations_resolve: 'x' is evidence of the kind file, make it 'kind: citation'"
    ]


@pytest.mark.parametrize("kind", EVIDENCE_TABLE)
@pytest.mark.parametrize("origin", [origin.name for origin in Origin])
def test_evidence_is_accepted_where_the_table_has_a_granted_producer_and_only_there(kind: str, origin: str) -> None:
    who = EVIDENCE_TABLE[kind].get(origin)
    grounds: list[dict[str, Any]] = [
        {},
        *({"resources": {"tools": [tool]}, "workspace": "none"} for tool in READING),
        *({"agent": {kind: "m:f"}} for kind in ("function", "scripted")),
        {"agent": {"command": ["x"]}},
        {"acceptance": [{"command": ["x"]}]},
        *([{"acceptance": [{"citations_resolve": "x"}]}] if kind in ("citation", "note") else []),
        {"workspace": "clone"},
    ]
    for ground in grounds:
        owed = {"name": "x", "kind": kind, "min_origin": origin}
        found = errors({"a": task(**{"required_evidence": [owed], **ground})})
        # A producer of a higher origin makes the lower one too.
        makers = [EVIDENCE_TABLE[kind][name] for name in EVIDENCE_TABLE[kind] if Origin[name] >= Origin[origin]]
        tools = set(ground.get("resources", {}).get("tools", []))
        checks = {kind for check in ground.get("acceptance", [CHECK]) for kind in check}
        agents = set(ground.get("agent", AGENT))
        can = who is not None and any(
            maker.anyone
            or maker.tools & tools
            or maker.checks & checks
            or maker.agents & agents
            or (maker.workspace and ground.get("workspace") == "clone")
            for maker in makers
        )
        assert (found == []) == can, (kind, origin, ground)
