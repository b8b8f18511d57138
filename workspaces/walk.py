"""Reading a folder that a child wrote: every entry once, no link followed, at any depth."""

from __future__ import annotations

import os
import stat
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from contracts.canonical import well_formed
from contracts.errors import Refused
from contracts.ports import SourceFile
from workspaces.tree import object_hash

__all__ = ["FOLDER", "Entry", "content", "described", "holds", "open_folder", "special_kind", "walk"]

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CHUNK_BYTES = 1 << 20
_MAX_ENTRIES = 1_000_000
"""So that a flood of files cannot fill the memory."""


class Entry(NamedTuple):
    """What a folder said about one name in it. Equal entries at two times: nothing was written there in between.

    ``path`` is from the top, with ``/``; bytes that are not UTF-8 are surrogate escapes. ``target`` is set for links.
    """

    path: str
    mode: int
    device: int
    inode: int
    links: int
    size_bytes: int
    modified_ns: int
    changed_ns: int
    target: str | None = None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_repository(self) -> bool:
        return self.path.endswith("/.git") or self.path == ".git"

    @property
    def tree_mode(self) -> str | None:
        """Mode of the entry in a tree; None for what no tree can hold, and for folders."""
        if stat.S_ISLNK(self.mode):
            return "120000"
        if not stat.S_ISREG(self.mode):
            return None
        return "100755" if self.mode & stat.S_IXUSR else "100644"


def walk(top: Path, within: Container[str] | None = None) -> Iterator[tuple[Entry, int]]:
    """Everything below ``top`` with an open folder that it lies in, which is valid until the next step.

    ``.git`` at the top is left out; what lies in one further down is not entered, nor what lies in a folder that is
    not one of ``within``. Raises ``Refused`` for what cannot be read, or changes on the way.
    """
    folder_fd = open_folder(top)
    path = ""
    try:
        # One open folder, however deep: the way back is through "..", and it must lead to where we came from.
        pending = [_Visit("", _identity(os.fstat(folder_fd)), _names(folder_fd, skip=".git"))]
        count = 0
        while pending:
            visit = pending[-1]
            if not visit.names:
                pending.pop()
                if pending:
                    folder_fd = _replace(folder_fd, "..", pending[-1].identity)
                continue
            name = visit.names.pop()
            path = f"{visit.path}/{name}" if visit.path else name
            entry = _entry(path, name, folder_fd)
            count += 1
            if count > _MAX_ENTRIES:
                raise Refused(f"{top} holds more than {_MAX_ENTRIES:,} files and folders")
            yield entry, folder_fd
            if entry.is_folder and not entry.is_repository and (within is None or path in within):
                folder_fd = _replace(folder_fd, name, (entry.device, entry.inode))
                pending.append(_Visit(path, (entry.device, entry.inode), _names(folder_fd)))
    except OSError as error:
        raise Refused(f"{well_formed(path) or top} cannot be read: {error.strerror}") from error
    finally:
        os.close(folder_fd)


def open_folder(top: Path) -> int:
    """An open workspace. Raises ``Refused`` where there is none: no other folder may stand in for it."""
    try:
        return os.open(top, FOLDER)
    except OSError as error:
        raise Refused(f"the workspace {top} cannot be entered: {error.strerror}") from error


def content(entry: Entry, folder_fd: int) -> Iterator[bytes]:
    """The bytes of a file or link, as many as the walk saw. Raises ``Refused`` when they change meanwhile."""
    if entry.target is not None:
        yield os.fsencode(entry.target)
        return
    try:
        fd = os.open(entry.name, _FILE, dir_fd=folder_fd)
    except OSError as error:
        raise Refused(f"{well_formed(entry.path)} cannot be read: {error.strerror}") from error
    try:
        # Before, so that not even the first byte of something else is read; and after.
        _check_unchanged(entry, fd)
        left_bytes = entry.size_bytes
        while left_bytes and (chunk := os.read(fd, min(left_bytes, _CHUNK_BYTES))):
            left_bytes -= len(chunk)
            yield chunk
        if left_bytes:
            raise _changed(entry.path)
        _check_unchanged(entry, fd)
    finally:
        os.close(fd)


def holds(entry: Entry, folder_fd: int, file: SourceFile) -> bool:
    """Whether the entry is exactly this file of a tree. Files of another size are not read."""
    # Old trees hold modes such as 100664, which mean 100644.
    mode = file.mode if file.mode in ("120000", "100755") else "100644"
    if entry.tree_mode != mode or entry.size_bytes != file.size_bytes:
        return False
    digest = object_hash("blob", entry.size_bytes, len(file.object_id))
    for chunk in content(entry, folder_fd):
        digest.update(chunk)
    return digest.hexdigest() == file.object_id


def special_kind(mode: int) -> str:
    """A word for what is neither file, folder nor link."""
    if stat.S_ISFIFO(mode):
        return "a fifo"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


def _check_unchanged(entry: Entry, fd: int) -> None:
    if described(entry.path, os.fstat(fd), None) != entry:
        raise _changed(entry.path)


@dataclass(slots=True)
class _Visit:
    path: str
    identity: tuple[int, int]
    names: list[str]


def _names(folder_fd: int, skip: str | None = None) -> list[str]:
    """Last first, so that they are popped in order."""
    return sorted((name for name in os.listdir(folder_fd) if name != skip), key=os.fsencode, reverse=True)


def _entry(path: str, name: str, folder_fd: int) -> Entry:
    try:
        status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
        target = os.readlink(name, dir_fd=folder_fd) if stat.S_ISLNK(status.st_mode) else None
    except FileNotFoundError:
        raise _changed(path) from None
    return described(path, status, target)


def described(path: str, status: os.stat_result, target: str | None) -> Entry:
    """The entry with this status; ``target`` is what a link holds."""
    return Entry(
        path,
        status.st_mode,
        status.st_dev,
        status.st_ino,
        status.st_nlink,
        status.st_size if target is None else len(os.fsencode(target)),
        status.st_mtime_ns,
        status.st_ctime_ns,
        target,
    )


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _replace(folder_fd: int, name: str, identity: tuple[int, int]) -> int:
    found = os.open(name, FOLDER, dir_fd=folder_fd)
    if _identity(os.fstat(found)) != identity:
        os.close(found)
        raise Refused("a folder of the workspace was moved while it was read")
    os.close(folder_fd)
    return found


def _changed(path: str) -> Refused:
    return Refused(f"{well_formed(path)} changed while it was read")
