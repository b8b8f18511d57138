"""An orchestration file: what it may say, what is merged, and every fault at its place, all at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from contracts.assignment import Assignment
from contracts.canonical import canonical_bytes
from contracts.errors import BadInput
from contracts.lint import lint_orchestration
from contracts.orchestration import Orchestration, Task, merge
from contracts.results import Result
from contracts.terms import Limits, Resources

AUDIT = """\
# yaml-language-server: $schema=.coordinator/orchestration.schema.json
schema: coordinator/v1
name: audit
objective: Show who calls a symbol, what is undocumented, and what this code stands on.
source: {repo: ., ref: HEAD}            # pinned to the full commit when the run is created
inputs: {symbol: coordinator.api.Coordinator.run}
budget: {max_cost_usd: 2.0}
defaults:
  workspace: none
  isolation: none
  resources: {tools: [], network: deny, read_scope: ["**"], write_scope: [], credentials: [], delegation: deny,
              effects: none}
  limits: {deadline_s: 60, lease_s: 15, max_claims: 3, max_repairs: 2}
tasks:
  callers:
    objective: List every caller of inputs.symbol with file, line and enclosing symbol.
    agent: {function: "audit.py:find_callers"}
    resources: {tools: [list_files, read_file, search_code]}
    required_evidence:
      - {name: caller inventory, kind: citation, min_origin: observed}
      - coverage gaps
    acceptance:
      - {json_schema: callers.schema.json}
      - {cel: "output.callers.size() > 0"}
  report:
    needs: [callers]
    objective: Write report.md from the accepted results.
    agent: {function: "audit.py:report"}
    limits: {max_repairs: 5}
    acceptance:
      - {sections: [Summary, Callers], of: report.md}
      - {approval: Is the report fit to be sent?, when: end}
