"""What providers send is made safe once: calls, ids, names, text that no store can hold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.llm.received import CallReader, json_arguments, storable
from contracts.canonical import canonical_bytes, json_faults
from contracts.states import Outcome
from tests.model_servers.script import Call, Reply, Say

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agents.llm.conftest import Stage

Form = tuple[str, bool]
SUBMIT = Call("submit_result", {"outcome": "completed"})
WRITING = {"workspace": "directory", "resources": {"tools": ["write_file"], "write_scope": ["**"]}}


@pytest.mark.parametrize("given", [None, "", "null", {}, "{}", ' {"a": [1, {"b": null}]} ', {"a": "ü\U0001f600"}])
def test_arguments_that_are_an_object_are_taken(given: object) -> None:
    arguments, malformed = json_arguments(given)
    assert malformed == ""
    assert arguments == ((json.loads(given) if isinstance(given, str) and given else given) or {})


@pytest.mark.parametrize(
    "given",
    [
        '{"path": "a.txt", "text": "half of', "[1]", "true", '"{}"', '{"a": 1, "a": 2}', '{"a": {"b": 1, "b": 1}}',
        '{"a": NaN}', '{"a": 1e999}', '{"a": 123456789012345678901}', '{"a": "\\ud83d"}', "{'a': 1}", "{}{}",
        "[" * 9_999,
        '{"a":' * 99 + "1" + "}" * 99, [1], "read_file", 7, True, {"a": "\ud83d"},
    ],
)  # fmt: skip
def test_arguments_that_are_none_are_not_mended(given: object) -> None:
    arguments, malformed = json_arguments(given)
    assert arguments is None
    assert malformed
    assert malformed.encode()


@pytest.mark.parametrize("arguments", ['{"path": "x.txt", "text": "half', "[1]", '"x"', '{"text": "a", "text": "b"}'])
def test_a_malformed_call_is_not_carried_out_and_told(stage: Stage, form: Form, arguments: str) -> None:
    stage.server.reply(Call("write_file", arguments), Call("note_gap", {"text": "x"}))
    stage.server.reply(SUBMIT)
    played = stage.play(*form)
    assert played.result.outcome is Outcome.COMPLETED
    assert [call.tool for call in played.broker.calls() if call.ok] == ["note_gap", "submit_result"]
    malformed, noted = stage.server.requests[1].asked.results.values()
    assert "the arguments" in malformed
    assert noted == "noted"
    # Servers parse what they are sent back: a call that stays malformed there would fail every later request.
    assert all(isinstance(json.loads(call.text), dict) for call in stage.server.requests[1].asked.calls)


def test_a_call_without_arguments_is_a_call(stage: Stage, form: Form) -> None:
    stage.server.reply(Call("list_files", None), Call("list_files", ""), Call("read_file", None))
    stage.server.reply(SUBMIT)
    played = stage.play(*form, workspace=False)
    assert played.result.outcome is Outcome.COMPLETED
    assert [call.ok for call in played.broker.calls()] == [True, True, False, True]


@pytest.mark.parametrize("ids", [("same", "same", "same"), ("", "", ""), ("a b", "ü", "x" * 999)])
def test_calls_that_share_an_id_are_each_carried_out_and_answered_once(
    stage: Stage, form: Form, ws: Path, ids: tuple[str, str, str]
) -> None:
    stage.server.reply(*(Call("write_file", {"path": f"{n}.txt", "text": str(n)}, id=one) for n, one in enumerate(ids)))
    stage.server.reply(Call("note_gap", {"text": "x"}, id=ids[0]))
    stage.server.reply(SUBMIT)
    broker = stage.make_broker("write_file")
    played = stage.play(*form, broker=broker)
    assert played.result.outcome is Outcome.COMPLETED
    assert sorted(path.read_text() for path in ws.iterdir()) == ["0", "1", "2"]
    assert len(stage.server.requests[2].asked.results) == 4


def test_a_name_that_no_provider_takes_back_does_not_poison_the_conversation(stage: Stage, form: Form) -> None:
    stage.server.reply(Call("functions.read file", {"path": "a.txt"}), Call("", {}), Call("x" * 300, {}))
    stage.server.reply(SUBMIT)
    played = stage.play(*form)
    assert played.result.outcome is Outcome.COMPLETED
    assert "no tool is called 'functions.read file'" in next(iter(stage.server.requests[1].asked.results.values()))


def test_half_a_surrogate_pair_goes_through_everything(stage: Stage, form: Form) -> None:
    stage.server.reply(Say("half \ud83d of it"), Call("note_gap", {"text": "half \udc00"}), Call("list_\ud800", {}))
    stage.server.reply(Say("\ud83d"))
    stage.server.reply(SUBMIT)
    played = stage.play(*form)
    assert played.result.outcome is Outcome.COMPLETED
    assert "half \\ud83d of it" in played.journal.stored[1].response.text


def test_one_tool_output_cannot_break_the_request(stage: Stage, form: Form) -> None:
    stage.files = {"a.txt": "\U0001f600".encode()[:2], "b\udcff.txt": b""}
    stage.server.reply(Call("read_file", {"path": "a.txt"}), Call("list_files", {}))
    stage.server.reply(SUBMIT)
    assert stage.play(*form, workspace=False).result.outcome is Outcome.COMPLETED


def test_ids_are_never_used_twice_in_a_conversation() -> None:
    reader = CallReader(frozenset({"call_1", "a"}))
    made = [reader.read(one, "x", {})[0].call_id for one in ("a", "b", "b", "", None, "call_1", "call_3")]
    assert len(set(made) | {"call_1", "a"}) == len(made) + 2
    assert made[1] == "b"


anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@given(anything)
def test_whatever_came_can_be_stored_and_what_could_be_is_not_touched(value: Any) -> None:
    stored = storable(value)
    assert canonical_bytes(stored)
    if not json_faults(value):
        assert stored == value


def test_a_name_of_an_unknown_stop_is_no_trouble(stage: Stage, form: Form) -> None:
    if form[0] == "responses":
        pytest.skip("this API has a closed list of them")
    stage.server.send(Reply((Say("hm"),), stop="novel_reason"), Reply((SUBMIT,), stop="another"))
    assert stage.play(*form).result.outcome is Outcome.COMPLETED
