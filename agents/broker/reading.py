"""The reading tools: every call is checked against the grant, runs on the pinned tree, and is recorded as observed."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from contracts.canonical import digest_of, sha256_digest, well_formed
from contracts.errors import CoordinatorError
from contracts.ports import Clock, SourceFile, SourceReader, ToolCall
from contracts.scopes import in_scope, matches
from contracts.terms import Resources

__all__ = ["ReadBroker", "ToolRefused"]

SYMLINK = "120000"
SEARCHED_FILE_BYTES_MAX = 1_000_000
SEARCHED_LINE_CHARS_MAX = 1_000
MATCHES_MAX = 10_000
T = TypeVar("T")
_Served = tuple[T, str, dict[str, str]]
"""result, its digest, and path -> digest of the files whose content it shows"""


class ToolRefused(CoordinatorError):
    """The grant does not allow this call. Nothing was done."""


class ReadBroker:
    """Implements ``contracts.ports.Tools`` for one attempt.

    ``on_call`` is told of each call when it is over. Calls that are refused or fail are recorded too.
    """

    def __init__(
        self,
        resources: Resources,
        reader: SourceReader | None,
        *,
        clock: Clock,
        on_call: Callable[[ToolCall], None] = lambda call: None,
    ) -> None:
        self._granted = frozenset(resources.tools)
        self._scope = resources.read_scope
        self._reader = reader
        self._clock = clock
        self._on_call = on_call
        self._lock = threading.Lock()
        self._calls: list[ToolCall] = []
        self._read: dict[str, str] = {}
        self._shown_by: dict[str, list[int]] = {}

    def calls(self) -> Sequence[ToolCall]:
        with self._lock:
            return tuple(self._calls)

    def read_set(self) -> dict[str, str]:
        """path -> digest of every file whose content was served."""
        with self._lock:
            return dict(self._read)

    def shown_by(self) -> dict[str, list[int]]:
        """path -> numbers of the calls that served content of it."""
        with self._lock:
            return {path: list(numbers) for path, numbers in self._shown_by.items()}

    def list_files(self, pattern: str = "**") -> list[str]:
        def listed() -> _Served[list[str]]:
            paths = [file.path for file in self._files() if matches(pattern, file.path)]
            return paths, digest_of([well_formed(path) for path in paths]), {}

        return self._call("list_files", {"pattern": pattern}, listed)

    def read_file(self, path: str) -> str:
        def read() -> _Served[str]:
            data = self._content(path)
            digest = sha256_digest(data)
            return data.decode("utf-8", "replace"), digest, {path: digest}

        return self._call("read_file", {"path": path}, read)

    def search_code(self, pattern: str, glob: str = "**") -> list[dict[str, Any]]:
        def search() -> _Served[list[dict[str, Any]]]:
            try:
                wanted = re.compile(pattern)
            except re.error as error:
                raise ToolRefused(f"search_code: {pattern!r} is not a regular expression: {error}") from None
            found: list[dict[str, Any]] = []
            served: dict[str, str] = {}
            for file in self._files():
                if matches(glob, file.path) and file.mode != SYMLINK and file.size_bytes <= SEARCHED_FILE_BYTES_MAX:
                    data = self._content(file.path)
                    lines = _matching_lines(wanted, file.path, data)
                    if lines:
                        found += lines
                        served[file.path] = sha256_digest(data)
                if len(found) > MATCHES_MAX:
                    raise ToolRefused(f"search_code: more than {MATCHES_MAX} matches; narrow the pattern or the glob")
            return found, digest_of(found), served

        return self._call("search_code", {"pattern": pattern, "glob": glob}, search)

    def _files(self) -> list[SourceFile]:
        if self._reader is None:
            raise ToolRefused("this run has no source to read: give the orchestration a 'source'")
        return [file for file in self._reader.files() if in_scope(self._scope, file.path)]

    def _content(self, path: str) -> bytes:
        if self._reader is None:
            raise ToolRefused("this run has no source to read: give the orchestration a 'source'")
        if not in_scope(self._scope, path):
            raise ToolRefused(f"{path!r} is outside the read scope {self._scope}")
        return self._reader.read_bytes(path)

    def _call(self, tool: str, arguments: dict[str, Any], run: Callable[[], _Served[T]]) -> T:
        """The one place that records: only what a granted call has served counts as read."""
        error: str | None = None
        digest: str | None = None
        served: dict[str, str] = {}
        try:
            if tool not in self._granted:
                granted = ", ".join(sorted(self._granted)) or "none"
                raise ToolRefused(f"the contract does not grant the tool {tool} (granted: {granted})")
            result, digest, served = run()
            return result
        except Exception as problem:
            error = well_formed(f"{type(problem).__name__}: {problem}")[:500]
            raise
        finally:
            plain = {key: well_formed(str(value)) for key, value in arguments.items()}
            with self._lock:
                number = len(self._calls) + 1
                call = ToolCall(number, tool, plain, error is None, self._clock(), digest, error)
                self._calls.append(call)
                for path, read_digest in served.items():
                    self._read[path] = read_digest
                    self._shown_by.setdefault(path, []).append(number)
            self._on_call(call)


def _matching_lines(wanted: re.Pattern[str], path: str, data: bytes) -> list[dict[str, Any]]:
    if b"\0" in data:
        return []
    return [
        {"path": well_formed(path), "line": number, "text": line}
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1)
        if len(line) <= SEARCHED_LINE_CHARS_MAX and wanted.search(line)
    ]