"""


def from_text(tmp_path: Path, text: str, name: str = "o.yaml") -> Orchestration:
    path = tmp_path / name
    path.write_text(text)
    return Orchestration.from_file(path)


def refused(tmp_path: Path, text: str, name: str = "o.yaml") -> list[str]:
    with pytest.raises(BadInput) as wrong:
        from_text(tmp_path, text, name)
    return [str(fault).removeprefix(f"{tmp_path}/") for fault in wrong.value.faults]


def head(tasks: str, **lines: str) -> str:
    said = {"schema": "coordinator/v1", "name": "n", "objective": "o", **lines}
    return "".join(f"{key}: {value}\n" for key, value in said.items() if value) + f"tasks:\n{tasks}"


TASK = "  a: {objective: o, agent: {function: 'm:f'}}\n"


def test_the_published_example_loads_and_has_nothing_to_refuse(tmp_path: Path) -> None:
    audit = from_text(tmp_path, AUDIT)
    assert (audit.name, audit.folder, list(audit.tasks)) == ("audit", tmp_path, ["callers", "report"])
    callers, report = audit.tasks.values()
    assert callers.resources.tools == ["list_files", "read_file", "search_code"]
    assert callers.isolation == report.isolation == "none"
    assert (callers.limits, report.limits) == (Limits(), Limits(max_repairs=5))
    assert (callers.agent.file, callers.agent.kind) == ("audit.py", "function")
    assert [item.name for item in callers.required_evidence] == ["caller inventory", "coverage gaps"]
    assert [check.label() for check in report.acceptance] == ["sections of report.md", "approval"]
    report_on_it = lint_orchestration(audit)
    assert (report_on_it.errors, report_on_it.warnings) == ([], [])


def test_the_same_orchestration_as_json_is_the_same(tmp_path: Path) -> None:
    audit = from_text(tmp_path, AUDIT)
    written = json.dumps(audit.document())
    again = from_text(tmp_path, written, "o.json")
    assert again == audit
    assert json.dumps(again.document()) == written


def test_defaults_are_merged_key_by_key_and_lists_replace(tmp_path: Path) -> None:
    work = from_text(
        tmp_path,
        head(
            "  a: {objective: o, agent: {function: 'm:f'}, resources: {tools: [read_file]}, limits: {lease_s: 3}}\n"
            "  b: {objective: o, agent: {function: 'm:f'}, isolation: sandbox, budget: {max_turns: 4}}\n",
            defaults="{isolation: none, resources: {tools: [list_files, search_code], read_scope: [src/]},"
            " limits: {max_claims: 9, lease_s: 1}, budget: {max_turns: 2, max_cost_usd: 0.5}}",
        ),
    )
    a, b = work.tasks["a"], work.tasks["b"]
    assert a.resources == Resources(tools=["read_file"], read_scope=["src/"])
    assert b.resources == Resources(tools=["list_files", "search_code"], read_scope=["src/"])
    assert a.limits == Limits(max_claims=9, lease_s=3)
    assert (a.isolation, b.isolation) == ("none", "sandbox")
    assert (a.budget.max_turns, b.budget.max_turns, b.budget.max_cost_micro_usd) == (2, 4, 500_000)


def count(a: Assignment) -> Result:
    return a.completed(1)


def test_defaults_are_merged_under_tasks_made_in_python_too() -> None:
    work = Orchestration(
        name="count",
        objective="Count.",
        source=".",
        defaults={"isolation": "none", "resources": {"tools": ["read_file"], "read_scope": ["src/"]}},
        tasks={
            "model": Task(objective="o", agent=count, resources={"tools": ["list_files"]}),
            "mapping": {"objective": "o", "agent": count, "resources": Resources(tools=[])},
            "own": Task(objective="o", agent=count, isolation="sandbox", needs=["model"]),
        },
    )
    assert work.tasks["model"].resources == Resources(tools=["list_files"], read_scope=["src/"])
    assert work.tasks["mapping"].resources == Resources(tools=[], read_scope=["src/"])
    assert [task.isolation for task in work.tasks.values()] == ["none", "none", "sandbox"]
    assert work.tasks["model"].agent.function == f"{__file__}:count"
    assert work.tasks["own"].needs[0].task == "model"
    assert work.source is not None
    assert work.source.repo == "."


@pytest.mark.parametrize("defaults", [{}, {"limits": {"lease_s": 7.5}}])
def test_its_canonical_form_is_that_of_its_document(defaults: dict[str, Any]) -> None:
    task = Task.model_validate(
        {"objective": "Count.", "agent": {"function": "m:f"}, "acceptance": [{"cel": "output > 1"}]}
    )
    alone = {"objective": "Ä", "agent": {"command": ["make"]}, "budget": {"max_cost_usd": 1.5}, "needs": ["a"]}
    tasks = {"b": task, "alone": alone, "a": task}
    said = {"name": "o", "objective": "x", "inputs": {"limit": 2e-9}, "defaults": defaults, "tasks": tasks}
    work = Orchestration.model_validate(said)
    assert work.canonical() == canonical_bytes(work.document())


def test_an_orchestration_made_in_python_lies_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    work = Orchestration(name="n", objective="o", tasks={"a": Task(objective="o", agent=count)})
    assert work.folder == tmp_path


@pytest.mark.parametrize(
    ("under", "over", "merged"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}, "d": 4}, {"a": {"b": 1, "c": 3}, "d": 4}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": {"b": 1}}, {"a": "deny"}, {"a": "deny"}),
        ({"a": "deny"}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"a": {"tools": ["x"]}}, {"a": Resources(read_scope=["y"])}, {"a": {"tools": ["x"], "read_scope": ["y"]}}),
        ({"a": 1}, None, None),
    ],
)
def test_merging(under: Any, over: Any, merged: Any) -> None:
    assert merge(under, over) == merged


def test_every_fault_is_reported_at_once_at_its_place(tmp_path: Path) -> None:
    text = """\
schema: coordinator/v1
name: two words
objectve: o
budget: {max_cost_usd: -1}
tasks:
  a b:
    objective: o
    agent: {function: f.py:x}
  c:
    objective: o
    agent: {function: f}
    acceptanse: []
    resources: {tools: read_file, network: [nowhere]}
    required_evidence: [{name: x, kind: picture}]
    acceptance: [{cel: a, approval: b}, {sections: []}]
  d: 4
