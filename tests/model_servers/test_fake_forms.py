"""Each answer of the fake server, in each API, plain and streamed, is what the real SDK makes of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from tests.model_servers.asking import Asker
from tests.model_servers.fake import FakeModelServer
from tests.model_servers.script import Call, Refuse, Reply, Say, Think, Usage

STOPS = {
    "messages": {"end": "end_turn", "calls": "tool_use", "length": "max_tokens", "refusal": "refusal",
                 "filter": "refusal", "context": "model_context_window_exceeded"},
    "responses": {"end": "completed", "calls": "completed", "length": "max_output_tokens", "refusal": "completed",
                  "filter": "content_filter", "context": "max_output_tokens"},
    "chat": {"end": "stop", "calls": "tool_calls", "length": "length", "refusal": "stop", "filter": "content_filter",
             "context": "length"},
}  # fmt: skip


def test_text_calls_and_usage_arrive_as_they_were_told(asker: Asker, fake_model: FakeModelServer) -> None:
    usage = Usage(1000, 20, cached=600, cache_written=100, reasoning=0 if asker.api == "messages" else 7)
    fake_model.reply(Say("I look at ünïcode 🙂"), Call("read_file", {"path": "a.txt"}), usage=usage)
    heard = asker.ask()
    assert heard.text == "I look at ünïcode 🙂"
    [(call_id, name, arguments)] = heard.calls
    assert call_id
    assert (name, json.loads(arguments or "")) == ("read_file", {"path": "a.txt"})
    assert heard.stop == STOPS[asker.api]["calls"]
    assert heard.usage == usage


@pytest.mark.parametrize("stop", ["end", "length", "filter", "context"])
def test_each_way_to_stop_has_the_word_of_the_api(asker: Asker, fake_model: FakeModelServer, stop: str) -> None:
    fake_model.reply(Say("so far"), stop=stop)
    if asker.api == "chat" and asker.stream and stop in ("length", "filter", "context"):
        # The accumulating helper holds a cut answer for unusable; the plain events do not.
        events = list(asker.plainly())
        assert events[-1].choices[0].finish_reason == STOPS["chat"][stop]
        return
    heard = asker.ask()
    assert (heard.text, heard.stop) == ("so far", STOPS[asker.api][stop])
    if asker.api == "responses":
        assert heard.raw.status == ("completed" if stop == "end" else "incomplete")


def test_a_refusal_is_told_apart_from_text(asker: Asker, fake_model: FakeModelServer) -> None:
    fake_model.reply(Refuse("I will not."))
    heard = asker.ask()
    assert (heard.text, heard.refusal, heard.stop) == ("", "I will not.", STOPS[asker.api]["refusal"])


def test_an_empty_answer_is_empty(asker: Asker, fake_model: FakeModelServer) -> None:
    fake_model.reply()
    heard = asker.ask()
    assert (heard.text, heard.calls, heard.refusal, heard.stop) == ("", [], None, STOPS[asker.api]["end"])


def test_an_empty_text_is_a_text(asker: Asker, fake_model: FakeModelServer) -> None:
    fake_model.reply(Say(""))
    heard = asker.ask()
    assert heard.text == ""
    said = heard.raw
    where = {
        "messages": lambda: said.content,
        "responses": lambda: said.output[0].content,
        "chat": lambda: [said.choices[0].message.content],
    }[asker.api]
    assert len(where()) == 1


def test_reasoning_arrives_where_the_api_has_it(asker: Asker, fake_model: FakeModelServer) -> None:
    fake_model.reply(Think("first this"), Say("then that"))
    heard = asker.ask()
    assert (heard.thoughts, heard.text) == ("" if asker.api == "chat" else "first this", "then that")


def test_several_calls_at_once_keep_their_order(asker: Asker, fake_model: FakeModelServer) -> None:
    fake_model.reply(*(Call("read_file", {"path": f"{n}.txt"}) for n in range(3)))
    calls = asker.ask().calls
    assert [json.loads(arguments or "")["path"] for _, _, arguments in calls] == ["0.txt", "1.txt", "2.txt"]
    assert len({call_id for call_id, _, _ in calls}) == 3


def test_calls_may_have_one_id_and_no_such_tool(asker: Asker, fake_model: FakeModelServer) -> None:
    fake_model.reply(Call("read_file", {"path": "a"}, id="same"), Call("no_such_tool", {"x": "true"}, id="same"))
    if asker.api == "responses" and asker.stream:
        with pytest.raises(RuntimeError, match="conflicting output identities"):
            asker.ask()  # the helper of the SDK; the plain events hold no call for another
        return
    assert asker.ask().calls == [
        ("same", "read_file", '{"path": "a"}'), ("same", "no_such_tool", '{"x": "true"}'),
    ]  # fmt: skip


def test_arguments_may_be_cut_or_no_object(asker: Asker, fake_model: FakeModelServer) -> None:
    for text in ('{"path": "a', "[1, 2]"):
        fake_model.reply(Call("read_file", text))
        [(_, _, arguments)] = asker.ask().calls
        if asker.api != "messages":
            assert arguments == text
        elif not asker.stream:
            assert json.loads(arguments or "") in (text, [1, 2])
        else:
            assert json.loads(arguments or "") in ({"path": "a"}, {}, [1, 2])


def test_arguments_that_are_no_json_at_all(asker: Asker, fake_model: FakeModelServer) -> None:
    fake_model.reply(Call("read_file", "path=a.txt"))
    if asker.api == "messages" and asker.stream:
        with pytest.raises(ValueError, match="Unable to parse tool parameter JSON"):
            asker.ask()
        return
    [(_, _, arguments)] = asker.ask().calls
    assert arguments == (json.dumps("path=a.txt") if asker.api == "messages" else "path=a.txt")


def test_arguments_may_be_null(asker: Asker, fake_model: FakeModelServer) -> None:
    fake_model.reply(Call("read_file", None))
    if asker.stream and asker.api == "responses":
        events = list(asker.plainly())
        assert events[-1].response.output[0].arguments is None
        return
    heard = asker.ask()
    [(_, _, arguments)] = heard.calls
    assert arguments in (None, "", "null", "{}")
    assert not asker.stream or asker.api == "chat" or arguments == "null"


def test_surrogates_travel_escaped(asker: Asker, fake_model: FakeModelServer) -> None:
    fake_model.reply(Say("half \ud800 a pair"))
    assert asker.ask().text == "half \ud800 a pair"


def test_a_surrogate_in_arguments_arrives_or_breaks_the_helper(asker: Asker, fake_model: FakeModelServer) -> None:
    fake_model.reply(Call("read_file", {"path": "\ud800"}))
    if asker.api == "messages" and asker.stream:
        with pytest.raises(ValueError, match="hex escape"):
            asker.ask()
        return
    [(_, _, arguments)] = asker.ask().calls
    assert json.loads(arguments or "") == {"path": "\ud800"}


def test_extra_fields_are_in_the_answer(asker: Asker, fake_model: FakeModelServer) -> None:
    fake_model.reply(Say("x"), extra={"surprise": {"a": 1}})
    assert asker.ask().raw.model_extra["surprise"] == {"a": 1}


def test_an_answer_may_say_nothing_of_its_usage(asker: Asker, fake_model: FakeModelServer) -> None:
    fake_model.reply(Say("x"), usage=None)
    if asker.api == "messages" and asker.stream:
        with pytest.raises(AttributeError):
            asker.ask()  # the helper of the SDK counts on it
        return
    assert asker.ask().usage is None


def test_a_usage_may_lack_its_details(asker: Asker, fake_model: FakeModelServer) -> None:
    fake_model.reply(Say("x"), usage=Usage(7, 3, cached=None, reasoning=None))
    heard = asker.ask()
    assert heard.usage is not None
    assert (heard.usage.input, heard.usage.output) == (7, 3)
    assert not heard.usage.cached
    assert not heard.usage.reasoning


def test_a_huge_answer_arrives_whole(asker: Asker, fake_model: FakeModelServer) -> None:
    fake_model.reply(Say("x" * 1_000_000))
    assert len(asker.ask().text) == 1_000_000


def test_unknown_stop_words_are_sent_as_they_are(asker: Asker, fake_model: FakeModelServer) -> None:
    fake_model.reply(Say("x"), stop="brand_new")
    assert asker.ask().stop == "brand_new"


def test_a_paused_turn_is_sent_back_and_goes_on(fake_model: FakeModelServer, make_asker: Callable[..., Asker]) -> None:
    asker = make_asker("messages")
    fake_model.reply(Say("searching"), stop="pause")
    fake_model.reply(Say("found"))
    first = asker.ask()
    assert first.stop == "pause_turn"
    again = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": first.raw.to_dict()["content"]}]
    assert asker.ask(again).text == "found"


def test_a_failed_response_has_its_error(fake_model: FakeModelServer, make_asker: Callable[..., Asker]) -> None:
    for stream in (False, True):
        fake_model.reply(stop="failed")
        asker = make_asker("responses", stream=stream)
        if stream:
            last = list(asker.plainly())[-1]
            assert (last.type, last.response.error.code) == ("response.failed", "server_error")
        else:
            heard = asker.ask()
            assert (heard.stop, heard.raw.error.code) == ("failed", "server_error")


def test_async_clients_hear_the_same(fake_model: FakeModelServer) -> None:
    fake_model.by_turn(Reply((Say("hello"),)))

    async def ask() -> list[str]:
        async with (
            AsyncAnthropic(base_url=fake_model.url, api_key="k", max_retries=0) as one,
            AsyncOpenAI(base_url=fake_model.openai_url, api_key="k", max_retries=0) as two,
        ):
            async with one.messages.stream(
                model="m", max_tokens=5, messages=[{"role": "user", "content": "x"}]
            ) as stream:
                first = await stream.get_final_text()
            async with two.responses.stream(model="m", input="x") as other:
                second = (await other.get_final_response()).output_text
            third = await two.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
            return [first, second, third.choices[0].message.content or ""]

    assert asyncio.run(ask()) == ["hello"] * 3


def test_a_conversation_answered_by_turn_gets_the_same_answer_again(asker: Asker, fake_model: FakeModelServer) -> None:
    fake_model.by_turn(Reply((Say("one"),)), Reply((Say("two"),)))
    so_far = [
        {"role": "user", "content": "x"}, {"role": "assistant", "content": "one"}, {"role": "user", "content": "y"},
    ]  # fmt: skip
    assert [asker.ask(so_far).text, asker.ask(so_far).text, asker.ask().text] == ["two", "two", "one"]
    assert [request.asked.turns for request in fake_model.requests] == [1, 1, 0]
