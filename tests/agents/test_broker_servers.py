"""Tools of MCP servers: real programs and a real web server, some hostile; none of them outlives its attempt."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from contracts.assignment import Assignment
from contracts.canonical import sha256_digest
from contracts.errors import OperationUnsettled
from contracts.model_specs import McpServer
from contracts.tools import CONTROL_TOOLS
from coordinator.runtimes import load_agents
from tests.agents.conftest import OperationsOfOneTask, Stop

load_agents()
from agents.broker import (  # noqa: E402 - found once it is loaded
    Broker,
    OutcomeUnknown,
    ServerFailed,
    ServerPlace,
    ToolLoop,
    ToolRefused,
    ToolServers,
)

SERVER = Path(__file__).with_name("mcp_server.py")
COUNT = "mcp__raw__count"
MakeServers = Callable[..., ToolServers]
MakeBroker = Callable[..., Broker]
MakeAssignment = Callable[..., Assignment]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def programs_of(folder: Path) -> list[int]:
    """Processes whose environment says that they live below this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and f"HOME={folder}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return [pid for pid in found if alive(pid)]


def servers_at(
    folder: Path, *behaviour: str, server: str = "raw", tools: Any = ("count",), credentials: Any = None, **more: Any
) -> ToolServers:
    spec = McpServer(command=["python", str(SERVER), *behaviour], credentials=list(credentials or ()))
    granted = [f"mcp__{server}__{tool}" for tool in tools]
    cwd = folder / "work"
    cwd.mkdir(exist_ok=True)
    limits = {"start_limit_s": 60.0, "call_limit_s": 60.0, **more}
    cancel = limits.pop("cancel", Stop())
    place = ServerPlace(folder / "scratch", cwd, {"NOT_GRANTED": "secret", **(credentials or {})})
    return ToolServers({server: spec}, granted, place, cancel, **limits)


@pytest.fixture
def make_servers(tmp_path: Path) -> Iterator[MakeServers]:
    made: list[ToolServers] = []

    def make(*behaviour: str, **more: Any) -> ToolServers:
        made.append(servers_at(tmp_path, *behaviour, **more))
        return made[-1]

    yield make
    assert all(servers.close() for servers in made)
    assert programs_of(tmp_path) == []


TOOLS = ("add", "shout", "variable", "place", "fail", "repeat", "picture")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolServers]:
    folder = tmp_path_factory.mktemp("good")
    os.environ["OF_THE_COORDINATOR"] = "secret"
    servers = servers_at(folder, "good", server="good", tools=TOOLS, credentials={"SERVER_TOKEN": "abc"})
    yield servers
    del os.environ["OF_THE_COORDINATOR"]
    assert servers.close()
    assert programs_of(folder) == []


@pytest.fixture
def loop(good: ToolServers, make_broker: MakeBroker, make_assignment: MakeAssignment) -> ToolLoop:
    granted = [f"mcp__good__{tool}" for tool in TOOLS]
    broker = make_broker(*granted, servers=good)
    return ToolLoop(make_assignment(terms={"resources": {"tools": granted}}, broker=broker), broker)


def test_granted_tools_are_shown_as_their_server_describes_them_and_no_other(
    good: ToolServers, make_broker: MakeBroker, make_assignment: MakeAssignment
) -> None:
    broker = make_broker("read_file", "mcp__good__add", servers=good)
    loop = ToolLoop(make_assignment(terms={"resources": {"tools": ["read_file", "mcp__good__add"]}}), broker)
    shown = loop.tools()
    assert [tool["name"] for tool in shown] == ["read_file", "mcp__good__add", *CONTROL_TOOLS]
    assert shown[1]["description"] == "Add two numbers."
    assert shown[1]["input_schema"]["required"] == ["a", "b"]
    assert json.loads(json.dumps(shown)) == shown
    reply = loop.call("mcp__good__shout", {"text": "x", "loud": True})
    assert reply.text == "no tool is called 'mcp__good__shout' (granted: read_file, mcp__good__add)"


