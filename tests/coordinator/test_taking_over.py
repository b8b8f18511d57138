"""Where an attempt begins, and which operations before it have left files that are not there."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from contracts.turns import ModelCall, TurnResponse, call_key
from coordinator.children import StopSignal
from coordinator.model_ports import AttemptJournal
from coordinator.redaction import Redactor
from coordinator.store import TaskStore
from coordinator.store.database import Blob
from coordinator.store.journaling import Answered
from coordinator.taking_over import Start, start_of

BASE = "b" * 40
SERVERS = {"near": {"command": ["near"]}, "far": {"url": "https://far.example/mcp"}}
TOOLS = ["run_command", "mcp__near__put", "mcp__far__put"]


class History:
    """One task, whose attempts are written down as they would leave it."""

    def __init__(self, store: TaskStore, build: Any) -> None:
        self.store = store
        self.build = build

    def begin(self, kind: str = "continue", **fields: Any) -> History:
        """``kind``: what a model does on takeover, or ``program``."""
        model = {"agent": {"anthropic": {"model": "m", "api_key_env": None}}, "on_takeover": kind}
        resources = {"effects": "declared", "tools": TOOLS, "commands": [["make"]], "write_scope": ["**"]}
        terms = {
            "workspace": "clone", "mcp_servers": SERVERS, "resources": resources,
            "limits": {"max_claims": 99, "max_repairs": 9},
            **({"agent": {"function": "a.py:f"}} if kind == "program" else model), **fields,
        }  # fmt: skip
        self.store.create_run(self.build.run(self.build.task("one", **terms), head=BASE))
        (self.claim,) = self.store.claim("w", work=1)
        return self

    @property
    def start(self) -> Start:
        return start_of(self.store, self.claim)

    def speaks(self, number: int, conversation: int, tree: str | None = None) -> None:
        """A turn; ``tree``: what it left when it was finished, if it was."""
        calls = [ModelCall(call_id="c", name="run_command", arguments={})]
        said = TurnResponse(text="", calls=calls, stop="calls", model="m", raw=[])
        own = AttemptJournal(
            self.store, self.claim, Start(conversation), Redactor({}), StopSignal(),
            tree=None, record=lambda turn: None if tree is None else tree * 40,
        )  # fmt: skip
        own.answered(number, "sha256:1", said, None, None, [])
        if tree is not None:
            own.finished(number, [])

    def operates(self, key: str, tool: str = "run_command", state: str = "succeeded") -> None:
        row = self.store.prepare_operation(self.claim, key, tool, Blob.of({})).row
        if state != "prepared":
            self.store.send_operation(self.claim, row)
            self.store.settle_operation(self.claim, row, ok=state == "succeeded", outcome=Blob.of("done"))

    def ends(self, word: Any = "lost", *, tree: str | None = None) -> None:
        """And the next begins. ``tree``: it is blocked, in these files."""
        if tree is None:
            self.store.end([self.build.ending(self.claim, "released" if word == "lost" else word)])
        else:
            place = {
                "kind": "clone", "base_commit": BASE, "base_tree": BASE, "candidate_commit": tree * 40,
                "candidate_tree": tree * 40, "changes": [], "outside_scope": [], "left_out": [],
            }  # fmt: skip
            manifest = self.build.manifest(self.claim, outcome="blocked", workspace=place)
            question = self.build.question(f"q{self.claim.attempt}")
            self.store.end([self.build.ending(self.claim, "blocked", manifest=manifest, question=question)])
            (asked,) = [one for one in self.store.requests(self.claim.orchestration_row) if one.state == "open"]
            self.store.answer(asked.request_id, approved=True)
        (self.claim,) = self.store.claim("w", work=1)

    def is_sent_back(self) -> None:
        self.store.submit([self.build.submission(self.claim)])
        (gate,) = self.store.claim("w", work=0, gate=1)
        self.store.decide([self.build.verdict(gate, "repair_required", head=BASE)])
        (self.claim,) = self.store.claim("w", work=1)


@pytest.fixture
def history(sqlite_store: TaskStore, build: Any) -> History:
    return History(sqlite_store, build)


def begins(start: Start) -> tuple[int, int, str | None, list[str]]:
    """The conversation, how many turns it goes on from, the letter of its tree, and whose files are missing."""
    return start.conversation, len(start.turns), start.tree and start.tree[0], sorted(start.files_missing)


@pytest.mark.parametrize(
    ("tool", "state", "goes_on"),
    [
        ("run_command", "prepared", True), ("run_command", "succeeded", False), ("run_command", "failed", False),
        ("mcp__near__put", "succeeded", False), ("mcp__far__put", "succeeded", True),
    ],
)  # fmt: skip
def test_a_turn_is_gone_on_with_unless_something_was_sent_that_can_write_into_the_workspace(
    history: History, tool: str, state: str, goes_on: bool
) -> None:
    history.begin().speaks(1, 1, tree="1")
    history.speaks(2, 1)
    history.operates(call_key(1, 2, 0), tool, state)
    history.ends()
    missing = [] if goes_on or state == "failed" else ["1:2:0"]
    assert begins(history.start) == ((1, 2, "1", []) if goes_on else (2, 0, "1", missing))


def test_without_a_workspace_every_turn_is_gone_on_with(history: History) -> None:
    resources = {"effects": "declared", "tools": TOOLS[1:]}
    history.begin(workspace="none", resources=resources).speaks(1, 1)
    history.operates(call_key(1, 1, 0), "mcp__near__put")
    history.ends()
    assert begins(history.start) == (1, 1, None, [])


def test_what_was_done_in_the_turns_that_are_gone_on_from_is_there(history: History) -> None:
    history.begin().speaks(1, 1)
    history.operates(call_key(1, 1, 0))
    history.ends()
    history.speaks(1, 2, tree="2")
    history.operates(call_key(2, 1, 0))
    history.ends()
    assert begins(history.start) == (2, 1, "2", ["1:1:0"])


def test_who_was_asked_has_the_files_of_the_turns_that_it_went_on_from(history: History) -> None:
    history.begin().speaks(1, 1, tree="1")
    history.operates(call_key(1, 1, 0))
    history.ends()
    history.speaks(2, 1)
    history.operates(call_key(1, 2, 0))
    history.ends(tree="2")
    assert begins(history.start) == (3, 0, "2", [])


def test_an_attempt_that_was_asked_in_the_turn_of_another_is_the_one_whose_files_are_taken(history: History) -> None:
    history.begin().speaks(1, 1)
    history.ends(tree="1")
    history.operates(call_key(1, 1, 0))
    history.ends(tree="2")
    assert begins(history.start) == (3, 0, "2", [])
    history.ends()
    assert begins(history.start) == (4, 0, "2", [])


@pytest.mark.parametrize("readable", [True, False])
def test_files_in_which_an_older_turn_was_asked_about_are_not_taken(history: History, readable: bool) -> None:
    history.begin()
    if readable:
        history.speaks(1, 1)
    else:
        history.store.answered(Answered(history.claim, 1, 1, Blob.of({"no": "turn"}), "m", None, None))
    history.ends(tree="1")
    history.store.finished(history.claim, 1, 1, Blob.of([]), "2" * 40)
    history.ends()
    assert begins(history.start) == ((1, 1, "2", []) if readable else (3, 0, "2", []))


@pytest.mark.parametrize("kind", ["continue", "fresh"])
def test_a_death_in_a_first_turn_leaves_the_files_that_it_began_with(history: History, kind: str) -> None:
    history.begin(kind).speaks(1, 1)
    history.operates(call_key(1, 1, 0))
    history.ends(tree="1")
    history.speaks(1, 2)
    history.ends()
    goes_on = kind == "continue"
    assert begins(history.start) == ((2, 1, "1", []) if goes_on else (3, 0, "1", []))
    if not goes_on:
        history.speaks(1, 3)
    history.operates(call_key(2 if goes_on else 3, 1, 0))
    history.ends()
    assert begins(history.start) == (4, 0, "1", ["2:1:0" if goes_on else "3:1:0"])


@pytest.mark.parametrize("asked", [True, False])
def test_another_head_is_another_base_in_which_nothing_is_there(history: History, asked: bool) -> None:
    history.begin("fresh").speaks(1, 1, tree=None if asked else "1")
    history.operates(call_key(1, 1, 0))
    history.ends(tree="1" if asked else None)
    history.claim = replace(history.claim, head="c" * 40)
    assert begins(history.start) == (2, 0, None, ["1:1:0"])


def test_a_program_takes_the_files_of_a_question_that_came_after_an_operation(history: History) -> None:
    history.begin("program").ends(tree="1")
    assert begins(history.start) == (2, 0, None, [])
    history.operates("0:a:1")
    history.ends(tree="2")
    assert begins(history.start) == (3, 0, "2", [])
    history.operates("0:b:1")
    history.ends(tree="3")
    assert begins(history.start) == (4, 0, "3", [])
    history.operates("0:c:1")
    history.ends()
    assert begins(history.start) == (5, 0, "3", ["0:c:1"])
    assert history.start.tree_of == 3


def test_a_program_whose_operations_failed_begins_in_its_base(history: History) -> None:
    history.begin("program").operates("0:a:1", state="failed")
    history.operates("0:b:1", "mcp__far__put")
    history.ends(tree="1")
    assert begins(history.start) == (2, 0, None, [])


@pytest.mark.parametrize("kind", ["program", "continue"])
def test_what_was_done_for_a_result_that_was_sent_back_is_not_there(history: History, kind: str) -> None:
    history.begin(kind)
    if kind != "program":
        history.speaks(1, 1, tree="1")
    history.operates(call_key(1, 1, 0))
    history.is_sent_back()
    assert begins(history.start) == (2, 0, None, ["1:1:0"])
    if kind == "program":
        history.ends(tree="2")
        assert begins(history.start) == (3, 0, None, ["1:1:0"])


def test_where_the_tree_cannot_be_had_nothing_is_there(history: History) -> None:
    history.begin("fresh").speaks(1, 1)
    history.operates(call_key(1, 1, 0))
    history.ends(tree="1")
    assert begins(history.start.without_files(2)) == (2, 0, None, ["1:1:0"])


@pytest.mark.slow
def test_files_are_found_behind_more_attempts_than_calls_can_be_nested(history: History) -> None:
    history.begin("fresh", limits={"max_claims": 2_000}).speaks(1, 1)
    history.operates(call_key(1, 1, 0))
    history.ends(tree="1")
    for _ in range(sys.getrecursionlimit()):
        history.speaks(1, history.claim.attempt)
        history.ends()
    assert begins(history.start) == (history.claim.attempt, 0, "1", [])
