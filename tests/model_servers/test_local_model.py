"""The real model server answers both SDKs in all three APIs. Only the form of an answer counts, never its sense."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest

from tests.model_servers.asking import Asker
from tests.model_servers.fixtures import LocalModel

pytestmark = pytest.mark.model

SUBMIT = {
    "type": "object",
    "properties": {"summary": {"type": "string", "maxLength": 60}, "count": {"type": "integer"}},
    "required": ["summary", "count"],
    "additionalProperties": False,
}
FEW: dict[str, dict[str, Any]] = {
    "messages": {"max_tokens": 60, "extra_body": {"temperature": 0}},
    "responses": {"max_output_tokens": 60, "temperature": 0},
    "chat": {"max_completion_tokens": 60, "temperature": 0, "seed": 1},
}
MUST_CALL: dict[str, Any] = {"messages": {"type": "any"}, "responses": "required", "chat": "required"}


@pytest.fixture
def ask_model(local_model: LocalModel) -> Iterator[Callable[..., Asker]]:
    made: list[Asker] = []

    def make(api: str, *, stream: bool) -> Asker:
        # A kept connection may be closed by the server in the moment that it is used again.
        made.append(Asker(api, local_model.url, stream=stream, timeout_s=120, helper=False, retries=2))
        return made[-1]

    yield make
    for asker in made:
        asker.close()


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("api", ["messages", "responses", "chat"])
def test_text_comes_with_its_usage(ask_model: Callable[..., Asker], api: str, stream: bool) -> None:
    limit = {"messages": "max_tokens", "responses": "max_output_tokens", "chat": "max_completion_tokens"}[api]
    asker = ask_model(api, stream=stream)
    if api == "chat" and stream:  # the helper of the SDK refuses a cut answer
        last = list(asker.plainly(max_completion_tokens=5, stream_options={"include_usage": True}))[-1]
        assert last.usage.completion_tokens == 5
        return
    heard = asker.ask(
        [{"role": "user", "content": "Tell me a very long story about a dog and a cat."}],
        tools={},
        **{**FEW[api], limit: 5},
    )
    assert heard.usage is not None
    assert heard.usage.input > 0
    assert heard.usage.output == 5
    assert heard.stop == {"messages": "max_tokens", "responses": "completed", "chat": "length"}[api]


@pytest.mark.parametrize(("api", "stream"), [("messages", True), ("responses", True), ("chat", False)])
def test_a_call_fits_its_schema_and_a_result_gets_an_answer(
    ask_model: Callable[..., Asker], api: str, stream: bool
) -> None:
    asker = ask_model(api, stream=stream)
    user = {"role": "user", "content": "Submit the summary 'two files' and the count 2."}
    heard = asker.ask([user], {"submit_result": SUBMIT}, tool_choice=MUST_CALL[api], **FEW[api])
    [(call_id, name, arguments)] = heard.calls
    assert name == "submit_result"
    jsonschema.validate(json.loads(arguments or ""), SUBMIT)
    if api == "messages":
        more = [
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": call_id, "name": name, "input": json.loads(arguments or "")}
            ]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": "taken"}]},
        ]  # fmt: skip
    elif api == "responses":
        more = [
            {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments},
            {"type": "function_call_output", "call_id": call_id, "output": "taken"},
        ]
    else:
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        more = [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call_id, "content": "taken"},
        ]
    # A second tool: with one alone the model is asked for a call again and again.
    both = {"submit_result": SUBMIT, "read_file": {"type": "object", "properties": {"path": {"type": "string"}}}}
    assert asker.ask([user, *more], both, **FEW[api]).text
    again = asker.ask([user, *more], {"submit_result": SUBMIT}, tool_choice=MUST_CALL[api], **FEW[api])
    assert [call[1] for call in again.calls] == ["submit_result"]
