"""The tool loop: whatever a model sends is answered in a way that it can act on, and only a result ends it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from contracts.assignment import Assignment
from contracts.canonical import sha256_digest
from contracts.results import Result
from contracts.states import Outcome
from contracts.tools import CONTROL_TOOLS, TOOLS, ToolReply
from coordinator.runtimes import load_agents

load_agents()
from agents.broker import Broker, ToolLoop  # noqa: E402 - found once it is loaded

MakeBroker = Callable[..., Broker]
MakeAssignment = Callable[..., Assignment]
MakeLoop = Callable[..., ToolLoop]


@pytest.fixture
def make_loop(make_broker: MakeBroker, make_assignment: MakeAssignment) -> MakeLoop:
    def make(*tools: str, broker: Broker | None = None, **terms: Any) -> ToolLoop:
        granted = list(tools or TOOLS)
        broker = broker or make_broker(*granted, base={"f": b"text"})
        full = {"workspace": "directory", "resources": {"tools": granted, "write_scope": ["**"]}, **terms}
        return ToolLoop(make_assignment(terms=full, broker=broker), broker)

    return make


def recorded(loop: ToolLoop) -> list[tuple[str, bool]]:
    return [(call.tool, call.ok) for call in loop._broker.calls()]


def test_a_model_is_shown_what_is_granted_and_what_needs_no_grant(make_loop: MakeLoop) -> None:
    shown = make_loop("read_file", "git_diff").tools()
    assert [tool["name"] for tool in shown] == ["read_file", "git_diff", *CONTROL_TOOLS]
    for tool in shown:
        assert tool["description"]
        Draft202012Validator.check_schema(tool["input_schema"])
    assert json.loads(json.dumps(shown)) == shown


def test_calls_that_fit_what_is_shown_are_served(make_loop: MakeLoop, ws: Path) -> None:
    loop = make_loop()
    assert loop.call("write_file", {"path": "f", "text": "one\ntwo\n"}) == ToolReply("done")
    assert loop.call("edit_file", {"path": "f", "old": "two", "new": "2"}) == ToolReply("done")
    assert loop.call("read_file", {"path": "f"}) == ToolReply("one\n2\n")
    assert json.loads(loop.call("list_files", {}).text) == ["f"]
    found = loop.call("search_code", {"pattern": "o"})
    assert json.loads(found.text) == [{"path": "f", "line": 1, "text": "one"}]
    assert json.loads(loop.call("list_files", {"pattern": "x/**"}).text) == []
    assert "+2" in loop.call("git_diff", {}).text
    assert loop.call("write_file", {"path": "empty", "text": ""}) == ToolReply("done")
    assert loop.call("read_file", {"path": "empty"}) == ToolReply("(empty)")
    assert all(ok for _, ok in recorded(loop))
    assert loop.result is None


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("read_file", {"path": "none"}, "there is no file 'none'"),
        ("read_file", {"path": "../x"}, "is not a path here"),
        ("read_file", {}, "'path' is a required property"),
        ("read_file", {"path": True}, "path: True is not of type 'string'"),
        ("read_file", [], "is not of type 'object'"),
        ("read_file", None, "is not of type 'object'"),
        ("edit_file", {"path": "f", "old": "zzz", "new": ""}, "not in the file"),
        ("search_code", {"pattern": "("}, "not a regular expression"),
        ("bash", {"command": "ls"}, "no tool is called 'bash' (granted: list_files, read_file"),
        ("note_gap", {}, "'text' is a required property"),
        ("note_gap", {"text": ["x"]}, "is not of type 'string'"),
        (None, {}, "no tool is called 'None'"),
        (["read_file"], {}, "no tool is called"),
        ("\ud800", {}, "no tool is called"),
        ("x" * 100_000, {}, "no tool is called"),
    ],
)
def test_whatever_is_wrong_is_answered_and_recorded(
    make_loop: MakeLoop, ws: Path, name: Any, arguments: Any, says: str
) -> None:
    (ws / "f").write_text("text")
    loop = make_loop()
    reply = loop.call(name, arguments)
    assert reply.is_error
    assert says in reply.text
    assert len(reply.text) < 3000
    assert [ok for _, ok in recorded(loop)] == [False]
    assert loop.result is None


def test_a_tool_that_is_not_granted_is_refused_and_named(make_loop: MakeLoop) -> None:
    loop = make_loop("read_file")
    reply = loop.call("write_file", {"path": "f", "text": "x"})
    assert reply == ToolReply("the contract does not grant the tool write_file (granted: read_file)", is_error=True)
    assert recorded(loop) == [("write_file", False)]


def test_an_error_within_a_tool_is_an_answer(make_broker: MakeBroker, make_loop: MakeLoop) -> None:
    broker = make_broker(workspace=False)

    def fail(path: str) -> bytes:
        raise RuntimeError(f"the disk is on fire: {path}")

    broker._base.read_bytes = fail  # type: ignore[union-attr, method-assign]
    reply = make_loop(broker=broker).call("read_file", {"path": "f"})
    assert reply == ToolReply("RuntimeError: the disk is on fire: f", is_error=True)


def test_arguments_nested_without_end_are_answered(make_loop: MakeLoop) -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    loop = make_loop()
    assert loop.call("read_file", {"path": deep}).is_error
    assert loop.call("submit_result", {"outcome": "completed", "output": deep}).is_error
    assert loop.result is None
    assert recorded(loop) == [("read_file", False), ("submit_result", False)]


def test_a_long_text_is_cut_with_a_note_and_its_record_has_the_digest_of_the_whole(
    make_loop: MakeLoop, ws: Path
) -> None:
    text = "".join(f"line {number}\n" for number in range(10_000))
    (ws / "f").write_text(text)
    loop = make_loop()
    reply = loop.call("read_file", {"path": "f"})
    assert not reply.is_error
    head, note, tail = reply.text.partition("\n[cut here: 48,890 of 98,890 characters are left out; ")
    assert note
    kept, _, tail = tail.partition("; search_code finds lines in it]\n")
    assert (head, tail) == (text[:25_000], text[-25_000:])
    [artifact] = loop._assignment.partial().artifacts
    assert kept == f"the whole is kept as the artifact {artifact.name}"
    assert loop._assignment.artifacts.get(artifact.digest) == text.encode()
    assert loop._broker.calls()[0].result_digest == sha256_digest(text.encode())
    assert loop._broker.read_set() == {"f": sha256_digest(text.encode())}


def test_a_long_list_is_cut_between_items(make_loop: MakeLoop, ws: Path) -> None:
    (ws / "f").write_text("x" * 900 + "\n" + "needle needle needle\n" * 2000)
    loop = make_loop()
    reply = loop.call("search_code", {"pattern": "."})
    listed, note = reply.text.split("\n[cut here: ")
    items = json.loads(listed)
    [artifact] = loop._assignment.partial().artifacts
    kept = f"the whole is kept as the artifact {artifact.name}"
    assert note == f"these are the first {len(items):,} of 2,001 items; {kept}; ask for less]"
    assert 500 < len(items) < 2000
    whole = json.loads(loop._assignment.artifacts.get(artifact.digest))
    assert (whole[: len(items)], len(whole)) == (items, 2001)


FULL = {
    "outcome": "completed",
    "output": {"callers": [1, 2.5, None, "\N{SNOWMAN}"]},
    "message": "done",
    "next_action": "merge",
    "evidence": [
        {"name": "inventory", "kind": "citation", "path": "f", "line": 1, "symbol": "f", "text": "text"},
        {"name": "gaps", "text": "none", "data": {"a": [1]}},
    ],
}


def test_a_result_carries_what_was_noted_before_and_what_was_handed_in(make_loop: MakeLoop) -> None:
    loop = make_loop()
    assert loop.call("note_gap", {"text": "tests were not read"}) == ToolReply("noted")
    assert loop.call("note_assumption", {"text": "main is meant"}) == ToolReply("noted")
    reply = loop.call("submit_result", FULL)
    assert not reply.is_error
    assert loop.result is not None
    assert loop.result.outcome is Outcome.COMPLETED
    assert loop.result.output == FULL["output"]
    assert (loop.result.message, loop.result.next_action) == ("done", "merge")
    assert loop.result.gaps == ["tests were not read"]
    assert loop.result.assumptions == ["main is meant"]
    assert [(item.name, item.kind, item.line) for item in loop.result.evidence] == [
        ("inventory", "citation", 1),
        ("gaps", "note", None),
    ]
    assert Result.model_validate(loop.result.model_dump()) == loop.result


@pytest.mark.parametrize("outcome", ["completed", "partial", "failed"])
def test_an_outcome_alone_is_a_result(make_loop: MakeLoop, outcome: str) -> None:
    loop = make_loop()
    loop.call("submit_result", {"outcome": outcome})
    assert loop.result is not None
    assert str(loop.result.outcome) == outcome


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"outcome": None}, "None is not one of"),
        ({"outcome": "done"}, "'done' is not one of"),
        ({"outcome": "accepted"}, "'accepted' is not one of"),
        ({"outcome": "cancelled"}, "is not one of"),
        ({"outcome": "blocked"}, "blocked needs a question"),
        ({"outcome": "blocked", "question": "  "}, "blocked needs a question"),
        ({"output": float("nan")}, "nan is not a JSON number"),
        ({"output": 2**60}, "beyond"),
        ({"output": {"a": "\ud800"}}, "half a surrogate pair"),
        ({"message": 3}, "message: 3 is not of type 'string'"),
        ({"state": "accepted"}, "'state' was unexpected"),
        ({"artifacts": []}, "'artifacts' was unexpected"),
        ({"gaps": ["x"]}, "'gaps' was unexpected"),
        ({"evidence": {}}, "evidence: {} is not of type 'array'"),
        ({"evidence": ["inventory"]}, "evidence[0]: 'inventory' is not of type 'object'"),
        ({"evidence": [{"kind": "note"}]}, "evidence[0]: 'name' is a required property"),
        ({"evidence": [{"name": "x", "origin": "verified"}]}, "'origin' was unexpected"),
        ({"evidence": [{"name": "x", "seen_in_calls": [1]}]}, "'seen_in_calls' was unexpected"),
        ({"evidence": [{"name": "x", "kind": "proof"}]}, "evidence[0].kind: 'proof' is not one of"),
        ({"evidence": [{"name": "x", "line": 0}]}, "evidence[0].line"),
        ({"evidence": [{"name": "x", "line": "3"}]}, "evidence[0].line"),
        ({"evidence": [{"name": "x", "line": True}]}, "evidence[0].line"),
        ({"evidence": [{"name": ""}]}, "evidence[0].name"),
        ({"evidence": [{"name": "x\n"}]}, "evidence[0].name"),
        ({"evidence": [{"name": "x", "data": float("inf")}]}, "evidence[0].data: "),
    ],
)
def test_a_submission_that_is_off_says_what_is_wrong_and_can_be_mended(
    make_loop: MakeLoop, change: dict[str, Any], says: str
) -> None:
    loop = make_loop()
    loop.call("note_gap", {"text": "one"})
    reply = loop.call("submit_result", {**FULL, **change})
    assert reply.is_error
    assert says in reply.text
    assert loop.result is None
    assert not loop.call("submit_result", FULL).is_error
    assert loop.result is not None
    assert len(loop.result.evidence) == 2
    assert loop.result.gaps == ["one"]
    assert recorded(loop) == [("note_gap", True), ("submit_result", False), ("submit_result", True)]


def test_only_outcomes_that_the_contract_knows_are_taken(make_loop: MakeLoop) -> None:
    loop = make_loop(result_protocol={"submitted_states": ["completed", "failed"]})
    (submit,) = (tool for tool in loop.tools() if tool["name"] == "submit_result")
    assert submit["input_schema"]["properties"]["outcome"] == {"enum": ["completed", "failed", "blocked"]}
    assert loop.call("submit_result", {"outcome": "partial"}).is_error
    assert not loop.call("submit_result", {"outcome": "failed"}).is_error


def test_a_question_to_a_person_is_a_result(make_loop: MakeLoop) -> None:
    loop = make_loop()
    assert not loop.call("submit_result", {"outcome": "blocked", "question": "Which table?"}).is_error
    assert loop.result is not None
    assert (loop.result.outcome, loop.result.question) == (Outcome.BLOCKED, "Which table?")


def test_after_a_result_nothing_is_served(make_loop: MakeLoop, ws: Path) -> None:
    loop = make_loop()
    loop.call("submit_result", FULL)
    first = loop.result
    for name, arguments in (
        ("write_file", {"path": "late", "text": "x"}),
        ("submit_result", {"outcome": "failed"}),
        ("note_gap", {"text": "late"}),
        ("none", {}),
    ):
        reply = loop.call(name, arguments)
        assert reply.is_error
        assert "handed in already" in reply.text
    assert loop.result is first
    assert not (ws / "late").exists()
    assert recorded(loop) == [
        ("submit_result", True), ("write_file", False), ("submit_result", False), ("note_gap", False), ("none", False),
    ]  # fmt: skip
