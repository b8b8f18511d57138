"""Writing the files of a tree into an empty folder, by their bytes alone.

No git writes a work tree here, so nothing in a tree (attributes, filters, line ends) has a say in its bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from contracts.canonical import well_formed
from contracts.errors import BadInput, Fault, Refused
from workspaces.git import GitError, git_argv, git_environment
from workspaces.tree import FOLDER_MODE, GITLINK, TreeEntry, missing_object, object_hash
from workspaces.walk import FOLDER

__all__ = ["fill"]

_LINK = "120000"
_CHUNK_BYTES = 1 << 20
_PIECE = 1000
"""Characters of a path that surely fit into one system call."""


def fill(git_dir: Path, entries: Iterable[TreeEntry], top: Path) -> dict[str, os.stat_result]:
    """Writes the files and links of a listing below ``top``, and says of each what it became. Submodules are folders.

    Every object's id is verified. Raises ``BadInput`` with all objects that are missing, ``GitError`` for a damaged
    one, ``Refused`` for a tree that holds a name twice.
    """
    # A hostile tree may hold one name as a link and as a folder. Nothing is ever written through a link:
    # folders come first, links last, and each only where there is nothing yet.
    folders: set[str] = set()
    regular: dict[str, list[TreeEntry]] = {}
    links: dict[str, list[TreeEntry]] = {}
    for entry in entries:
        if entry.mode == FOLDER_MODE:
            continue  # an empty one is none in a work tree
        inside = entry.path if entry.mode == GITLINK else _split(entry.path)[0]
        if entry.mode != GITLINK:
            (links if entry.mode == _LINK else regular).setdefault(inside, []).append(entry)
        while inside and inside not in folders:
            folders.add(inside)
            inside = _split(inside)[0]
    top_fd = os.open(top, FOLDER)
    try:
        for path in sorted(folders, key=len):
            parent, name = _split(path)
            with _opened(top_fd, parent) as fd, _only_once(path):
                os.mkdir(name, dir_fd=fd)
        return _write_all(git_dir, [regular, links], top_fd)
    finally:
        os.close(top_fd)


def _write_all(
    git_dir: Path, groups: Iterable[Mapping[str, list[TreeEntry]]], top_fd: int
) -> dict[str, os.stat_result]:
    in_order = [(folder, members) for group in groups for folder, members in group.items()]
    faults: list[Fault] = []
    written: dict[str, os.stat_result] = {}
    with _objects(git_dir, [entry.object_id for _, members in in_order for entry in members]) as out:
        for folder, members in in_order:
            with _opened(top_fd, folder) as folder_fd:
                for entry in members:
                    kind, _, size_bytes = out.readline()[len(entry.object_id) + 1 : -1].partition(b" ")
                    if kind == b"blob":
                        written[entry.path] = _write(git_dir, entry, folder_fd, int(size_bytes), out)
                    elif kind == b"missing":
                        faults.append(missing_object(git_dir, entry.object_id, entry.path))
                    else:
                        raise _damaged(git_dir, entry)
    if faults:
        raise BadInput(faults)
    return written


def _write(git_dir: Path, entry: TreeEntry, folder_fd: int, size_bytes: int, out: IO[bytes]) -> os.stat_result:
    name = _split(entry.path)[1]
    if entry.mode == _LINK:
        target = out.read(size_bytes)
        _check(git_dir, entry, object_hash("blob", size_bytes, len(entry.object_id)), target, out)
        with _only_once(entry.path):
            os.symlink(target, os.fsencode(name), dir_fd=folder_fd)
        return os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, 0o777 if entry.mode == "100755" else 0o666, dir_fd=folder_fd)
    except FileExistsError as error:
        raise _twice(entry.path) from error
    try:
        digest = object_hash("blob", size_bytes, len(entry.object_id))
        while size_bytes > _CHUNK_BYTES:
            chunk = out.read(_CHUNK_BYTES)
            digest.update(chunk)
            _put(fd, chunk)
            size_bytes -= _CHUNK_BYTES
        chunk = out.read(size_bytes)
        _check(git_dir, entry, digest, chunk, out)
        _put(fd, chunk)
        return os.fstat(fd)
    finally:
        os.close(fd)


def _put(fd: int, chunk: bytes) -> None:
    written = os.write(fd, chunk) if chunk else 0
    while written < len(chunk):
        written += os.write(fd, memoryview(chunk)[written:])


def _check(git_dir: Path, entry: TreeEntry, digest: hashlib._Hash, rest: bytes, out: IO[bytes]) -> None:
    digest.update(rest)
    if digest.hexdigest() != entry.object_id or out.read(1) != b"\n":
        raise _damaged(git_dir, entry)


@contextlib.contextmanager
def _objects(git_dir: Path, object_ids: list[str]) -> Iterator[IO[bytes]]:
    """What ``git cat-file --batch`` says about each object, in order."""
    with tempfile.TemporaryFile() as ids:
        ids.write("".join(f"{object_id}\n" for object_id in object_ids).encode())
        ids.seek(0)
        process = subprocess.Popen(
            git_argv(["cat-file", "--batch", "--buffer"], git_dir),
            cwd="/",
            env=git_environment(),
            stdin=ids,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=_CHUNK_BYTES,
            start_new_session=True,
        )
    assert process.stdout is not None
    with contextlib.suppress(OSError):  # a user may have only so much of it; it only saves turns
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, _CHUNK_BYTES)
    try:
        yield process.stdout
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextlib.contextmanager
def _opened(top_fd: int, path: str) -> Iterator[int]:
    """A folder below an open one, however long its path is."""
    fd = os.dup(top_fd)
    try:
        while path:
            end = len(path) if len(path) < _PIECE else path.rindex("/", 0, _PIECE)
            deeper = os.open(path[:end], FOLDER, dir_fd=fd)
            os.close(fd)
            fd, path = deeper, path[end + 1 :]
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _only_once(path: str) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise _twice(path) from error


def _split(path: str) -> tuple[str, str]:
    parent, _, name = path.rpartition("/")
    return parent, name


def _twice(path: str) -> Refused:
    return Refused(f"the tree holds {well_formed(path)} twice")


def _damaged(git_dir: Path, entry: TreeEntry) -> GitError:
    return GitError("cat-file", f"object {entry.object_id} of {well_formed(entry.path)} is damaged in {git_dir}")
