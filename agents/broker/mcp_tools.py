"""Tools of MCP servers, for one attempt: started when first needed, told apart by name, all ended with it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import re
import threading
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from agents.broker.errors import OutcomeUnknown, ServerFailed, ToolRefused
from contracts.canonical import canonical_bytes, json_faults, well_formed
from contracts.errors import BadInput
from contracts.model_specs import MCP_PREFIX, McpServer, mcp_server_of
from contracts.ports import CancelSignal

if TYPE_CHECKING:
    from agents.broker.mcp_session import ServerSession

__all__ = ["ServerPlace", "ServerTool", "ToolServers"]

START_LIMIT_S = 60.0
CALL_LIMIT_S = 300.0
END_LIMIT_S = 20.0
POLL_S = 0.05
SUMMARY_CHARS_MAX = 2_000
SCHEMA_BYTES_MAX = 64 * 1024
SCHEMA_DEPTH_MAX = 32

T = TypeVar("T")

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_TYPES = frozenset({"null", "boolean", "object", "array", "number", "string", "integer"})


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """Where the servers of one attempt live.

    ``scratch``: a private folder that is deleted after it. ``cwd``: their working folder. ``credentials``: values of
    the variables that their contract names; each server gets its own alone. ``lock_path``: held until nothing of their
    programs is left.
    """

    scratch: Path
    cwd: Path
    credentials: Mapping[str, str]
    lock_path: Path | None = None


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A granted tool as its server describes it. ``input_schema`` is what a model is shown; ``checked_schema`` is the
    part of it that is held against arguments here: a whole schema of a stranger can take for ever."""

    name: str
    summary: str
    input_schema: Mapping[str, Any]
    checked_schema: Mapping[str, Any]

    def document(self) -> dict[str, Any]:
        return {"name": self.name, "description": self.summary, "input_schema": dict(self.input_schema)}

    @classmethod
    def of(cls, name: str, description: str | None, schema: Mapping[str, Any]) -> ServerTool:
        """Raises ``ServerFailed`` for a schema that no model should be given."""
        fault = _schema_fault(schema)
        if fault:
            raise ServerFailed(f"the arguments of {name} are not described in a sane way: {fault}")
        summary = well_formed(description or "").strip()[:SUMMARY_CHARS_MAX]
        return cls(name, summary or f"a tool of the server {mcp_server_of(name)}", schema, _top_level(schema))


class ToolServers:
    """The servers that an attempt's grant needs. Safe from several threads; ``close`` ends them for good."""

    def __init__(
        self,
        servers: Mapping[str, McpServer],
        granted: Collection[str],
        place: ServerPlace,
        cancel: CancelSignal,
        *,
        start_limit_s: float = START_LIMIT_S,
        call_limit_s: float = CALL_LIMIT_S,
    ) -> None:
        """``granted``: names of tools; those that belong to no server are passed over."""
        self._servers = servers
        self._granted: dict[str, list[str]] = {}
        for name in granted:
            server = mcp_server_of(name)
            if server:
                self._granted.setdefault(server, []).append(name)
        self._place = place
        self._cancel = cancel
        self._start_limit_s = start_limit_s
        self._call_limit_s = call_limit_s
        self._lock = threading.Lock()
        self._loop = _LoopThread()
        self._sessions: dict[str, ServerSession] = {}
        self._tools: dict[str, ServerTool] | None = None
        self._failed: ServerFailed | None = None
        self._closed = False
        self._all_gone = True

    def tools(self) -> Mapping[str, ServerTool]:
        """The granted tools by their names, as they were described when their servers began; what a server says later
        about them changes nothing.

        Raises ``ServerFailed``, the first time and each time after it.
        """
        with self._lock:
            if self._closed:
                raise ToolRefused("the attempt is over: no server is called any more")
            if self._failed is not None:
                raise self._failed
            if self._tools is None:
                try:
                    self._tools = self._start()
                except ServerFailed as error:
                    self._failed = error
                    raise
            return self._tools

    def call(self, name: str, arguments: Mapping[str, Any], time_left_s: float = math.inf) -> str:
        """What the tool says, as text. Raises ``ToolRefused`` with what it says when it failed, ``OutcomeUnknown``,
        ``ServerFailed``."""
        self.tools()
        server = mcp_server_of(name)
        assert server is not None
        session = self._sessions[server]
        call = session.call(_tool_name(name), dict(arguments), min(self._call_limit_s, time_left_s))
        try:
            return self._loop.run(call, self._cancel)
        except _Stopped:
            raise OutcomeUnknown(f"{name} was given up: {self._cancel.reason or 'told to stop'}") from None

    def close(self) -> bool:
        """End every server. Whether none of their processes is left; the same when it is called again."""
        with self._lock:
            if not self._closed and self._loop.started:
                self._all_gone = self._loop.run(_end_all(list(self._sessions.values())), None)
                self._loop.stop()
            self._closed = True
            return self._all_gone

    def _start(self) -> dict[str, ServerTool]:
        from agents.broker.mcp_session import ServerSession  # brings a library that most attempts do without

        tools: dict[str, ServerTool] = {}
        for server, names in self._granted.items():
            spec = self._servers.get(server)
            if spec is None:
                raise ServerFailed(f"no server of tools is called {server!r}")
            missing = [name for name in spec.credentials if name not in self._place.credentials]
            if missing:
                raise ServerFailed(f"the server {server!r} needs the variables {', '.join(missing)}, which are not set")
            session = self._sessions[server] = ServerSession(server, spec, self._place, self._call_limit_s)
            try:
                found = self._loop.run(session.start(self._start_limit_s), self._cancel)
            except _Stopped:
                raise ServerFailed(f"the server {server!r} was not waited for: {self._cancel.reason}") from None
            for name in names:
                described = found.get(_tool_name(name))
                if described is None:
                    known = ", ".join(sorted(found))[:500] or "none"
                    raise ServerFailed(f"the server {server!r} has no tool {_tool_name(name)!r} (it has: {known})")
                tools[name] = ServerTool.of(name, *described)
        return tools


