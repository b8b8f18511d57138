"""Reading one pinned tree out of a git directory."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple, Self

from contracts.errors import BadInput, Fault
from contracts.ports import SourceFile, SourceReader
from workspaces.git import GitError, git_argv, git_environment, run_git

__all__ = [
    "FOLDER_MODE",
    "GITLINK",
    "OBJECT_ID",
    "TreeEntry",
    "TreeReader",
    "check_complete",
    "git_hash",
    "list_entries",
    "list_tree",
    "missing_object",
    "object_hash",
]

OBJECT_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
GITLINK = "160000"
FOLDER_MODE = "040000"
_UNFIT_NAME = frozenset({"", ".", "..", ".git"})


class TreeEntry(NamedTuple):
    """One line of a listing. ``size_bytes`` holds digits only for the files of a listing with sizes."""

    mode: str
    object_id: str
    size_bytes: str
    path: str


def object_hash(kind: str, size_bytes: int, id_length: int) -> hashlib._Hash:
    """Hash that gives a git object id when fed the object's bytes. ``id_length``: 40 (SHA-1) or 64 (SHA-256)."""
    return git_hash(b"%s %d\0" % (kind.encode(), size_bytes), id_length)


def git_hash(data: bytes, id_length: int) -> hashlib._Hash:
    """The hash of a repository whose ids have this length."""
    return (hashlib.sha1 if id_length == 40 else hashlib.sha256)(data, usedforsecurity=False)


def check_complete(git_dir: Path, commit: str) -> None:
    """Raises ``BadInput`` if the commit or any tree or blob of it is missing, or a path in it is not one."""
    try:
        listing = run_git(
            ["rev-list", "--objects", "--no-object-names", "--missing=print", "--no-walk", commit],
            git_dir=git_dir,
            timeout_s=600,
        )
    except GitError as error:
        raise BadInput(f"commit {commit} cannot be read from {git_dir}: {error.message}") from error
    missing = [line[1:].decode() for line in listing.splitlines() if line.startswith(b"?")]
    if missing:
        raise BadInput(
            [
                Fault(
                    "source",
                    f"{len(missing)} objects of commit {commit} are missing in {git_dir}, the first is {missing[0]}",
                    "a partial clone has to be completed first: git fetch --refetch --no-filter",
                )
            ]
        )
    list_tree(git_dir, commit)


def list_entries(git_dir: Path, tree: str) -> list[TreeEntry]:
    """Everything in a tree or commit, folders before what they hold. Sizes would cost a look at every object.

    A tree object can hold names that no work tree can, such as ``..``: they are refused with ``BadInput``.
    """
    return _entries(git_dir, tree, "-t")


def list_tree(git_dir: Path, commit: str) -> tuple[tuple[SourceFile, ...], tuple[str, ...]]:
    """Files of a commit sorted by the bytes of their path, and the paths of its submodules.

    Raises ``BadInput`` like ``list_entries``, and for missing objects.
    """
    files: list[SourceFile] = []
    gitlinks: list[str] = []
    faults: list[Fault] = []
    for mode, object_id, size_bytes, path in _entries(git_dir, commit, "-l"):
        if mode == GITLINK:
            gitlinks.append(path)
        elif not size_bytes.isdigit():
            faults.append(missing_object(git_dir, object_id, path))
        else:
            files.append(SourceFile(path, mode, int(size_bytes), object_id))
    if faults:
        raise BadInput(faults)
    files.sort(key=lambda file: os.fsencode(file.path))
    return tuple(files), tuple(gitlinks)


def missing_object(git_dir: Path, object_id: str, path: str) -> Fault:
    return Fault("source", f"object {object_id} of {path!r} is missing in {git_dir}", "fetch it again")


