"""A folder without git as a source: what its files are, and the commit that stands for them.

The commit is a function of the files alone (fixed author, date and message), so it can be computed at launch
without a repository, and the one that is imported later must come out equal.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from contracts.canonical import digest_of
from contracts.errors import BadInput, Fault, Refused
from workspaces.importer import begin_commit, fast_import, put_file, signature
from workspaces.tree import object_hash
from workspaces.walk import special_kind

__all__ = ["FolderSnapshot", "import_folder", "snapshot_folder"]

_CHUNK_BYTES = 1 << 20
_SIGNATURE = signature(0)
_MESSAGE = b"Snapshot of a folder\n"
_SKIPPED_AT_TOP = (b".coordinator",)
_FILE, _PROGRAM, _LINK, _TREE = b"100644", b"100755", b"120000", b"40000"


@dataclass(frozen=True, slots=True)
class FolderSnapshot:
    """Ids of the git commit and tree that hold the files, and the digest of ``{path: sha256 of bytes}``."""

    commit: str
    tree: str
    content_digest: str


@dataclass(frozen=True, slots=True)
class _Entry:
    """``target`` is set for links. Paths are bytes: a file name is whatever the file system allows."""

    path: bytes
    mode: bytes
    location: bytes
    target: bytes | None


def snapshot_folder(folder: Path, exclude: Collection[Path] = ()) -> FolderSnapshot:
    """Reads every file once. Raises ``BadInput`` with all files that cannot be part of a source.

    Not part of it: ``.git`` anywhere (no tree may hold one), ``.coordinator`` at the top, empty folders, and
    ``exclude``.
    """
    digests: dict[str, str] = {}
    blobs: dict[bytes, tuple[bytes, bytes]] = {}
    faults: list[Fault] = []
    for found in _walk(folder, exclude):
        if isinstance(found, Fault):
            faults.append(found)
            continue
        try:
            with _Content(found) as content:
                git_id = object_hash("blob", content.size_bytes, 40)
                sha256 = hashlib.sha256()
                for chunk in content.chunks():
                    git_id.update(chunk)
                    sha256.update(chunk)
        except OSError as error:
            faults.append(_unreadable(found.location, error))
        except Refused as error:
            faults.append(Fault("source", str(error), "launch again when nothing writes there"))
        else:
            blobs[found.path] = (found.mode, git_id.digest())
            digests[_digest_key(found.path)] = sha256.hexdigest()
    if faults:
        raise BadInput(faults)
    tree = _tree_id(blobs)
    commit = b"tree %s\nauthor %s\ncommitter %s\n\n%s" % (tree.encode(), _SIGNATURE, _SIGNATURE, _MESSAGE)
    return FolderSnapshot(_object_id("commit", commit).hex(), tree, digest_of(digests))


def import_folder(folder: Path, git_dir: Path, ref: str, exclude: Collection[Path] = ()) -> None:
    """Writes the folder's files as they are now as a commit on ``ref``, in one pack. No attribute or filter applies.

    Raises ``BadInput`` for files that cannot be part of a source, ``Refused`` when one changes meanwhile.
    """
    with fast_import(git_dir) as out:
        _write_commit(out, folder, ref, exclude)


def _write_commit(out: IO[bytes], folder: Path, ref: str, exclude: Collection[Path]) -> None:
    begin_commit(out, ref, _MESSAGE)
    for found in _walk(folder, exclude):
        if isinstance(found, Fault):
            raise BadInput([found])
        try:
            content = _Content(found)
        except OSError as error:
            raise BadInput([_unreadable(found.location, error)]) from error
        with content:
            put_file(out, found.path, found.mode, content.size_bytes, content.chunks())


class _Content:
    """Bytes of one entry, exactly as many as promised: a file that grows or shrinks is refused."""

    def __init__(self, entry: _Entry) -> None:
        self._name = entry.location
        self._fd: int | None = None
        self._target = entry.target
        if entry.target is not None:
            self.size_bytes = len(entry.target)
            return
        # Between listing and opening the name may have come to mean something else; a fifo must not block us.
        self._fd = os.open(entry.location, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(self._fd)
        self.size_bytes = status.st_size
        if not stat.S_ISREG(status.st_mode):
            os.close(self._fd)
            raise self._changed()

    def chunks(self) -> Iterator[bytes]:
        if self._fd is None:
            assert self._target is not None
            yield self._target
            return
        left_bytes = self.size_bytes
        while chunk := os.read(self._fd, _CHUNK_BYTES):
            left_bytes -= len(chunk)
            if left_bytes < 0:
                break
            yield chunk
        if left_bytes != 0:
            raise self._changed()

    def _changed(self) -> Refused:
        return Refused(f"{_shown(self._name)} changed while it was read")

    def __enter__(self) -> _Content:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)


def _walk(folder: Path, exclude: Collection[Path]) -> Iterator[_Entry | Fault]:
    top = os.fsencode(folder)
    excluded = {os.fsencode(path.resolve()) for path in exclude}
    pending = [b""]
    while pending:
        inside = pending.pop()
        try:
            with os.scandir(os.path.join(top, inside) if inside else top) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            yield _unreadable(os.path.join(top, inside), error)
            continue
        for entry in entries:
            if entry.name == b".git" or (not inside and entry.name in _SKIPPED_AT_TOP) or entry.path in excluded:
                continue
            path = inside + b"/" + entry.name if inside else entry.name
            try:
                status = entry.stat(follow_symlinks=False)
                target = os.readlink(entry.path) if stat.S_ISLNK(status.st_mode) else None
            except OSError as error:
                yield _unreadable(entry.path, error)
                continue
            if entry.name.lower() == b".git":
                yield Fault("source", f"{_shown(entry.path)}: no tree may hold this name", "rename or remove it")
            elif target is not None:
                yield _Entry(path, _LINK, entry.path, target)
            elif stat.S_ISDIR(status.st_mode):
                pending.append(path)
            elif stat.S_ISREG(status.st_mode):
                yield _Entry(path, _PROGRAM if status.st_mode & stat.S_IXUSR else _FILE, entry.path, None)
            else:
                yield Fault("source", f"{_shown(entry.path)} is {special_kind(status.st_mode)}", "remove it")


def _tree_id(blobs: dict[bytes, tuple[bytes, bytes]]) -> str:
    folders: dict[bytes, dict[bytes, tuple[bytes, bytes]]] = {b"": {}}
    for path, blob in blobs.items():
        inside, _, name = path.rpartition(b"/")
        folders.setdefault(inside, {})[name] = blob
        while inside:
            inside = inside.rpartition(b"/")[0]
            folders.setdefault(inside, {})
    # A folder's path is longer than its parent's, so every id is there before it is needed.
    for folder in sorted(folders, key=len, reverse=True):
        ordered = sorted(folders[folder].items(), key=lambda item: item[0] + (b"/" if item[1][0] == _TREE else b""))
        tree_id = _object_id("tree", b"".join(b"%s %s\0%s" % (mode, name, blob) for name, (mode, blob) in ordered))
        if folder:
            parent, _, name = folder.rpartition(b"/")
            folders[parent][name] = (_TREE, tree_id)
    return tree_id.hex()


def _object_id(kind: str, data: bytes) -> bytes:
    digest = object_hash(kind, len(data), 40)
    digest.update(data)
    return digest.digest()


def _digest_key(path: bytes) -> str:
    """A path as JSON text. One that is not UTF-8 is ``/`` and its hex: no relative path starts with ``/``."""
    try:
        return path.decode("utf-8")
    except UnicodeDecodeError:
        return "/" + path.hex()


def _unreadable(location: bytes, error: OSError) -> Fault:
    return Fault("source", f"{_shown(location)} cannot be read: {error.strerror}", "make it readable or move it away")


def _shown(location: bytes) -> str:
    return location.decode("utf-8", "backslashreplace")
