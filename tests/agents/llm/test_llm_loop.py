"""The loop of a model child, in each of the three APIs, streamed and plain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from contracts.states import Outcome
from tests.model_servers.script import Call, Refuse, Reply, Say, Think, Usage

if TYPE_CHECKING:
    from tests.agents.llm.conftest import Stage

SUBMIT = Call("submit_result", {"outcome": "completed", "output": {"ok": True}})
Form = tuple[str, bool]


def test_calls_are_answered_in_order_and_the_result_that_is_handed_in_ends_the_child(stage: Stage, form: Form) -> None:
    stage.server.reply(Think("hm"), Say("I look."), Call("read_file", {"path": "a.txt"}), Call("list_files", {}))
    stage.server.reply(SUBMIT)
    played = stage.play(*form, workspace=False)
    assert played.result.outcome is Outcome.COMPLETED
    assert played.result.output == {"ok": True}
    assert played.calls() == ["read_file", "list_files", "submit_result"]
    first, second = stage.server.requests
    assert "# Objective\n\nDo it." in first.asked.text
    assert "delegation contract" in first.asked.system
    assert set(first.asked.tools) >= {"read_file", "list_files", "write_file", "note_gap", "submit_result"}
    assert list(second.asked.results.values()) == ["alpha\n", '["a.txt",\n "b.txt"]']
    assert played.journal.steps == ["answered 1", "finished 1", "answered 2", "finished 2"]
    assert played.runtime.all_gone


def test_what_the_model_said_goes_back_to_it_unchanged(stage: Stage, form: Form) -> None:
    """The server itself refuses thoughts whose signature does not fit, and calls without their answers."""
    stage.server.reply(Think("a"), Say("one"), Call("read_file", {"path": "a.txt"}))
    stage.server.reply(Think("b"), Call("read_file", {"path": "b.txt"}))
    stage.server.reply(SUBMIT)
    assert stage.play(*form, workspace=False).result.outcome is Outcome.COMPLETED
    kinds = [item.kind for item in stage.server.requests[-1].asked.items if item.kind != "system"]
    thoughts = [] if form[0] == "chat" else ["reasoning"]
    assert kinds == ["user", *thoughts, "assistant", "call", "result", *thoughts, "call", "result"]


def test_a_tool_that_fails_tells_the_model_why_and_the_work_goes_on(stage: Stage, form: Form) -> None:
    stage.server.reply(Call("read_file", {"path": "none.txt"}), Call("fly", {}), Call("read_file", {"path": 1}))
    stage.server.reply(SUBMIT)
    played = stage.play(*form, workspace=False)
    assert played.result.outcome is Outcome.COMPLETED
    missing, unknown, wrong = stage.server.requests[1].asked.results.values()
    assert "there is no file 'none.txt'" in missing
    assert "no tool is called 'fly' (granted: list_files, read_file, write_file)" in unknown
    assert "1 is not of type 'string'" in wrong


def test_text_without_a_call_is_answered_with_a_request_for_the_result(stage: Stage, form: Form) -> None:
    stage.server.reply(Say("All done!"))
    stage.server.reply(SUBMIT)
    assert stage.play(*form).result.outcome is Outcome.COMPLETED
    assert "hand in the result by calling submit_result" in stage.server.requests[1].asked.text


def test_a_model_that_never_calls_a_tool_is_offered_the_result_alone_and_then_fails(stage: Stage, form: Form) -> None:
    stage.server.choose(lambda request: Reply((Say("I think."),)))
    played = stage.play(*form)
    assert played.result.outcome is Outcome.FAILED
    assert "handed in no result" in played.result.message
    assert [set(request.asked.tools) == {"submit_result"} for request in stage.server.requests] == [
        False, False, True, True,
    ]  # fmt: skip
    assert [request.asked.tool_choice for request in stage.server.requests] == ["auto", "auto", "any", "any"]


@pytest.mark.parametrize("parts", [(), (Say(""),), (Say(" \n"),)], ids=["no-parts", "empty-text", "blank-text"])
def test_an_empty_answer_is_no_end(stage: Stage, form: Form, parts: tuple[Say, ...]) -> None:
    stage.server.reply(*parts)
    stage.server.reply(SUBMIT)
    assert stage.play(*form).result.outcome is Outcome.COMPLETED


def test_a_refusal_is_asked_about_once_and_then_fails_with_its_words(stage: Stage, form: Form) -> None:
    stage.server.reply(Refuse("I will not."))
    stage.server.reply(Refuse("I really will not."))
    played = stage.play(*form)
    assert played.result.outcome is Outcome.FAILED
    assert played.result.message == "the model refused: I really will not."
    assert "You refused." in stage.server.requests[1].asked.text


def test_a_refusal_that_is_taken_back_is_none(stage: Stage, form: Form) -> None:
    stage.server.reply(Refuse("I will not."))
    stage.server.reply(SUBMIT)
    assert stage.play(*form).result.outcome is Outcome.COMPLETED


@pytest.mark.parametrize(
    ("stop", "usage"), [("length", Usage()), ("calls", Usage(output=4096))], ids=["told", "not-told"]
)
def test_of_an_answer_that_was_cut_off_no_call_is_carried_out(
    stage: Stage, form: Form, stop: str, usage: Usage
) -> None:
    whole = Call("write_file", {"path": "x.txt", "text": "half of"})
    stage.server.reply(Say("Writing."), whole, stop=stop, usage=usage)
    stage.server.reply(SUBMIT)
    played = stage.play(*form)
    assert played.calls() == ["submit_result"]
    second = stage.server.requests[1].asked
    assert second.calls == []
    assert "was cut off" in second.text


def test_a_paused_turn_is_sent_back_to_go_on(stage: Stage) -> None:
    for stream in (True, False):
        stage.server.reply(Say("One moment."), stop="pause")
        stage.server.reply(Say("Now."), SUBMIT)
        assert stage.play("messages", stream).result.outcome is Outcome.COMPLETED
        assert [item.kind for item in stage.server.requests[-1].asked.items] == ["system", "user", "assistant"]


def test_a_text_that_is_true_is_not_taken_for_the_word_true(stage: Stage, form: Form) -> None:
    stage.server.reply(Call("submit_result", {"outcome": "completed", "evidence": "true"}))
    stage.server.reply(SUBMIT)
    assert stage.play(*form).result.outcome is Outcome.COMPLETED
    [answer] = stage.server.requests[1].asked.results.values()
    assert "'true' is not of type 'array'" in answer


def test_fields_that_nobody_knows_change_nothing(stage: Stage, form: Form) -> None:
    stage.server.reply(SUBMIT, extra={"novel": {"deep": [1, None, "x"]}})
    assert stage.play(*form).result.outcome is Outcome.COMPLETED


def test_words_after_the_result_are_not_served(stage: Stage, form: Form) -> None:
    stage.server.reply(SUBMIT, Call("write_file", {"path": "x.txt", "text": "late"}))
    played = stage.play(*form)
    assert played.result.outcome is Outcome.COMPLETED
    assert [call.ok for call in played.broker.calls()] == [True, False]


def test_instructions_of_the_agent_stand_after_the_objective_and_once(stage: Stage) -> None:
    stage.server.reply(SUBMIT)
    terms = {"agent": {"anthropic": {"model": "model-x", "instructions": "Be terse as stone."}}}
    stage.play("messages", spec={"instructions": "Be terse as stone."}, terms=terms)
    text = stage.server.requests[0].asked.text
    assert text.count("Be terse as stone.") == 1
    assert text.index("# Objective") < text.index("Be terse as stone.") < text.index("# Contract")
