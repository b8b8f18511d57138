"""Chat Completions, by the SDK `openai`: OpenAI's older API, and all that the many servers like it speak."""

from __future__ import annotations

from typing import Any

from agents.llm.asking import ask_sdk
from agents.llm.conversation import Answered, Message, ModelRequest, Raw
from agents.llm.failures import CallFailed
from agents.llm.openai_client import ID_HEADER, SDK, client_for, error_text, usage_in
from agents.llm.received import CallReader, plain, turn_response
from contracts.terms import ModelSpec
from contracts.turns import ModelUsage, TurnResponse

__all__ = ["ChatAdapter"]

_STOPS: dict[object, Any] = {
    "stop": "end",
    "tool_calls": "calls",
    "function_call": "calls",
    "length": "length",
    "content_filter": "refusal",
}


class ChatAdapter:
    """Implements ``Adapter``."""

    def __init__(self, spec: ModelSpec, api_key: str) -> None:
        self._spec = spec
        self._client = client_for(spec, api_key)

    async def close(self) -> None:
        await self._client.close()

    async def ask(self, request: ModelRequest, timeout_s: float) -> tuple[TurnResponse, ModelUsage | None]:
        return await ask_sdk(
            self._client.chat.completions.create,
            self._parameters(request),
            timeout_s,
            streamed={"stream_options": {"include_usage": True}} if self._spec.stream else None,
            whole=_whole,
            read=lambda told, request_id: _read(told, request_id, request.used_call_ids),
            id_header=ID_HEADER,
            sdk=SDK,
        )

    def _parameters(self, request: ModelRequest) -> dict[str, Any]:
        # The other name is OpenAI's own and new; servers that copy the API know this one.
        limit = "max_completion_tokens" if self._spec.base_url is None else "max_tokens"
        parameters: dict[str, Any] = {
            "model": self._spec.model,
            limit: self._spec.max_output_tokens,
            "messages": [
                {"role": "system", "content": request.system},
                *(item for message in request.messages for item in _rendered(message)),
            ],
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": tool["name"],
                        "description": tool["description"],
                        "parameters": tool["input_schema"],
                    },
                }
                for tool in request.tools
            ],
        }
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
            {"role": "tool", "tool_call_id": answer.call_id, "content": error_text(answer.text, answer.is_error)}
            for answer in message.answers
        ]
    [(role, text)] = message.document().items()
    return [{"role": role, "content": text}]


async def _whole(stream: Any) -> dict[str, Any]:
    """The completion that a stream tells."""
    message: dict[str, Any] = {}
    calls: list[dict[str, Any]] = []
    found: dict[str, Any] = {}
    reason: object = None
    async for chunk in stream:
        data = plain(chunk)
        found["model"] = data.get("model") or found.get("model")
        if data.get("usage"):
            found["usage"] = data["usage"]  # a running total where it is told more than once
        for choice in data.get("choices") or []:
            if choice.get("index", 0) != 0:
                continue
            reason = choice.get("finish_reason") or reason
            for key, value in (choice.get("delta") or {}).items():
                if key == "tool_calls":
                    for piece in value or []:
                        _add_piece(calls, piece)
                elif key != "role" and isinstance(value, str) and isinstance(message.get(key), str):
                    message[key] += value
                elif value is not None:
                    message[key] = value
    if reason is None:
        raise CallFailed("dropped", "the stream ended without its end", retryable=True)
    if calls:
        message["tool_calls"] = [{key: value for key, value in call.items() if key != "index"} for call in calls]
    return {**found, "choices": [{"message": message, "finish_reason": reason}]}


def _add_piece(calls: list[dict[str, Any]], piece: dict[str, Any]) -> None:
    """A call comes in pieces with the same index; one that brings a name and another id is a new call all the same."""
    function = piece.get("function") or {}
    index = piece.get("index")
    same = [call for call in calls if call["index"] == index]
    begins = bool(function.get("name")) and piece.get("id") is not None
    if not same or (begins and same[-1]["id"] != piece["id"]):
        calls.append({
            "index": index, "id": piece.get("id"), "type": "function",
            "function": {"name": function.get("name"), "arguments": function.get("arguments")},
        })  # fmt: skip
        return
    target = same[-1]["function"]
    target["name"] = target["name"] or function.get("name")
    if isinstance(function.get("arguments"), str):
        target["arguments"] = (target["arguments"] or "") + function["arguments"]


def _read(
    completion: dict[str, Any], request_id: object, used_ids: frozenset[str]
) -> tuple[TurnResponse, ModelUsage | None]:
    choices = completion.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise CallFailed("unreadable", "the answer has no message", retryable=True)
    calls = CallReader(used_ids)
    sent_back: list[dict[str, Any]] = []
    for item in message.get("tool_calls") or []:
        function = item.get("function") if isinstance(item, dict) else None
        if not isinstance(function, dict):
            continue
        arguments = function.get("arguments")
        call, name = calls.read(item.get("id"), function.get("name"), arguments)
        # Servers read these again with each request: what is no JSON would fail every later one.
        text = arguments if isinstance(arguments, str) and arguments and not call.malformed else "{}"
        sent_back.append(
            {**item, "id": call.call_id, "type": "function", "function": {**function, "name": name, "arguments": text}}
        )
    text = _text(message.get("content"))
    refusal = message.get("refusal")
    stop = _STOPS.get(choice.get("finish_reason"), "other")
    if isinstance(refusal, str) and refusal:
        stop, text = "refusal", refusal
    raw = {key: value for key, value in message.items() if value not in (None, [], "") or key == "content"}
    raw = {**raw, "role": "assistant", "content": message.get("content") or None}
    raw.pop("tool_calls", None)
    if sent_back:
        raw["tool_calls"] = sent_back
    response = turn_response(
        text=text, calls=calls.calls, stop=stop, model=completion.get("model"), request_id=request_id, raw=[raw]
    )
    return response, usage_in(completion.get("usage"), "prompt", "completion")


def _text(content: object) -> str:
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""
