from __future__ import annotations

import json
from typing import Any

import pytest

LONE = {
    "child_run_id": "child-204", "parent_run_id": "run-108", "delegation_id": "delegation-77", "contract_version": 3,
    "parent_state_version": 41, "task_id": "audit", "objective": "Find callers.",
    "input_snapshot": {"repo_ref": "payments@a81c2f9"},
    "resources": {"tools": ["read_file", "fly"], "network": "deny", "write_scope": [], "delegation": "deny"},
    "budget": {"max_turns": 12, "max_cost_usd": 0.8}, "required_evidence": ["caller inventory"],
    "result_protocol": {"submitted_states": ["completed"], "parent_decisions": ["accepted"]},
}  # fmt: skip

BAD = """\
schema: coordinator/v1
name: bad
objective: x
source: {repo: ./nowhere}
defaults: {isolation: none}
tasks:
  a:
    objective: A.
    agent: {function: "no.py:f"}
    acceptance: [{json_schema: gone.json}]
  b:
    objective: B.
    agent: {function: "no.py:f"}
    needs: [zz]
    resources: {tools: [fly]}
"""


def test_every_fault_of_every_file_is_named_where_it_stands(cli: Any) -> None:
    (cli.folder / "bad.yaml").write_text(BAD)
    (cli.folder / "form.yaml").write_text("schema: coordinator/v9\nname: 3\nobjektive: x\ntasks: {}\n")
    done = cli("contract", "check", "bad.yaml", "form.yaml", "gone.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    for start in (
        "bad.yaml:4:9: source: ", "bad.yaml:9:23: tasks.a.agent.function: cannot read 'no.py'",
        "bad.yaml:10:32: tasks.a.acceptance[0].json_schema: cannot read 'gone.json'",
        "bad.yaml:12:5: tasks.b.acceptance: nothing here can be checked",
        "bad.yaml:14:13: tasks.b.needs[0]: no task is called 'zz'",
        "bad.yaml:15:25: tasks.b.resources.tools[0]: no tool is called 'fly'",
        "form.yaml:1:9: schema: ", "form.yaml:2:7: name: ", "form.yaml:3:1: objektive: unknown field",
        "gone.yaml: cannot be read",
    ):  # fmt: skip
        assert f"\n{start}" in f"\n{done.stderr}", start
    lines = [int(line.split(":")[1]) for line in done.stderr.splitlines() if line.startswith("bad.yaml:")]
    assert lines == sorted(lines)


def test_the_lint_of_a_lone_contract_is_a_warning(cli: Any) -> None:
    (cli.folder / "lone.json").write_text(json.dumps(LONE))
    done = cli("contract", "check", "lone.json")
    assert done.returncode == 0
    assert done.stdout == "lone.json: ok (delegation contract audit, 2 warnings)\n"
    assert "resources.tools[1]: no tool is called 'fly'" in done.stderr
    assert done.stderr.count("(warning)") == 2
    value = cli.json("contract", "check", "lone.json")[0]
    assert (value["kind"], value["ok"], len(value["warnings"])) == ("delegation", True, 2)


def test_the_form_of_a_lone_contract_is_an_error(cli: Any) -> None:
    (cli.folder / "lone.json").write_text(json.dumps({**LONE, "task_id": "not an id", "extra": 1}))
    done = cli("contract", "check", "lone.json")
    assert done.returncode == 2
    assert "task_id: " in done.stderr
    assert "unknown field 'extra'" in done.stderr


def test_a_good_file_is_said_to_be_good_beside_a_bad_one(cli: Any) -> None:
    assert cli("init").returncode == 0
    (cli.folder / "bad.yaml").write_text(BAD)
    done = cli("contract", "check", "bad.yaml", "orchestration.yaml")
    assert (done.returncode, done.stdout) == (2, "orchestration.yaml: ok (orchestration inventory, 3 tasks)\n")


def test_checking_leaves_no_store_behind(cli: Any) -> None:
    (cli.folder / "bad.yaml").write_text(BAD)
    cli("contract", "check", "bad.yaml")
    assert [path.name for path in cli.folder.iterdir()] == ["bad.yaml"]


@pytest.mark.parametrize("name", ["orchestration", "delegation", "manifest", "decision"])
def test_each_schema_is_a_json_schema(name: str, cli: Any) -> None:
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(json.loads(cli("contract", "schema", name).stdout))


def test_an_unknown_schema_names_the_known(cli: Any) -> None:
    done = cli("contract", "schema", "result")
    assert (done.returncode, "orchestration, delegation, manifest, decision" in done.stderr) == (2, True)


def test_the_issued_contract_is_a_delegation_contract(answered: Any, tmp_path: Any) -> None:
    shown = answered("contract", "show", "report/draft@1")
    document = json.loads(shown.stdout)
    assert document["parent_run_id"] == "report"
    assert document["claim_generation"] == 1
    (tmp_path / "one.json").write_text(shown.stdout)
    assert answered("contract", "check", str(tmp_path / "one.json")).returncode == 0


def test_before_the_first_claim_the_contract_has_no_child(answered: Any) -> None:
    shown = answered("contract", "show", "report/final")
    document = json.loads(shown.stdout)
    assert "child_run_id" not in document
    assert document["task_id"] == "final"
    assert "not claimed yet" in shown.stderr