def test_a_call_is_served_and_recorded_with_the_digest_of_what_was_said(loop: ToolLoop) -> None:
    assert loop.call("mcp__good__add", {"a": 20, "b": 22}).text == "42"
    assert loop.call("mcp__good__shout", {"text": "hej", "loud": True, "again": None}).text == "HEJ"
    assert loop.call("mcp__good__picture", {}).text == "[image/png, 300 bytes, left out]"
    assert loop._broker.call_tool("mcp__good__add", {"a": 1, "b": 1}) == "2"
    calls = loop._broker.calls()
    assert [call.ok for call in calls] == [True] * 4
    assert calls[0].result_digest == sha256_digest(b"42")


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        ("shout", {"text": "x", "loud": "true"}, "loud: 'true' is not of type 'boolean'"),
        ("shout", {"text": "x", "loud": True, "again": "true"}, "again: 'true' is not of type 'boolean', 'null'"),
        ("add", {"a": "1", "b": 2}, "a: '1' is not of type 'integer'"),
        ("add", {"a": 1}, "'b' is a required property"),
        ("add", [1, 2], "is not of type 'object'"),
        ("add", None, "is not of type 'object'"),
        ("fail", {}, "the tool failed: "),
    ],
)
def test_what_is_wrong_with_a_call_is_an_answer_that_names_it(
    loop: ToolLoop, tool: str, arguments: Any, says: str
) -> None:
    reply = loop.call(f"mcp__good__{tool}", arguments)
    assert reply.is_error
    assert says in reply.text
    assert [call.ok for call in loop._broker.calls()] == [False]


def test_a_long_answer_is_cut_and_kept_whole(loop: ToolLoop) -> None:
    reply = loop.call("mcp__good__repeat", {"text": "0123456789", "times": 20_000})
    assert not reply.is_error
    assert "150,000 of 200,000 characters are left out" in reply.text
    [artifact] = loop._assignment.partial().artifacts
    assert artifact.name in reply.text
    assert loop._assignment.artifacts.get(artifact.digest) == b"0123456789" * 20_000


@pytest.mark.parametrize(
    ("name", "value"),
    [("SERVER_TOKEN", "abc"), ("NOT_GRANTED", "(not set)"), ("OF_THE_COORDINATOR", "(not set)")],
)
def test_a_server_gets_its_own_credentials_and_nothing_else(loop: ToolLoop, name: str, value: str) -> None:
    assert loop.call("mcp__good__variable", {"name": name}).text == value


def test_a_server_works_where_the_child_does(loop: ToolLoop) -> None:
    assert Path(loop.call("mcp__good__place", {}).text).name == "work"


def test_nothing_is_started_until_a_tool_is_needed(make_servers: MakeServers, tmp_path: Path) -> None:
    servers = make_servers("good")
    assert programs_of(tmp_path) == []
    assert servers.close()
    with pytest.raises(ToolRefused, match="the attempt is over"):
        servers.tools()


@pytest.mark.parametrize(
    ("behaviour", "says"),
    [
        (["leaves"], "it ended by itself (exit status 1): no licence found"),
        (["empty"], "has no tool 'count' (it has: none)"),
        (["twice"], "lists the tool 'count' twice"),
        (["pages"], "its list of tools does not end"),
        (["schema", '{"type": "object", "$ref": "http://x.invalid/"}'], "outside of itself"),
        (["schema", '{"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}}'], "outside of itself"),
        (["schema", '{"type": "string"}'], "Input should be 'object'"),
        (["schema", '{"type": "object", "properties": {"a": {"type": 5}}}'], "is not valid under any"),
        (["schema", '{"type": "object", "properties": [1]}'], "properties: Input should be a valid dictionary"),
        (["schema", '{"type": "object", "required": [1]}'], "cannot be used"),
        (["schema", '{"type": "object", "additionalProperties": 3}'], "$.additionalProperties"),
        (["schema", json.dumps({"type": "object", "description": "x" * 70_000})], "bytes are more than 65,536"),
        (["schema", '{"type": "object", "x": ' + "[" * 60 + "]" * 60 + "}"], "nested too deep"),
        (["schema", '{"type": "object", "maximum": 1e400}'], "is not a JSON number"),
    ],
)
def test_a_server_that_is_not_what_was_granted_fails_the_attempt_and_says_why(
    make_servers: MakeServers, make_broker: MakeBroker, make_assignment: MakeAssignment, behaviour: list[str], says: str
) -> None:
    broker = make_broker(COUNT, servers=make_servers(*behaviour))
    loop = ToolLoop(make_assignment(terms={"resources": {"tools": [COUNT]}}, broker=broker), broker)
    with pytest.raises(ServerFailed) as raised:
        loop.tools()
    assert says in str(raised.value)
    assert "'raw'" in str(raised.value) or COUNT in str(raised.value)
    with pytest.raises(ServerFailed):
        loop.call(COUNT, {"n": 1})


