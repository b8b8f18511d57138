"""One output stream of a program: its first bytes are kept, all of it is hashed, the program never waits for it."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import termios
from collections.abc import Callable

__all__ = ["Capture", "LiveFile"]

CHUNK_BYTES = 65536


class LiveFile:
    """Where people follow both streams while the program runs. Raises ``OSError`` when it cannot be opened.

    A disk that fills up later ends the copy, not the program.
    """

    def __init__(self, path: os.PathLike[str]) -> None:
        self._fd: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)

    def write(self, data: bytes) -> None:
        while data and self._fd is not None:
            try:
                data = data[os.write(self._fd, data) :]
            except OSError:
                self.close()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class Capture:
    """Reads one pipe on the event loop. ``on_data`` is told of every arrival."""

    def __init__(self, name: str, limit_bytes: int, live: LiveFile | None, on_data: Callable[[], None]) -> None:
        self._name = name
        self._limit_bytes = limit_bytes
        self._live = live
        self._on_data = on_data
        self._kept = bytearray()
        self._hash = hashlib.sha256()
        self.dropped_bytes = 0
        self._read_fd, write_fd = os.pipe()
        self.write_fd = write_fd
        """The program's end; close it as soon as the program has it."""
        self._write_end_open = True
        os.set_blocking(self._read_fd, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read_fd, self._arrived)

    def close_write_end(self) -> None:
        if self._write_end_open:
            os.close(self.write_fd)
            self._write_end_open = False

    def finish(self) -> None:
        """Takes what the pipe holds now and closes it: its end is never waited for, since anybody may hold it open."""
        self.close_write_end()
        left = int.from_bytes(fcntl.ioctl(self._read_fd, termios.FIONREAD, bytes(4)), "little")
        while left > 0 and (data := self._read(min(left, CHUNK_BYTES))):
            left -= len(data)
        self._loop.remove_reader(self._read_fd)
        os.close(self._read_fd)
        if self.dropped_bytes and self._live is not None:
            self._live.write(self._mark())

    @property
    def content(self) -> bytes:
        return bytes(self._kept) + self._mark() if self.dropped_bytes else bytes(self._kept)

    @property
    def digest(self) -> str:
        """Of the whole stream, what was dropped too."""
        return "sha256:" + self._hash.hexdigest()

    def _mark(self) -> bytes:
        text = f"\n[{self._name} cut after {self._limit_bytes} bytes; {self.dropped_bytes} more were dropped]\n"
        return text.encode()

    def _arrived(self) -> None:
        if not self._read(CHUNK_BYTES):
            self._loop.remove_reader(self._read_fd)

    def _read(self, size: int) -> bytes:
        try:
            data = os.read(self._read_fd, size)
        except BlockingIOError:
            return b""
        if data:
            self._hash.update(data)
            kept = data[: self._limit_bytes - len(self._kept)]
            self._kept += kept
            self.dropped_bytes += len(data) - len(kept)
            if kept and self._live is not None:
                self._live.write(kept)
            self._on_data()
        return data
