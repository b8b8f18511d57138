"""What a result did to the tree, and the only ways in which the gate looks at the tree that it judges."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from contracts.canonical import well_formed
from contracts.ports import SourceFile, SourceReader
from contracts.results import PathChange, ProcessRecord
from contracts.scopes import in_scope, literal_head
from coordinator.gate.case import CannotJudge, Unfit

__all__ = ["JudgedTree", "RunCommand"]

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
SYMLINK: Final = "120000"
GITLINK: Final = "160000"
_LONE_BYTE = re.compile(r"\\udc[89a-f][0-9a-f]")

RunCommand = Callable[[Sequence[str], float, Mapping[str, str]], ProcessRecord]
"""``(argv, timeout_s, env)``: runs one program in a fresh checkout of exactly the judged tree, and sees its end."""


@dataclass(frozen=True)
class JudgedTree:
    """What the checks see: the candidate merged onto the head, or the source itself where there is no candidate.

    ``tree``: its object id. ``reader``: of that tree. ``changes``: the candidate against ``base_commit``.
    ``outside_scope``: changed paths that the write scope does not cover. ``conflicts``: paths that could not be merged;
    there is then nothing to judge, and ``tree`` and ``reader`` are of the candidate alone. ``new_head``: the commit of
    the merge. ``candidate_tree`` is None without a workspace.
    """

    tree: str
    reader: SourceReader
    run_command: RunCommand
    changes: Sequence[PathChange] = ()
    outside_scope: Sequence[str] = ()
    conflicts: Sequence[str] = ()
    base_commit: str | None = None
    candidate_tree: str | None = None
    new_head: str | None = None

    @cached_property
    def _files(self) -> dict[str, SourceFile]:
        """By the path as a document can hold it: lone bytes escaped."""
        return {well_formed(file.path): file for file in self.reader.files()}

    @cached_property
    def written(self) -> frozenset[str]:
        """Paths that the candidate added or changed."""
        return frozenset(change.path for change in self.changes if change.status != "deleted")

    def file(self, path: str) -> SourceFile | None:
        """The entry at a path. Raises ``CannotJudge``."""
        try:
            return self._files.get(path)
        except Exception as error:
            raise CannotJudge(f"the judged tree cannot be listed: {type(error).__name__}: {error}") from error

    def blob(self, file: SourceFile) -> bytes:
        """The bytes of an entry, whatever it is. Raises ``CannotJudge``."""
        try:
            return self.reader.read_bytes(file.path)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise CannotJudge(f"{well_formed(file.path)!r} cannot be read again: {why}") from error

    def content(self, path: str) -> bytes:
        """The bytes of a file. Raises ``Unfit`` for no file, a link and a very large one; else ``CannotJudge``."""
        file = self.file(path)
        if file is None:
            raise Unfit(f"the judged tree has no file {path!r}")
        if file.mode in (SYMLINK, GITLINK):
            raise Unfit(f"{path!r} is a {'link' if file.mode == SYMLINK else 'submodule'}, no file")
        if file.size_bytes > MAX_FILE_BYTES:
            raise Unfit(f"{path!r} has {file.size_bytes} bytes, too many to be judged (at most {MAX_FILE_BYTES})")
        return self.blob(file)

    def touched(self, patterns: Sequence[str]) -> list[PathChange]:
        """The changes that meet a pattern."""
        heads = [literal_head(pattern) for pattern in patterns]
        return [change for change in self.changes if _meets(patterns, heads, change.path)]


def _meets(patterns: Sequence[str], heads: Iterable[str], path: str) -> bool:
    """Also when the path becomes, or was, something else in place of a folder that leads to a pattern's paths."""
    raw = _LONE_BYTE.sub(lambda found: chr(int(found[0][2:], 16)), path)  # ``?`` stands for one byte, not its escape
    return in_scope(patterns, path) or in_scope(patterns, raw) or any(head.startswith(path + "/") for head in heads)
