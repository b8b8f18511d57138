"""Beyond its tree a child gets what is granted, through ports: programs, people, children, and operations once each."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.assignment import Assignment
from contracts.canonical import sha256_digest
from contracts.errors import BadInput, OperationUnsettled, StaleClaim, StoreUnavailable
from contracts.results import Result
from contracts.states import Outcome
from contracts.tools import CONTROL_TOOLS
from coordinator.runtimes import load_agents
from tests.agents.conftest import Children, OperationsOfOneTask, People, Programs

load_agents()
from agents.broker import Broker, OutcomeUnknown, ToolLoop, ToolRefused, Unanswered  # noqa: E402 - found once loaded
from agents.runtimes.function import FunctionRuntime  # noqa: E402

MakeBroker = Callable[..., Broker]
MakeAssignment = Callable[..., Assignment]

PYTHON = [sys.executable, "-c"]
OUTSIDE = ("run_command", "request_approval", "delegate")


@pytest.fixture
def programs(ws: Path) -> Programs:
    return Programs(ws)


@pytest.fixture
def make_loop(make_assignment: MakeAssignment) -> Callable[..., ToolLoop]:
    def make(broker: Broker, *tools: str, **resources: Any) -> ToolLoop:
        terms = {"workspace": "directory", "resources": {"tools": list(tools), **resources}}
        return ToolLoop(make_assignment(terms=terms, broker=broker), broker)

    return make


def commands(make_broker: MakeBroker, programs: Programs, *granted: list[str], **more: Any) -> Broker:
    effects = more.pop("effects", "none")
    grant = {"commands": list(granted), "effects": effects}
    return make_broker("run_command", grant=grant, runner=programs, **more)


@pytest.mark.parametrize(
    "command",
    [
        ["ls"], ["python"], ["python", "-m", "unittest"], ["python", "-m", "pytest2"], ["python -m pytest"],
        ["/bin/python", "-m", "pytest"], ["python", "-m"], ["", "python", "-m", "pytest"], ["git", "status", "-s"],
        ["sh", "-c", "python -m pytest"], ["python", "-m", "pytest", "x\0y"], ["python", "-m", "pytest", "\ud800"],
        ["python", "-m", "pytest", *["x"] * 1_000], ["python", "-m", "pytest", "x" * 100_000],
    ],
)  # fmt: skip
def test_a_command_that_does_not_begin_as_a_granted_one_is_not_run(
    make_broker: MakeBroker, programs: Programs, command: list[str]
) -> None:
    broker = commands(make_broker, programs, ["python", "-m", "pytest"], ["git", "status", "--short"])
    with pytest.raises(ToolRefused):
        broker.run_command(command)
    assert programs.ran == []
    assert broker.processes() == ()
    assert [(call.tool, call.ok) for call in broker.calls()] == [("run_command", False)]


@pytest.mark.parametrize("command", [["echo", "a"], ["echo", "a", "b;c", "$HOME", "d e"]])
def test_a_command_that_begins_as_a_granted_one_is_run_word_by_word(
    make_broker: MakeBroker, programs: Programs, command: list[str]
) -> None:
    broker = commands(make_broker, programs, ["ls"], ["echo", "a"])
    assert broker.run_command(command, 9) == (0, " ".join(command[1:]) + "\n")
    assert programs.ran == [(command, 9)]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"command": "pytest -q"}, "command: "),
        ({"command": []}, "command: "),
        ({"command": ["echo", 1]}, "command[1]: "),
        ({"command": ["echo"], "timeout_s": "5"}, "timeout_s: '5' is not of type 'number'"),
        ({"command": ["echo"], "timeout_s": 0}, "timeout_s: "),
        ({"command": ["echo"], "shell": "true"}, "'shell' was unexpected"),
    ],
)
def test_arguments_of_another_form_are_answered_with_the_name_of_the_field(
    make_broker: MakeBroker, programs: Programs, make_loop: Callable[..., ToolLoop], arguments: Any, names: str
) -> None:
    loop = make_loop(commands(make_broker, programs, ["echo"]), "run_command")
    reply = loop.call("run_command", arguments)
    assert reply.is_error
    assert names in reply.text
    assert programs.ran == []


def test_a_command_that_ran_is_on_record_with_its_end_whatever_that_was(
    make_broker: MakeBroker, programs: Programs, make_loop: Callable[..., ToolLoop], ws: Path
) -> None:
    broker = commands(make_broker, programs, PYTHON)
    loop = make_loop(broker, "run_command")
    failing = [*PYTHON, "print('no'); raise SystemExit(3)"]
    sleeping = [*PYTHON, "import time; time.sleep(60)"]
    assert loop.call("run_command", {"command": failing}).text == "exit status 3\nno\n"
    assert loop.call("run_command", {"command": [*PYTHON, ""]}).text == "exit status 0; it wrote nothing"
    assert loop.call("run_command", {"command": sleeping, "timeout_s": 0.1}).text == "no exit status\nit took too long"
    records = broker.processes()
    assert [(record.argv, record.how, record.exit_status) for record in records] == [
        (failing, "exited", 3), ([*PYTHON, ""], "exited", 0), (sleeping, "killed", None),
    ]  # fmt: skip
    assert records[0].stdout_digest == sha256_digest(b"no\n") == broker.calls()[0].result_digest
    assert records[0].output_tail == "no\n"
    assert [call.ok for call in broker.calls()] == [True, True, True]


def test_a_long_output_is_cut_in_its_middle_and_kept_whole(
    make_broker: MakeBroker, programs: Programs, make_loop: Callable[..., ToolLoop]
) -> None:
    loop = make_loop(commands(make_broker, programs, PYTHON), "run_command")
    many = "print('first'); print('x' * 200_000); print('\\udcff'); print('the error is here')"
    reply = loop.call(
        "run_command", {"command": [*PYTHON, f"import sys; sys.stdout.reconfigure(errors='surrogateescape'); {many}"]}
    )
    assert not reply.is_error
    assert reply.text.startswith("exit status 0\nfirst\nxxx")
    assert reply.text.endswith("the error is here\n")
    assert 50_000 < len(reply.text) < 51_000
    [artifact] = loop._assignment.partial().artifacts
    assert artifact.name in reply.text
    whole = loop._assignment.artifacts.get(artifact.digest).decode()
    assert len(whole) > 200_000
    assert "\\udcff" in whole


def test_a_model_is_told_which_commands_it_may_run(make_broker: MakeBroker, programs: Programs) -> None:
    [tool] = commands(make_broker, programs, ["python", "-m", "pytest"], ["ls"]).offered()
    assert tool["name"] == "run_command"
    assert tool["description"].endswith('one of these: ["python", "-m", "pytest"]; ["ls"]')


@pytest.mark.parametrize("tool", [*OUTSIDE, "await_children"])
def test_a_granted_tool_that_nothing_here_can_serve_is_refused_by_name(make_broker: MakeBroker, tool: str) -> None:
    broker = make_broker(*OUTSIDE, grant={"commands": [["true"]]})
    arguments = {
        "run_command": {"command": ["true"]}, "request_approval": {"question": "Well?"},
        "delegate": {"delegation_id": "a", "objective": "x"}, "await_children": {"delegation_ids": ["a"]},
    }[tool]  # fmt: skip
    with pytest.raises(ToolRefused, match=f"^{tool} is granted, but nothing here"):
        broker.call(tool, arguments)


def test_an_unanswered_question_ends_the_attempt_as_blocked_with_that_very_question(
    make_broker: MakeBroker, make_loop: Callable[..., ToolLoop]
) -> None:
    loop = make_loop(make_broker("request_approval", inbox=People()), "request_approval")
    loop.call("note_gap", {"text": "the tests"})
    question = "May I drop the table?\n(It is empty.)"
    assert loop.call("request_approval", {"question": question}).is_error
    assert loop.result is not None
    assert (loop.result.outcome, loop.result.question) == (Outcome.BLOCKED, question)
    assert loop.result.gaps == ["the tests"]
    assert "the work is over" in loop.call("note_gap", {"text": "late"}).text


@pytest.mark.parametrize(
    ("answer", "says"),
    [((True, ""), "approved"), ((True, "on Monday"), "approved: on Monday"), ((False, "never"), "rejected: never")],
)
def test_an_answered_question_gives_the_answer_and_a_no_ends_nothing(
    make_broker: MakeBroker, make_loop: Callable[..., ToolLoop], answer: tuple[bool, str], says: str
) -> None:
    inbox = People(**{"May I?": answer})
    loop = make_loop(make_broker("request_approval", inbox=inbox), "request_approval")
    reply = loop.call("request_approval", {"question": "May I?"})
    assert (reply.text, reply.is_error, loop.result) == (says, False, None)
    assert loop.call("request_approval", {"question": "may I?"}).is_error
    assert loop.result is not None


@pytest.mark.parametrize("question", ["", " \n", "x" * 4_001, "\ud800"])
def test_what_nobody_could_answer_is_not_asked(
    make_broker: MakeBroker, make_loop: Callable[..., ToolLoop], question: str
) -> None:
    loop = make_loop(make_broker("request_approval", inbox=People()), "request_approval")
    assert loop.call("request_approval", {"question": question}).is_error
    assert loop.result is None


def test_a_function_child_that_asks_is_blocked_and_has_its_answer_the_next_time(
    make_broker: MakeBroker, make_assignment: MakeAssignment
) -> None:
    def child(a: Assignment) -> Result:
        approved, message = a.tools.request_approval("May I?")
        return a.completed({"approved": approved, "message": message})

    async def async_child(a: Assignment) -> Result:
        return child(a)

    def run(function: Callable[..., Any], inbox: People) -> Result:
        assignment = make_assignment(broker=make_broker("request_approval", inbox=inbox))
        result = FunctionRuntime(lambda: function).run(assignment)
        return result if isinstance(result, Result) else asyncio.run(result)

    for function in (child, async_child):
        blocked = run(function, People())
        assert (blocked.outcome, blocked.question) == (Outcome.BLOCKED, "May I?")
        assert run(function, People(**{"May I?": (False, "no")})).output == {"approved": False, "message": "no"}


def test_delegated_children_are_named_waited_for_and_answered_as_data(
    make_broker: MakeBroker, make_loop: Callable[..., ToolLoop]
) -> None:
    children = Children()
    broker = make_broker("delegate", delegator=children)
    loop = make_loop(broker, "delegate", delegation={"max_depth": 1, "max_children": 2})
    assert [tool["name"] for tool in loop.tools()] == ["delegate", "await_children", *CONTROL_TOOLS]
    terms = {"budget": {"max_turns": 2}}
    said = {"delegation_id": "a", "objective": "Count.", "terms": terms}
    assert "task-a" in loop.call("delegate", said).text
    assert children.terms == {"a": {"objective": "Count.", "budget": {"max_turns": 2}}}
    lines = loop.call("await_children", {"delegation_ids": ["a", "b"]}).text.splitlines()
    assert [json.loads(line) for line in lines] == [
        {
            "delegation_id": name, "end": "accepted", "reason": "", "output": {"of": name},
            "artifacts": {"log": "sha256:1"}, "gaps": ["a gap"],
        }
        for name in ("a", "b")
    ]  # fmt: skip
    assert [call.ok for call in broker.calls()] == [True, True]


def test_without_delegate_there_is_no_waiting_either(make_broker: MakeBroker) -> None:
    with pytest.raises(ToolRefused, match="does not grant the tool await_children"):
        make_broker("read_file", delegator=Children()).await_children(["a"])


def test_an_objective_is_said_once(make_broker: MakeBroker) -> None:
    children = Children()
    with pytest.raises(ToolRefused, match="terms.objective"):
        make_broker("delegate", delegator=children).delegate("a", "x", {"objective": "y"})
    assert children.terms == {}


@pytest.mark.parametrize("error", [BadInput("budget.max_turns: 9 goes beyond 3"), RuntimeError("odd")])
def test_what_a_port_refuses_is_an_answer(
    make_broker: MakeBroker, make_loop: Callable[..., ToolLoop], error: Exception
) -> None:
    reply = make_loop(_failing(make_broker, error), "delegate").call(
        "delegate", {"delegation_id": "a", "objective": "x"}
    )
    assert reply.is_error
    assert str(error) in reply.text


@pytest.mark.parametrize("error", [StaleClaim("gone"), StoreUnavailable("full"), OperationUnsettled("who knows")])
def test_what_no_child_can_mend_ends_the_attempt_instead_of_being_answered(
    make_broker: MakeBroker, make_loop: Callable[..., ToolLoop], error: Exception
) -> None:
    broker = _failing(make_broker, error)
    with pytest.raises(type(error)):
        make_loop(broker, "delegate").call("delegate", {"delegation_id": "a", "objective": "x"})
    assert [call.ok for call in broker.calls()] == [False]


def _failing(make_broker: MakeBroker, error: Exception) -> Broker:
    class Failing(Children):
        def delegate(self, delegation_id: str, terms: Any) -> str:
            raise error

    return make_broker("delegate", delegator=Failing())


def test_a_call_that_was_carried_out_is_not_sent_again_under_its_key(
    make_broker: MakeBroker, programs: Programs, make_loop: Callable[..., ToolLoop]
) -> None:
    operations = OperationsOfOneTask()
    command = [*PYTHON, "print(open('n', 'a').write('x'))"]
    for _ in range(2):
        broker = commands(make_broker, programs, PYTHON, effects="declared", operations=operations)
        loop = make_loop(broker, "run_command", effects="declared")
        assert loop.call("run_command", {"command": command}, "1:4:0").text == "exit status 0\n1\n"
        assert [call.ok for call in broker.calls()] == [True]
    assert (programs.folder / "n").read_text() == "x"
    assert list(operations.states) == ["1:4:0"]
    loop.call("run_command", {"command": command}, "1:4:1")
    assert (programs.folder / "n").read_text() == "xx"


def test_what_is_answered_from_an_earlier_attempt_says_where_its_files_are_missing(
    make_broker: MakeBroker, programs: Programs, make_loop: Callable[..., ToolLoop]
) -> None:
    operations = OperationsOfOneTask()
    operations.states = {
        "1:1:0": ("succeeded", '[0, "made\\n"]'), "1:1:1": ("succeeded", '[1, ""]'), "1:1:2": ("succeeded", "it did"),
        "1:1:3": ("succeeded", '[0, "made\\n"]'),
    }  # fmt: skip
    operations.missing = {"1:1:0", "1:1:1", "1:1:2"}
    broker = commands(make_broker, programs, ["echo"], effects="declared", operations=operations)
    loop = make_loop(broker, "run_command")
    note = "[done by an earlier attempt: what it wrote into the workspace is not here]"
    assert [loop.call("run_command", {"command": ["echo"]}, f"1:1:{index}").text for index in range(4)] == [
        f"exit status 0\nmade\n{note}", f"exit status 1\n{note}", f"no exit status\nit did\n{note}",
        "exit status 0\nmade\n",
    ]  # fmt: skip


def test_a_program_that_begins_anew_finds_each_of_its_calls_again_by_what_it_asked(
    make_broker: MakeBroker, programs: Programs
) -> None:
    operations = OperationsOfOneTask()

    def attempt(*said: str, since: int = 0) -> list[str]:
        broker = commands(make_broker, programs, ["echo"], effects="declared", operations=operations)
        broker.start_calls_anew(since)
        return [broker.run_command(["echo", word])[1].strip() for word in said]

    assert attempt("a", "a") == ["a", "a"]
    assert len(programs.ran) == 2
    # Another order, and one more of the same.
    assert attempt("b", "a", "a", "a") == ["b", "a", "a", "a"]
    assert [argv[1] for argv, _ in programs.ran] == ["a", "a", "b", "a"]
    # The result was sent back: what is asked now is asked for the new one.
    assert attempt("a", since=2) == ["a"]
    assert len(programs.ran) == 5


def test_a_refused_command_is_no_operation(make_broker: MakeBroker, programs: Programs) -> None:
    operations = OperationsOfOneTask()
    broker = commands(make_broker, programs, ["echo"], effects="declared", operations=operations)
    with pytest.raises(ToolRefused):
        broker.run_command(["rm"])
    assert operations.states == {}


def test_without_a_record_of_operations_nothing_declared_is_sent(make_broker: MakeBroker, programs: Programs) -> None:
    with pytest.raises(ToolRefused, match="nothing here records operations"):
        commands(make_broker, programs, ["echo"], effects="declared").run_command(["echo"])
    assert programs.ran == []


def test_a_call_whose_end_nobody_saw_stays_sent_and_ends_the_attempt(
    make_broker: MakeBroker, make_loop: Callable[..., ToolLoop]
) -> None:
    def lost(argv: Any, timeout_s: float) -> tuple[int | None, str]:
        raise OutcomeUnknown("the supervisor was lost")

    operations = OperationsOfOneTask()
    more: dict[str, Any] = {"runner": lost, "operations": operations}
    declared = make_broker("run_command", grant={"commands": [["x"]], "effects": "declared"}, **more)
    for _ in range(2):
        with pytest.raises(OperationUnsettled):
            make_loop(declared, "run_command").call("run_command", {"command": ["x"]}, "1:1:0")
    assert operations.states == {"1:1:0": ("sent", "")}
    undeclared = make_broker("run_command", grant={"commands": [["x"]]}, **more)
    reply = make_loop(undeclared, "run_command").call("run_command", {"command": ["x"]})
    assert (reply.text, reply.is_error) == ("the supervisor was lost", True)


def test_a_call_that_a_person_has_settled_answers_in_that_persons_words(
    make_broker: MakeBroker, programs: Programs, make_loop: Callable[..., ToolLoop]
) -> None:
    operations = OperationsOfOneTask()
    operations.states = {"1:1:0": ("succeeded", "it happened"), "1:1:1": ("failed", "it did not")}
    broker = commands(make_broker, programs, ["echo"], effects="declared", operations=operations)
    loop = make_loop(broker, "run_command")
    assert loop.call("run_command", {"command": ["echo"]}, "1:1:0").text == "no exit status\nit happened"
    assert loop.call("run_command", {"command": ["echo"]}, "1:1:1").is_error
    assert programs.ran == []
    assert broker.processes() == ()


def test_an_async_child_is_told_not_to_hold_up_the_loop(make_broker: MakeBroker, programs: Programs) -> None:
    broker = commands(make_broker, programs, ["echo"])

    async def on_the_loop() -> None:
        with pytest.raises(ToolRefused, match="asyncio.to_thread"):
            broker.run_command(["echo"])
        assert await asyncio.to_thread(broker.run_command, ["echo"]) == (0, "\n")

    asyncio.run(on_the_loop())


def test_a_question_is_raised_to_whoever_calls_the_broker_itself(make_broker: MakeBroker) -> None:
    broker = make_broker("request_approval", inbox=People())
    with pytest.raises(Unanswered) as raised:
        broker.request_approval("May I?")
    assert raised.value.question == "May I?"
    assert [(call.tool, call.ok) for call in broker.calls()] == [("request_approval", False)]