def test_a_program_that_is_not_there_fails_the_attempt(tmp_path: Path) -> None:
    place = ServerPlace(tmp_path / "scratch", tmp_path, {})
    servers = ToolServers({"raw": McpServer(command=["no-such-program"])}, [COUNT], place, Stop())
    with pytest.raises(ServerFailed, match="no-such-program"):
        servers.tools()
    assert servers.close()


def test_a_credential_that_is_not_set_is_named_before_anything_starts(tmp_path: Path) -> None:
    spec = McpServer(command=["python"], credentials=["TOKEN_OF_IT"])
    servers = ToolServers({"raw": spec}, [COUNT], ServerPlace(tmp_path / "scratch", tmp_path, {}), Stop())
    with pytest.raises(ServerFailed, match="TOKEN_OF_IT"):
        servers.tools()
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize("behaviour", ["hangs", "mute"])
def test_a_server_that_does_not_answer_at_first_is_not_waited_for_for_ever(
    make_servers: MakeServers, behaviour: str
) -> None:
    servers = make_servers(behaviour, start_limit_s=1.0)
    with pytest.raises(ServerFailed, match="did not answer within 1 s"):
        servers.tools()


@pytest.mark.parametrize(
    ("behaviour", "says"),
    [
        ("dies", "exit status 7"),
        ("dies_of_signal", "signal 9"),
        ("call_hangs", "did not answer count within 1 s"),
        ("one_line", "more than 8,388,608 bytes"),
        ("floods", "more than 33,554,432 bytes"),
    ],
)
def test_a_server_that_is_lost_during_a_call_leaves_its_outcome_unknown_and_is_called_no_more(
    make_servers: MakeServers, behaviour: str, says: str
) -> None:
    servers = make_servers(behaviour, call_limit_s=1.0 if behaviour == "call_hangs" else 60.0)
    with pytest.raises(OutcomeUnknown) as raised:
        servers.call(COUNT, {"n": 1})
    assert says in str(raised.value)
    with pytest.raises(ToolRefused, match="is gone"):
        servers.call(COUNT, {"n": 1})


def test_a_server_is_waited_for_no_longer_than_there_is_time(
    make_servers: MakeServers, make_broker: MakeBroker
) -> None:
    broker = make_broker(COUNT, servers=make_servers("call_hangs"))
    broker.offered()
    left_s = 0.5
    broker.limit_time(lambda: left_s)
    with pytest.raises(OutcomeUnknown, match="did not answer count within 0.5 s"):
        broker.call_tool(COUNT, {"n": 1})
    left_s = 0.0
    with pytest.raises(ToolRefused, match="no time is left"):
        broker.call_tool(COUNT, {"n": 1})


@pytest.mark.parametrize(
    ("behaviour", "answers"),
    [
        ("noise", ["call 1: count 1", "call 2: count 2"]),
        ("deep", ["call 1: count 1", "call 2: count 2"]),
        ("surrogates", ["half a \\ud800 pair"] * 2),
        ("asks", ['{"code": -32600, "message": "Sampling not supported"}'] * 2),
        ("words", ["call 1: count 1", "call 2: count 2"]),
        # What was shown at the start stands; a tool that appears later was granted by nobody.
        ("changes", ["call 1: count 1", "call 2: count 2"]),
    ],
)
def test_whatever_else_a_server_says_its_answers_are_taken_as_text(
    make_servers: MakeServers, behaviour: str, answers: list[str]
) -> None:
    servers = make_servers(behaviour)
    assert [servers.call(COUNT, {"n": number}) for number in (1, 2)] == answers
    assert list(servers.tools()) == [COUNT]
    summary = servers.tools()[COUNT].summary
    assert len(summary) <= 2_000
    assert summary.encode()


def test_the_last_word_of_a_server_that_ends_with_it_is_heard(make_servers: MakeServers) -> None:
    assert make_servers("answers_and_dies").call(COUNT, {"n": 1}) == "the last word"


def test_an_answer_of_no_form_leaves_the_outcome_unknown(make_servers: MakeServers) -> None:
    with pytest.raises(OutcomeUnknown, match="makes no sense"):
        make_servers("nonsense").call(COUNT, {"n": 1})


def test_what_a_server_started_is_gone_with_it(make_servers: MakeServers) -> None:
    servers = make_servers("spawns")
    pid = int(servers.call(COUNT, {"n": 1}))
    assert alive(pid)
    assert servers.close()
    assert not alive(pid)


