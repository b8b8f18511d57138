"""What has been changed in a workspace, as text. No git runs here: the child could have told it what to run."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from agents.broker.folder import FILE_BYTES_MAX, LINK, Folder
from contracts.canonical import well_formed
from contracts.ports import SourceFile, SourceReader

__all__ = ["changed_paths", "workspace_diff"]

SHOWN_FILE_BYTES_MAX = 200_000
SHOWN_LINES_MAX = 2_000
"""Comparing lines takes time in proportion to the square of their number when they are made to be alike."""
DIFF_CHARS_MAX = 400_000
NAMED_MAX = 1_000
_CONTEXT = 3


class _Side(NamedTuple):
    mode: str
    data: bytes | None
    """None: too large to be read."""


def workspace_diff(base: SourceReader, now: Folder, readable: Callable[[str], bool]) -> str:
    """A unified diff of the paths that are ``readable``; empty when nothing was changed.

    Binary and large files are named only, and so is everything beyond ``DIFF_CHARS_MAX``; a note says so.
    """
    shown: list[str] = []
    chars = 0
    only_named: list[str] = []
    for path, before, after in _changes(base, now, readable):
        if chars <= DIFF_CHARS_MAX:
            text = _file_diff(path, before, after)
            chars += len(text)
            if chars <= DIFF_CHARS_MAX:
                shown.append(text)
                continue
        only_named.append(_quoted("", path))
    if only_named:
        shown.append(f"[cut here; {len(only_named)} more changed files are not shown:]\n")
        shown += [f"[  {name}]\n" for name in only_named[:NAMED_MAX]]
        if len(only_named) > NAMED_MAX:
            shown.append(f"[  and {len(only_named) - NAMED_MAX} more]\n")
    return "".join(shown)


def changed_paths(base: SourceReader, now: Folder) -> list[str]:
    """Every path that differs, in order."""
    return [path for path, _, _ in _changes(base, now, lambda path: True)]


def _changes(
    base: SourceReader, now: Folder, readable: Callable[[str], bool]
) -> Iterator[tuple[str, _Side | None, _Side | None]]:
    old = {file.path: file for file in base.files() if readable(file.path)}
    new = {file.path: file for file in now.files() if readable(file.path)}
    for path in sorted(old.keys() | new.keys()):
        was, there = old.get(path), new.get(path)
        try:
            after = _side_now(now, there) if there else None
        except FileNotFoundError:
            after = None  # removed meanwhile
        if was and after and was.mode == after.mode and after.data is not None and _has_id(after.data, was.object_id):
            continue
        before = _side_before(base, was) if was else None
        if before != after or (after and after.data is None):
            yield path, before, after


def _side_before(base: SourceReader, file: SourceFile) -> _Side:
    return _Side(file.mode, base.read_bytes(file.path) if file.size_bytes <= FILE_BYTES_MAX else None)


def _side_now(now: Folder, file: SourceFile) -> _Side:
    if file.mode == LINK:
        return _Side(file.mode, now.read_link(file.path))
    return _Side(file.mode, now.read_bytes(file.path) if file.size_bytes <= FILE_BYTES_MAX else None)


def _has_id(data: bytes, object_id: str) -> bool:
    """Whether the content is that of a git blob, so that the blob itself need not be read."""
    digest = hashlib.sha1(usedforsecurity=False) if len(object_id) == 40 else hashlib.sha256()
    digest.update(b"blob %d\0" % len(data))
    digest.update(data)
    return digest.hexdigest() == object_id


def _file_diff(path: str, before: _Side | None, after: _Side | None) -> str:
    a, b = _quoted("a/", path), _quoted("b/", path)
    head = [f"diff --git {a} {b}\n"]
    if before is None:
        head.append(f"new file mode {after.mode if after else ''}\n")
    elif after is None:
        head.append(f"deleted file mode {before.mode}\n")
    elif before.mode != after.mode:
        head += [f"old mode {before.mode}\n", f"new mode {after.mode}\n"]
    old, new = (side.data if side else b"" for side in (before, after))
    if old == new and old is not None:
        return "".join(head)
    if old is None or new is None:
        return "".join([*head, f"Files {a} and {b} are too large to be compared\n"])
    if max(len(old), len(new)) > SHOWN_FILE_BYTES_MAX:
        return "".join([*head, f"Large files {a} and {b} differ\n"])
    if b"\0" in old or b"\0" in new:
        return "".join([*head, f"Binary files {a} and {b} differ\n"])
    names = [f"--- {a if before else '/dev/null'}\n", f"+++ {b if after else '/dev/null'}\n"]
    return "".join([*head, *names, *_hunks(_lines(old), _lines(new))])


def _lines(data: bytes) -> list[str]:
    r"""Lines with their ``\n``. What is not UTF-8 is escaped, so that two different bytes look different."""
    parts = data.decode("utf-8", "backslashreplace").split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


class _Change(NamedTuple):
    """Lines ``old_from`` to ``old_to`` became ``new_from`` to ``new_to``, counted from 0, ends not included."""

    old_from: int
    old_to: int
    new_from: int
    new_to: int


def _hunks(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """The hunks of a unified diff. Only what lies between the first and the last difference is compared."""
    start = _common(zip(old, new, strict=False))
    end = min(min(len(old), len(new)) - start, _common(zip(reversed(old), reversed(new), strict=False)))
    a, b = old[start : len(old) - end], new[start : len(new) - end]
    if a and b and max(len(a), len(b)) > SHOWN_LINES_MAX:
        yield f"[too much was changed to be shown: {len(a):,} lines became {len(b):,}]\n"
        return
    hunk: list[_Change] = []
    for tag, *places in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        change = _Change(*(place + start for place in places))
        if tag == "equal":
            continue
        if hunk and change.old_from - hunk[-1].old_to > 2 * _CONTEXT:
            yield from _hunk(hunk, old, new)
            hunk = []
        hunk.append(change)
    yield from _hunk(hunk, old, new)


def _hunk(changes: Sequence[_Change], old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    first, last = changes[0], changes[-1]
    before = min(_CONTEXT, first.old_from)
    after = min(_CONTEXT, len(old) - last.old_to)
    position = first.old_from - before
    removed = _range(position, last.old_to + after)
    added = _range(first.new_from - before, last.new_to + after)
    yield f"@@ -{removed} +{added} @@\n"
    for change in changes:
        yield from map(_marked(" "), old[position : change.old_from])
        yield from map(_marked("-"), old[change.old_from : change.old_to])
        yield from map(_marked("+"), new[change.new_from : change.new_to])
        position = change.old_to
    yield from map(_marked(" "), old[position : position + after])


def _common(pairs: Iterator[tuple[str, str]]) -> int:
    count = 0
    for one, other in pairs:
        if one != other:
            break
        count += 1
    return count


def _range(start: int, stop: int) -> str:
    length = stop - start
    if length == 1:
        return f"{start + 1}"
    return f"{start + 1 if length else start},{length}"


def _marked(sign: str) -> Callable[[str], str]:
    def mark(line: str) -> str:
        return f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"

    return mark


def _quoted(prefix: str, path: str) -> str:
    """Names that could pass for a line of the diff are put in quotes, escaped."""
    name = prefix + well_formed(path)
    return name if name.isprintable() and '"' not in name else json.dumps(name)
