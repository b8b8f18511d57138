"""OpenAI's Responses API, by its SDK. Nothing is kept at the provider: each request brings the whole conversation."""

from __future__ import annotations

from typing import Any

from agents.llm.asking import ask_sdk
from agents.llm.conversation import Answered, Message, ModelRequest, Raw
from agents.llm.failures import CallFailed
from agents.llm.openai_client import ID_HEADER, SDK, client_for, error_text, usage_in
from agents.llm.received import CallReader, plain, turn_response
from contracts.terms import ModelSpec
from contracts.turns import ModelUsage, TurnResponse

__all__ = ["ResponsesAdapter"]

_NO_REASONING = ("gpt-3", "gpt-4", "chatgpt-")
"""Models that do not reason, and refuse to be asked for what they thought."""

_LAST = frozenset({"response.completed", "response.incomplete", "response.failed"})


class ResponsesAdapter:
    """Implements ``Adapter``."""

    def __init__(self, spec: ModelSpec, api_key: str) -> None:
        self._spec = spec
        self._client = client_for(spec, api_key)

    async def close(self) -> None:
        await self._client.close()

    async def ask(self, request: ModelRequest, timeout_s: float) -> tuple[TurnResponse, ModelUsage | None]:
        return await ask_sdk(
            self._client.responses.create,
            self._parameters(request),
            timeout_s,
            streamed={} if self._spec.stream else None,
            whole=_whole,
            read=lambda told, request_id: _read(told, request_id, request.used_call_ids),
            id_header=ID_HEADER,
            sdk=SDK,
        )

    def _parameters(self, request: ModelRequest) -> dict[str, Any]:
        parameters: dict[str, Any] = {
            "model": self._spec.model,
            "max_output_tokens": self._spec.max_output_tokens,
            "instructions": request.system,
            "input": [item for message in request.messages for item in _rendered(message)],
            "tools": [
                {
                    "type": "function",
                    "name": tool["name"],
                    "description": tool["description"],
                    "parameters": tool["input_schema"],
                    "strict": False,
                }
                for tool in request.tools
            ],
            "store": False,
        }
        if self._spec.base_url is None and not self._spec.model.startswith(_NO_REASONING):
            parameters["include"] = ["reasoning.encrypted_content"]
        if request.forced:
            parameters["tool_choice"] = "required"
        if self._spec.temperature is not None:
            parameters["temperature"] = self._spec.temperature
        return parameters


def _rendered(message: Message) -> list[dict[str, Any]]:
    if isinstance(message, Raw):
        return list(message.content)
    if isinstance(message, Answered):
        return [
            {
                "type": "function_call_output",
                "call_id": answer.call_id,
                "output": error_text(answer.text, answer.is_error),
            }
            for answer in message.answers
        ]
    [(role, text)] = message.document().items()
    return [{"role": role, "content": text}]


async def _whole(stream: Any) -> dict[str, Any]:
    items: dict[int, Any] = {}
    async for event in stream:
        data = plain(event)
        kind = data.get("type")
        if kind == "response.output_item.done":
            items[data.get("output_index", len(items))] = data["item"]  # some servers leave it out
        elif kind == "error":
            raise _failed(data)
        elif kind in _LAST:
            response: dict[str, Any] = data["response"]
            if not response.get("output"):  # some servers tell the items only as they come
                response["output"] = [items[index] for index in sorted(items)]
            return response
    raise CallFailed("dropped", "the stream ended without its end", retryable=True)


def _failed(error: dict[str, Any]) -> CallFailed:
    code = error.get("code")
    message = error.get("message")
    return CallFailed(
        "failed_midway",
        message if isinstance(message, str) else "the provider gave no reason",
        retryable=code in ("server_error", "rate_limit_exceeded"),
    )


def _read(
    response: dict[str, Any], request_id: object, used_ids: frozenset[str]
) -> tuple[TurnResponse, ModelUsage | None]:
    status = response.get("status")
    if status == "failed":
        error = response.get("error")
        raise _failed(error if isinstance(error, dict) else {})
    output = response.get("output")
    if not isinstance(output, list):
        raise CallFailed("unreadable", "the answer has no output", retryable=True)
    calls = CallReader(used_ids)
    texts: list[str] = []
    refusals: list[str] = []
    raw: list[Any] = []
    for item in output:
        kind = item.get("type") if isinstance(item, dict) else None
        if kind == "function_call":
            call, name = calls.read(item.get("call_id"), item.get("name"), item.get("arguments"))
            arguments = "{}" if call.malformed else item.get("arguments") or "{}"
            if not isinstance(arguments, str):
                arguments = "{}"
            raw.append({**item, "call_id": call.call_id, "name": name, "arguments": arguments})
        elif kind == "message":
            for part in item.get("content") or []:
                if isinstance(part, dict) and isinstance(part.get("text"), str):
                    texts.append(part["text"])
                elif isinstance(part, dict) and isinstance(part.get("refusal"), str):
                    refusals.append(part["refusal"])
            raw.append(item)
        elif kind is not None:
            raw.append(item)
    reason = (response.get("incomplete_details") or {}).get("reason")
    stop: Any = "calls" if calls.calls else "end"
    if status == "incomplete":
        stop = "length" if reason == "max_output_tokens" else "refusal" if reason == "content_filter" else "other"
    if refusals:
        stop = "refusal"
    answered = turn_response(
        text="\n".join(refusals or texts),
        calls=calls.calls,
        stop=stop,
        model=response.get("model"),
        request_id=request_id,
        raw=_without_lost_thoughts(raw),
    )
    return answered, usage_in(response.get("usage"), "input", "output")


def _without_lost_thoughts(items: list[Any]) -> list[Any]:
    """Thoughts that are not told are names of something that the provider has not kept; then nothing may name them."""
    lost = [item for item in items if item["type"] == "reasoning" and not item.get("encrypted_content")]
    if not lost:
        return items
    return [{key: value for key, value in item.items() if key != "id"} for item in items if item not in lost]
