"""A server as a program that talks by its standard input and output, under a supervisor that ends all of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from agents.broker.errors import ServerFailed
from agents.broker.mcp_tools import ServerPlace
from agents.processes import ProcessEnd, ProcessSpec, child_environment, run_process

__all__ = ["PipedServer"]

MESSAGE_BYTES_MAX = 8 * 1024 * 1024
UNLIMITED_S = 31_536_000.0
SAID_CHARS_MAX = 500

_LONE = re.compile("[\ud800-\udfff]")
# The supervisor gives its program no standard input: the shell opens both ends, and becomes the server.
_OVER_PIPES = 'exec <"$1" >"$2"; shift 2; exec "$@"'


class PipedServer:
    """``all_gone``: whether nothing of the program is left."""

    def __init__(
        self,
        command: Sequence[str],
        place: ServerPlace,
        credentials: Mapping[str, str],
        *,
        heard: Callable[[int], None],
        lost: Callable[[str], None],
    ) -> None:
        """``heard``: told how many bytes came, raises ``ServerFailed`` when they are too many. ``lost``: told why no
        more will come."""
        self._command = command
        self._place = place
        self._credentials = credentials
        self._heard = heard
        self._lost = lost
        self._stop = _Stop()
        self.all_gone = True

    @contextlib.asynccontextmanager
    async def streams(self) -> AsyncIterator[Any]:
        """An MCP transport: what comes from the program, and what goes to it."""
        self._place.scratch.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="server-", dir=self._place.scratch))
        pipes = [folder / "in", folder / "out"]
        fds: list[int] = []
        try:
            for path in pipes:
                os.mkfifo(path, 0o600)
                # Both ways, so that neither end has to be waited for; the end of the program says when all was said.
                fds.append(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
            for name in ("home", "tmp"):
                (folder / name).mkdir()
            self.all_gone = False
            program = asyncio.create_task(run_process(self._spec(folder, pipes), self._stop))
            to_us, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
            to_server, from_us = anyio.create_memory_object_stream[SessionMessage](0)
            tasks = [
                asyncio.create_task(self._read(fds[1], program, to_us)),
                asyncio.create_task(_write(fds[0], program, from_us)),
            ]
            try:
                yield from_server, to_server
            finally:
                self._stop.set()
                self.all_gone = await _all_gone(program)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for stream in (to_us, from_server, to_server, from_us):
                    stream.close()
        finally:
            for fd in fds:
                os.close(fd)
            shutil.rmtree(folder, ignore_errors=True)

    def _spec(self, folder: Path, pipes: list[Path]) -> ProcessSpec:
        environment = child_environment(home=folder / "home", tmp=folder / "tmp", passed=self._credentials, extra={})
        return ProcessSpec(
            argv=["/bin/sh", "-c", _OVER_PIPES, "sh", *map(str, pipes), *self._command],
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
                        if not self._stop.is_set():
                            self._lost(_how_it_ended(program))
                        return
                    await _until(fd, program)
                    continue
                self._heard(len(data))
                buffer += data
                if len(buffer) > MESSAGE_BYTES_MAX:
                    self._lost(f"a message of it has more than {MESSAGE_BYTES_MAX:,} bytes")
                    return
                if b"\n" not in data:
                    continue
                *lines, buffer = buffer.split(b"\n")
                for line in lines:
                    message = _message(bytes(line))
                    if message is not None:
                        await to_us.send(message)
        except (ServerFailed, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return
        finally:
            self._stop.set()
            to_us.close()


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


async def _all_gone(program: asyncio.Task[ProcessEnd]) -> bool:
    """Waits for its end, cancelled or not: until then something of it may be there."""
    while not program.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({program})
    try:
        return program.result().all_gone
    except OSError:
        return True  # it was never started


def _how_it_ended(program: asyncio.Task[ProcessEnd]) -> str:
    try:
        end = program.result()
    except OSError as error:
        return f"it could not be started: {error}"
    how = f"signal {end.signal}" if end.signal is not None else f"exit status {end.exit_status}"
    said = end.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return f"it ended by itself ({end.message or how}){': ' if said else ''}{said[:SAID_CHARS_MAX]}"


def _message(line: bytes) -> SessionMessage | None:
    """None for what is no message: some programs print other things, too."""
    try:
        value = _LONE.sub(lambda half: rf"\\u{ord(half[0]):04x}", json.dumps(json.loads(line), ensure_ascii=False))
        return SessionMessage(jsonrpc_message_adapter.validate_json(value, by_name=False))
    except (ValueError, RecursionError):
        return None