"""
    assert refused(tmp_path, text) == [
        "o.yaml:1:1: objective: required field is missing, add 'objective'",
        "o.yaml:2:7: name: 'two words' is not accepted, string should match pattern "
        "'^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$'",
        "o.yaml:3:1: objectve: unknown field 'objectve', did you mean 'objective'?",
        "o.yaml:4:24: budget.max_cost_usd: -1 is not accepted, should be greater than or equal to 0",
        "o.yaml:6:3: tasks['a b']: 'a b' is not accepted, string should match pattern "
        "'^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$'",
        "o.yaml:11:23: tasks.c.agent.function: 'f' is not accepted, string should match pattern "
        "'^[^:\\x00-\\x1f]+:[A-Za-z_][A-Za-z0-9_]*$'",
        "o.yaml:12:5: tasks.c.acceptanse: unknown field 'acceptanse', did you mean 'acceptance'?",
        "o.yaml:13:24: tasks.c.resources.tools: 'read_file' is not accepted, should be a valid list",
        "o.yaml:13:44: tasks.c.resources.network: ['nowhere'] is not accepted, should be 'deny'",
        "o.yaml:13:45: tasks.c.resources.network[0]: 'nowhere' is not accepted, string should match pattern "
        "'^[A-Za-z0-9.-]+:[0-9]{1,5}$'",
        "o.yaml:14:41: tasks.c.required_evidence[0].kind: 'picture' is not accepted, should be 'output', 'citation', "
        "'command', 'file', 'artifact' or 'note'",
        "o.yaml:15:18: tasks.c.acceptance[0]: {'cel': 'a', 'approval': 'b'}: a check names exactly one of json_schema, "
        "sections, citations_resolve, command, paths_unchanged, cel, approval; found cel and approval",
        "o.yaml:15:52: tasks.c.acceptance[1].sections: [] is not accepted, list should have at least 1 item after "
        "validation, not 0",
        "o.yaml:16:6: tasks.d: 4 is not accepted, should be a mapping of fields",
    ]


def test_a_fault_in_defaults_is_reported_once_where_it_stands(tmp_path: Path) -> None:
    tasks = "".join(f"  t{number}: {{objective: o, agent: {{function: 'm:f'}}}}\n" for number in range(5))
    lines = {"defaults": "{isolation: maybe, limits: {max_claim: 1, lease_s: 0}, agent: {function: 'm:f'}}"}
    assert refused(tmp_path, head(tasks, **lines)) == [
        "o.yaml:4:23: defaults.isolation: 'maybe' is not accepted, should be 'none' or 'sandbox'",
        "o.yaml:4:39: defaults.limits.max_claim: unknown field 'max_claim', did you mean 'max_claims'?",
        "o.yaml:4:62: defaults.limits.lease_s: 0 is not accepted, should be greater than or equal to 0.2",
        "o.yaml:4:66: defaults.agent: unknown field 'agent', it is known elsewhere, not here",
    ]


@pytest.mark.parametrize("nothing", ["{isolation: null}", "{workspace: ~}", "null", "[]", "{resources: null}"])
def test_nothing_as_a_default_is_refused_once_too(tmp_path: Path, nothing: str) -> None:
    (fault,) = refused(tmp_path, head(TASK, defaults=nothing))
    assert fault.startswith("o.yaml:4:")
    assert ": defaults" in fault


def test_a_file_must_say_its_schema_version(tmp_path: Path) -> None:
    assert refused(tmp_path, head(TASK, schema="")) == [
        "o.yaml:1:1: schema: required field is missing, add 'schema: coordinator/v1'"
    ]
    # It is one of all the faults, not the only one.
    assert len(refused(tmp_path, head("  a: {objective: 1, agent: {function: 'm:f'}}\n", schema=""))) == 2


@pytest.mark.parametrize("version", ["coordinator/v2", "coordinator/v0", "1", "null", "[x]"])
def test_an_unknown_schema_version_is_refused_and_the_known_one_named(tmp_path: Path, version: str) -> None:
    (fault,) = refused(tmp_path, head(TASK, schema=version))
    assert fault.startswith("o.yaml:1:9: schema: schema version ")
    assert fault.endswith(" is not known, this program knows 'coordinator/v1'")


@pytest.mark.parametrize("field", ["_folder: /etc", "folder: /etc", "schema_version: coordinator/v1", "plan: x"])
def test_what_only_code_sets_and_what_does_not_exist_yet_cannot_be_set_from_a_file(tmp_path: Path, field: str) -> None:
    (fault,) = refused(tmp_path, f"{field}\n{head(TASK)}")
    assert fault.startswith(f"o.yaml:1:1: {field.partition(':')[0]}: unknown field")


@pytest.mark.parametrize(
    "task",
    [
        "{objective: o}",
        "{agent: {function: 'm:f'}}",
        "{objective: o, agent: {}}",
        "{objective: o, agent: {command: x}}",
        "{objective: o, agent: {command: []}}",
        "{objective: o, agent: {command: [x], function: 'm:f'}}",
        "{objective: o, agent: {anthropic: {modle: x}}}",
        "{objective: o, agent: {function: 'm:f'}, workspace: worktree}",
        "{objective: o, agent: {function: 'm:f'}, acceptance: [{command: x}]}",
        "{objective: o, agent: {function: 'm:f'}, acceptance: [{command: [x], of: y}]}",
        "{objective: o, agent: {function: 'm:f'}, acceptance: [{cel: 'a', timeout_s: 3}]}",
        "{objective: o, agent: {function: 'm:f'}, acceptance: [{paths_unchanged: [/x]}]}",
        "{objective: o, agent: {function: 'm:f'}, acceptance: [cel]}",
        "{objective: o, agent: {function: 'm:f'}, needs: [{task: x, optional: true}]}",
        "{objective: o, agent: {function: 'm:f'}, needs: [x, x]}",
        "{objective: o, agent: {function: 'm:f'}, required_evidence: [x, x]}",
        "{objective: o, agent: {function: 'm:f'}, resources: null}",
        "null",
    ],
)
def test_a_task_that_says_too_little_or_what_cannot_be_done_is_refused(tmp_path: Path, task: str) -> None:
    faults = refused(tmp_path, head(f"  a: {task}\n"))
    assert faults
    assert [fault for fault in faults if not fault.startswith("o.yaml:5:") or ": tasks.a" not in fault] == []


@pytest.mark.parametrize(
    "task",
    [
        "{objective: o, agent: {command: [python, run.py]}}",
        "{objective: o, agent: {scripted: 'play.py:work'}}",
        "{objective: o, agent: {function: 'm:f'}, workspace: clone}",
        "{objective: o, agent: {function: 'm:f'}, workspace: directory}",
        "{objective: o, agent: {function: 'm:f'}, acceptance: [{command: [x], timeout_s: 3, env: {A: b}}]}",
        "{objective: o, agent: {function: 'm:f'}, acceptance: [{paths_unchanged: [tests/]}, {citations_resolve: x}]}",
    ],
)
def test_every_kind_of_agent_workspace_and_check_can_be_written(tmp_path: Path, task: str) -> None:
    work = from_text(tmp_path, head(f"  a: {task}\n"))
    assert from_text(tmp_path, json.dumps(work.document()), "o.json") == work


def test_no_tasks_are_refused(tmp_path: Path) -> None:
    nothing = from_text(tmp_path, "schema: coordinator/v1\nname: n\nobjective: o\ntasks: {}\n")
    assert [str(fault) for fault in lint_orchestration(nothing).errors] == [
        "tasks: there is nothing to do, name at least one task"
    ]
    assert refused(tmp_path, "[]") == ["o.yaml:1:1: [] is not accepted, should be a mapping of fields"]


def test_source_may_be_a_plain_path_and_an_option_is_no_ref(tmp_path: Path) -> None:
    work = from_text(tmp_path, head(TASK, source="../repo"))
    assert work.source is not None
    assert (work.source.repo, work.source.ref) == ("../repo", "HEAD")
    assert refused(tmp_path, head(TASK, source="{ref: --upload-pack=x}"))
    assert refused(tmp_path, head(TASK, source="{ref: 'a b'}"))


def test_inputs_keep_their_types_and_carry_no_template(tmp_path: Path) -> None:
    work = from_text(tmp_path, head(TASK, inputs="{symbol: '${HOME}', n: 3, on: no, deep: [{x: null}]}"))
    assert work.inputs == {"symbol": "${HOME}", "n": 3, "on": "no", "deep": [{"x": None}]}


def test_a_lambda_is_refused_where_the_task_is_made() -> None:
    with pytest.raises(BadInput, match="a lambda has no name"):
        Task(objective="o", agent=lambda a: a)


def test_python_gets_the_same_strictness() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        Task(objective="o", agent=count, isolaton="none")  # type: ignore[call-arg]
