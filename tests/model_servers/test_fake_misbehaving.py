"""Each way in which the fake server fails is what the real SDK makes of it: the exception, its fields, or silence."""

from __future__ import annotations

import email.utils
import json
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

import anthropic
import httpx2
import openai
import pytest

from tests.model_servers.asking import Asker
from tests.model_servers.fake import FakeModelServer
from tests.model_servers.script import Cut, Failure, Raw, Reply, Say, Wire

SDKS = {"messages": anthropic, "responses": openai, "chat": openai}
# Of any kind: what an SDK does not catch comes as the error of its HTTP library.
DROPPED = (anthropic.APIConnectionError, openai.APIConnectionError, httpx2.RemoteProtocolError)
CLASSES = {
    400: "BadRequestError", 401: "AuthenticationError", 403: "PermissionDeniedError", 404: "NotFoundError",
    413: "APIStatusError", 429: "RateLimitError", 500: "InternalServerError", 529: "InternalServerError",
}  # fmt: skip


@pytest.mark.parametrize("status", CLASSES)
def test_an_http_error_has_the_class_of_its_status(asker: Asker, fake_model: FakeModelServer, status: int) -> None:
    fake_model.fail(status)
    sdk = SDKS[asker.api]
    with pytest.raises(sdk.APIStatusError) as caught:
        asker.plainly()
    assert isinstance(caught.value, getattr(sdk, CLASSES[status])) or (sdk is anthropic and status in (413, 529))
    assert caught.value.status_code == status
    assert caught.value.request_id.startswith("req_")
    assert caught.value.type
    assert len(fake_model.requests) == 1


def test_error_bodies_carry_the_codes_of_the_providers(
    make_asker: Callable[..., Asker], fake_model: FakeModelServer
) -> None:
    fake_model.fail(413)
    with pytest.raises(anthropic.APIStatusError) as large:
        make_asker("messages").plainly()
    assert isinstance(large.value.body, dict)
    assert large.value.body["error"]["type"] == "request_too_large"
    fake_model.fail(529)
    with pytest.raises(anthropic.APIStatusError) as busy:
        make_asker("messages").plainly()
    assert busy.value.type == "overloaded_error"
    fake_model.fail(400, code="context_length_exceeded", message="too long")
    with pytest.raises(openai.BadRequestError, match="too long") as long:
        make_asker("chat").plainly()
    assert long.value.code == "context_length_exceeded"
    fake_model.fail(429, code="insufficient_quota")
    with pytest.raises(openai.RateLimitError) as poor:
        make_asker("responses").plainly()
    assert (poor.value.code, poor.value.type) == ("insufficient_quota", "insufficient_quota")


def test_retry_after_comes_as_seconds_milliseconds_or_date(asker: Asker, fake_model: FakeModelServer) -> None:
    date = email.utils.format_datetime(datetime(2030, 1, 1, tzinfo=UTC), usegmt=True)
    for headers in ({"retry-after": "7"}, {"retry-after-ms": "1500"}, {"retry-after": date}):
        fake_model.fail(429, headers=headers)
        with pytest.raises(SDKS[asker.api].RateLimitError) as caught:
            asker.plainly()
        assert headers.items() <= dict(caught.value.response.headers).items()


def test_a_wrong_key_is_refused(asker: Asker, fake_model: FakeModelServer) -> None:
    fake_model.api_key = "right"
    with pytest.raises(SDKS[asker.api].AuthenticationError):
        asker.plainly()


@pytest.mark.parametrize("cut", ["no_bytes", "no_body", "first_event", "mid_event"])
def test_a_dropped_connection_is_an_error(asker: Asker, fake_model: FakeModelServer, cut: Cut) -> None:
    fake_model.reply(Say("a text of several words"), wire=Wire(cut=cut))
    heard: list[object] = []
    with pytest.raises(DROPPED):
        heard.extend(asker.plainly() if asker.stream else [asker.plainly()])
    assert len(fake_model.requests) == 1


def test_an_event_before_the_cut_is_heard(asker: Asker, fake_model: FakeModelServer) -> None:
    if not asker.stream:
        return
    for cut, least in (("first_event", 1), ("mid_event", 2)):
        fake_model.reply(Say("a text of several words"), wire=Wire(cut=cut))  # type: ignore[arg-type]
        heard: list[object] = []
        with pytest.raises(DROPPED):
            heard.extend(asker.plainly())
        assert len(heard) >= least


def test_a_stream_without_its_end_ends_in_silence(asker: Asker, fake_model: FakeModelServer) -> None:
    fake_model.reply(Say("a text of several words"), wire=Wire(cut="no_end"))
    if not asker.stream:
        with pytest.raises(json.JSONDecodeError):
            asker.plainly()
        return
    events = list(asker.plainly())
    assert events  # and no error: who reads it must look for the end
    if asker.api == "chat":
        assert events[-1].choices[0].finish_reason is None
    else:
        assert events[-1].type not in ("message_stop", "response.completed")


