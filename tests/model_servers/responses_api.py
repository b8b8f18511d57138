"""The Responses API of OpenAI, as the SDK `openai` expects it; it keeps nothing between requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from pydantic import TypeAdapter

from tests.model_servers.chat_api import openai_error
from tests.model_servers.conversation import (
    JSON,
    Conversation,
    Item,
    Kind,
    duplicates,
    order_faults,
    shape_faults,
    text_of,
)
from tests.model_servers.script import Call, Part, Reply, Say, Think, Usage
from tests.model_servers.wire import Event, Ids, bearer_of, pieces

INCOMPLETE = {"length": "max_output_tokens", "filter": "content_filter", "context": "max_output_tokens"}


@cache
def _params() -> TypeAdapter[Any]:
    return TypeAdapter(ResponseCreateParamsNonStreaming)


class ResponsesApi:
    name = "responses"
    path = "/v1/responses"
    request_id_header = "x-request-id"

    def key_of(self, headers: Mapping[str, str]) -> str:
        return bearer_of(headers)

    def read(self, body: JSON, *, paused: bool) -> Conversation:
        faults = list(shape_faults(_params(), ResponseCreateParamsNonStreaming.__annotations__, body))
        items: list[Item] = []
        tools: dict[str, JSON] = {}
        choice = "auto"
        if not faults:
            items = list(_items(body))
            functions = [tool for tool in body.get("tools") or [] if tool["type"] == "function"]
            tools = {function["name"]: function.get("parameters") or {} for function in functions}
            given = body.get("tool_choice") or "auto"
            choice = given.get("name", "any") if isinstance(given, dict) else given
            choice = "any" if choice == "required" else choice
            faults = [
                *duplicates(function["name"] for function in functions),
                *order_faults(items, tools, choice),
                *_input_faults(body, items),
            ]
        limit = body.get("max_output_tokens")
        return Conversation(str(body.get("model")), body.get("stream") is True, limit, tools, choice, items, faults)

    def plain(self, reply: Reply, asked: Conversation, ids: Ids) -> JSON:
        output = [_item(part, ids) for part in reply.parts]
        stop = _stop(reply)
        if output and stop["status"] == "incomplete":
            output[-1]["status"] = "incomplete"
        usage = {} if reply.usage is None else {"usage": _usage(reply.usage)}
        return {**_head(asked, ids), **stop, "output": output, **usage, **reply.extra}

    def events(self, reply: Reply, asked: Conversation, ids: Ids) -> Sequence[Event]:
        datas = enumerate(self._datas(reply, asked, ids))
        lasts = ("response.completed", "response.incomplete", "response.failed")
        return [
            Event({**data, "sequence_number": number}, str(data["type"]), ends=data["type"] in lasts)
            for number, data in datas
        ]

    def _datas(self, reply: Reply, asked: Conversation, ids: Ids) -> Iterator[JSON]:
        whole = self.plain(reply, asked, ids)
        started = {
            **whole, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None, "error": None,
        }  # fmt: skip
        yield {"type": "response.created", "response": started}
        yield {"type": "response.in_progress", "response": started}
        for index, item in enumerate(whole["output"]):
            where = {"item_id": item["id"], "output_index": index}
            yield {"type": "response.output_item.added", "output_index": index, "item": _begun(item)}
            if item["type"] == "message":
                yield from _content_datas(item["content"][0], where)
            elif item["type"] == "function_call":
                kind = "response.function_call_arguments"
                for piece in pieces(item["arguments"] or ""):
                    yield {"type": f"{kind}.delta", **where, "delta": piece}
                yield {"type": f"{kind}.done", **where, "name": item["name"], "arguments": item["arguments"]}
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        yield {"type": f"response.{whole['status']}", "response": whole}

    def error(self, status: int, code: str | None, message: str | None, request_id: str) -> JSON:
        return openai_error(status, code, message)

    def error_event(self) -> Event:
        error = openai_error(500, "server_error", None)["error"]
        data = {"type": "error", "code": error["code"], "message": error["message"], "param": None}
        return Event({**data, "sequence_number": 99}, "error")


def _head(asked: Conversation, ids: Ids) -> JSON:
    return {
        "id": ids.new("resp_"), "object": "response", "created_at": 1772366400, "model": asked.model,
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "metadata": {}, "instructions": None,
        "previous_response_id": None, "max_output_tokens": asked.max_tokens, "temperature": 1.0, "top_p": 1.0,
        "truncation": "disabled", "store": False, "text": {"format": {"type": "text"}},
    }  # fmt: skip


def _stop(reply: Reply) -> JSON:
    stops = reply.stops
    if stops == "pause":
        raise ValueError("the Responses API knows no paused turn")
    if stops == "failed":
        error = {"code": "server_error", "message": "An error occurred while processing your request."}
        return {"status": "failed", "error": error, "incomplete_details": None}
    if stops in ("end", "calls", "refusal"):
        return {"status": "completed", "error": None, "incomplete_details": None}
    return {"status": "incomplete", "error": None, "incomplete_details": {"reason": INCOMPLETE.get(stops, stops)}}


def _item(part: Part, ids: Ids) -> JSON:
    if isinstance(part, Call):
        return {
            "id": ids.new("fc_"), "type": "function_call", "status": "completed", "name": part.name,
            "call_id": part.id or ids.new("call_"), "arguments": part.arguments_text(),
        }  # fmt: skip
    if isinstance(part, Think):
        return {
            "id": ids.new("rs_"), "type": "reasoning", "summary": [{"type": "summary_text", "text": part.text}],
            "encrypted_content": "ZmFrZQ==", "status": "completed",
        }  # fmt: skip
    content: JSON = (
        {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}
        if isinstance(part, Say)
        else {"type": "refusal", "refusal": part.text}
    )
    return {"id": ids.new("msg_"), "type": "message", "role": "assistant", "status": "completed", "content": [content]}


def _begun(item: JSON) -> JSON:
    nothing: dict[str, JSON] = {
        "message": {"content": []}, "reasoning": {"summary": []},
        "function_call": {"arguments": None if item.get("arguments", "") is None else ""},
    }  # fmt: skip
    return {**item, "status": "in_progress", **nothing[item["type"]]}


def _content_datas(content: JSON, where: JSON) -> Iterator[JSON]:
    key = "text" if content["type"] == "output_text" else "refusal"
    kind = "response.output_text" if key == "text" else "response.refusal"
    more: JSON = {"logprobs": []} if key == "text" else {}
    place = {**where, "content_index": 0}
    yield {"type": "response.content_part.added", **place, "part": {**content, key: ""}}
    for piece in pieces(content[key]):
        yield {"type": f"{kind}.delta", **place, "delta": piece, **more}
    yield {"type": f"{kind}.done", **place, key: content[key], **more}
    yield {"type": "response.content_part.done", **place, "part": content}


def _usage(usage: Usage) -> JSON:
    told: JSON = {
        "input_tokens": usage.input, "output_tokens": usage.output, "total_tokens": usage.input + usage.output,
    }  # fmt: skip
    if usage.cached is not None:
        details = {"cached_tokens": usage.cached, "cache_write_tokens": usage.cache_written}
        told["input_tokens_details"] = details
    if usage.reasoning is not None:
        told["output_tokens_details"] = {"reasoning_tokens": usage.reasoning}
    return told


def _items(body: JSON) -> Iterator[Item]:
    if body.get("instructions"):
        yield Item("system", body["instructions"], 0)
    given = body.get("input") or []
    for number, item in enumerate([{"role": "user", "content": given}] if isinstance(given, str) else given):
        kind = item.get("type") or "message"
        if kind == "function_call":
            yield Item("call", item["arguments"], number, item["call_id"], item["name"])
        elif kind == "function_call_output":
            yield Item("result", text_of(item["output"]), number, item.get("call_id") or "")
        elif kind == "reasoning":
            yield Item("reasoning", "".join(part["text"] for part in item["summary"]), number)
        elif kind == "message":
            role: Kind = "system" if item["role"] == "developer" else item["role"]
            yield Item(role, text_of(item["content"]), number)


def _input_faults(body: JSON, items: Sequence[Item]) -> Iterator[str]:
    if (body.get("max_output_tokens") or 1) < 1:
        yield "max_output_tokens: must be at least 1"
    if body.get("previous_response_id") is not None:
        yield "previous_response_id: this server keeps no responses"
    for here, following in zip(items, [*items[1:], None], strict=True):
        if here.kind == "reasoning" and (following is None or following.kind not in ("assistant", "call", "reasoning")):
            yield f"input.{here.message}: a reasoning item without the item that followed it"
