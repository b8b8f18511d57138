"""Whatever a server sends: a result comes of it, within the limits, and nothing is asked before it is charged."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.broker import Broker
from contracts.assignment import Assignment
from contracts.canonical import canonical_bytes
from contracts.results import Result
from contracts.tools import CONTROL_TOOLS
from tests.agents.llm.conftest import FORMS, MemoryJournal, MemoryMeter, Stage
from tests.model_servers.fake import FakeModelServer
from tests.model_servers.script import Answer, Call, Failure, Raw, Refuse, Reply, Say, Think, Usage, Wire

text = st.text(st.characters(codec=None), max_size=12)
names = st.sampled_from(["read_file", "list_files", "note_gap", "submit_result", "write_file", "fly", "", "a b"]) | text
values: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers() | text
arguments = (
    st.sampled_from([
        {"path": "a.txt"}, {}, {"outcome": "completed"}, {"outcome": "true"}, {"text": "gap"},
        {"outcome": "blocked", "question": ""}, {"outcome": "partial", "output": {"a": [1]}}, None, "", "{",
        '{"a":1,"a":2}',
    ])
    | st.dictionaries(text, values, max_size=3)
    | text
)  # fmt: skip
ids = st.none() | st.sampled_from(["same", "", "x y"])
parts = st.lists(
    st.builds(Say, text) | st.builds(Think, text) | st.builds(Call, names, arguments, ids), max_size=4
).map(tuple)
usages = st.none() | st.builds(
    lambda plain, cached, written, output: Usage(plain + cached + written, output, cached, written),
    st.integers(0, 5_000), st.integers(0, 500), st.integers(0, 500), st.sampled_from([0, 10, 4096, 10**7]),
)  # fmt: skip
stops = st.sampled_from([None, "end", "calls", "length", "filter"])
cuts = st.sampled_from([None, None, None, "no_bytes", "no_body", "first_event", "mid_event", "no_end"])
replies = st.builds(
    lambda said, stop, usage, cut: Reply(said, stop, usage, wire=Wire(cut=cut)), parts, stops, usages, cuts
) | st.builds(lambda said: Reply((Refuse(said),)), text)
answers = st.one_of(
    replies,
    replies,
    replies,
    st.builds(Failure, st.sampled_from([400, 401, 404, 413, 429, 500, 529])),
    st.builds(lambda body: Raw(body, content_type="application/json"), st.binary(max_size=20)),
)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    form=st.sampled_from(FORMS),
    script=st.lists(answers, min_size=1, max_size=8),
    max_turns=st.integers(1, 6),
    max_tool_calls=st.integers(1, 4),
    tokens=st.sampled_from([5_000, 40_000, 10**6]),
)
def test_the_loop_against_any_server(
    tmp_path_factory: pytest.TempPathFactory,
    make_broker: Callable[..., Broker],
    make_assignment: Callable[..., Assignment],
    form: tuple[str, bool],
    script: list[Answer],
    max_turns: int,
    max_tool_calls: int,
    tokens: int,
) -> None:
    meter, journal = MemoryMeter(10**7, tokens), MemoryJournal()
    at_request: list[tuple[int, int]] = []
    lock = threading.Lock()

    with FakeModelServer() as server:

        def answer(_request: object) -> Answer:
            with lock:
                number = len(at_request)
                at_request.append((number + 1, len(meter.reserved_before)))
            return script[number % len(script)]

        server.choose(answer)
        stage = Stage(server, make_broker, make_assignment, tmp_path_factory.getbasetemp())
        budget = {"max_turns": max_turns, "max_tool_calls": max_tool_calls}
        played = stage.play(*form, journal=journal, meter=meter, budget=budget, workspace=False)
        # An id or a name that was mended, a thought that was left out: what goes back must be what an API takes.
        assert server.faults == []
    assert isinstance(played.result, Result)
    assert len(journal.stored) <= max_turns
    assert sum(name not in CONTROL_TOOLS for name in played.calls()) <= max_tool_calls
    assert all(reserved >= request for request, reserved in at_request)
    # Nothing is charged before a call beyond the limit; only what a server counts afterwards can pass it.
    overrun = sum(max(0, spent.tokens - worst.tokens) for worst, spent in meter.settled)
    assert meter.charged.tokens <= tokens + overrun
    for turn in journal.stored.values():
        assert canonical_bytes(turn.model_dump(mode="json"))


@pytest.mark.parametrize("form", FORMS)
def test_a_server_that_always_pauses_or_repeats_does_not_hold_a_child_for_ever(
    stage: Stage, form: tuple[str, bool]
) -> None:
    stop = "pause" if form[0] == "messages" else "length"
    stage.server.choose(lambda request: Reply((Say("wait"),), stop=stop))
    played = stage.play(*form)
    assert played.result.outcome == "failed"
    assert len(stage.server.requests) <= 20