def test_an_error_in_mid_stream_is_raised_or_told(asker: Asker, fake_model: FakeModelServer) -> None:
    if not asker.stream:
        return
    fake_model.reply(Say("a text of several words"), wire=Wire(cut="error_event"))
    if asker.api == "messages":
        with pytest.raises(anthropic.APIStatusError) as caught:
            list(asker.plainly())
        assert (caught.value.type, caught.value.status_code) == ("overloaded_error", 200)
    elif asker.api == "responses":
        events = list(asker.plainly())  # an event as any other
        assert (events[-1].type, events[-1].code) == ("error", "server_error")
    else:
        with pytest.raises(openai.APIError, match="had an error"):
            list(asker.plainly())


def test_a_slow_first_byte_and_a_slow_trickle_run_into_the_timeout(
    asker: Asker, fake_model: FakeModelServer, make_asker: Callable[..., Asker]
) -> None:
    hasty = make_asker(asker.api, stream=asker.stream, timeout_s=0.2)
    for wire in (Wire(first_byte_after_s=60), Wire(between_events_s=60)):
        fake_model.reply(Say("a text of several words"), wire=wire)
        with pytest.raises((SDKS[asker.api].APITimeoutError, httpx2.ReadTimeout)):
            list(hasty.plainly())
    assert len(fake_model.requests) == 2


def test_a_slow_trickle_arrives_in_the_end(asker: Asker, fake_model: FakeModelServer) -> None:
    fake_model.reply(Say("a text of several words"), wire=Wire(0.01, 0.001))
    assert asker.ask().text == "a text of several words"


def test_the_end_of_the_server_ends_every_delay(make_asker: Callable[..., Asker]) -> None:
    threads = threading.active_count()
    with FakeModelServer() as server:
        server.reply(Say("never"), wire=Wire(first_byte_after_s=600))
        asker = make_asker("chat", url=server.url, timeout_s=60)
        errors: list[Exception] = []

        def ask() -> None:
            try:
                asker.plainly()
            except openai.APIConnectionError as error:
                errors.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        while not server.requests:
            time.sleep(0.005)
    thread.join(30)
    assert len(errors) == 1
    give_up = time.monotonic() + 30
    while threading.active_count() > threads:
        assert time.monotonic() < give_up, "a thread of the server still waits"
        time.sleep(0.005)


def test_an_html_error_page_is_an_error_of_its_status(asker: Asker, fake_model: FakeModelServer) -> None:
    fake_model.send(Raw(b"<html>Bad gateway</html>", status=502))
    with pytest.raises(SDKS[asker.api].InternalServerError) as caught:
        asker.plainly()
    assert caught.value.body == "<html>Bad gateway</html>" or caught.value.body is None


def test_an_html_page_with_status_200_is_text_or_no_event_at_all(asker: Asker, fake_model: FakeModelServer) -> None:
    fake_model.send(Raw(b"<html>busy</html>"))
    answer = asker.plainly()
    assert (list(answer) == []) if asker.stream else (answer == "<html>busy</html>")


def test_a_right_body_with_the_wrong_content_type_is_still_read(asker: Asker, fake_model: FakeModelServer) -> None:
    if asker.stream:
        return
    fake_model.send(
        Raw(json.dumps({"id": "1", "content": [], "output": [], "choices": []}).encode(), 200, "text/plain")
    )
    assert asker.plainly().id == "1"


def test_a_json_body_of_another_shape_is_an_object_without_its_fields(
    asker: Asker, fake_model: FakeModelServer
) -> None:
    if asker.stream:
        return
    fake_model.send(Raw(b'{"hello": 1}', 200, "application/json"))
    answer = asker.plainly()
    assert not isinstance(answer, str)
    assert answer.model_extra == {"hello": 1}


def test_a_redirect_is_followed_without_the_key(asker: Asker, fake_model: FakeModelServer) -> None:
    with FakeModelServer() as other:
        path = {"messages": "messages", "responses": "responses", "chat": "chat/completions"}[asker.api]
        fake_model.send(Raw(status=307, headers={"Location": f"{other.openai_url}/{path}"}))
        other.reply(Say("from elsewhere"))
        # Another port is another origin: the SDKs keep the key from it, and so it refuses.
        with pytest.raises(SDKS[asker.api].AuthenticationError):
            asker.plainly()
        assert len(other.requests) == 1
        assert "authorization" not in other.requests[0].headers
        assert "x-api-key" not in other.requests[0].headers


def test_answers_come_in_the_order_told_whatever_their_kind(asker: Asker, fake_model: FakeModelServer) -> None:
    fake_model.send(Failure(500), Reply((Say("then well"),)))
    with pytest.raises(SDKS[asker.api].InternalServerError):
        asker.plainly()
    assert asker.ask().text == "then well"
    assert fake_model.left == 0


def test_a_request_without_an_answer_left_fails_the_test(asker: Asker, fake_model: FakeModelServer) -> None:
    with pytest.raises(SDKS[asker.api].InternalServerError, match="no answer is left"):
        asker.plainly()
    assert len(fake_model.faults) == 1
    fake_model.faults.clear()
