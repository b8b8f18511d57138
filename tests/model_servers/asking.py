"""Asks a server through the real SDKs and says what was heard in the words of the script; for tests of the servers."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anthropic
import openai
from anthropic import Anthropic
from openai import OpenAI

from tests.model_servers.script import Usage

TOOLS: Mapping[str, Mapping[str, Any]] = {
    "read_file": {"type": "object", "properties": {"path": {"type": "string"}}},
    "submit_result": {"type": "object"},
}


@dataclass(frozen=True, slots=True)
class Heard:
    text: str
    calls: Sequence[tuple[str, str, str | None]]  # id, name, arguments as JSON text
    stop: str | None
    refusal: str | None
    usage: Usage | None
    raw: Any
    thoughts: str = ""


class Asker:
    """One client for one API. Its messages are those of the API itself."""

    def __init__(
        self, api: str, url: str, *, stream: bool, timeout_s: float = 10.0, helper: bool = True, retries: int = 0
    ) -> None:
        """Without the helper, a stream of Responses is read event by event: servers that copy it leave fields out."""
        self.api = api
        self.stream = stream
        self._helper = helper
        options: dict[str, Any] = {"api_key": "k", "max_retries": retries, "timeout": timeout_s}
        # Without the certificates of the world, which take longer to load than a test here takes in all.
        bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.client: Any = (
            Anthropic(base_url=url, http_client=anthropic.DefaultHttpxClient(verify=bare), **options)
            if api == "messages"
            else OpenAI(base_url=f"{url}/v1", http_client=openai.DefaultHttpxClient(verify=bare), **options)
        )

    def close(self) -> None:
        self.client.close()

    def ask(
        self,
        messages: Sequence[Mapping[str, Any]] = ({"role": "user", "content": "hello"},),
        tools: Mapping[str, Mapping[str, Any]] = TOOLS,
        **more: Any,
    ) -> Heard:
        return getattr(self, f"_{self.api}")(list(messages), tools, **more)  # type: ignore[no-any-return]

    def plainly(self, **more: Any) -> Any:
        """One call of the SDK's `create`, with nothing made of what it gives: an object, a stream, or text."""
        messages = [{"role": "user", "content": "hello"}]
        more = {"stream": True, **more} if self.stream else more
        if self.api == "messages":
            return self.client.messages.create(model="m", max_tokens=50, messages=messages, **more)
        if self.api == "responses":
            return self.client.responses.create(model="m", input=messages, **more)
        return self.client.chat.completions.create(model="m", messages=messages, **more)

    def _messages(self, messages: Any, tools: Mapping[str, Any], **more: Any) -> Heard:
        offered = [{"name": name, "input_schema": schema} for name, schema in tools.items()]
        asked = {"model": "m", "max_tokens": 50, "messages": messages, "tools": offered, **more}
        if self.stream:
            with self.client.messages.stream(**asked) as stream:
                said = stream.get_final_message()
        else:
            said = self.client.messages.create(**asked)
        usage = getattr(said, "usage", None)
        return Heard(
            "".join(block.text for block in said.content if block.type == "text"),
            [(block.id, block.name, json.dumps(block.input)) for block in said.content if block.type == "tool_use"],
            said.stop_reason,
            said.stop_details.explanation if said.stop_details else None,
            usage and _usage_of_messages(usage),
            said,
            "".join(block.thinking for block in said.content if block.type == "thinking"),
        )

    def _responses(self, messages: Any, tools: Mapping[str, Any], **more: Any) -> Heard:
        said: Any = None
        offered = [
            {"type": "function", "name": name, "parameters": schema, "strict": False} for name, schema in tools.items()
        ]
        asked = {"model": "m", "input": messages, "tools": offered, **more}
        if not self.stream:
            said = self.client.responses.create(**asked)
        else:
            # Not `get_final_response`: it knows no incomplete one.
            create = self.client.responses.stream if self._helper else self.client.responses.create
            with create(**asked, **({} if self._helper else {"stream": True})) as stream:
                for event in stream:
                    said = getattr(event, "response", None)
        parts = [part for item in said.output if item.type == "message" for part in item.content]
        usage = said.usage
        return Heard(
            "".join(part.text for part in parts if part.type == "output_text"),
            [(item.call_id, item.name, item.arguments) for item in said.output if item.type == "function_call"],
            said.incomplete_details.reason if said.incomplete_details else said.status,
            next((part.refusal for part in parts if part.type == "refusal"), None),
            usage and Usage(
                usage.input_tokens, usage.output_tokens, *_cached(usage.input_tokens_details),
                _reasoning(usage.output_tokens_details),
            ),
            said,
            "".join(part.text for item in said.output if item.type == "reasoning" for part in item.summary),
        )  # fmt: skip

    def _chat(self, messages: Any, tools: Mapping[str, Any], **more: Any) -> Heard:
        offered = [{"type": "function", "function": {"name": name, "parameters": each}} for name, each in tools.items()]
        asked = {"model": "m", "messages": messages, "tools": offered, **more}
        if self.stream:
            with self.client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
                for _ in stream:
                    pass
                said = stream.current_completion_snapshot
        else:
            said = self.client.chat.completions.create(**asked)
        message = said.choices[0].message
        usage = said.usage
        return Heard(
            message.content or "",
            [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or []],
            said.choices[0].finish_reason,
            message.refusal,
            usage and Usage(
                usage.prompt_tokens, usage.completion_tokens, *_cached(usage.prompt_tokens_details),
                _reasoning(usage.completion_tokens_details),
            ),
            said,
        )  # fmt: skip


def _usage_of_messages(usage: Any) -> Usage:
    cached, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    return Usage(usage.input_tokens + cached + written, usage.output_tokens, cached, written)


def _cached(details: Any) -> tuple[int | None, int]:
    return (None, 0) if details is None else (details.cached_tokens, details.cache_write_tokens or 0)


def _reasoning(details: Any) -> int | None:
    return None if details is None else details.reasoning_tokens
