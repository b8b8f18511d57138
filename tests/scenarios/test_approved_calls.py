"""A person's yes to a call covers that call with the files as they are, once, in whole runs."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from coordinator import Coordinator, Orchestration
from coordinator.home import open_home
from coordinator.launch import launch, plan_launch
from coordinator.store import Damaged
from coordinator.store.views import RequestView
from coordinator.verifying import verify
from tests.model_servers.script import Call, Reply

if TYPE_CHECKING:
    from tests.model_servers.fake import FakeModelServer

CHILDREN = """
import threading
from contracts.tools import ToolUse

DEPLOY = {"command": ["sh", "deploy.sh"]}

def told(view, name):
    path = MARKS / name
    return path.read_text() if path.exists() else None

def deploys(view):
    edit, note = told(view, "edit"), told(view, "note")
    if note:
        yield ToolUse("note_assumption", {"text": note})
    if edit:
        yield ToolUse("write_file", {"path": "deploy.sh", "text": edit})
    said = yield ToolUse("run_command", {"command": ["sh", "deploy.sh", *(told(view, "more") or "").split()]})
    again = said.is_error and (yield ToolUse("run_command", DEPLOY)).text
    yield ToolUse("submit_result", {"outcome": "completed", "output": {"said": said.text, "again": again}})

def adds(view):
    said = yield ToolUse("mcp__sums__add", {"a": 40, "b": 2})
    yield ToolUse("submit_result", {"outcome": "completed", "output": {"said": said.text}})

