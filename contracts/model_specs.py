"""Models as agents: which one, where it is reached, and how it is asked."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator
from pydantic_core import Url

from contracts.base import Argument, Name, StrictModel

__all__ = [
    "AnthropicSpec",
    "CredentialName",
    "McpServer",
    "McpServerName",
    "ModelSpec",
    "OpenAISpec",
    "mcp_server_of",
    "servers_used",
]

CredentialName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")]


def _web_address(value: str) -> str:
    fault = "an address is http://HOST… or https://HOST…"
    try:
        parts = Url(value)
    except ValueError:
        raise ValueError(fault) from None
    host = (parts.host or "").strip("[]")
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError(fault)
    if "@" in value or parts.query is not None or parts.fragment is not None:
        raise ValueError("an address has no user, password, query or fragment: keys come from the environment")
    if parts.scheme == "http" and not _is_local(host):
        raise ValueError("keys and data would cross the network in the clear, write https://")
    return value


def _is_local(host: str) -> bool:
    """This machine or a private network, by name or number; names without a dot are those of containers."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((".local", ".internal", ".localhost"))
    return address.is_private


WebAddress = Annotated[
    str, StringConstraints(max_length=2_000, pattern=r"^https?://[\x21-\x7e]+$"), AfterValidator(_web_address)
]


class ModelSpec(StrictModel):
    """What every provider is told. A plain ``X`` means ``{model: X}``.

    ``base_url``: a server other than the provider's own. ``api_key_env``: the variable that holds the key; null for a
    server that needs none. ``timeout_s``: for one request. ``instructions``: said to the model after its objective.
    """

    model: Name
    base_url: WebAddress | None = None
    max_output_tokens: int = Field(default=4096, ge=1, le=10_000_000)
    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    stream: bool = True
    timeout_s: float = Field(default=120, gt=0, le=86_400, allow_inf_nan=False)
    api_key_env: CredentialName | None
    instructions: str | None = Field(default=None, min_length=1, max_length=200_000)

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: Any) -> Any:
        return {"model": value} if isinstance(value, str) else value

    def document(self) -> dict[str, Any]:
        """Every default written out; what is not set is left out, but for a key that is not needed."""
        return {**self.model_dump(mode="json", exclude_none=True), "api_key_env": self.api_key_env}

    def endpoint(self) -> dict[str, Any]:
        """Where requests go, and with whose key."""
        return self.model_dump(mode="json", include={"base_url", "api", "api_key_env"})


class AnthropicSpec(ModelSpec):
    """A model behind Anthropic's Messages API."""

    api_key_env: CredentialName | None = "ANTHROPIC_API_KEY"


class OpenAISpec(ModelSpec):
    """A model behind OpenAI's API, or one of the many servers that speak it.

    ``api``: ``responses``, or ``chat`` for servers that know Chat Completions only.
    """

    api: Literal["responses", "chat"] = "responses"
    api_key_env: CredentialName | None = "OPENAI_API_KEY"


class McpServer(StrictModel):
    """A server of tools: a program that talks by its standard input and output, or one reached by streamable HTTP.

    ``credentials``: names of variables that the server gets; the child does not see them.
    """

    command: list[Argument] | None = Field(default=None, min_length=1)
    url: WebAddress | None = None
    credentials: list[CredentialName] = []

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("a server has either a command or a url")
        return self


McpServerName = Annotated[str, StringConstraints(max_length=40, pattern=r"^[A-Za-z0-9]+([_-][A-Za-z0-9]+)*$")]
"""Without ``__``, so that ``mcp__SERVER__TOOL`` can be read in one way only."""

MCP_PREFIX = "mcp__"


def mcp_server_of(tool: str) -> str | None:
    """The server that a granted tool names; None for a tool of the house, ``""`` for a malformed name."""
    if not tool.startswith(MCP_PREFIX):
        return None
    server, found, name = tool.removeprefix(MCP_PREFIX).partition("__")
    return server if found and name else ""


def servers_used(tools: Iterable[str]) -> set[str]:
    """The servers that these tools belong to."""
    return {server for tool in tools if (server := mcp_server_of(tool))}
