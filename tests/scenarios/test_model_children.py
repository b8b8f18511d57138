"""Models as children, through the whole path: real worker processes, the real client, a fake server that counts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select

from contracts.errors import BadInput, NotFound, Refused
from contracts.orchestration import Orchestration
from contracts.results import Manifest
from coordinator.children import StopSignal
from coordinator.delegating import ChildDelegator
from coordinator.home import open_home
from coordinator.launch import launch, plan_launch
from coordinator.store import tables as t
from tests.model_servers.script import Call, Failure, Reply, Say, Usage, Wire

if TYPE_CHECKING:
    from tests.model_servers.fake import FakeModelServer, Request

PRICES = {"model-x": {"input_mtok_usd": 3, "output_mtok_usd": 15}}
COST_MICRO_USD = 100 * 3 + 10 * 15
"""Of one answer of the fake server."""

WRITES = Reply((Call("write_file", {"path": "out/a.txt", "text": "first\n"}),))
EDITS = Reply(
    (Call("edit_file", {"path": "out/a.txt", "old": "first", "new": "second"}), Call("note_gap", {"text": "b"}))
)
HANDS_IN = Reply((Call("submit_result", {"outcome": "completed", "output": {"done": True}}),))


class Models:
    """Tasks for models behind the fake server."""

    def __init__(self, bench: Any, server: FakeModelServer) -> None:
        self.bench = bench
        self.place = bench.place
        self.server = server

    def task(self, *, tools: list[str] | None = None, budget: Mapping[str, Any] | None = None, **fields: Any) -> Any:
        resources = {
            "tools": ["read_file", "write_file", "edit_file"] if tools is None else tools, "write_scope": ["out/"],
            **fields.pop("resources", {}),
        }  # fmt: skip
        limits = {"lease_s": 20, "deadline_s": 60, "max_claims": 3, **fields.pop("limits", {})}
        spec = {"model": "model-x", "base_url": self.server.url, "api_key_env": "MODEL_KEY"}
        return {
            "objective": "Write out/a.txt.", "agent": {"anthropic": spec}, "isolation": "none", "prices": PRICES,
            "workspace": "clone", "resources": resources, "limits": limits, "budget": dict(budget or {}),
            "acceptance": [{"cel": "output.done == true"}], **fields,
        }  # fmt: skip

    def launch(self, tasks: Mapping[str, Any], **fields: Any) -> None:
        if not (self.bench.repo / ".git").exists():
            self.bench.commit({"readme.md": "hello\n"})
        file = self.place.write(tasks, source=str(self.bench.repo), **fields)
        home = open_home(self.place.url, self.place.home)
        launch(self.place.store, home, plan_launch(Orchestration.from_file(file), exclude=home.own_files()))

    def killed_at(self, point: str, task: str = "one") -> None:
        steps = point if "." in point else f"{point}:{task}:1"
        self.place.ended(self.place.worker("--fault", steps, "--slots", "1"), -signal.SIGKILL)

    def work(self, code: int | None = 0, *options: str) -> None:
        self.place.ended(self.place.worker(*options), code)

    @property
    def asked(self) -> list[int]:
        """For each request, how often the model had spoken in its conversation."""
        return [request.asked.turns for request in self.server.requests]

    def rows(self, table: Any) -> list[Any]:
        found: list[Any] = self.place.store.read_with(lambda tx: tx.conn.execute(select(table)).all())
        return found

    def manifest(self, task_id: str = "one") -> Manifest:
        attempt = self.place.one(task_id).attempts[-1]
        return Manifest.model_validate_json(self.place.store.bytes_of(attempt.manifest_digest))

    def accepted(self, path: str) -> str:
        run = self.place.run()
        git_dir = open_home(self.place.url, self.place.home).git_dir(run.document["git_dir"])
        show = ["git", f"--git-dir={git_dir}", "show", f"{run.head}:{path}"]
        return subprocess.run(show, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def models(bench: Any, fake_model: FakeModelServer, monkeypatch: pytest.MonkeyPatch) -> Models:
    monkeypatch.setenv("MODEL_KEY", "key-of-the-model-0123")
    return Models(bench, fake_model)


# -- killed in the loop; test_crash_points.py does so at each of its points, and says what that costs

STEPS = ["model_answered", "turn_answered", "tool_call", "finished.commit", "turn_finished", "child_returned"]
DAILY = {"model_answered", "turn_answered"}


def steps() -> list[Any]:
    return [pytest.param(point, marks=() if point in DAILY else (pytest.mark.slow,)) for point in STEPS]


@pytest.mark.parametrize("point", steps())
def test_a_stored_turn_is_never_paid_for_twice_wherever_the_worker_is_killed(models: Models, point: str) -> None:
    models.server.by_turn(WRITES, EDITS, HANDS_IN)
    models.launch({"one": models.task(on_takeover="continue")})
    models.killed_at(point)
    models.work()
    assert models.place.run().ok
    unstored = point == "model_answered"  # that turn alone is asked for again, and its first charge stands for ever
    assert models.asked == [*([0] if unstored else []), 0, 1, 2]
    assert models.accepted("out/a.txt") == "second\n"
    manifest = models.manifest()
    assert manifest.gaps == ["b"]  # once, whoever noted it
    turns = models.place.store.turns(models.place.run().row, task=models.place.one("one").row)
    assert [turn.number for turn in turns] == [1, 2, 3]
    charges = models.rows(t.charge)
    # A try that this machine, when it is overloaded, has let fail is another matter, and recorded as such.
    not_failed = [charge for charge in charges if charge.failed is None]
    assert sum(charge.settled_at is None for charge in not_failed) == unstored
    assert {charge.micro_usd for charge in not_failed if charge.settled_at is not None} == {COST_MICRO_USD}
    charged = sum(charge.micro_usd for charge in charges)
    assert models.place.one("one").charged_micro_usd == models.place.run().charged_micro_usd == charged


@pytest.mark.slow
def test_what_was_tried_in_vain_is_not_lost_when_the_worker_dies_before_the_next_try(models: Models) -> None:
    models.server.send(Failure(503, message="come back"), WRITES, HANDS_IN)
    models.launch({"one": models.task(on_takeover="continue")})
    models.killed_at("settle.committed")
    models.work()
    out, _ = models.place.ended(models.place.cli("inspect", "play/one", "--transcript", "--json"))
    [unanswered] = json.loads(out)["unanswered"]
    [record] = unanswered.pop("tries")
    assert (unanswered["attempt"], unanswered["number"]) == (1, 1)
    assert (record["outcome"], record["status"], record["billed"], record["said"]) == (
        "overloaded", 503, "no", "come back",
    )  # fmt: skip
    assert [turn["number"] for turn in json.loads(out)["turns"]] == [1, 2]


@pytest.mark.slow
def test_a_turn_that_was_never_answered_is_in_the_transcript_of_a_task_that_failed(models: Models) -> None:
    models.server.choose(lambda request: Failure(401, message="no such key: key-of-the-model-0123"))
    models.launch({"one": models.task(limits={"max_claims": 2})})
    models.work(1)
    out, _ = models.place.ended(models.place.cli("inspect", "play/one", "--transcript"))
    shown = [" ".join(line.split()) for line in out.splitlines()]
    tries = [line for line in shown if line.startswith("try ")]
    assert len(tries) == 2  # one of each attempt
    assert all(", not charged: no such key: [redacted:MODEL_KEY]" in line for line in tries), tries


def test_a_takeover_restores_exactly_the_recorded_tree_before_it_goes_on(models: Models) -> None:
    # The edit of the second turn is made by the second attempt, and not stored: made again, it finds what the first
    # turn left, and not what the second attempt did.
    models.server.by_turn(WRITES, EDITS, HANDS_IN)
    models.launch({"one": models.task(on_takeover="continue")})
    models.killed_at("turn_finished")
    models.place.ended(models.place.worker("--fault", "tool_call:one:2", "--slots", "1"), -signal.SIGKILL)
    models.work()
    assert models.accepted("out/a.txt") == "second\n"
    assert models.asked == [0, 1, 2]
    assert [call.ok for call in models.manifest().observed_calls if call.tool == "edit_file"] == [True]


@pytest.mark.slow
def test_the_whole_of_what_was_cut_before_the_takeover_is_an_artifact_of_the_result(models: Models) -> None:
    models.bench.commit({"long.txt": "0123456789\n" * 10_000})
    models.server.by_turn(Reply((Call("read_file", {"path": "long.txt"}),)), HANDS_IN)
    models.launch({"one": models.task(on_takeover="continue")})
    models.killed_at("turn_finished")
    models.work()
    [artifact] = models.manifest().artifacts
    assert (artifact.name.startswith("result-of-read_file-"), artifact.size_bytes) == (True, 110_000)
    assert models.place.store.bytes_of(artifact.digest) == b"0123456789\n" * 10_000


@pytest.mark.slow
def test_fresh_begins_a_new_conversation(models: Models) -> None:
    models.server.by_turn(WRITES, HANDS_IN)
    models.launch({"one": models.task(on_takeover="fresh")})
    models.killed_at("turn_finished")
    models.work()
    assert models.place.run().ok
    assert models.asked == [0, 0, 1]
    turns = models.place.store.turns(models.place.run().row, task=models.place.one("one").row)
    assert [(turn.conversation, turn.number) for turn in turns] == [(1, 1), (2, 1), (2, 2)]


def test_fresh_begins_with_the_recorded_tree_and_says_whose_it_is(models: Models) -> None:
    reads = Reply((Call("read_file", {"path": "out/a.txt"}),))
    models.server.choose(lambda request: ([reads, HANDS_IN] if request.number else [WRITES])[request.asked.turns])
    models.launch({"one": models.task()})
    models.killed_at("turn_finished")
    models.work()
    assert "Attempt 1 was broken off" in json.dumps(models.server.requests[1].body["messages"][0])
    assert "first" in json.dumps(models.server.requests[2].body["messages"][-1])
    assert models.accepted("out/a.txt") == "first\n"


@pytest.mark.slow
def test_another_head_is_another_base_and_begins_anew(models: Models) -> None:
    models.server.by_turn(WRITES, HANDS_IN)
    other = models.bench.program("other", '(HERE / "b.txt").write_text("b"); hand_in(output={})', write_scope=["b.txt"])
    models.launch({"one": models.task(on_takeover="continue"), "two": {**other, "needs": []}})
    models.killed_at("turn_finished")
    models.work(None)
    run = models.place.run()
    assert {task.task_id: task.state for task in run.tasks} == {"one": "accepted", "two": "accepted"}
    conversations = {
        turn.conversation for turn in models.place.store.turns(models.place.run().row, task=models.place.one("one").row)
    }
    two_first = models.place.one("one").attempts[-1].started_at > models.place.one("two").attempts[-1].started_at
    assert conversations == ({1, 2} if two_first and len(models.asked) == 3 else {1})


@pytest.mark.slow
def test_a_blocked_conversation_goes_on_with_the_answer(models: Models) -> None:
    asks = Reply((Call("submit_result", {"outcome": "blocked", "question": "Which colour?"}),))
    models.server.by_turn(WRITES, asks, HANDS_IN)
    models.launch({"one": models.task(on_takeover="continue")})
    models.work(4)
    (request,) = models.place.store.requests(models.place.run().row)
    models.place.store.answer(request.request_id, approved=True, message="blue")
    models.work()
    assert models.asked == [0, 1, 2]
    assert "blue" in json.dumps(models.server.requests[-1].body)


# -- budgets


def test_the_budget_of_a_run_holds_for_all_of_its_children(models: Models) -> None:
    reads = Reply((Call("read_file", {"path": "readme.md"}),), usage=Usage(input=3_000, output=1_000))
    models.server.by_turn(*[reads] * 40)
    models.launch({name: models.task(workspace="none", tools=["read_file"], resources={"write_scope": []})
                   for name in ("one", "two")}, budget={"max_cost_usd": 0.3})  # fmt: skip
    models.work(None)
    run = models.place.run()
    assert run.charged_micro_usd == len(models.server.requests) * (3_000 * 3 + 1_000 * 15) <= 300_000
    found = [models.manifest(task.task_id) for task in run.tasks]
    assert {str(manifest.outcome) for manifest in found} == {"partial"}
    assert any("budget" in manifest.message for manifest in found)


def test_a_program_with_a_budget_is_charged_it_whole_before_it_starts(models: Models) -> None:
    programs = {
        name: {**models.bench.program(name, 'mark("start"); hand_in(output={})'), "budget": {"max_cost_usd": 0.6}}
        for name in ("one", "two")
    }
    programs["two"]["needs"] = ["one"]
    models.launch(programs, budget={"max_cost_usd": 1.0})
    models.work(1)
    run = models.place.run()
    assert {task.task_id: task.state for task in run.tasks} == {"one": "accepted", "two": "failed"}
    assert "budget of run play is exhausted: 0.4 USD of 1 USD are left" in (models.place.one("two").reason or "")
    assert [mark[0] for mark in models.place.marks("start")] == ["one"]
    assert run.charged_micro_usd == 600_000


def test_a_program_that_says_what_it_cost_can_be_paid_again(models: Models) -> None:
    body = 'mark("start"); hand_in(outcome="failed" if ATTEMPT == 1 else "completed", output={}, cost_usd=0.25)'
    program = {**models.bench.program("one", body, limits={"max_claims": 2}), "budget": {"max_cost_usd": 0.6}}
    models.launch({"one": program})
    models.work()
    assert models.place.one("one").charged_micro_usd == 500_000
    assert [charge.worst_micro_usd for charge in models.rows(t.charge)] == [600_000, 350_000]


# -- side effects

COMMANDS = {"effects": "declared", "commands": [["sh", "-c"]]}


def unless_told(of: str, runs: Reply) -> Callable[[Request], Reply]:
    """A model that hands in as soon as it reads of it."""
    return lambda request: HANDS_IN if of in json.dumps(request.body["messages"]) else runs


@pytest.mark.parametrize("on_takeover", ["continue", "fresh"])
def test_a_side_effect_that_nobody_saw_the_end_of_is_asked_and_the_model_is_told(
    models: Models, on_takeover: str
) -> None:
    effect = models.place.folder / "effects.txt"
    runs = Reply((Call("run_command", {"command": ["sh", "-c", f"echo done >> {effect}"]}),))
    models.server.choose(unless_told("it was done", runs))
    models.launch({"one": models.task(tools=["run_command"], resources=COMMANDS, on_takeover=on_takeover)})
    models.killed_at("operation_done")
    models.work(4)
    (request,) = models.place.store.requests(models.place.run().row)
    assert request.kind == "operation"
    assert models.asked == [0]
    told = json.dumps([0, "it was done"])
    models.place.store.answer(request.request_id, approved=True, message=told)
    models.work()
    assert models.place.run().ok
    assert models.asked == [0, 0]  # what it wrote into the workspace is lost, so neither goes on
    assert effect.read_text() == "done\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", ["prepare_operation.committed", "send_operation.commit", "settle_operation.committed"]
)
def test_a_new_conversation_sends_what_never_left_and_is_told_what_was_settled(models: Models, point: str) -> None:
    effect = models.place.folder / "effects.txt"
    runs = Reply((Call("run_command", {"command": ["sh", "-c", f"echo done >> {effect}; echo it is $((6 * 7))"]}),))
    models.server.choose(unless_told("it is 42", runs))
    models.launch({"one": models.task(tools=["run_command"], resources=COMMANDS, on_takeover="fresh")})
    models.killed_at(point)
    models.work()
    assert models.place.run().ok
    assert effect.read_text() == "done\n"
    told_at_once = point == "settle_operation.committed"
    assert models.asked == [0, 0, *([] if told_at_once else [1])]


# -- delegation


def by_objective(**answers: list[Reply]) -> Callable[[Request], Reply]:
    """Who asks is told by the first message."""

    def choose(request: Request) -> Reply:
        said = json.dumps(request.body["messages"][0])
        (name,) = [name for name in answers if f"You are {name}." in said]
        return answers[name][request.asked.turns]

    return choose


DELEGATES: dict[str, Any] = {"tools": ["delegate", "read_file"], "delegation": {"max_depth": 1, "max_children": 2}}


def test_a_parent_that_waits_for_its_children_holds_no_slot(models: Models) -> None:
    terms = {"acceptance": [{"cel": "output.done == true"}]}
    models.server.choose(
        by_objective(
            parent=[
                Reply((Call("delegate", {"delegation_id": "a", "objective": "You are child.", "terms": terms}),)),
                Reply((Call("await_children", {"delegation_ids": ["a"]}),)),
                HANDS_IN,
            ],
            child=[HANDS_IN],
        )
    )
    models.launch({"one": models.task(objective="You are parent.", resources=DELEGATES, tools=DELEGATES["tools"])})
    models.work(0, "--slots", "1")
    run = models.place.run()
    assert {task.task_id: task.state for task in run.tasks} == {"one": "accepted", "one.a": "accepted"}
    answered = json.dumps(models.server.requests[-1].body)
    assert "accepted" in answered
    assert models.place.one("one").charged_micro_usd == 4 * COST_MICRO_USD
    assert models.place.one("one.a").charged_micro_usd == COST_MICRO_USD


def test_a_parent_whose_child_waits_for_a_person_is_told_so_and_can_go_on(models: Models) -> None:
    asks = Reply((Call("request_approval", {"question": "May I leave?"}),))
    terms = {"resources": {"tools": ["request_approval"]}, "acceptance": [{"cel": "output.done == true"}]}
    waits = Reply((Call("await_children", {"delegation_ids": ["a", "b"]}),))
    models.server.choose(
        by_objective(
            parent=[
                Reply((Call("delegate", {"delegation_id": "a", "objective": "You are child.", "terms": terms}),
                       Call("delegate", {"delegation_id": "b", "objective": "You are other.", "terms": terms}))),
                waits, Reply((Call("submit_result", {"outcome": "blocked", "question": "Shall I wait for a?"}),)),
                waits, HANDS_IN,
            ],
            child=[asks, HANDS_IN],
            other=[HANDS_IN],
        )
    )  # fmt: skip
    tools = ["delegate", "request_approval"]
    parent = models.task(
        objective="You are parent.", tools=tools, on_takeover="continue", workspace="none",
        resources={**DELEGATES, "tools": tools, "write_scope": []},
    )  # fmt: skip
    models.launch({"one": parent})
    models.work(4, "--slots", "1")
    run = models.place.run()
    assert {task.task_id: task.word for task in run.tasks} == {
        "one": "waiting",
        "one.a": "waiting",
        "one.b": "accepted",
    }
    (told,) = [request for request in models.server.requests if request.asked.turns == 2]
    said = json.dumps(told.body["messages"][-1])
    assert "blocked" in said
    assert "May I leave?" in said
    assert "accepted" in said  # of the other, which was waited for
    for request in models.place.store.requests(run.row):
        models.place.store.answer(request.request_id, approved=True, message="yes")
    models.work(0, "--slots", "1")
    assert models.place.run().ok
    assert len(models.place.one("one").attempts) == 2


@pytest.fixture
def delegator(models: Models) -> Any:
    """Of a parent that is being worked on, in this process."""
    models.launch({"one": models.task(tools=list(DELEGATES["tools"]), resources=DELEGATES, budget={"max_turns": 9})})
    place = models.place
    (claim,) = place.store.claim("w", work=1)
    return ChildDelegator(place.store, open_home(place.url, place.home), claim, StopSignal(), lambda rests: None)


def test_the_same_name_is_the_same_child_and_there_are_no_more_than_granted(delegator: Any, models: Models) -> None:
    assert delegator.delegate("a", {"objective": "Do a part."}) == "one.a"
    assert delegator.delegate("a", {"objective": "Do a part."}) == "one.a"
    with pytest.raises(Refused, match="was issued with other terms"):
        delegator.delegate("a", {"objective": "Do another part."})
    delegator.delegate("b", {"objective": "Do b."})
    with pytest.raises(Refused, match="one may have 2 children in all"):
        delegator.delegate("c", {"objective": "Do c."})
    terms = models.place.one("one.a").terms
    assert terms.resources.tools == ["read_file"]
    assert terms.budget.max_turns == 9
    assert models.place.one("one.a").parent_task_id == "one"
    for bad in ("", "a b", "../a", "x" * 99):
        with pytest.raises(BadInput, match="cannot name a child"):
            delegator.delegate(bad, {"objective": "Do it."})
    with pytest.raises(NotFound, match="no child was delegated as z"):
        delegator.wait(["z"], 60.0)


def test_children_are_waited_for_only_as_long_as_their_parent_can_still_hand_in(delegator: Any, models: Models) -> None:
    delegator.delegate("a", {"objective": "Do a part."})
    delegator.delegate("b", {"objective": "Do another."})
    began_s = time.monotonic()
    ends = delegator.wait(["a", "b"], 1.0)
    assert time.monotonic() - began_s >= 0.8
    assert [(end.delegation_id, end.word, end.output) for end in ends] == [
        ("a", "pending", None), ("b", "pending", None),
    ]  # fmt: skip
    assert {end.reason for end in ends} == {"it has not ended, and the time to wait for it is over"}


@pytest.mark.slow
def test_a_parent_whose_time_to_wait_is_over_hands_in_what_it_has(models: Models, until: Callable[..., Any]) -> None:
    # Less of its time than usual is for waiting: else a slow machine has too little for its last turn.
    script = (
        "import sys\nimport coordinator.delegating\nfrom tests.scenarios.worker_process import main\n"
        "coordinator.delegating.HANDING_IN_PART = 0.6\nsys.exit(main())"
    )
    terms = {"acceptance": [{"cel": "output.done == true"}]}
    models.server.choose(
        by_objective(
            parent=[
                Reply((Call("delegate", {"delegation_id": "a", "objective": "You are child.", "terms": terms}),)),
                Reply((Call("await_children", {"delegation_ids": ["a"]}),)),
                Reply((Call("submit_result", {"outcome": "partial", "output": {"done": True}}),)),
            ],
            child=[Reply((Say("Never."),), wire=Wire(first_byte_after_s=60))],
        )
    )
    parent = models.task(
        objective="You are parent.", resources={**DELEGATES, "write_scope": []}, tools=DELEGATES["tools"],
        budget={"max_wall_s": 20}, workspace="none", limits={"max_claims": 1},
    )  # fmt: skip
    models.launch({"one": parent})
    place = models.place
    worker = place.process(sys.executable, "-c", script, "--store", place.url, "--home", str(place.home))
    until(lambda: any(attempt.manifest_digest for attempt in place.one("one").attempts))
    worker.terminate()  # its child still waits for an answer
    place.ended(worker, None)
    last = [request for request in models.server.requests if request.asked.turns == 2]
    assert "the time to wait for it is over" in json.dumps(last[0].body["messages"][-1])
    assert list(last[0].asked.tools) == ["submit_result"]  # its last turn
    assert models.manifest().output == {"done": True}


@pytest.mark.parametrize(
    ("terms", "refused"),
    [
        ({"resources": {"tools": ["write_file"]}}, "tools: write_file goes beyond the parent's grant"),
        ({"budget": {"max_turns": 99}}, "budget.max_turns: 99 goes beyond"),
        ({"agent": {"command": ["sh", "-c", "id"]}}, "agent"),
        ({"agent": {"anthropic": {"model": "model-x", "base_url": "https://elsewhere.example"}}}, "agent"),
        ({"limits": {"deadline_s": 9_999}}, "limits.deadline_s: 9999 goes beyond the parent's"),
        ({"acceptance": [{"json_schema": "/etc/passwd"}]}, "not one that the parent's own contract names"),
        ({"needs": ["two"]}, "needs no other task"),
        ({"prices": {"model-x": {"input_mtok_usd": 0, "output_mtok_usd": 0}}}, "prices.model-x: another price"),
        ({"prices": {"model-y": {"input_mtok_usd": 0, "output_mtok_usd": 0}}}, "prices.model-y: another price"),
        ({"resources": {"delegation": {"max_depth": 1, "max_children": 1}}}, "delegation"),
        ({"nonsense": True}, "nonsense"),
    ],
)
def test_a_grant_beyond_the_parents_is_refused_in_words_that_the_model_reads(
    delegator: Any, terms: Mapping[str, Any], refused: str
) -> None:
    with pytest.raises(BadInput, match=refused):
        delegator.delegate("a", {"objective": "Do more.", **terms})
