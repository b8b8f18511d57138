"""What the loop needs of a provider."""

from __future__ import annotations

from typing import Protocol

from agents.llm.conversation import ModelRequest
from contracts.terms import ModelSpec, OpenAISpec
from contracts.turns import ModelUsage, TurnResponse

__all__ = ["Adapter", "adapter_for"]


class Adapter(Protocol):
    """Speaks one API. Imports its SDK when it is made."""

    async def ask(self, request: ModelRequest, timeout_s: float) -> tuple[TurnResponse, ModelUsage | None]:
        """One HTTP request, no retries. Usage is None when it was not told or makes no sense. Raises ``CallFailed``."""
        ...

    async def close(self) -> None: ...


def adapter_for(spec: ModelSpec, api_key: str) -> Adapter:
    if isinstance(spec, OpenAISpec):
        if spec.api == "chat":
            from agents.llm.openai_chat_adapter import ChatAdapter

            return ChatAdapter(spec, api_key)
        from agents.llm.openai_responses_adapter import ResponsesAdapter

        return ResponsesAdapter(spec, api_key)
    from agents.llm.anthropic_adapter import AnthropicAdapter

    return AnthropicAdapter(spec, api_key)
