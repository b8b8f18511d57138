"""Launching: everything is resolved and checked first, and the same content is the same run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contracts.canonical import sha256_digest
from contracts.errors import BadInput, Refused
from contracts.orchestration import Orchestration
from coordinator.home import Home, open_home
from coordinator.launch import Plan, launch, plan_launch
from coordinator.store import TaskStore

CODE = "def child(a):\n    return a.completed(1)\n"


class Desk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "work").mkdir()
        (folder / "work" / "code.py").write_text(CODE)
        self.home: Home = open_home(str(folder / "store.db"))
        self.store = TaskStore(self.home.url, self.home.folder)
        self.document: dict[str, Any] = {
            "schema": "coordinator/v1", "name": "audit", "objective": "Look.", "source": ".", "inputs": {"symbol": "f"},
            "tasks": {"one": self.task(), "two": self.task(needs=["one"])},
        }  # fmt: skip

    def task(self, **fields: Any) -> dict[str, Any]:
        agent = {"function": "code.py:child"}
        return {
            "objective": "Do it.",
            "agent": agent,
            "isolation": "none",
            "acceptance": [{"cel": "output == 1"}],
            **fields,
        }

    def plan(self, **options: Any) -> Plan:
        file = self.folder / "work" / "orchestration.yaml"
        file.write_text(json.dumps(self.document))
        return plan_launch(Orchestration.from_file(file), exclude=self.home.own_files(), **options)

    def launch(self, *, new: bool = False, as_new_version: bool = False, **options: Any) -> Any:
        return launch(self.store, self.home, self.plan(**options), new=new, as_new_version=as_new_version)


@pytest.fixture
def desk(tmp_path: Path) -> Any:
    made = Desk(tmp_path)
    yield made
    made.store.close()


def test_terms_are_issued_with_every_pin(desk: Desk) -> None:
    plan = desk.plan()
    assert plan.faults == []
    terms = plan.terms["one"]
    assert terms.input_snapshot["code.py"] == f"code.py@{sha256_digest(CODE.encode())}"
    assert plan.pin is not None
    assert terms.input_snapshot["repo_ref"] == plan.pin.repo_ref()
    assert terms.inputs == {"symbol": "f"}
    assert list(plan.unenforced) == ["one", "two"]
    assert desk.store.newest_run() is None  # planning starts nothing


def test_every_fault_is_named_at_once(desk: Desk) -> None:
    desk.document["tasks"] = {
        "absent": desk.task(agent={"function": "absent.py:child"}),
        "nameless": desk.task(agent={"function": "code.py:other"}),
        "module": desk.task(agent={"function": "no_such_module_here:child"}),
        "schema": desk.task(acceptance=[{"json_schema": "absent.json"}]),
        "broken": desk.task(acceptance=[{"json_schema": "broken.json"}]),
        "needy": desk.task(needs=["nobody"]),
    }
    (desk.folder / "work" / "broken.json").write_text('{"type": 7}')
    faults = {fault.path: fault.message for fault in desk.plan(inputs={"unknown": 1}).faults}
    assert "cannot read 'absent.py'" in faults["tasks.absent.agent.function"]
    assert "has no function 'other'" in faults["tasks.nameless.agent.function"]
    assert "no Python module" in faults["tasks.module.agent.function"]
    assert "cannot read 'absent.json'" in faults["tasks.schema.acceptance[0].json_schema"]
    assert "no JSON Schema" in faults["type"]  # with its place in broken.json
    assert "nobody" in faults["tasks.needy.needs[0]"]
    assert "no such input" in faults["inputs.unknown"]
    with pytest.raises(BadInput):
        desk.launch(inputs={"unknown": 1})
    assert desk.store.newest_run() is None


def test_tools_without_a_source_are_refused(desk: Desk) -> None:
    del desk.document["source"]
    desk.document["tasks"]["one"]["resources"] = {"tools": ["read_file"]}
    assert [fault.path for fault in desk.plan().faults] == ["tasks.one.resources.tools"]
    assert desk.plan(source=desk.folder / "work").faults == []


def test_the_same_content_is_continued_and_other_content_is_refused_with_the_difference(desk: Desk) -> None:
    assert desk.launch().how == "created"
    again = desk.launch()
    assert (again.how, again.run_id) == ("continued", "audit")
    desk.document["tasks"]["two"]["limits"] = {"max_claims": 9}
    (desk.folder / "work" / "code.py").write_text(CODE + "# changed\n")
    with pytest.raises(Refused) as refused:
        desk.launch()
    assert "tasks.two.limits.max_claims: 3 -> 9" in str(refused.value)
    assert "file code.py: changed" in str(refused.value)
    assert "--as-new-version" in str(refused.value)
    assert "--new" in str(refused.value)
    assert len(desk.store.run(again.row).tasks) == 2


def test_other_inputs_are_other_content(desk: Desk) -> None:
    desk.launch()
    with pytest.raises(Refused, match=r"inputs.symbol"):
        desk.launch(inputs={"symbol": "g"})


def test_a_run_beside_an_open_one_gets_the_next_name(desk: Desk) -> None:
    desk.launch()
    assert desk.launch(new=True).run_id == "audit-2"


def test_a_new_version_issues_only_what_changed_and_what_needs_it(desk: Desk) -> None:
    desk.document["tasks"]["apart"] = desk.task()
    first = desk.launch()
    before = {task.task_id: task for task in desk.store.run(first.row).tasks}
    desk.document["tasks"]["one"]["objective"] = "Do it better."
    amended = desk.launch(as_new_version=True)
    assert (amended.how, amended.run_id) == ("amended", "audit")
    after = {task.task_id: task for task in desk.store.run(first.row).tasks}
    assert {key: task.contract_version for key, task in after.items()} == {"one": 2, "two": 2, "apart": 1}
    assert after["apart"].row == before["apart"].row
    assert desk.store.run(first.row).orchestration_version == 2
    assert desk.launch().how == "continued"


def test_a_source_that_moved_on_is_said_and_the_run_stays_at_its_pin(desk: Desk) -> None:
    first = desk.launch()
    pinned = desk.store.run_document(first.row)["source"]["commit"]
    (desk.folder / "work" / "more.txt").write_text("more\n")
    again = desk.launch()
    assert again.how == "continued"
    assert again.moved not in (None, pinned)
    assert desk.store.run_document(first.row)["source"]["commit"] == pinned


def test_a_file_in_the_source_does_not_change_with_the_store_inside_it(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.document["source"] = ".."  # the folder that holds the store
    before = desk.plan().pin
    desk.launch()
    after = desk.plan().pin
    assert before is not None
    assert after is not None
    assert before.commit == after.commit
    desk.store.close()


def test_files_that_a_program_is_given_are_pinned_and_other_arguments_are_not(desk: Desk) -> None:
    (desk.folder / "work" / "child.sh").write_text("#!/bin/sh\n")
    (desk.folder / "work" / "data.json").write_text("{}")
    argv = ["sh", "child.sh", "data.json", "--file=data.json", "absent.txt", "-"]
    desk.document["tasks"]["one"]["agent"] = {"command": argv}
    plan = desk.plan()
    assert plan.faults == []
    assert set(plan.terms["one"].input_snapshot) == {"child.sh", "data.json", "repo_ref"}
    first = plan.authored_digest
    (desk.folder / "work" / "data.json").write_text("[]")
    assert desk.plan().authored_digest != first  # other bytes are another orchestration


@pytest.mark.parametrize("name", ["no-such-program", "/no/such/program", "./none.sh"])
def test_a_program_that_is_not_here_is_refused_with_where_it_was_looked_for(desk: Desk, name: str) -> None:
    desk.document["tasks"]["one"]["agent"] = {"command": [name]}
    desk.document["tasks"]["two"]["acceptance"] = [{"command": ["no-such-check"]}]
    faults = {fault.path: fault for fault in desk.plan().faults}
    assert repr(name) in faults["tasks.one.agent.command[0]"].message
    assert "/usr/bin" in faults["tasks.one.agent.command[0]"].hint
    assert "'no-such-check'" in faults["tasks.two.acceptance[0].command[0]"].message


def test_a_check_may_run_a_program_of_the_tree_itself(desk: Desk) -> None:
    desk.document["tasks"]["one"]["acceptance"] = [{"command": ["./run-tests"]}]
    assert desk.plan().faults == []


def test_a_workspace_or_a_command_check_without_a_source_is_refused(desk: Desk) -> None:
    del desk.document["source"]
    desk.document["tasks"]["one"]["workspace"] = "clone"
    desk.document["tasks"]["two"]["acceptance"] = [{"command": ["true"]}]
    paths = {fault.path for fault in desk.plan().faults}
    assert paths == {"tasks.one.workspace", "tasks.two.acceptance[0].command"}


def test_a_home_in_a_repository_is_refused_before_anything_is_stored(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    desk.document["tasks"]["one"]["workspace"] = "directory"
    desk.home = open_home(desk.home.url, tmp_path / "repo" / "home")
    with pytest.raises(Refused, match="choose another --home"):
        desk.launch()
    assert desk.store.newest_run() is None