class _Stopped(Exception):
    """The attempt was told to stop while something was waited for."""


class _LoopThread:
    """An event loop in a thread of its own, for callers that are threads themselves."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def started(self) -> bool:
        return self._loop is not None

    def run(self, work: Coroutine[Any, Any, T], cancel: CancelSignal | None) -> T:
        """Raises what ``work`` raises, and ``_Stopped``; ``work`` is then cancelled, and has ended."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._body, args=(self._loop,), name="mcp", daemon=True)
            self._thread.start()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while not future.done():
            concurrent.futures.wait([future], POLL_S)
            if cancel is not None and cancel.is_set() and future.cancel():
                raise _Stopped
        return future.result()

    def stop(self) -> None:
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(END_LIMIT_S)

    @staticmethod
    def _body(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()


async def _end_all(sessions: Collection[ServerSession]) -> bool:
    return all(await asyncio.gather(*(session.end(END_LIMIT_S) for session in sessions)))


def _tool_name(name: str) -> str:
    return name.removeprefix(MCP_PREFIX).partition("__")[2]


def _schema_fault(schema: Mapping[str, Any]) -> str:
    """Why this is not for use; empty when it is."""
    faults = json_faults(schema, max_depth=SCHEMA_DEPTH_MAX)
    if faults:
        return str(faults[0])[:300]
    try:
        size = len(canonical_bytes(dict(schema)))
    except BadInput as error:
        return str(error)[:300]
    if size > SCHEMA_BYTES_MAX:
        return f"{size:,} bytes are more than {SCHEMA_BYTES_MAX:,}"
    if schema.get("type") != "object":
        return "it is no object with named arguments"
    outward = next(_outward(schema), None)
    if outward is not None:
        return f"it refers to {outward!r:.100}, outside of itself"
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"{error.json_path}: {error.message}"[:300]
    return ""


def _outward(value: Any) -> Any:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key in _REFERENCES and not (isinstance(item, str) and re.match(r"#(/|$)", item)):
                yield item
            yield from _outward(item)
    elif isinstance(value, list):
        for item in value:
            yield from _outward(item)


def _top_level(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Names and plain types of the arguments. The server judges the rest."""
    named = schema.get("properties", {})
    kept: dict[str, Any] = {
        "type": "object",
        "properties": {name: {"type": types} for name, sub in named.items() if (types := _types(sub))},
        "required": list(schema.get("required", ())),
    }
    if schema.get("additionalProperties") is False and "patternProperties" not in schema:
        kept["properties"] = {name: kept["properties"].get(name, True) for name in named}
        kept["additionalProperties"] = False
    return kept


def _types(schema: Any) -> list[str]:
    """The types that an argument may have; empty where that is not said plainly."""
    if not isinstance(schema, Mapping):
        return []
    if "anyOf" in schema and "type" not in schema:
        found = [_types(one) for one in schema["anyOf"]]
        return sorted({name for types in found for name in types}) if all(found) else []
    said = schema.get("type", [])
    types = [said] if isinstance(said, str) else list(said)
    return types if set(types) <= _TYPES else []
