"""The Messages API of Anthropic, as the SDK `anthropic` expects it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from pydantic import TypeAdapter

from tests.model_servers.conversation import JSON, Conversation, Item, duplicates, order_faults, shape_faults, text_of
from tests.model_servers.script import Call, Part, Refuse, Reply, Say, Think, Usage
from tests.model_servers.wire import Event, Ids, bearer_of, pieces

STOPS = {
    "end": "end_turn", "calls": "tool_use", "length": "max_tokens", "pause": "pause_turn", "refusal": "refusal",
    "filter": "refusal", "context": "model_context_window_exceeded",
}  # fmt: skip
ERRORS = {
    400: ("invalid_request_error", "messages: at least one message is required"),
    401: ("authentication_error", "invalid x-api-key"),
    402: ("billing_error", "Your credit balance is too low to access the Anthropic API."),
    403: ("permission_error", "Your API key does not have permission to use the specified resource."),
    404: ("not_found_error", "model: no-such-model"),
    413: ("request_too_large", "Request exceeds the maximum size"),
    429: ("rate_limit_error", "This request would exceed your organization's rate limit of 50 requests per minute."),
    500: ("api_error", "Internal server error"),
    504: ("timeout_error", "The request timed out while processing."),
    529: ("overloaded_error", "Overloaded"),
}


# No field of the SDK any more, but servers that resemble this API are steered by it.
ALSO = {"temperature"}


@cache
def _params() -> TypeAdapter[Any]:
    return TypeAdapter(MessageCreateParamsNonStreaming)


class MessagesApi:
    name = "messages"
    path = "/v1/messages"
    request_id_header = "request-id"

    def key_of(self, headers: Mapping[str, str]) -> str:
        return (headers.get("x-api-key") or bearer_of(headers)) if "anthropic-version" in headers else ""

    def read(self, body: JSON, *, paused: bool) -> Conversation:
        faults = list(shape_faults(_params(), {*MessageCreateParamsNonStreaming.__annotations__, *ALSO}, body))
        items: list[Item] = []
        tools: dict[str, JSON] = {}
        choice = "auto"
        if not faults:
            items = list(_items(body))
            tools = {tool["name"]: tool.get("input_schema") or {} for tool in body.get("tools") or []}
            given = body.get("tool_choice") or {"type": "auto"}
            choice = given["name"] if given["type"] == "tool" else given["type"]
            faults = [
                *duplicates(tool["name"] for tool in body.get("tools") or []),
                *order_faults(items, tools, choice),
                *_message_faults(body, tools, paused=paused),
            ]
        return Conversation(
            str(body.get("model")), body.get("stream") is True, body.get("max_tokens"), tools, choice, items, faults
        )

    def plain(self, reply: Reply, asked: Conversation, ids: Ids) -> JSON:
        usage = {} if reply.usage is None else {"usage": _usage(reply.usage)}
        return {
            "id": ids.new("msg_"), "type": "message", "role": "assistant", "model": asked.model,
            "content": [_block(part, ids) for part in reply.parts if not isinstance(part, Refuse)],
            **_stop(reply), **usage, **reply.extra,
        }  # fmt: skip

    def events(self, reply: Reply, asked: Conversation, ids: Ids) -> Sequence[Event]:
        return [
            Event(data, str(data["type"]), ends=data["type"] in ("message_delta", "message_stop"))
            for data in self._datas(reply, asked, ids)
        ]

    def _datas(self, reply: Reply, asked: Conversation, ids: Ids) -> Iterator[JSON]:
        whole = self.plain(reply, asked, ids)
        start = {**whole, "content": [], "stop_reason": None, "stop_sequence": None, "stop_details": None}
        if reply.usage is not None:
            start["usage"] = {**_usage(reply.usage), "output_tokens": 1}
        yield {"type": "message_start", "message": start}
        yield {"type": "ping"}
        for index, part in enumerate(part for part in reply.parts if not isinstance(part, Refuse)):
            block = whole["content"][index]
            yield {"type": "content_block_start", "index": index, "content_block": {**block, **_empty(part)}}
            for delta in _deltas(part):
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        usage = {} if reply.usage is None else {"usage": {"output_tokens": reply.usage.output}}
        yield {"type": "message_delta", "delta": _stop(reply), **usage}
        yield {"type": "message_stop"}

    def error(self, status: int, code: str | None, message: str | None, request_id: str) -> JSON:
        usual = ERRORS.get(status, ("api_error", "Something went wrong"))
        error = {"type": code or usual[0], "message": message or usual[1]}
        return {"type": "error", "error": error, "request_id": request_id}

    def error_event(self) -> Event:
        return Event({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "error")


def _usage(usage: Usage) -> JSON:
    told: JSON = {
        "input_tokens": usage.input - (usage.cached or 0) - usage.cache_written, "output_tokens": usage.output,
    }  # fmt: skip
    if usage.cached is not None:
        told |= {
            "cache_read_input_tokens": usage.cached, "cache_creation_input_tokens": usage.cache_written,
            "cache_creation": {"ephemeral_5m_input_tokens": usage.cache_written, "ephemeral_1h_input_tokens": 0},
            "service_tier": "standard",
        }  # fmt: skip
    return told


def _stop(reply: Reply) -> JSON:
    refusals = [part.text for part in reply.parts if isinstance(part, Refuse)]
    reason = STOPS.get(reply.stops, reply.stops)
    details = {"type": "refusal", "category": None, "explanation": refusals[0] if refusals else None}
    return {
        "stop_reason": reason, "stop_sequence": None, "stop_details": details if reason == "refusal" else None,
    }  # fmt: skip


def signature(thought: str) -> str:
    return hashlib.sha256(thought.encode("utf-8", "surrogatepass")).hexdigest()


def _block(part: Part, ids: Ids) -> JSON:
    if isinstance(part, Say):
        return {"type": "text", "text": part.text, "citations": None}
    if isinstance(part, Think):
        return {"type": "thinking", "thinking": part.text, "signature": signature(part.text)}
    assert isinstance(part, Call)
    return {"type": "tool_use", "id": part.id or ids.new("toolu_"), "name": part.name, "input": _input(part)}


def _input(call: Call) -> object:
    """The arguments; as a string where they are not JSON, which is how servers that only resemble this API send it."""
    if not isinstance(call.arguments, str):
        return call.arguments
    try:
        return json.loads(call.arguments)
    except ValueError:
        return call.arguments


def _empty(part: Part) -> JSON:
    if isinstance(part, Call):
        return {"input": {}}
    return {"text": ""} if isinstance(part, Say) else {"thinking": "", "signature": ""}


def _deltas(part: Part) -> Iterator[JSON]:
    if isinstance(part, Say):
        yield from ({"type": "text_delta", "text": piece} for piece in pieces(part.text))
    elif isinstance(part, Think):
        yield from ({"type": "thinking_delta", "thinking": piece} for piece in pieces(part.text))
        yield {"type": "signature_delta", "signature": signature(part.text)}
    elif isinstance(part, Call):
        text = part.arguments_text()
        whole = ["null"] if text is None else pieces(text)
        yield from ({"type": "input_json_delta", "partial_json": piece} for piece in whole)


def _items(body: JSON) -> Iterator[Item]:
    if body.get("system"):
        yield Item("system", text_of(body["system"]), 0)
    for number, message in enumerate(body["messages"]):
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            kind = block["type"]
            if kind == "tool_use":
                yield Item("call", json.dumps(block["input"]), number, block["id"], block["name"])
            elif kind == "tool_result":
                error = bool(block.get("is_error"))
                yield Item("result", text_of(block.get("content")), number, block["tool_use_id"], is_error=error)
            elif kind in ("thinking", "redacted_thinking"):
                yield Item("reasoning", block.get("thinking", ""), number)
            else:
                yield Item(message["role"], block.get("text", ""), number)


def _message_faults(body: JSON, tools: JSON, *, paused: bool) -> Iterator[str]:
    if not isinstance(body["max_tokens"], int) or body["max_tokens"] < 1:
        yield "max_tokens: must be at least 1"
    for name, schema in tools.items():
        if schema.get("type") != "object":
            yield f"tools: the schema of {name!r} is not for an object"
    before = None
    for number, message in enumerate(body["messages"]):
        where = f"messages.{number}"
        if message["role"] == before:
            yield f"{where}: two messages of the {before} follow each other"
        before = message["role"]
        if not message["content"]:
            yield f"{where}: all messages must have non-empty content"
        if isinstance(message["content"], str):
            continue
        kinds = [block["type"] for block in message["content"]]
        results = kinds.count("tool_result")
        if "tool_result" in kinds[results:]:
            yield f"{where}: tool results come before all other content"
        if ("tool_use" in kinds and before != "assistant") or (results and before != "user"):
            yield f"{where}: a block that this role does not write"
        for block in message["content"]:
            if block["type"] == "text" and not block["text"].strip():
                yield f"{where}: text content blocks must be non-empty"
            if block["type"] == "tool_use" and not isinstance(block["input"], dict):
                yield f"{where}: the input of a tool call is not an object"
            if block["type"] == "thinking" and block["signature"] != signature(block["thinking"]):
                yield f"{where}: the signature of a thinking block does not fit"
            if block["type"] in ("tool_use", "tool_result") and not tools:
                yield f"{where}: a request with tool calls must define tools"
    if before == "assistant" and not paused:
        yield "the last message is the assistant's: this model does not support prefill"
