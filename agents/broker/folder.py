"""A workspace as it is now: read and written below its top, through no link, whatever a child does there meanwhile.

Every folder on the way is opened from a handle of the one above it without following a link. A check of the path's
text, or of where it leads at one moment, would not do: the child can swap a folder for a link after the check.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from agents.broker.errors import ToolRefused
from contracts.canonical import sha256_digest
from contracts.ports import SourceFile

__all__ = ["FILE_BYTES_MAX", "LINK", "Folder"]

FILE_BYTES_MAX = 50_000_000
"""A larger file is neither read nor written: a child could fill the coordinator's memory."""
ENTRIES_MAX = 200_000
DEPTH_MAX = 100
LINK = "120000"
"""Mode of a symbolic link in a tree."""
_GIT_CHANGES = frozenset({"objects", "logs", "index"})
"""What differs between two repositories that stand at the same commit."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Not blocking: a named pipe in place of a file would hold us for ever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Folder:
    """Paths are relative to the top, with ``/``; bytes in them that are not UTF-8 are surrogate escapes.

    Every method raises ``ToolRefused`` for a path that leads out, into ``.git`` or through a link, and
    ``FileNotFoundError`` where there is nothing.
    """

    def __init__(self, top: Path) -> None:
        """Raises ``ToolRefused`` when ``top`` is not a folder (a link to one is none)."""
        self._top = top
        self._identity: tuple[int, int] | None = None
        with self._opened(()) as fd:
            status = os.fstat(fd)
        self._identity = status.st_dev, status.st_ino

    def files(self) -> list[SourceFile]:
        """Every file and link by the bytes of its path, ``.git`` left out. Their ids are not known, so empty."""
        found = [
            SourceFile("/".join(parts), mode, size_bytes, "")
            for parts, mode, size_bytes in self._entries()
            if not any(map(_is_git, parts))
        ]
        return sorted(found, key=lambda file: os.fsencode(file.path))

    def digest(self) -> str:
        """Of every file and link, with path, mode and content: two folders with the same one hold the same.

        Of what git keeps for itself only where it stands and what it would run: its objects have names of their own,
        and index and logs hold times.
        """
        lines = []
        for parts, mode, _ in self._entries():
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                path = os.fsencode("/".join(parts))
                lines.append(b"%s %s %s\0" % (mode.encode(), self._content_digest(parts, mode).encode(), path))
        return sha256_digest(b"".join(sorted(lines)))

    def _content_digest(self, parts: Sequence[str], mode: str) -> str:
        path = "/".join(parts)
        with self._opened(parts[:-1]) as folder_fd:
            try:
                if mode == LINK:
                    return sha256_digest(os.readlink(os.fsencode(parts[-1]), dir_fd=folder_fd))
                fd = os.open(parts[-1], _FILE, dir_fd=folder_fd)
            except OSError as error:
                raise _reason(error, folder_fd, parts[-1], path) from None
            with open(fd, "rb") as file:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise _not_a_file(status.st_mode, path)
                return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"

    def _entries(self) -> Iterator[tuple[tuple[str, ...], str, int]]:
        """(the parts of its path, mode, size in bytes) of every file and link, without git's objects, index and
        logs."""
        pending: list[tuple[str, ...]] = [()]
        count = 0
        while pending:
            parts = pending.pop()
            try:
                with self._opened(parts) as fd, os.scandir(fd) as entries:
                    for entry in entries:
                        count += 1
                        if count > ENTRIES_MAX or len(parts) > DEPTH_MAX:
                            limits = f"{ENTRIES_MAX:,} files or {DEPTH_MAX} folders within each other"
                            raise ToolRefused(f"the workspace holds more than {limits}: it cannot be listed")
                        if entry.name in _GIT_CHANGES and parts and _is_git(parts[-1]):
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            pending.append((*parts, entry.name))
                            continue
                        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                            status = entry.stat(follow_symlinks=False)
                            mode = _tree_mode(status.st_mode)
                            if mode is not None:
                                yield (*parts, entry.name), mode, status.st_size
            except FileNotFoundError:
                continue  # the folder was removed meanwhile

    def read_bytes(self, path: str) -> bytes:
        """Content of a regular file."""
        *folders, name = _parts(path)
        with self._opened(folders) as folder_fd:
            try:
                fd = os.open(name, _FILE, dir_fd=folder_fd)
            except OSError as error:
                raise _reason(error, folder_fd, name, path) from None
            try:
                mode = os.fstat(fd).st_mode
                if not stat.S_ISREG(mode):
                    raise _not_a_file(mode, path)
                with open(fd, "rb", closefd=False) as file:
                    data = file.read(FILE_BYTES_MAX + 1)
            finally:
                os.close(fd)
        if len(data) > FILE_BYTES_MAX:
            raise ToolRefused(f"{path!r} is larger than {FILE_BYTES_MAX:,} bytes")
        return data

    def read_link(self, path: str) -> bytes:
        """Where a symbolic link points; it is not followed."""
        *folders, name = _parts(path)
        with self._opened(folders) as folder_fd:
            try:
                return os.readlink(os.fsencode(name), dir_fd=folder_fd)
            except OSError as error:
                raise _reason(error, folder_fd, name, path) from None

    def write(self, path: str, data: bytes) -> None:
        """Make or replace a file at once, folders on the way too. A file that was there keeps its permissions.

        Refused for links, for what is no regular file, and for files that have a second name somewhere.
        """
        if len(data) > FILE_BYTES_MAX:
            raise ToolRefused(f"{path!r} would be larger than {FILE_BYTES_MAX:,} bytes")
        *folders, name = _parts(path)
        with self._opened(folders, make=True) as folder_fd:
            mode = _mode_to_keep(folder_fd, name, path)
            new_name = f".{secrets.token_hex(8)}.tmp"
            fd = os.open(new_name, _NEW_FILE, 0o666, dir_fd=folder_fd)
            try:
                with open(fd, "wb") as file:
                    if mode is not None:
                        os.fchmod(fd, mode)
                    file.write(data)
                os.replace(new_name, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
            except BaseException as error:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(new_name, dir_fd=folder_fd)
                if isinstance(error, OSError):
                    raise _reason(error, folder_fd, name, path) from None
                raise

    @contextlib.contextmanager
    def _opened(self, parts: Sequence[str], *, make: bool = False) -> Iterator[int]:
        try:
            fd = os.open(self._top, _FOLDER)
        except OSError as error:
            raise ToolRefused(f"the workspace cannot be entered: {error.strerror}") from None
        try:
            status = os.fstat(fd)
            if self._identity not in (None, (status.st_dev, status.st_ino)):
                raise ToolRefused("another folder stands where the workspace was")
            for index, part in enumerate(parts):
                deeper = _enter(fd, part, "/".join(parts[: index + 1]), make)
                os.close(fd)
                fd = deeper
            yield fd
        finally:
            os.close(fd)


def _parts(path: str) -> list[str]:
    parts = path.split("/")
    if "\0" in path or "\\" in path or any(part in ("", ".", "..") for part in parts):
        what = "a path goes from the top of the tree, with / between folders, and has no empty, . or .. part"
        raise ToolRefused(f"{path!r:.300} is not a path here: {what}")
    if any(_is_git(part) for part in parts):
        raise ToolRefused(f"{path!r:.300} is out of reach: what git keeps for itself is not part of the tree")
    if len(parts) > DEPTH_MAX:
        raise ToolRefused(f"{path!r:.300} has more than {DEPTH_MAX} parts")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ToolRefused(f"{path!r:.300} cannot be the name of a file") from None
    return parts


def _is_git(name: str) -> bool:
    return name.casefold() == ".git"


def _tree_mode(mode: int) -> str | None:
    if stat.S_ISLNK(mode):
        return LINK
    if not stat.S_ISREG(mode):
        return None
    return "100755" if mode & stat.S_IXUSR else "100644"


def _enter(folder_fd: int, name: str, path: str, make: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=folder_fd)
    except FileNotFoundError:
        if not make:
            raise FileNotFoundError(path) from None
    except OSError as error:
        raise _reason(error, folder_fd, name, path) from None
    try:
        with contextlib.suppress(FileExistsError):  # another call made it at the same time
            os.mkdir(name, dir_fd=folder_fd)
        return os.open(name, _FOLDER, dir_fd=folder_fd)
    except OSError as error:
        raise _reason(error, folder_fd, name, path) from None


def _mode_to_keep(folder_fd: int, name: str, path: str) -> int | None:
    try:
        status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _reason(error, folder_fd, name, path) from None
    if not stat.S_ISREG(status.st_mode):
        raise _not_a_file(status.st_mode, path)
    if status.st_nlink != 1:
        raise ToolRefused(f"{path!r} is a hard link: the same file has another name, which may lie outside")
    return status.st_mode & 0o777


def _not_a_file(mode: int, path: str) -> ToolRefused:
    kinds = ((stat.S_ISLNK, "a symbolic link; links are not followed"), (stat.S_ISDIR, "a folder"))
    what = next((words for is_kind, words in kinds if is_kind(mode)), "neither a file nor a folder")
    return ToolRefused(f"{path!r} is {what}")


def _reason(error: OSError, folder_fd: int, name: str, path: str) -> Exception:
    """What a child can do something with; the number that the system gives for a link differs between systems."""
    if error.errno == errno.ENOENT:
        return FileNotFoundError(path)
    with contextlib.suppress(OSError):
        status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode) or error.errno in (errno.EISDIR, errno.ENXIO):
            return _not_a_file(status.st_mode, path)
    return ToolRefused(f"{path!r:.300} cannot be used: {error.strerror}")