def _entries(git_dir: Path, tree: str, option: str) -> list[TreeEntry]:
    listing = run_git(["ls-tree", "-r", "-z", option, "--full-tree", tree], git_dir=git_dir, timeout_s=600)
    entries: list[TreeEntry] = []
    faults: list[Fault] = []
    seen: set[str] = set()
    for line in os.fsdecode(listing).split("\0")[:-1]:
        about, _, path = line.partition("\t")
        mode, _, object_id, *size_bytes = about.split()
        if mode != FOLDER_MODE:
            if path in seen or not _UNFIT_NAME.isdisjoint(path.lower().split("/")):
                faults.append(Fault("source", f"the tree of commit {tree} holds the path {path!r}", "remove it"))
            seen.add(path)
        entries.append(TreeEntry(mode, object_id, size_bytes[0] if size_bytes else "", path))
    if faults:
        raise BadInput(faults)
    return entries


class TreeReader(SourceReader):
    """Files of one commit or tree. Only listed paths can be read, and they are read by object id.

    One ``git cat-file`` process serves all threads; it is started when first needed, replaced when it died,
    and ends with this process. Raises ``ValueError`` after ``close``, ``GitError`` when the git directory is damaged.
    """

    def __init__(self, git_dir: Path, commit: str) -> None:
        if not OBJECT_ID.fullmatch(commit):
            raise ValueError(f"{commit!r} is not a full commit id")
        self._git_dir = Path(os.path.abspath(git_dir))
        self._commit = commit
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._files: dict[str, SourceFile] | None = None
        self._gitlinks: tuple[str, ...] = ()
        self._closed = False

    def files(self) -> Sequence[SourceFile]:
        return tuple(self._listed().values())

    @property
    def gitlinks(self) -> Sequence[str]:
        """Paths of submodules: the tree names their commits, but does not hold their files."""
        self._listed()
        return self._gitlinks

    def read_bytes(self, path: str) -> bytes:
        file = self._listed().get(path)
        if file is None:
            raise FileNotFoundError(f"{path!r} is not a file of commit {self._commit}")
        with self._lock:
            self._refuse_closed()
            try:
                data = self._request(file)
            except (OSError, EOFError):
                # The process may have been killed by anyone; a second death is a reason to stop.
                self._stop()
                try:
                    data = self._request(file)
                except (OSError, EOFError) as error:
                    self._stop()
                    raise GitError("cat-file", f"ended while it read {path!r}: {error}") from error
            except BaseException:
                # An answer that was not read to its end would be taken for the next one.
                self._stop()
                raise
        digest = object_hash("blob", len(data), len(file.object_id))
        digest.update(data)
        if digest.hexdigest() != file.object_id:
            raise GitError("cat-file", f"object {file.object_id} of {path!r} is damaged in {self._git_dir}")
        return data

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listed(self) -> dict[str, SourceFile]:
        with self._lock:
            self._refuse_closed()
            if self._files is None:
                files, self._gitlinks = list_tree(self._git_dir, self._commit)
                self._files = {file.path: file for file in files}
            return self._files

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ValueError("the source was closed")

    def _request(self, file: SourceFile) -> bytes:
        if self._process is None:
            self._process = subprocess.Popen(
                git_argv(["cat-file", "--batch"], self._git_dir),
                cwd="/",
                env=git_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        to_git, from_git = self._process.stdin, self._process.stdout
        assert to_git is not None
        assert from_git is not None
        to_git.write(file.object_id.encode() + b"\n")
        to_git.flush()
        header = from_git.readline()
        if not header.endswith(b"\n"):
            raise EOFError("no answer")
        words = header.split()
        if len(words) != 3 or words[0] != file.object_id.encode() or words[1] != b"blob":
            raise GitError("cat-file", f"object {file.object_id} of {file.path!r}: {header.decode().strip()}")
        return _read_exactly(from_git, int(words[2]) + 1)[:-1]

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _read_exactly(stream: IO[bytes], size_bytes: int) -> bytes:
    data = stream.read(size_bytes)
    if len(data) != size_bytes:
        raise EOFError("the answer was cut off")
    return data
