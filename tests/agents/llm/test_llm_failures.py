"""What servers do wrong, and who pays for it."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest
from stamina.instrumentation import get_on_retry_hooks, set_on_retry_hooks

from agents.llm.failures import CallFailed, status_failure
from agents.llm.retrying import with_retries
from contracts.ports import Reserved, Worst
from contracts.states import Outcome
from coordinator.model_ports import AttemptMeter
from coordinator.redaction import Redactor
from tests.agents.llm.conftest import MemoryMeter
from tests.model_servers.script import Call, Failure, Raw, Reply, Say, Usage, Wire

if TYPE_CHECKING:
    from tests.agents.llm.conftest import Stage
    from tests.model_servers.fake import Request

SUBMIT = Call("submit_result", {"outcome": "completed"})
Form = tuple[str, bool]


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_what_may_pass_is_tried_again_and_costs_nothing(stage: Stage, status: int) -> None:
    stage.server.send(Failure(status), Failure(status), Reply((SUBMIT,), usage=Usage(input=100, output=10)))
    played = stage.play()
    assert played.result.outcome is Outcome.COMPLETED
    assert [(record.status, record.billed) for record in played.journal.stored[1].tries] == [
        (status, "no"), (status, "no"), (None, "yes"),
    ]  # fmt: skip
    assert played.meter.reserved_before == [0, 1, 2]
    assert played.meter.open == {}
    assert played.meter.charged == Worst(450, 110)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, "bad request (HTTP 400)"), (401, "unauthorized (HTTP 401)"), (403, "forbidden (HTTP 403)"),
        (404, "not found (HTTP 404)"), (413, "too large (HTTP 413)"), (422, "refused (HTTP 422)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("api", ["messages", "responses", "chat"])
def test_what_will_not_pass_fails_at_once_in_one_line(stage: Stage, api: str, status: int, said: str) -> None:
    stage.server.fail(status)
    played = stage.play(api)
    assert played.result.outcome is Outcome.FAILED
    assert played.result.message.startswith(f"the model could not be asked: {said}: ")
    assert "\n" not in played.result.message
    assert len(stage.server.requests) == 1
    assert played.meter.charged == Worst(0, 0)


def test_a_quota_that_is_used_up_is_not_waited_for(stage: Stage) -> None:
    stage.server.fail(429, code="insufficient_quota")
    assert stage.play("responses").result.outcome is Outcome.FAILED
    assert len(stage.server.requests) == 1


def test_tries_are_few(stage: Stage, form: Form) -> None:
    stage.server.choose(lambda request: Failure(502))
    played = stage.play(*form)
    assert played.result.outcome is Outcome.FAILED
    assert "server error (HTTP 502)" in played.result.message
    assert len(stage.server.requests) == len(played.meter.reserved_before) == 6


def test_an_overload_that_does_not_end_is_a_provider_that_is_unavailable(stage: Stage, form: Form) -> None:
    stage.server.choose(lambda request: Failure(529, message="Overloaded"))
    played = stage.play(*form)
    assert played.result.outcome is Outcome.FAILED
    assert played.result.message.startswith("provider unavailable: overloaded (HTTP 529): Overloaded; ")
    assert 500 < stage.clock.now_s < 700
    assert len(stage.server.requests) == len(played.meter.reserved_before) < 20


def test_each_try_of_a_turn_that_is_never_answered_is_recorded(stage: Stage, form: Form) -> None:
    stage.server.send(
        Failure(503), Reply((Say("x" * 200),), wire=Wire(cut="no_bytes")), Failure(401, message="no key-1")
    )
    played = stage.play(*form)
    assert played.result.outcome is Outcome.FAILED
    assert played.journal.stored == {}
    assert [
        (tried.turn, tried.record.number, tried.record.outcome, tried.record.status, tried.record.billed)
        for tried in played.meter.tried
    ] == [(1, 1, "overloaded", 503, "no"), (1, 2, "dropped", None, "unknown"), (1, 3, "unauthorized", 401, "no")]
    assert played.meter.tried[2].record.said == "no key-1"
    assert len(played.meter.open) == 1  # what was dropped midway stays charged


def test_a_failed_try_is_recorded_before_the_next_one_is_charged(stage: Stage) -> None:
    meter = MemoryMeter()
    recorded: list[int] = []

    def choose(request: Request) -> Reply | Failure:
        recorded.append(len(meter.tried))
        return [Failure(500), Failure(529), Failure(502), Reply((SUBMIT,))][request.number]

    stage.server.choose(choose)
    played = stage.play(meter=meter)
    assert recorded == [0, 1, 2, 3]
    assert [tried.record.number for tried in meter.tried] == [1, 2, 3]
    assert played.journal.stored[1].tries[:3] == [tried.record for tried in meter.tried]


Cut = Literal["no_bytes", "no_body", "first_event", "mid_event", "no_end", "error_event"]


@pytest.mark.parametrize("cut", ["no_bytes", "no_body", "first_event", "mid_event", "no_end", "error_event"])
def test_a_stream_that_breaks_off_is_no_answer_and_stays_charged(stage: Stage, cut: Cut) -> None:
    for api in ("messages", "responses", "chat"):
        broken = Reply((Say("Writing."), Call("write_file", {"path": "x", "text": "abc"})), wire=Wire(cut=cut))
        stage.server.send(broken, Reply((SUBMIT,), usage=Usage(input=100, output=10)))
        played = stage.play(api)
        assert played.result.outcome is Outcome.COMPLETED, api
        assert played.calls() == ["submit_result"], api
        broken_try, whole_try = played.journal.stored[1].tries
        assert (broken_try.billed, whole_try.billed) == ("unknown", "yes"), api
        [unsettled] = played.meter.open.values()
        assert played.meter.charged == Worst(unsettled.micro_usd + 450, unsettled.tokens + 110)


@pytest.mark.parametrize("cut", ["no_bytes", "no_body", "mid_event", "no_end"])
def test_a_plain_answer_that_breaks_off_is_none(stage: Stage, cut: Cut) -> None:
    for api in ("messages", "responses", "chat"):
        stage.server.send(Reply((Say("x" * 200),), wire=Wire(cut=cut)), Reply((SUBMIT,)))
        played = stage.play(api, stream=False)
        assert played.result.outcome is Outcome.COMPLETED, api
        assert len(played.meter.open) == 1, api


def test_a_slow_server_is_given_up_in_time_and_stays_charged(stage: Stage, form: Form) -> None:
    stage.server.choose(lambda request: Reply((SUBMIT,), wire=Wire(first_byte_after_s=60)))
    played = stage.play(*form, spec={"timeout_s": 0.05})
    assert played.result.outcome is Outcome.FAILED
    assert "timeout" in played.result.message
    assert len(played.meter.open) == 6


def test_a_trickle_is_given_up_in_time(stage: Stage) -> None:
    """Each piece comes in time, the whole never would."""
    stage.server.choose(lambda request: Reply((Say("x" * 40),), wire=Wire(between_events_s=0.2)))
    assert "timeout" in stage.play("messages", spec={"timeout_s": 0.3}).result.message


def test_a_page_instead_of_an_answer_is_tried_again(stage: Stage, form: Form) -> None:
    stage.server.send(Raw(b"<html>Welcome to the proxy</html>"), Reply((SUBMIT,)))
    assert stage.play(*form).result.outcome is Outcome.COMPLETED


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{}", b'"x"', b"[" * 100_000, b"\xff\xfe"])
@pytest.mark.parametrize("api", ["messages", "responses", "chat"])
def test_an_answer_that_is_nothing_ends_in_a_failure_that_says_so(stage: Stage, api: str, body: bytes) -> None:
    stage.server.choose(lambda request: Raw(body, content_type="application/json"))
    played = stage.play(api, stream=False)
    assert played.result.outcome is Outcome.FAILED
    assert played.result.message.startswith("the model could not be asked: ")


def test_the_key_does_not_follow_a_redirect(stage: Stage, form: Form) -> None:
    stage.server.send(Raw(status=307, headers={"Location": f"{stage.server.url}/elsewhere"}))
    played = stage.play(*form)
    assert played.result.outcome is Outcome.FAILED
    assert "redirected (HTTP 307)" in played.result.message
    assert len(stage.server.requests) == 1


def test_a_server_that_is_not_there_costs_nothing(stage: Stage, form: Form) -> None:
    played = stage.play(*form, spec={"base_url": "http://127.0.0.1:9/v1"})
    assert played.result.outcome is Outcome.FAILED
    assert "unreachable" in played.result.message
    assert played.meter.charged == Worst(0, 0)


def test_usage_that_is_not_told_stays_charged(stage: Stage, form: Form) -> None:
    stage.server.reply(SUBMIT, usage=None)
    played = stage.play(*form)
    assert played.result.outcome is Outcome.COMPLETED
    turn = played.journal.stored[1]
    assert (turn.usage, turn.cost_micro_usd) == (None, None)
    [worst] = played.meter.open.values()
    assert played.meter.charged == worst


def test_cached_tokens_are_counted_once_whoever_counts(stage: Stage, form: Form) -> None:
    stage.server.reply(SUBMIT, usage=Usage(input=1000, cached=600, cache_written=100, output=50))
    played = stage.play(*form)
    usage = played.journal.stored[1].usage
    assert usage is not None
    assert usage.model_dump() == {
        "input_tokens": 1000, "cached_input_tokens": 600, "cache_write_tokens": 100, "output_tokens": 50,
    }  # fmt: skip
    # 300 at 3, 600 at 0.3, 100 at 3.75 and 50 at 15 dollars a million.
    assert played.journal.stored[1].cost_micro_usd == 900 + 180 + 375 + 750
    assert played.meter.charged == Worst(2205, 1050)


@pytest.mark.parametrize("count", [-1, 1.5, "many", None, 10**9 + 1, 2**60])
def test_usage_that_makes_no_sense_is_unknown(stage: Stage, count: object) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": 1, "total_tokens": 1}
    stage.server.reply(SUBMIT, usage=None, extra={"usage": usage})
    played = stage.play("chat", stream=False)
    assert played.result.outcome is Outcome.COMPLETED
    assert played.journal.stored[1].usage is None


def test_more_than_the_worst_case_is_charged_as_it_was_told_and_ends_the_work(stage: Stage, form: Form) -> None:
    stage.server.reply(Call("list_files", {}), usage=Usage(input=10**9, output=10))
    played = stage.play(*form, meter=MemoryMeter(10**7, 10**7))
    [(worst, spent)] = played.meter.settled
    assert spent == Worst(3 * 10**9 + 150, 10**9 + 10)
    assert worst.tokens < 10**7
    assert played.meter.charged == spent
    assert played.result.outcome is Outcome.PARTIAL
    assert len(stage.server.requests) == 1


def test_a_provider_that_quotes_the_key_does_not_get_it_into_the_result(stage: Stage) -> None:
    stage.server.fail(401, message="Incorrect API key provided: key-1. \x1b[31m\nSee the docs.")
    message = stage.play("chat").result.message
    assert "key-1" not in message
    assert message.endswith("Incorrect API key provided: [key]. [31m See the docs.")


SECRET = "Zq7-internal-" + "k3y9Xw" * 8


class KeptTries:
    """Stands where the store stands."""

    def __init__(self) -> None:
        self.failed: list[bytes] = []

    def settle(self, number: int, spent: Worst | None, failed: bytes) -> None:
        self.failed.append(failed)


@pytest.mark.parametrize("before", [100, 242, 265, 299, 300, 5_000])
def test_a_secret_that_a_provider_quotes_is_redacted_before_its_words_are_cut(stage: Stage, before: int) -> None:
    words = ("word " * 10_000)[: before - 1] + " "
    stage.server.fail(401, message=f"{words}{SECRET} is no key")
    played = stage.play("chat")
    redactor = Redactor({"SOME_KEY": SECRET})
    [tried] = played.meter.tried
    kept: Any = KeptTries()
    AttemptMeter(kept, cast("Any", None), redactor, cast("Any", None)).failed(Reserved(1), tried)
    whole = " ".join(f"{words}[redacted:SOME_KEY] is no key".split())
    [said] = [json.loads(data)["record"]["said"] for data in kept.failed]
    assert said == (whole if len(whole) <= 300 else f"{whole[:300]} …")
    # What the attempt itself says is cut by who ends it, after this.
    assert redactor.text(played.result.message)[0].endswith(whole)


@pytest.mark.parametrize("before", [9_950, 9_998, 10_000])
def test_a_flood_of_words_is_cut_between_two_of_them(stage: Stage, before: int) -> None:
    stage.server.fail(401, message=f"{('word ' * 10_000)[: before - 1]} {SECRET} is no key {'more ' * 10_000}")
    played = stage.play("chat")
    assert SECRET[:4] not in played.result.message
    assert 9_900 < len(played.result.message) < 10_100
    said = played.meter.tried[0].record.said
    assert len(said) <= 10_000
    assert CallFailed("refused", said).message == said  # cut once


def test_a_model_that_may_not_be_forced_is_asked_without(stage: Stage, form: Form) -> None:
    stage.server.send(Failure(400, message="tool_choice: not supported"), Reply((SUBMIT,)))
    played = stage.play(*form, budget={"max_turns": 1})
    assert played.result.outcome is Outcome.COMPLETED
    assert [request.asked.tool_choice for request in stage.server.requests] == ["any", "auto"]
    assert set(stage.server.requests[1].asked.tools) == {"submit_result"}


def at(**delta: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(**delta), usegmt=True)


@pytest.mark.parametrize(
    ("headers", "low_s", "high_s"),
    [
        ({"retry-after": "7"}, 7, 7), ({"retry-after-ms": "1500"}, 1.5, 1.5),
        ({"retry-after": at(hours=9)}, 8 * 3600, 9 * 3600), ({"retry-after-ms": "x", "retry-after": "3"}, 3, 3),
    ],
)  # fmt: skip
def test_an_announced_wait_is_understood(headers: dict[str, str], low_s: float, high_s: float) -> None:
    wait_s = status_failure(429, "slow down", "", headers).retry_after_s
    assert wait_s is not None
    assert low_s <= wait_s <= high_s


OVERFLOWING = "Fri, 31 Dec 9999 23:59:59 -9999999999999999"


@pytest.mark.parametrize(
    "value", ["soon", "-5", "nan", "inf", "", "Mon, 01 Jan 2024 00:00:00 GMT", "1e999", OVERFLOWING]
)
def test_an_announced_wait_that_is_none_says_nothing(value: str) -> None:
    assert status_failure(429, "slow down", "", {"retry-after": value}).retry_after_s is None


def test_a_wait_that_cannot_be_reckoned_loses_no_try(stage: Stage, form: Form) -> None:
    stage.server.send(Failure(429, headers={"retry-after": OVERFLOWING}), Reply((SUBMIT,)))
    assert stage.play(*form).result.outcome is Outcome.COMPLETED


@pytest.mark.parametrize("status", [429, 500])
def test_a_wait_longer_than_the_time_left_is_not_begun(stage: Stage, status: int) -> None:
    stage.server.fail(status, headers={"retry-after": "7200"})
    played = stage.play()
    assert played.result.outcome is Outcome.FAILED
    assert played.result.message.startswith("provider unavailable: rate limited") is (status == 429)
    assert "asks to wait 7200 s" in played.result.message
    assert len(stage.server.requests) == 1


@pytest.mark.parametrize(("left_s", "tries"), [(600.0, 6), (25.0, 4), (5.9, 2), (2.05, 1)])
def test_no_wait_is_begun_that_the_time_left_does_not_hold(
    monkeypatch: pytest.MonkeyPatch, left_s: float, tries: int
) -> None:
    import stamina

    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("stamina._core._smart_sleep", sleep)
    asked: list[int] = []

    async def attempt(number: int) -> None:
        asked.append(number)
        raise CallFailed("server_error", "down", retryable=True)

    with stamina.set_testing(False), pytest.raises(CallFailed):
        asyncio.run(with_retries(attempt, lambda: left_s - sum(waited)))
    assert sum(waited) < left_s
    assert len(asked) == tries


@pytest.mark.parametrize("chosen", [(), ("a hook",)])
def test_what_the_host_hears_of_its_own_retries_is_left_alone(
    chosen: tuple[Any, ...],
) -> None:
    from stamina._config import CONFIG

    heard: list[str] = []
    hooks = tuple(lambda details: heard.append(details.name) for _ in chosen)
    before = CONFIG._on_retry
    try:
        set_on_retry_hooks(hooks)

        async def attempt(_number: int) -> int:
            return 1

        assert asyncio.run(with_retries(attempt, lambda: 600.0)) == 1
        assert get_on_retry_hooks() == hooks
        set_on_retry_hooks(None)
        assert asyncio.run(with_retries(attempt, lambda: 600.0)) == 1
        assert get_on_retry_hooks() == ()
    finally:
        set_on_retry_hooks(before)
