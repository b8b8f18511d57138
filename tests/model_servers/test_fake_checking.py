"""The fake server refuses what a real API refuses, and takes whole conversations that are in order."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anthropic
import openai
import pytest

from tests.model_servers.asking import Asker
from tests.model_servers.fake import FakeModelServer
from tests.model_servers.script import Call, Reply, Say, Think

USER = {"role": "user", "content": "hello"}
REFUSED = (anthropic.BadRequestError, openai.BadRequestError)


def called(api: str, call_id: str = "c1", **more: Any) -> list[Mapping[str, Any]]:
    """The user's message and one tool call of the model."""
    if api == "messages":
        block = {"type": "tool_use", "id": call_id, "name": "read_file", "input": {}, **more}
        return [USER, {"role": "assistant", "content": [block]}]
    if api == "responses":
        return [USER, {"type": "function_call", "call_id": call_id, "name": "read_file", "arguments": "{}", **more}]
    call = {"id": call_id, "type": "function", "function": {"name": "read_file", "arguments": "{}"}, **more}
    return [USER, {"role": "assistant", "tool_calls": [call]}]


def result(api: str, call_id: str = "c1", text: str = "the file") -> Mapping[str, Any]:
    if api == "messages":
        block = {"type": "tool_result", "tool_use_id": call_id, "content": text}
        return {"role": "user", "content": [block]}
    if api == "responses":
        return {"type": "function_call_output", "call_id": call_id, "output": text}
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def refused(
    server: FakeModelServer, asker: Asker, messages: Sequence[Mapping[str, Any]], match: str, **more: Any
) -> None:
    before = len(server.requests)
    with pytest.raises(REFUSED, match=match):
        asker.ask(messages, **more)
    assert any(match in fault for fault in server.faults)
    assert len(server.requests) == before + 1
    server.faults.clear()


def test_a_whole_conversation_as_the_server_itself_answered_it_is_taken(
    asker: Asker, fake_model: FakeModelServer
) -> None:
    fake_model.reply(Think("hm"), Say("I look."), Call("read_file", {"path": "a"}), Call("read_file", {"path": "b"}))
    first = asker.ask()
    ids = [call_id for call_id, _, _ in first.calls]
    said = first.raw.to_dict()
    if asker.api == "messages":
        results = [block for call_id in ids for block in result("messages", call_id)["content"]]
        more = [{"role": "assistant", "content": said["content"]}, {"role": "user", "content": results}]
    elif asker.api == "responses":
        more = [*said["output"], *(result("responses", call_id) for call_id in ids)]
    else:
        more = [said["choices"][0]["message"], *(result("chat", call_id) for call_id in ids)]
    fake_model.reply(Say("done"))
    assert asker.ask([USER, *more]).text == "done"
    asked = fake_model.requests[-1].asked
    assert asked.results == dict.fromkeys(ids, "the file")
    assert [(call.name, json.loads(call.text)) for call in asked.calls] == [
        ("read_file", {"path": "a"}), ("read_file", {"path": "b"}),
    ]  # fmt: skip
    assert (asked.turns, asked.text, set(asked.tools)) == (1, "hello", {"read_file", "submit_result"})


def test_what_was_asked_is_told_in_words_of_no_provider(asker: Asker, fake_model: FakeModelServer) -> None:
    more: dict[str, dict[str, Any]] = {
        "messages": {
            "system": "be brief", "max_tokens": 9, "tool_choice": {"type": "tool", "name": "submit_result"},
            "extra_body": {"temperature": 0},
        },
        "responses": {
            "instructions": "be brief", "max_output_tokens": 9, "temperature": 0,
            "tool_choice": {"type": "function", "name": "submit_result"},
        },
        "chat": {
            "max_completion_tokens": 9, "temperature": 0,
            "tool_choice": {"type": "function", "function": {"name": "submit_result"}},
        },
    }  # fmt: skip
    messages = [{"role": "system", "content": "be brief"}, USER] if asker.api == "chat" else [USER]
    fake_model.reply(Call("submit_result", {}))
    asker.ask(messages, **more[asker.api])
    asked = fake_model.requests[0].asked
    assert (asked.system, asked.max_tokens, asked.tool_choice) == ("be brief", 9, "submit_result")
    assert (asked.model, asked.stream, asked.turns) == ("m", asker.stream, 0)


def test_tool_calls_and_results_answer_each_other(asker: Asker, fake_model: FakeModelServer) -> None:
    api = asker.api
    refused(fake_model, asker, called(api), "without a result")
    refused(fake_model, asker, [*called(api), USER], "without a result")
    refused(fake_model, asker, [*called(api), result(api, "c2")], "no open tool call")
    refused(fake_model, asker, [*called(api), result(api), *called(api)[1:], result(api)], "two tool calls have the id")
    if api != "messages":
        refused(fake_model, asker, [*called(api), result(api), result(api)], "no open tool call")


def test_the_first_word_is_the_users(asker: Asker, fake_model: FakeModelServer) -> None:
    refused(fake_model, asker, [{"role": "assistant", "content": "hi"}, USER], "first message is not the user's")


