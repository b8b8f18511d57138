"""The ports through which the rooms of the house meet. Each names what one room needs of another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

__all__ = ["ArtifactRef", "ArtifactStore", "CancelSignal", "Clock", "SourceFile", "SourceReader", "ToolCall", "Tools"]


Clock = Callable[[], datetime]
"""Wall clock: an aware UTC time."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One entry of a pinned tree. ``path`` uses ``/``; bytes that are not UTF-8 are surrogate escapes."""

    path: str
    mode: str
    size_bytes: int
    object_id: str


class SourceReader(Protocol):
    """Reads one pinned tree; what it returns can never change. Safe to use from several threads."""

    def files(self) -> Sequence[SourceFile]:
        """Every file of the tree, sorted by the bytes of its path. Directories are not listed."""
        ...

    def read_bytes(self, path: str) -> bytes:
        """Content of a file (for a symlink: its target). Raises ``FileNotFoundError``."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call as the broker saw it: the stuff that *observed* evidence is made of.

    ``result_digest`` is of the whole content (for ``read_file``: of the file's bytes).
    """

    number: int
    tool: str
    arguments: Mapping[str, Any]
    ok: bool
    at: datetime
    result_digest: str | None = None
    error: str | None = None


class Tools(Protocol):
    """What a child may call. Every call is checked against the grant, and recorded."""

    def list_files(self, pattern: str = "**") -> list[str]:
        """Paths in the read scope that match a glob (``*`` stays within a folder, ``**`` crosses them)."""
        ...

    def read_file(self, path: str) -> str:
        """Text of one file; bytes that are not UTF-8 become U+FFFD."""
        ...

    def search_code(self, pattern: str, glob: str = "**") -> list[dict[str, Any]]:
        """Lines that match a regular expression: ``[{path, line, text}]``, lines from 1."""
        ...

    def write_file(self, path: str, text: str) -> None:
        """Make or replace a file within the write scope."""
        ...

    def edit_file(self, path: str, old: str, new: str) -> None:
        """Replace a piece of text that is there exactly once; every other byte stays as it is."""
        ...

    def git_diff(self) -> str:
        """What has been changed in the workspace so far, as a diff against its base."""
        ...


@dataclass(frozen=True, slots=True)
class ArtifactRef:
    """An artifact that is durable already: immutable bytes and their name."""

    name: str
    digest: str
    size_bytes: int
    media_type: str = "application/octet-stream"
    redacted: bool = False


class ArtifactStore(Protocol):
    """Makes bytes durable before anything names them."""

    def put(self, name: str, data: bytes, media_type: str) -> ArtifactRef: ...

    def get(self, digest: str) -> bytes:
        """The bytes; raises ``KeyError`` if unknown, ``ValueError`` if they no longer have this digest."""
        ...


class CancelSignal(Protocol):
    """Tells a child to stop. ``reason`` is for people."""

    @property
    def reason(self) -> str: ...

    def is_set(self) -> bool: ...

    def wait(self, timeout_s: float | None = None) -> bool: ...
