"""The Chat Completions API of OpenAI, as the SDK `openai` expects it, and as the many servers that copy it speak it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import TypeAdapter

from tests.model_servers.conversation import JSON, Conversation, Item, duplicates, order_faults, shape_faults, text_of
from tests.model_servers.script import Call, Refuse, Reply, Say, Usage
from tests.model_servers.wire import Event, Ids, bearer_of, pieces

STOPS = {
    "end": "stop", "calls": "tool_calls", "length": "length", "refusal": "stop", "filter": "content_filter",
    "context": "length",
}  # fmt: skip
ERRORS = {
    400: ("invalid_request_error", None, "Invalid value for 'messages'."),
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided: sk-***."),
    403: (
        "invalid_request_error",
        "unsupported_country_region_territory",
        "Country, region, or territory not supported",
    ),
    404: (
        "invalid_request_error",
        "model_not_found",
        "The model `no-such-model` does not exist or you do not have access.",
    ),
    413: ("invalid_request_error", "request_too_large", "The request is too large."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached for requests per min (RPM): Limit 3, Used 3."),
    500: ("server_error", None, "The server had an error while processing your request. Sorry about that!"),
    503: ("server_error", None, "The server is currently overloaded. Please try again later."),
}


def openai_error(status: int, code: str | None, message: str | None) -> JSON:
    usual = ERRORS.get(status, ("server_error", None, "Something went wrong"))
    kind = code if code == "insufficient_quota" else usual[0]
    return {"error": {"message": message or usual[2], "type": kind, "param": None, "code": code or usual[1]}}


@cache
def _params() -> TypeAdapter[Any]:
    return TypeAdapter(CompletionCreateParamsNonStreaming)


class ChatApi:
    name = "chat"
    path = "/v1/chat/completions"
    request_id_header = "x-request-id"

    def key_of(self, headers: Mapping[str, str]) -> str:
        return bearer_of(headers)

    def read(self, body: JSON, *, paused: bool) -> Conversation:
        faults = list(shape_faults(_params(), CompletionCreateParamsNonStreaming.__annotations__, body))
        items: list[Item] = []
        tools: dict[str, JSON] = {}
        choice = "auto"
        if not faults:
            items = list(_items(body))
            functions = [tool["function"] for tool in body.get("tools") or []]
            tools = {function["name"]: function.get("parameters") or {} for function in functions}
            given = body.get("tool_choice") or "auto"
            choice = given["function"]["name"] if isinstance(given, dict) else given
            choice = "any" if choice == "required" else choice
            faults = [
                *duplicates(function["name"] for function in functions),
                *order_faults(items, tools, choice),
                *_message_faults(body),
            ]
        limit = body.get("max_completion_tokens", body.get("max_tokens"))
        counted = (body.get("stream_options") or {}).get("include_usage") is True if not faults else False
        return Conversation(
            str(body.get("model")), body.get("stream") is True, limit, tools, choice, items, faults, counted
        )

    def plain(self, reply: Reply, asked: Conversation, ids: Ids) -> JSON:
        said = [part.text for part in reply.parts if isinstance(part, Say)]
        message: JSON = {
            "role": "assistant", "content": "".join(said) if said else None, "annotations": [],
            "refusal": _refusal(reply),
        }  # fmt: skip
        calls = [_call(part, ids) for part in reply.parts if isinstance(part, Call)]
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _stop(reply)}
        usage = {} if reply.usage is None else {"usage": _usage(reply.usage)}
        return {**_head(asked, ids, "chat.completion"), "choices": [choice], **usage, **reply.extra}

    def events(self, reply: Reply, asked: Conversation, ids: Ids) -> Sequence[Event]:
        head = {**_head(asked, ids, "chat.completion.chunk"), **reply.extra}
        found = [Event({**head, "choices": [_chunk(delta)]}) for delta in _deltas(reply, ids)]
        found.append(Event({**head, "choices": [_chunk({}, _stop(reply))]}, ends=True))
        if reply.usage is not None and asked.usage_in_stream:
            found.append(Event({**head, "choices": [], "usage": _usage(reply.usage)}, ends=True))
        return [*found, Event("[DONE]", ends=True)]

    def error(self, status: int, code: str | None, message: str | None, request_id: str) -> JSON:
        return openai_error(status, code, message)

    def error_event(self) -> Event:
        return Event(openai_error(500, None, None))


def _head(asked: Conversation, ids: Ids, kind: str) -> JSON:
    return {
        "id": ids.new("chatcmpl-"), "object": kind, "created": 1772366400, "model": asked.model,
        "service_tier": "default", "system_fingerprint": "fp_fake",
    }  # fmt: skip


def _chunk(delta: JSON, stop: str | None = None) -> JSON:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": stop}


def _refusal(reply: Reply) -> str | None:
    refusals = [part.text for part in reply.parts if isinstance(part, Refuse)]
    return "".join(refusals) if refusals else None


def _stop(reply: Reply) -> str:
    if reply.stops == "pause":
        raise ValueError("the Chat API knows no paused turn")
    return STOPS.get(reply.stops, reply.stops)


def _call(part: Call, ids: Ids) -> JSON:
    function = {"name": part.name, "arguments": part.arguments_text()}
    return {"id": part.id or ids.new("call_"), "type": "function", "function": function}


def _deltas(reply: Reply, ids: Ids) -> Iterator[JSON]:
    yield {"role": "assistant", "content": "", "refusal": None}
    index = 0
    for part in reply.parts:
        if isinstance(part, Say):
            yield from ({"content": piece} for piece in pieces(part.text))
        elif isinstance(part, Refuse):
            yield from ({"refusal": piece} for piece in pieces(part.text))
        elif isinstance(part, Call):
            call = _call(part, ids)
            text = part.arguments_text()
            function = {"name": part.name, "arguments": None if text is None else ""}
            yield {"tool_calls": [{**call, "index": index, "function": function}]}
            for piece in pieces(text or ""):
                yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            index += 1


def _usage(usage: Usage) -> JSON:
    told: JSON = {
        "prompt_tokens": usage.input, "completion_tokens": usage.output, "total_tokens": usage.input + usage.output,
    }  # fmt: skip
    if usage.cached is not None:
        details = {"cached_tokens": usage.cached, "cache_write_tokens": usage.cache_written, "audio_tokens": 0}
        told["prompt_tokens_details"] = details
    if usage.reasoning is not None:
        told["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning, "audio_tokens": 0}
    return told


def _items(body: JSON) -> Iterator[Item]:
    for number, message in enumerate(body["messages"]):
        role = message["role"]
        text = text_of(message.get("content")) or (message.get("refusal") or "")
        if role == "tool":
            yield Item("result", text, number, message["tool_call_id"])
        elif role in ("system", "developer"):
            yield Item("system", text, number)
        elif role == "user":
            yield Item("user", text, number)
        else:
            calls = message.get("tool_calls") or []
            if text or not calls:
                yield Item("assistant", text, number)
            for call in calls:
                yield Item("call", call["function"]["arguments"], number, call["id"], call["function"]["name"])


def _message_faults(body: JSON) -> Iterator[str]:
    limits = [body[key] for key in ("max_completion_tokens", "max_tokens") if body.get(key) is not None]
    if len(limits) > 1:
        yield "max_tokens and max_completion_tokens are both given"
    if any(limit < 1 for limit in limits):
        yield "the limit of tokens must be at least 1"
    if body.get("stream_options") and body.get("stream") is not True:
        yield "stream_options: only for a stream"
    for number, message in enumerate(body["messages"]):
        if message["role"] != "assistant":
            if message.get("content") is None:
                yield f"messages.{number}: content must not be null"
            continue
        if message.get("tool_calls") == []:
            yield f"messages.{number}: tool_calls must not be empty"
        if not message.get("tool_calls") and message.get("content") is None and not message.get("refusal"):
            yield f"messages.{number}: content must not be null where there are no tool calls"
