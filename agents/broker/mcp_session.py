"""One connection to an MCP server. Whatever comes from it is data of a stranger, and there is only so much of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import httpx2
from mcp.client import Client, ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    AudioContent,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    Implementation,
    InputRequiredResult,
    PaginatedRequestParams,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from pydantic import TypeAdapter, ValidationError

from agents.broker.errors import OutcomeUnknown, ServerFailed, ToolRefused
from agents.broker.mcp_pipes import MESSAGE_BYTES_MAX, PipedServer
from agents.broker.mcp_tools import ServerPlace
from contracts.canonical import well_formed
from contracts.model_specs import McpServer

__all__ = ["ServerSession"]

HEARD_BYTES_MAX = 32 * 1024 * 1024
"""Of everything that a server says from one request to the next."""
PAGES_MAX = 20
TOOLS_MAX = 1_000
SAID_CHARS_MAX = 500

Described = tuple[str | None, dict[str, Any]]
"""Description and schema of a tool."""

_RESULT: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(CallToolResult | InputRequiredResult)


class ServerSession:
    """For one event loop. ``start``, then calls, then ``end``, which is always safe."""

    def __init__(self, name: str, server: McpServer, place: ServerPlace, call_limit_s: float) -> None:
        self._name = name
        self._server = server
        self._place = place
        self._call_limit_s = call_limit_s
        self._credentials = {key: place.credentials[key] for key in server.credentials}
        self._session: ClientSession | None = None
        self._why = ""
        """Why it can be called no more."""
        self._heard_bytes = 0
        self._over = asyncio.Event()
        self._life: asyncio.Task[None] | None = None
        self._piped: PipedServer | None = None

    async def start(self, limit_s: float) -> dict[str, Described]:
        """The tools that it has, by name. Raises ``ServerFailed``."""
        ready: asyncio.Future[dict[str, Described]] = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live(ready))
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(ready)
        except TimeoutError:
            raise ServerFailed(f"the server {self._name!r} did not answer within {limit_s:g} s") from None
        finally:
            if not ready.done():
                ready.cancel()
                self._life.cancel()

    async def call(self, tool: str, arguments: dict[str, Any], limit_s: float) -> str:
        session = self._session
        if session is None or self._why:
            raise ToolRefused(f"the server {self._name!r} is gone: {self._why or 'it was ended'}")
        self._heard_bytes = 0
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments))
        try:
            async with asyncio.timeout(limit_s):
                # Not its ``call_tool``, which would hold results against schemas of the server's.
                result = await session.send_request(request, _RESULT)
        except TimeoutError:
            self._give_up(f"it did not answer within {limit_s:g} s")
            raise OutcomeUnknown(f"the server {self._name!r} did not answer {tool} within {limit_s:g} s") from None
        except MCPError as error:
            if self._why or error.code == CONNECTION_CLOSED:
                why = self._why or "the connection was closed"
                raise OutcomeUnknown(f"the server {self._name!r} was lost during {tool}: {why}") from None
            raise ToolRefused(f"the server refused: {_short(error.error.message)}") from None
        except Exception as error:
            what = f"what the server {self._name!r} answered to {tool} makes no sense: {_short(_first_line(error))}"
            raise OutcomeUnknown(self._why or what) from None
        if isinstance(result, InputRequiredResult):
            raise ToolRefused("the tool asks for input from a person, which it cannot have here")
        text = _as_text(result)
        if result.is_error:
            raise ToolRefused(f"the tool failed: {text}")
        return text

    async def end(self, limit_s: float) -> bool:
        """Whether nothing of it is left."""
        if self._life is None:
            return True
        self._over.set()
        await asyncio.wait({self._life}, timeout=limit_s)
        if not self._life.done():
            self._life.cancel()
            await asyncio.wait({self._life}, timeout=limit_s)
        return self._life.done() and (self._piped is None or self._piped.all_gone)

    async def _live(self, ready: asyncio.Future[dict[str, Described]]) -> None:
        """Everything is entered and left in this one task."""
        try:
            transport = self._web()
            if self._server.command is not None:
                self._piped = PipedServer(
                    self._server.command, self._place, self._credentials, heard=self._heard, lost=self._lost
                )
                transport = self._piped.streams()
            us = Implementation(name="coordinator", version="1")
            async with Client(transport, mode="auto", cache=None, client_info=us) as client:
                tools = await self._listed(client.session)
                if not ready.done():
                    self._session = client.session
                    ready.set_result(tools)
                    await self._over.wait()
        except Exception as error:
            if not ready.done():
                why = self._why or _short(_first_line(error))
                ready.set_exception(ServerFailed(f"the server {self._name!r} cannot be used: {why}"))
            self._why = self._why or _short(_first_line(error))
        finally:
            self._session = None

    async def _listed(self, session: ClientSession) -> dict[str, Described]:
        tools: dict[str, Described] = {}
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor) if cursor else None)
            for tool in page.tools:
                if tool.name in tools:
                    raise ServerFailed(f"it lists the tool {tool.name!r:.100} twice")
                tools[tool.name] = (tool.description, tool.input_schema)
            cursor = page.next_cursor
            if len(tools) > TOOLS_MAX:
                break
            if not cursor:
                return tools
        raise ServerFailed("its list of tools does not end")

    def _lost(self, why: str) -> None:
        self._why = self._why or why

    def _give_up(self, why: str) -> None:
        self._lost(why)
        self._session = None
        self._over.set()

    def _heard(self, size_bytes: int) -> None:
        self._heard_bytes += size_bytes
        if self._heard_bytes > HEARD_BYTES_MAX:
            self._give_up(f"it said more than {HEARD_BYTES_MAX:,} bytes")
            raise ServerFailed(self._why)

    @contextlib.asynccontextmanager
    async def _web(self) -> AsyncIterator[Any]:
        assert self._server.url is not None
        if len(self._credentials) > 1:
            raise ServerFailed("a server that is reached by a url takes one credential, as its bearer token")
        headers = {"Accept-Encoding": "identity"}
        for value in self._credentials.values():
            headers["Authorization"] = f"Bearer {value}"
        timeout = httpx2.Timeout(30, read=self._call_limit_s)
        async with (
            httpx2.AsyncClient(headers=headers, timeout=timeout, transport=_Counted(self._heard)) as client,
            streamable_http_client(
                self._server.url, http_client=client, max_sse_event_size=MESSAGE_BYTES_MAX
            ) as streams,
        ):
            yield streams


class _Counted(httpx2.AsyncHTTPTransport):
    """Counts what comes, packed by nobody: a few bytes could unfold to any number."""

    def __init__(self, heard: Callable[[int], None]) -> None:
        super().__init__()
        self._heard = heard

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.DecodingError("it packed its answer, which nobody asked for", request=request)
        response.stream = _CountedStream(response.stream, self._heard)
        return response


class _CountedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: Any, heard: Callable[[int], None]) -> None:
        self._stream = stream
        self._heard = heard

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        async for piece in self._stream:
            self._heard(len(piece))
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


def _as_text(result: CallToolResult) -> str:
    parts: list[str] = []
    for block in result.content:
        match block:
            case TextContent():
                parts.append(block.text)
            case ImageContent() | AudioContent():
                parts.append(f"[{block.mime_type}, {len(block.data) * 3 // 4:,} bytes, left out]")
            case EmbeddedResource() if isinstance(block.resource, TextResourceContents):
                parts.append(block.resource.text)
            case EmbeddedResource():
                parts.append(f"[the resource {block.resource.uri}, left out]")
            case ResourceLink():
                parts.append(f"[the resource {block.uri}]")
    if not parts and result.structured_content is not None:
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    return well_formed("\n".join(parts))


def _first_line(error: BaseException) -> str:
    """Of the first of a group: what really went wrong lies within."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    text = str(error).strip().partition("\n")[0]
    return text if isinstance(error, ServerFailed) else f"{type(error).__name__}: {text}"


def _short(text: str) -> str:
    return well_formed(text)[:SAID_CHARS_MAX]