def test_tools_have_good_names_and_each_its_own(asker: Asker, fake_model: FakeModelServer) -> None:
    refused(fake_model, asker, [USER], "is not made of", tools={"no spaces": {"type": "object"}})
    twice = {
        "messages": {"name": "a", "input_schema": {"type": "object"}},
        "responses": {"type": "function", "name": "a", "parameters": {}, "strict": False},
        "chat": {"type": "function", "function": {"name": "a"}},
    }[asker.api]
    with pytest.raises(REFUSED, match="two tools have the name 'a'"):
        asker.plainly(tools=[twice, twice])
    fake_model.faults.clear()


def test_a_chosen_tool_must_be_offered(asker: Asker, fake_model: FakeModelServer) -> None:
    choice = {
        "messages": {"type": "tool", "name": "other"},
        "responses": {"type": "function", "name": "other"},
        "chat": {"type": "function", "function": {"name": "other"}},
    }[asker.api]
    refused(fake_model, asker, [USER], "is not offered", tool_choice=choice)


def test_fields_and_shapes_that_the_sdk_does_not_know_are_refused(asker: Asker, fake_model: FakeModelServer) -> None:
    refused(fake_model, asker, [USER], "surprise: the API has no such field", extra_body={"surprise": 1})
    word = "required" if asker.api == "responses" else "role"
    refused(fake_model, asker, [{"role": "wizard", "content": "x"}], word, tools={})


def test_a_surrogate_is_refused_however_it_is_written(fake_model: FakeModelServer) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "half \ud800"}]}
    request = urllib.request.Request(
        f"{fake_model.openai_url}/chat/completions", json.dumps(body).encode(), {"Authorization": "Bearer k"}
    )
    with pytest.raises(urllib.error.HTTPError, match="400") as caught:
        urllib.request.urlopen(request)
    caught.value.close()
    assert "surrogate" in fake_model.faults[0]
    fake_model.faults.clear()


@pytest.mark.parametrize(
    ("messages", "match"),
    [
        ([USER, USER], "two messages of the user follow each other"),
        ([USER, {"role": "assistant", "content": "hi"}], "does not support prefill"),
        ([{"role": "user", "content": ""}], "non-empty content"),
        ([USER, {"role": "assistant", "content": []}, USER], "non-empty content"),
        ([{"role": "user", "content": [{"type": "text", "text": " "}]}], "text content blocks must be non-empty"),
        ([*called("messages", input=None), result("messages")], "ToolUseBlockParam.input"),
        ([*called("messages", input=[1]), result("messages")], "ToolUseBlockParam.input"),
        (
            [
                *called("messages"),
                {"role": "user", "content": [{"type": "text", "text": "x"}, *result("messages")["content"]]},
            ],
            "tool results come before all other content",
        ),
        (
            [
                USER,
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "mine"}, {"type": "text", "text": "x"},
                ]},
                USER,
            ],
            "signature",
        ),
    ],
)  # fmt: skip
def test_what_only_the_messages_api_refuses(
    fake_model: FakeModelServer, make_asker: Callable[..., Asker], messages: list[Mapping[str, Any]], match: str
) -> None:
    refused(fake_model, make_asker("messages"), messages, match)


def test_a_conversation_with_calls_defines_tools(fake_model: FakeModelServer, make_asker: Callable[..., Asker]) -> None:
    messages = [*called("messages"), result("messages")]
    refused(fake_model, make_asker("messages"), messages, "must define tools", tools={})
    refused(
        fake_model, make_asker("messages"), [USER], "is not for an object",
        tools={"read_file": {"type": "string"}},
    )  # fmt: skip
    refused(fake_model, make_asker("messages"), [USER], "max_tokens", max_tokens=0)


def test_what_only_the_chat_api_refuses(fake_model: FakeModelServer, make_asker: Callable[..., Asker]) -> None:
    asker = make_asker("chat")
    refused(fake_model, asker, [USER, {"role": "assistant", "content": None}, USER], "content must not be null")
    refused(
        fake_model, asker, [USER, {"role": "assistant", "content": "x", "tool_calls": []}, USER], "must not be empty"
    )
    refused(fake_model, asker, [USER], "both given", max_tokens=5, max_completion_tokens=5)
    refused(fake_model, asker, [USER], "only for a stream", stream_options={"include_usage": True})


def test_what_only_the_responses_api_refuses(fake_model: FakeModelServer, make_asker: Callable[..., Asker]) -> None:
    asker = make_asker("responses")
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    refused(fake_model, asker, [USER, thought], "without the item that followed it")
    refused(fake_model, asker, [USER], "keeps no responses", previous_response_id="resp_1")


def test_a_chat_stream_counts_only_when_asked(fake_model: FakeModelServer, make_asker: Callable[..., Asker]) -> None:
    fake_model.by_turn(Reply((Say("x"),)))
    asker = make_asker("chat", stream=True)
    assert all(chunk.usage is None for chunk in asker.plainly())
    assert asker.ask().usage is not None


def test_what_one_thread_tells_others_may_ask_for(
    fake_model: FakeModelServer, make_asker: Callable[..., Asker]
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    fake_model.choose(lambda request: Reply((Say(request.asked.text),)))
    asker = make_asker("messages")
    with ThreadPoolExecutor(8) as pool:
        heard = list(pool.map(lambda n: asker.ask([{"role": "user", "content": str(n)}]).text, range(40)))
    assert heard == [str(n) for n in range(40)]
    assert sorted(request.number for request in fake_model.requests) == list(range(40))
