"""One connection to an MCP server. Whatever comes from it is data of a stranger, and there is only so much of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import tempfile
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp.client import Client, ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
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
    jsonrpc_message_adapter,
)
from pydantic import TypeAdapter, ValidationError

from agents.broker.errors import OutcomeUnknown, ServerFailed, ToolRefused
from agents.broker.mcp_tools import ServerPlace
from agents.processes import ProcessEnd, ProcessSpec, child_environment, run_process
from contracts.canonical import well_formed
from contracts.model_specs import McpServer

__all__ = ["ServerSession"]

MESSAGE_BYTES_MAX = 8 * 1024 * 1024
HEARD_BYTES_MAX = 32 * 1024 * 1024
"""Of everything that a server says from one request to the next."""
PAGES_MAX = 20
TOOLS_MAX = 1_000
UNLIMITED_S = 31_536_000.0
SAID_CHARS_MAX = 500

Described = tuple[str | None, dict[str, Any]]
"""Description and schema of a tool."""

_RESULT: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(CallToolResult | InputRequiredResult)
_LONE = re.compile("[\ud800-\udfff]")
# The supervisor gives its program no standard input: the shell opens both ends, and becomes the server.
_OVER_PIPES = 'exec <"$1" >"$2"; shift 2; exec "$@"'


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
        self._all_gone = True

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
        return self._life.done() and self._all_gone

    async def _live(self, ready: asyncio.Future[dict[str, Described]]) -> None:
        """Everything is entered and left in this one task."""
        try:
            transport = self._program() if self._server.command is not None else self._web()
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

    def _give_up(self, why: str) -> None:
        self._why = self._why or why
        self._session = None
        self._over.set()

    def _heard(self, size_bytes: int) -> None:
        self._heard_bytes += size_bytes
        if self._heard_bytes > HEARD_BYTES_MAX:
            self._give_up(f"it said more than {HEARD_BYTES_MAX:,} bytes")
            raise ServerFailed(self._why)

    @contextlib.asynccontextmanager
    async def _program(self) -> AsyncIterator[Any]:
        """The server as a program of its own, under a supervisor that ends it with all its descendants."""
        self._place.scratch.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="server-", dir=self._place.scratch))
        pipes = [folder / "in", folder / "out"]
        stop = _Stop()
        fds: list[int] = []
        try:
            for path in pipes:
                os.mkfifo(path, 0o600)
                # Both ways, so that neither end has to be waited for; the end of the program says when all was said.
                fds.append(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
            for name in ("home", "tmp"):
                (folder / name).mkdir()
            program = asyncio.create_task(run_process(self._spec(folder, pipes), stop))
            self._all_gone = False
            to_us, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
            to_server, from_us = anyio.create_memory_object_stream[SessionMessage](0)
            tasks = [
                asyncio.create_task(self._read(fds[1], program, to_us)),
                asyncio.create_task(_write(fds[0], program, from_us)),
            ]
            try:
                yield from_server, to_server
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for stream in (to_us, from_server, to_server, from_us):
                    stream.close()
                os.close(fds.pop(0))  # the end of its input, to a server that listens
                stop.set()
                try:
                    self._all_gone = (await _finished(program)).all_gone
                except OSError:
                    self._all_gone = True  # it was never started
        finally:
            for fd in fds:
                os.close(fd)
            shutil.rmtree(folder, ignore_errors=True)

    def _spec(self, folder: Path, pipes: list[Path]) -> ProcessSpec:
        assert self._server.command is not None
        environment = child_environment(home=folder / "home", tmp=folder / "tmp", passed=self._credentials, extra={})
        return ProcessSpec(
            argv=["/bin/sh", "-c", _OVER_PIPES, "sh", *map(str, pipes), *self._server.command],
            cwd=self._place.cwd,
            env=environment,
            timeout_s=UNLIMITED_S,
            max_output_bytes=64 * 1024,
            grace_s=1.0,
            lock_path=self._place.lock_path,
        )

    async def _read(self, fd: int, program: asyncio.Task[ProcessEnd], to_us: Any) -> None:
        buffer = bytearray()
        try:
            while True:
                try:
                    data = os.read(fd, 65536)
                except BlockingIOError:
                    if program.done():
                        self._why = self._why or _how_it_ended(program)
                        return
                    await _until(fd, program)
                    continue
                self._heard(len(data))
                buffer += data
                *lines, rest = buffer.split(b"\n")
                buffer = bytearray(rest)
                if len(buffer) > MESSAGE_BYTES_MAX:
                    self._give_up(f"a message of it has more than {MESSAGE_BYTES_MAX:,} bytes")
                    return
                for line in lines:
                    message = _message(bytes(line))
                    if message is not None:
                        await to_us.send(message)
        except (ServerFailed, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return
        finally:
            to_us.close()

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


class _Stop:
    """Implements ``contracts.ports.CancelSignal``."""

    reason = "the attempt is over"

    def __init__(self) -> None:
        self._event = threading.Event()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._event.wait(timeout_s)

    def set(self) -> None:
        self._event.set()


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


async def _write(fd: int, program: asyncio.Task[ProcessEnd], from_us: Any) -> None:
    async for sent in from_us:
        data = sent.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        while data:
            try:
                data = data[os.write(fd, data) :]
            except BlockingIOError:
                if program.done():
                    return
                await _until(fd, program, to_write=True)


async def _until(fd: int, program: asyncio.Task[ProcessEnd], *, to_write: bool = False) -> None:
    """Until the descriptor is ready, or the program has ended."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    add, remove = (loop.add_writer, loop.remove_writer) if to_write else (loop.add_reader, loop.remove_reader)
    add(fd, ready.set)
    waiting = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait((waiting, program), return_when=asyncio.FIRST_COMPLETED)
    finally:
        remove(fd)
        waiting.cancel()


async def _finished(program: asyncio.Task[ProcessEnd]) -> ProcessEnd:
    """Its end, cancelled or not: until then something of it may be there."""
    while not program.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({program})
    return program.result()


def _how_it_ended(program: asyncio.Task[ProcessEnd]) -> str:
    if program.cancelled() or program.exception() is not None:
        return f"it could not be started: {program.exception() if not program.cancelled() else 'cancelled'}"
    end = program.result()
    how = f"signal {end.signal}" if end.signal is not None else f"exit status {end.exit_status}"
    said = end.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return f"it ended by itself ({end.message or how}){': ' if said else ''}{_short(said)}"


def _message(line: bytes) -> SessionMessage | None:
    """None for what is no message: some programs print other things, too."""
    try:
        value = _LONE.sub(lambda half: rf"\\u{ord(half[0]):04x}", json.dumps(json.loads(line), ensure_ascii=False))
        return SessionMessage(jsonrpc_message_adapter.validate_json(value, by_name=False))
    except (ValueError, RecursionError):
        return None


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
