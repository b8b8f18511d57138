"""Anthropic's Messages API, by its SDK."""

from __future__ import annotations

from typing import Any

import anthropic

from agents.llm.answers import client_settings
from agents.llm.asking import ask_sdk
from agents.llm.conversation import Answered, Message, ModelRequest, Raw
from agents.llm.failures import CallFailed, SdkErrors
from agents.llm.received import CallReader, plain, turn_response, usage_of
from contracts.terms import ModelSpec
from contracts.turns import ModelUsage, TurnResponse

__all__ = ["AnthropicAdapter"]

BASE_URL = "https://api.anthropic.com"

_SDK = SdkErrors(anthropic.APIStatusError, anthropic.APITimeoutError, anthropic.APIConnectionError)

_STOPS: dict[object, Any] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "pause",
    "refusal": "refusal",
}
_TEXT_OF_DELTA = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class AnthropicAdapter:
    """Implements ``Adapter``."""

    def __init__(self, spec: ModelSpec, api_key: str) -> None:
        self._spec = spec
        self._client = anthropic.AsyncAnthropic(
            api_key=api_key,
            base_url=spec.base_url or BASE_URL,
            max_retries=0,
            timeout=spec.timeout_s,
            http_client=anthropic.DefaultAsyncHttpxClient(**client_settings(spec)),
        )
        # These the SDK took from the environment; nothing but the named key may go to a server that a contract names.
        self._client._custom_headers = {}

    async def close(self) -> None:
        await self._client.close()

    async def ask(self, request: ModelRequest, timeout_s: float) -> tuple[TurnResponse, ModelUsage | None]:
        return await ask_sdk(
            self._client.messages.create,
            self._parameters(request),
            timeout_s,
            streamed={} if self._spec.stream else None,
            whole=_whole,
            read=lambda told, request_id: _read(told, request_id, request.used_call_ids),
            id_header="request-id",
            sdk=_SDK,
        )

    def _parameters(self, request: ModelRequest) -> dict[str, Any]:
        messages: list[dict[str, Any]] = []
        for message in request.messages:
            role, content = _rendered(message)
            if messages and messages[-1]["role"] == role:
                messages[-1]["content"] = [*messages[-1]["content"], *content]
            else:
                messages.append({"role": role, "content": content})
        if messages[-1]["role"] == "user":
            # All before this is the same in the next request, and costs less when it was marked.
            *before, last = messages[-1]["content"]
            messages[-1]["content"] = [*before, {**last, "cache_control": {"type": "ephemeral"}}]
        parameters: dict[str, Any] = {
            "model": self._spec.model,
            "max_tokens": self._spec.max_output_tokens,
            "system": request.system,
            "messages": messages,
            "tools": list(request.tools),
        }
        if request.forced:
            parameters["tool_choice"] = {"type": "any"}
        if self._spec.temperature is not None:
            # Newer models know it no more, and so does the SDK; older ones and other servers do.
            parameters["extra_body"] = {"temperature": self._spec.temperature}
        return parameters


def _rendered(message: Message) -> tuple[str, list[dict[str, Any]]]:
    if isinstance(message, Raw):
        return "assistant", list(message.content)
    if isinstance(message, Answered):
        return "user", [
            {
                "type": "tool_result",
                "tool_use_id": answer.call_id,
                "content": answer.text or "(empty)",
                "is_error": answer.is_error,
            }
            for answer in message.answers
        ]
    [(role, text)] = message.document().items()
    return role, [{"type": "text", "text": text}]


async def _whole(stream: Any) -> dict[str, Any]:
    """The message that a stream tells. Counts in it are running totals: the last one of each holds."""
    message: dict[str, Any] | None = None
    pieces: dict[int, list[str]] = {}
    async for event in stream:
        data = plain(event)
        kind = data.get("type")
        if kind == "message_start":
            message = {**data["message"], "content": []}
            continue
        if message is None:
            raise CallFailed("dropped", "the stream did not begin at its beginning", retryable=True)
        if kind == "content_block_start":
            message["content"].append(dict(data["content_block"]))
        elif kind == "content_block_delta":
            index, delta = len(message["content"]) - 1, data["delta"]
            if data["index"] != index:
                raise CallFailed("dropped", "a piece of the stream is missing", retryable=True)
            block = message["content"][index]
            what = delta.get("type")
            if what == "input_json_delta":
                pieces.setdefault(index, []).append(delta["partial_json"])
            elif what == "citations_delta":
                block["citations"] = [*(block.get("citations") or []), delta["citation"]]
            elif what in _TEXT_OF_DELTA:
                key = _TEXT_OF_DELTA[what]
                block[key] = (block.get(key) or "") + delta[key]
        elif kind == "message_delta":
            message.update(data["delta"])
            counts = {key: count for key, count in (data.get("usage") or {}).items() if count is not None}
            message["usage"] = {**(message.get("usage") or {}), **counts} if counts else None
        elif kind == "message_stop":
            for index, texts in pieces.items():
                message["content"][index]["input"] = "".join(texts)
            return message
    raise CallFailed("dropped", "the stream ended without its end", retryable=True)


def _read(
    message: dict[str, Any], request_id: object, used_ids: frozenset[str]
) -> tuple[TurnResponse, ModelUsage | None]:
    calls = CallReader(used_ids)
    texts: list[str] = []
    raw: list[Any] = []
    content = message.get("content")
    if not isinstance(content, list):
        raise CallFailed("unreadable", "the answer has no content", retryable=True)
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            call, name = calls.read(block.get("id"), block.get("name"), block.get("input"))
            raw.append({**block, "id": call.call_id, "name": name, "input": call.arguments or {}})
        elif kind == "text":
            text = block.get("text")
            if isinstance(text, str) and text.strip():  # an empty text may not be sent back
                texts.append(text)
                raw.append(block)
        elif kind is not None:
            raw.append(block)
    stop = _STOPS.get(message.get("stop_reason"), "other")
    details = message.get("stop_details")
    if stop == "refusal" and isinstance(details, dict) and isinstance(details.get("explanation"), str):
        texts.append(details["explanation"])
    response = turn_response(
        text="\n".join(texts),
        calls=calls.calls,
        stop=stop,
        model=message.get("model"),
        request_id=request_id,
        raw=raw,
    )
    return response, _usage(message.get("usage"))


def _usage(usage: Any) -> ModelUsage | None:
    if not isinstance(usage, dict):
        return None
    read, written = usage.get("cache_read_input_tokens") or 0, usage.get("cache_creation_input_tokens") or 0
    uncached = usage.get("input_tokens")
    if not (isinstance(uncached, int) and isinstance(read, int) and isinstance(written, int) and uncached >= 0):
        return None
    # Unlike the others, this API leaves cached input out of its count of input.
    return usage_of(uncached + read + written, read, written, usage.get("output_tokens"))
