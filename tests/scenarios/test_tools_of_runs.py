"""Tools that reach beyond the tree, in whole runs: what was seen is evidence, and what was asked is answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coordinator import Coordinator, Orchestration

CHILDREN = """
from contracts.tools import ToolUse

def runs(a):
    command = ["python", "tests.py", "-q"]
    status, output = a.tools.run_command(command)
    said = a.inputs.get("said", status)
    a.evidence("the tests", "command", text=output, data={"argv": command, "exit_status": said})
    return a.completed({"status": status, "output": output})

def asks(a):
    approved, message = a.tools.request_approval("May I go on?\\nNow?")
    return a.completed({"approved": approved, "message": message, "attempt": a.attempt})

def calls(view):
    shown = [tool["name"] for tool in view.tools]
    added = yield ToolUse("mcp__sums__add", {"a": 40, "b": 2})
    wrong = yield ToolUse("mcp__sums__add", {"a": "40", "b": 2})
    long = yield ToolUse("mcp__sums__repeat", {"text": "0123456789", "times": 9000})
    output = {"shown": shown, "added": added.text, "wrong": wrong.text, "cut": len(long.text) < 60_000}
    yield ToolUse("submit_result", {"outcome": "completed", "output": output})
"""
OWED = [{"name": "the tests", "kind": "command", "min_origin": "observed"}]
SERVER = Path(__file__).parent.parent / "agents" / "mcp_server.py"


@pytest.fixture
def children(bench: Any) -> Any:
    bench.commit({"tests.py": "import os, sys; print(sys.argv[1:], os.getcwd()); sys.exit(1)"})
    (bench.folder / "children.py").write_text(CHILDREN)
    return bench


def command_task(bench: Any, **fields: Any) -> Any:
    resources = {"tools": ["run_command"], "commands": [["python", "tests.py"]]}
    agent = {"function": "children.py:runs"}
    return bench.task(agent, resources=resources, required_evidence=OWED, acceptance=[], **fields)


def test_a_command_that_the_coordinator_saw_end_is_observed_evidence(children: Any) -> None:
    one = children.run({"one": command_task(children)}).tasks["one"]
    assert one.accepted, one.reason
    assert one.output["status"] == 1
    assert one.output["output"].startswith("['-q'] ")
    [item] = one.manifest.evidence
    assert (item.origin, item.seen_in_calls) == ("observed", [1])
    [record] = one.manifest.processes
    assert (record.argv, record.exit_status) == (["python", "tests.py", "-q"], 1)


def test_another_exit_status_than_was_seen_is_no_evidence(children: Any) -> None:
    inputs = {"marks": str(children.folder), "said": 0}
    one = children.run({"one": command_task(children)}, inputs=inputs).tasks["one"]
    assert one.state == "failed"
    assert "it says exit status 0, seen was 1" in str(one.decision)


def test_a_question_of_a_child_rests_the_task_until_it_is_answered(children: Any) -> None:
    task = children.task({"function": "children.py:asks"}, resources={"tools": ["request_approval"]})
    work = Orchestration.from_file(children.file({"one": task}))
    with Coordinator(children.place.url, home=children.place.home) as coordinator:
        waiting = coordinator.run(work)
        assert waiting.tasks["one"].state == "pending"
        [request] = [item for item in children.place.store.requests(children.place.run().row) if item.state == "open"]
        assert (request.kind, request.question) == ("input", "May I go on?\nNow?")
        children.place.store.answer(request.request_id, approved=False, message="not today")
        one = coordinator.run(work).tasks["one"]
    assert one.accepted, one.reason
    assert one.output == {"approved": False, "message": "not today", "attempt": 2}


def test_tools_of_a_server_serve_a_child_and_their_long_answers_are_kept(children: Any, is_alive: Any) -> None:
    tools = ["mcp__sums__add", "mcp__sums__repeat"]
    servers = {"sums": {"command": ["python", str(SERVER), "good"]}}
    task = children.task({"scripted": "children.py:calls"}, resources={"tools": tools}, mcp_servers=servers)
    one = children.run({"one": task}).tasks["one"]
    assert one.accepted, one.reason
    assert one.output["shown"][:2] == tools
    assert one.output["added"] == "42"
    assert "a: '40' is not of type 'integer'" in one.output["wrong"]
    assert one.output["cut"]
    [entry] = one.manifest.artifacts
    assert entry.name.startswith("result-of-mcp__sums__repeat-")
    assert entry.size_bytes == 90_000
    assert [call.ok for call in one.manifest.observed_calls] == [True, False, True, True]