def at_once(a):
    came, start = [], threading.Barrier(2)
    def one():
        start.wait()
        try:
            came.append(a.tools.run_command(DEPLOY["command"])[1])
        except Exception as error:
            came.append(error)
    threads = [threading.Thread(target=one) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for unanswered in [item for item in came if isinstance(item, Exception)]:
        raise unanswered
    return a.completed({"came": came})
"""
SERVER = Path(__file__).parent.parent / "agents" / "mcp_server.py"


class Deploying:
    """A repository with a ``deploy.sh``, and a child that wants to run it."""

    def __init__(self, bench: Any) -> None:
        self.bench = bench
        self.place = bench.place
        self.folder: Path = bench.folder
        self.effects = self.folder / "effects.txt"
        bench.commit({"deploy.sh": self.script("first"), "other.txt": "x\n"})
        marks = f"import pathlib\nMARKS = pathlib.Path({str(self.folder)!r})\n"
        (self.folder / "children.py").write_text(marks + CHILDREN)

    def script(self, word: str) -> str:
        return f"echo {word} $* >> {self.effects}\necho done {word}\n"

    def task(self, child: str = "deploys", **fields: Any) -> dict[str, Any]:
        resources = {
            "tools": ["run_command", "write_file"], "commands": [["sh", "deploy.sh"]], "effects": "declared",
            "needs_approval": ["run_command"], **fields.pop("resources", {}),
        }  # fmt: skip
        kind = "function" if child == "at_once" else "scripted"
        task: dict[str, Any] = self.bench.task({kind: f"children.py:{child}"}, resources=resources, **fields)
        return task

    def run(self, tasks: Mapping[str, Any] | None = None, **fields: Any) -> Any:
        work = Orchestration.from_file(self.bench.file(tasks or {"one": self.task()}, **fields))
        with Coordinator(self.place.url, home=self.place.home) as coordinator:
            return coordinator.run(work)

    def deployed(self) -> list[str]:
        return self.effects.read_text().split("\n")[:-1] if self.effects.exists() else []

    def requests(self) -> list[RequestView]:
        found: list[RequestView] = self.place.store.requests(self.place.run().row)
        return found

    def states(self) -> list[str]:
        return [request.state for request in self.requests()]

    def answer(self, approved: bool = True, message: str = "") -> None:
        (waiting,) = [request for request in self.requests() if request.state == "open"]
        self.place.store.answer(waiting.request_id, approved=approved, message=message)


@pytest.fixture
def deploying(bench: Any) -> Deploying:
    return Deploying(bench)


def test_an_approved_call_runs_once_in_the_files_that_were_approved(deploying: Deploying) -> None:
    (deploying.folder / "edit").write_text(deploying.script("second"))
    assert deploying.run().tasks["one"].state == "pending"
    (request,) = deploying.requests()
    assert (request.kind, request.state) == ("approval", "open")
    assert 'May run_command be called once, with {"command": ["sh", "deploy.sh"], ' in request.question
    assert '1 file differs from the base: ["deploy.sh"]' in request.question
    assert request.action is not None
    assert request.action.changed == ["deploy.sh"]
    assert deploying.deployed() == []
    deploying.answer()
    one = deploying.run().tasks["one"]
    assert one.accepted, one.reason
    assert one.output["said"] == "exit status 0\ndone second\n"
    assert deploying.deployed() == ["second"]
    assert deploying.states() == ["answered"]


def test_what_was_asked_about_is_verified_with_all_that_is_stored(
    deploying: Deploying,
) -> None:
    deploying.run()
    home, run = open_home(deploying.place.url, deploying.place.home), deploying.place.run().row
    assert verify(deploying.place.store, home, run).differences == []
    database = deploying.place.url.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(database)) as conn, conn:
        conn.execute("UPDATE document SET data = x'7b7d' WHERE id = (SELECT action_id FROM request)")
    (found,) = verify(deploying.place.store, home, run).differences
    assert "call asked about by play-q1" in str(found)
    with pytest.raises(Damaged):
        deploying.requests()


@pytest.mark.parametrize(
    ("name", "text", "ran"),
    [("edit", "", "evil"), ("more", "--prod", "first --prod")],
)  # fmt: skip
def test_what_was_changed_after_the_yes_is_asked_about_again_and_not_run(
    deploying: Deploying, name: str, text: str, ran: str
) -> None:
    deploying.run()
    (deploying.folder / name).write_text(text or deploying.script("evil"))
    deploying.answer()
    assert deploying.run().tasks["one"].state == "pending"
    assert deploying.deployed() == []
    assert deploying.states() == ["void", "open"]
    deploying.answer()
    assert deploying.run().tasks["one"].accepted
    assert deploying.deployed() == [ran]


def test_a_changed_note_is_no_changed_call(deploying: Deploying) -> None:
    (deploying.folder / "note").write_text("it is safe")
    deploying.run()
    (deploying.folder / "note").write_text("it is very safe, trust me")
    deploying.answer()
    one = deploying.run().tasks["one"]
    assert one.accepted, one.reason
    assert deploying.states() == ["answered"]
    assert deploying.deployed() == ["first"]


def test_a_yes_to_one_task_is_none_to_another_that_does_the_same(deploying: Deploying) -> None:
    tasks = {"one": deploying.task(write_scope=[]), "two": deploying.task(write_scope=[])}
    deploying.run(tasks)
    first, second = sorted(deploying.requests(), key=lambda request: request.task_id)
    assert first.bound_digest != second.bound_digest
    deploying.place.store.answer(first.request_id, approved=True)
    result = deploying.run(tasks)
    assert (result.tasks["one"].accepted, result.tasks["two"].state) == (True, "pending")
    assert deploying.deployed() == ["first"]


def test_an_attempt_after_one_that_was_served_asks_again(deploying: Deploying) -> None:
    task = deploying.task(acceptance=[{"cel": "output.said == 'never'"}], limits={"max_repairs": 1, "max_claims": 5})
    deploying.run({"one": task})
    deploying.answer()
    assert deploying.run({"one": task}).tasks["one"].state == "pending"
    assert deploying.deployed() == ["first"]
    first, second = deploying.requests()
    assert (first.state, second.state) == ("answered", "open")
    assert first.bound_digest == second.bound_digest
    deploying.answer()
    deploying.run({"one": task})
    assert deploying.deployed() == ["first", "first"]


def test_a_new_contract_version_needs_a_yes_of_its_own(deploying: Deploying) -> None:
    deploying.run()
    deploying.answer()
    changed = {"one": deploying.task(limits={"max_claims": 2})}
    home = open_home(deploying.place.url, deploying.place.home)
    plan = plan_launch(Orchestration.from_file(deploying.bench.file(changed)), exclude=home.own_files())
    launch(deploying.place.store, home, plan, as_new_version=True)
    assert deploying.run(changed).tasks["one"].state == "pending"
    assert deploying.deployed() == []
    assert [(request.state, request.contract_version) for request in deploying.requests()] == [
        ("answered", 1), ("open", 2),
    ]  # fmt: skip


def test_of_two_calls_at_the_same_time_one_is_sent_and_the_other_is_asked_about(deploying: Deploying) -> None:
    tasks = {"one": deploying.task("at_once")}
    deploying.run(tasks)
    assert deploying.states() == ["open"]
    deploying.answer()
    deploying.run(tasks)
    assert deploying.deployed() == ["first"]
    assert deploying.states() == ["answered", "open"]
    deploying.answer()
    one = deploying.run(tasks).tasks["one"]
    assert one.output["came"] == ["done first\n"] * 2
    assert deploying.deployed() == ["first", "first"]


def test_a_no_is_told_to_the_child_which_is_not_asked_about_it_again(deploying: Deploying) -> None:
    deploying.run()
    deploying.answer(approved=False, message="not on a Friday")
    one = deploying.run().tasks["one"]
    assert one.accepted, one.reason
    no = "run_command was not called: a person said no to this call: not on a Friday"
    assert one.output == {"said": no, "again": no}
    assert (deploying.states(), deploying.deployed()) == (["answered"], [])


def test_a_tool_of_a_server_needs_a_yes_without_a_workspace_too(deploying: Deploying) -> None:
    resources = {"tools": ["mcp__sums__add"], "commands": [], "needs_approval": ["mcp__sums__add"]}
    servers = {"sums": {"command": ["python", str(SERVER), "good"]}}
    tasks = {"one": deploying.task("adds", resources=resources, workspace="none", mcp_servers=servers, write_scope=[])}
    deploying.run(tasks)
    (request,) = deploying.requests()
    assert request.question == 'May mcp__sums__add be called once, with {"a": 40, "b": 2}? The task has no workspace.'
    deploying.answer()
    one = deploying.run(tasks).tasks["one"]
    assert one.accepted, one.reason
    assert one.output == {"said": "42"}


def test_a_crash_between_the_yes_and_the_effect_is_a_question_and_never_a_second_send(deploying: Deploying) -> None:
    deploying.run()
    deploying.answer()
    deploying.place.ended(deploying.place.worker("--fault", "operation_sent:one:2", "--slots", "1"), -signal.SIGKILL)
    deploying.place.ended(deploying.place.worker(), 4)
    assert [(request.kind, request.state) for request in deploying.requests()] == [
        ("approval", "answered"), ("operation", "open"),
    ]  # fmt: skip
    deploying.answer(message="it went out")
    deploying.place.ended(deploying.place.worker(), 0)
    assert deploying.place.one("one").state == "accepted"
    assert deploying.deployed() == []


# -- models

PRICES = {"model-x": {"input_mtok_usd": 3, "output_mtok_usd": 15}}
HANDS_IN = Reply((Call("submit_result", {"outcome": "completed", "output": {"done": True}}),))
RUNS = Call("run_command", {"command": ["sh", "deploy.sh"]})


@pytest.mark.parametrize("on_takeover", ["continue", "fresh"])
@pytest.mark.parametrize("in_one_turn", [True, False])
def test_a_model_goes_on_in_the_very_files_that_were_asked_about(
    deploying: Deploying,
    fake_model: FakeModelServer,
    monkeypatch: pytest.MonkeyPatch,
    on_takeover: str,
    in_one_turn: bool,
) -> None:
    monkeypatch.setenv("MODEL_KEY", "key-of-the-model-0123")
    writes = Call("write_file", {"path": "deploy.sh", "text": deploying.script("second")})
    asks = [Reply((writes, RUNS))] if in_one_turn else [Reply((writes,)), Reply((RUNS,))]
    # Who goes on makes the last call again unasked; who begins anew is told, and makes that call alone.
    after = [HANDS_IN] if on_takeover == "continue" else [Reply((RUNS,)), HANDS_IN]
    replies = iter([*asks, *after])
    fake_model.choose(lambda request: next(replies))
    spec = {"model": "model-x", "base_url": fake_model.url, "api_key_env": "MODEL_KEY"}
    task = {
        **deploying.task(acceptance=[{"cel": "output.done == true"}], limits={"max_claims": 3}),
        "agent": {"anthropic": spec}, "prices": PRICES, "on_takeover": on_takeover,
    }  # fmt: skip
    deploying.run({"one": task})
    (request,) = deploying.requests()
    assert request.action is not None
    assert request.action.changed == ["deploy.sh"]
    deploying.answer(message="go on")
    one = deploying.run({"one": task}).tasks["one"]
    assert one.accepted, (one.reason, deploying.requests())
    assert deploying.deployed() == ["second"]
    assert deploying.states() == ["answered"]
    if on_takeover == "fresh":
        told = str(fake_model.requests[-1].body["messages"][0])
        assert "May run_command be called once" in told
        assert "go on" in told
