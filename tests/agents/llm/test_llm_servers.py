"""What goes to a server and what may come back from it: the named key and nothing else of ours; so many bytes."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from agents.llm import answers
from contracts.states import Outcome
from tests.model_servers.script import Call, Raw, Reply, Say

if TYPE_CHECKING:
    from tests.agents.llm.conftest import Played, Stage

Form = tuple[str, bool]
SUBMIT = Call("submit_result", {"outcome": "completed"})


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    """As much as an answer may be here, in bytes."""
    monkeypatch.setattr(answers, "BODY_BYTES_MAX", 40_000)
    monkeypatch.setattr(answers, "TOKEN_BYTES_MAX", 0)
    return 40_000


def was_unreadable(played: Played, stage: Stage) -> None:
    """Not read, not asked for again, and nobody knows who pays."""
    assert played.result.outcome is Outcome.FAILED
    assert played.result.message.startswith("the model could not be asked: unreadable: the answer is ")
    assert len(stage.server.requests) == 1
    assert len(played.meter.open) == 1


def test_an_answer_beyond_the_limit_is_unreadable(stage: Stage, form: Form, small: int) -> None:
    stage.server.send(Reply((Say("x" * small), SUBMIT)))
    was_unreadable(stage.play(*form), stage)


@pytest.mark.parametrize("status", [400, 401, 500])
def test_an_error_beyond_the_limit_is_unreadable(stage: Stage, form: Form, small: int, status: int) -> None:
    body = json.dumps({"error": {"message": "x" * small}}).encode()
    stage.server.send(Raw(body, status=status, content_type="application/json"))
    was_unreadable(stage.play(*form), stage)


def test_a_stream_without_an_end_is_unreadable(stage: Stage, small: int) -> None:
    for api in ("messages", "responses", "chat"):
        stage.server.send(Raw(b": nothing\n\n" * small, content_type="text/event-stream"))
        played = stage.play(api)
        assert "unreadable: the answer is larger than" in played.result.message, api


@pytest.mark.parametrize("status", [200, 500])
def test_a_packed_answer_is_not_unpacked(stage: Stage, form: Form, status: int) -> None:
    flood = gzip.compress(b'{"a":"' + b"x" * 5_000_000 + b'"}')
    packed = {"Content-Encoding": "gzip"}
    stage.server.send(Raw(flood, status=status, content_type="application/json", headers=packed))
    was_unreadable(stage.play(*form), stage)
    assert stage.server.requests[0].headers["accept-encoding"] == "identity"


def test_a_long_answer_within_the_limit_is_read(stage: Stage, form: Form) -> None:
    stage.server.send(Reply((Say("x" * 3_000_000), SUBMIT)))
    played = stage.play(*form)
    assert played.result.outcome is Outcome.COMPLETED
    assert len(played.journal.stored[1].response.text) == 3_000_000


def test_a_stream_may_take_more_for_each_token_that_was_allowed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "BODY_BYTES_MAX", 1_000)
    stage.server.send(Reply((Say("x" * 20_000), SUBMIT)))
    assert stage.play("chat", spec={"max_output_tokens": 1_000}).result.outcome is Outcome.COMPLETED


def test_nothing_of_the_environment_but_the_key_goes_to_a_server(
    stage: Stage, form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_CUSTOM_HEADERS", "ANTHROPIC_CUSTOM_HEADERS"):
        monkeypatch.setenv(name, "X-Ours: ambient-1\nAuthorization: Bearer ambient-2\nx-api-key: ambient-3")
    for name in ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY", "OPENAI_WEBHOOK_SECRET"):
        monkeypatch.setenv(name, "ambient-4")
    for name in ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_WEBHOOK_SIGNING_KEY", "ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "ambient-5")
    stage.server.reply(SUBMIT)
    assert stage.play(*form).result.outcome is Outcome.COMPLETED
    [request] = stage.server.requests
    assert not [f"{name}: {value}" for name, value in request.headers.items() if "ambient" in value]
    assert not {"openai-organization", "openai-project", "x-ours"} & set(request.headers)
    assert "key-1" in (request.headers.get("x-api-key") or request.headers["authorization"])