def test_a_stop_is_not_held_up_by_a_server(make_servers: MakeServers) -> None:
    cancel = Stop()
    servers = make_servers("call_hangs", cancel=cancel)
    servers.tools()
    threading.Timer(0.2, cancel.set, ["the run was cancelled"]).start()
    with pytest.raises(OutcomeUnknown, match="given up: the run was cancelled"):
        servers.call(COUNT, {"n": 1})


def test_calls_from_several_threads_are_all_answered(make_servers: MakeServers) -> None:
    servers = make_servers("good", server="good", tools=["add"])
    said: dict[int, str] = {}

    def ask(number: int) -> None:
        said[number] = servers.call("mcp__good__add", {"a": number, "b": 1})

    threads = [threading.Thread(target=ask, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == {number: str(number + 1) for number in range(8)}


def test_a_call_whose_outcome_is_unknown_is_an_operation_that_stays_sent(
    make_servers: MakeServers, make_broker: MakeBroker, make_assignment: MakeAssignment
) -> None:
    operations = OperationsOfOneTask()
    grant = {"effects": "declared"}
    broker = make_broker(COUNT, grant=grant, servers=make_servers("dies"), operations=operations)
    loop = ToolLoop(make_assignment(terms={"resources": {"tools": [COUNT], **grant}}, broker=broker), broker)
    with pytest.raises(OperationUnsettled, match="was lost during count"):
        loop.call(COUNT, {"n": 1}, "1:1:0")
    assert operations.states == {"1:1:0": ("sent", "")}
    # Nobody sends it again; not even to a server that is alive.
    broker = make_broker(COUNT, grant=grant, servers=make_servers("noise"), operations=operations)
    with pytest.raises(OperationUnsettled):
        broker.call(COUNT, {"n": 1}, "1:1:0")
    assert broker.call(COUNT, {"n": 1}, "1:1:1") == "call 1: count 1"
    assert operations.states["1:1:1"] == ("succeeded", "call 1: count 1")


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    """Where a web server of tools listens, a process of its own."""
    process = subprocess.Popen(
        [sys.executable, str(SERVER), "web"], stdout=subprocess.PIPE, env={**os.environ, "SERVER_TOKEN": "abc"}
    )
    with process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.kill()


@pytest.fixture
def on_the_web(origin: str, tmp_path: Path) -> Iterator[Callable[..., ToolServers]]:
    made: list[ToolServers] = []

    def make(behaviour: str, **credentials: str) -> ToolServers:
        spec = McpServer(url=f"{origin}/{behaviour}", credentials=list(credentials))
        place = ServerPlace(tmp_path / "scratch", tmp_path, credentials)
        made.append(ToolServers({"raw": spec}, ["mcp__raw__add"], place, Stop()))
        return made[-1]

    yield make
    assert all(servers.close() for servers in made)


def test_a_server_on_the_web_is_told_its_token_and_serves(on_the_web: Callable[..., ToolServers]) -> None:
    servers = on_the_web("serves", SERVER_TOKEN="abc")
    assert [servers.call("mcp__raw__add", {"a": number, "b": 2}) for number in (1, 2)] == ["3", "4"]


@pytest.mark.parametrize(
    ("behaviour", "credentials", "says"),
    [
        ("serves", {"SERVER_TOKEN": "wrong"}, "cannot be used"),
        ("serves", {}, "cannot be used"),
        ("serves", {"SERVER_TOKEN": "abc", "OTHER": "x"}, "takes one credential"),
        ("packs", {"SERVER_TOKEN": "abc"}, "packed its answer"),
        ("redirects", {"SERVER_TOKEN": "abc"}, "cannot be used"),
    ],
)
def test_a_server_on_the_web_that_does_not_let_us_in_or_plays_tricks_fails_the_attempt(
    on_the_web: Callable[..., ToolServers], behaviour: str, credentials: Mapping[str, str], says: str
) -> None:
    with pytest.raises(ServerFailed, match=says) as raised:
        on_the_web(behaviour, **credentials).tools()
    assert "abc" not in str(raised.value)


def test_a_server_on_the_web_that_floods_is_left(on_the_web: Callable[..., ToolServers]) -> None:
    servers = on_the_web("floods", SERVER_TOKEN="abc")
    with pytest.raises(OutcomeUnknown, match="more than 33,554,432 bytes"):
        servers.call("mcp__raw__add", {"a": 1, "b": 2})
    with pytest.raises(ToolRefused, match="is gone"):
        servers.call("mcp__raw__add", {"a": 1, "b": 2})
