"""Folders with the exact files of a tree: for a child to work in, or for a check to run in.

No git reads or writes a work tree here, so nothing in a tree (attributes, filters, line ends) has a say in its bytes.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from contracts.canonical import well_formed
from contracts.errors import BadInput, Fault, Refused
from contracts.ports import SourceFile
from workspaces.git import GitError, ask_git, git_argv, git_environment, run_git
from workspaces.places import appearing, place_of
from workspaces.tree import OBJECT_ID, list_tree, object_hash
from workspaces.walk import FOLDER

__all__ = ["Workspace", "WorkspaceKind", "checkout_tree", "make_workspace"]

WorkspaceKind = Literal["directory", "clone"]

_CHUNK_BYTES = 1 << 20
_PIECE = 1000
"""Characters of a path that surely fit into one system call."""

_CLONE_CONFIG = """[core]
	autocrlf = false
	fsmonitor = false
[user]
	name = child
	email = child@localhost
[commit]
	gpgSign = false
[gc]
	auto = 0
[maintenance]
	auto = false
"""
_CLONE_ATTRIBUTES = "* -text !eol -ident -filter !working-tree-encoding\n"
"""So that the child's own git calls the checkout clean, and keeps bytes too."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """A child's folder. Only this record says what it started from: what lies in the folder proves nothing.

    ``directory`` holds files only; ``clone`` has a git directory of the child's own beside them.
    """

    folder: Path
    kind: WorkspaceKind
    base_commit: str
    base_tree: str

    def to_json(self) -> dict[str, str]:
        return {**asdict(self), "folder": str(self.folder)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Workspace:
        """Raises ``BadInput`` with every field that is missing, unknown or has no legal value."""
        legal = {
            "folder": isinstance(value.get("folder"), str) and Path(value["folder"]).is_absolute(),
            "kind": value.get("kind") in ("directory", "clone"),
            **{
                key: isinstance(value.get(key), str) and bool(OBJECT_ID.fullmatch(value[key]))
                for key in ("base_commit", "base_tree")
            },
        }
        faults = [
            Fault(key, f"{value.get(key)!r} is not legal in a workspace") for key, fine in legal.items() if not fine
        ]
        faults += [Fault(str(key), "unknown field of a workspace") for key in value if key not in legal]
        if faults:
            raise BadInput(faults)
        return cls(**{**value, "folder": Path(value["folder"])})


def make_workspace(git_dir: Path, folder: Path, kind: WorkspaceKind, base_commit: str) -> Workspace:
    """A new folder with the files of a commit; it appears whole or not at all. Submodules are empty folders.

    Raises ``Refused`` when ``folder`` exists or lies in a repository, ``GitError`` when an object is missing. It is
    not flushed to the disk: until a child has worked there it can be made again.
    """
    if not OBJECT_ID.fullmatch(base_commit):
        raise ValueError(f"{base_commit!r} is not a full commit id")
    place = place_of(folder)
    tree = run_git(["rev-parse", "--verify", f"{base_commit}^{{tree}}"], git_dir=git_dir).decode().strip()
    with appearing(place) as partial:
        _fill(git_dir, tree, partial)
        if kind == "clone":
            _add_repository(git_dir, base_commit, partial)
    return Workspace(place, kind, base_commit, tree)


def checkout_tree(git_dir: Path, tree: str, folder: Path) -> None:
    """The exact files of a tree (or commit) in a new folder. Raises like ``make_workspace``."""
    if not OBJECT_ID.fullmatch(tree):
        raise ValueError(f"{tree!r} is not a full tree id")
    with appearing(place_of(folder)) as partial:
        _fill(git_dir, tree, partial)


def _fill(git_dir: Path, tree: str, top: Path) -> None:
    files, gitlinks = list_tree(git_dir, tree)
    folders = set(gitlinks)
    for path in (*[file.path for file in files], *gitlinks):
        inside = path.rpartition("/")[0]
        while inside and inside not in folders:
            folders.add(inside)
            inside = inside.rpartition("/")[0]
    # A hostile tree may hold one name as a link and as a folder. Nothing is ever written through a link:
    # folders come first, links last, and each only where there is nothing yet.
    regular = [file for file in files if file.mode != "120000"]
    links = [file for file in files if file.mode == "120000"]
    top_fd = os.open(top, FOLDER)
    try:
        for path in sorted(folders, key=len):
            with _reached(top_fd, path) as (fd, rest):
                os.mkdir(rest, dir_fd=fd)
        with contextlib.closing(_blobs(git_dir, [*regular, *links])) as contents:
            for file, chunks in contents:
                with _reached(top_fd, file.path) as (fd, rest):
                    _write(file, rest, fd, chunks)
    except FileExistsError as error:
        raise Refused(f"the tree {tree} holds {well_formed(str(error.filename))} twice") from error
    finally:
        os.close(top_fd)


def _write(file: SourceFile, name: str, folder_fd: int, chunks: Iterator[bytes]) -> None:
    if file.mode == "120000":
        os.symlink(b"".join(chunks), os.fsencode(name), dir_fd=folder_fd)
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, 0o777 if file.mode == "100755" else 0o666, dir_fd=folder_fd)
    try:
        for chunk in chunks:
            rest = memoryview(chunk)
            while rest:
                rest = rest[os.write(fd, rest) :]
    finally:
        os.close(fd)


@contextlib.contextmanager
def _reached(top_fd: int, path: str) -> Iterator[tuple[int, str]]:
    """An open folder, and what is left of the path from there: no longer than one system call takes."""
    if len(path) < _PIECE:
        yield top_fd, path
        return
    fd = os.dup(top_fd)
    try:
        while len(path) >= _PIECE:
            end = path.rindex("/", 0, _PIECE)
            deeper = os.open(path[:end], FOLDER, dir_fd=fd)
            os.close(fd)
            fd, path = deeper, path[end + 1 :]
        yield fd, path
    finally:
        os.close(fd)


def _blobs(git_dir: Path, files: Sequence[SourceFile]) -> Generator[tuple[SourceFile, Iterator[bytes]], None, None]:
    """The content of each file, in order. It has to be read before the next is asked for; its id is verified."""
    with tempfile.TemporaryFile() as ids:
        ids.write(b"".join(file.object_id.encode() + b"\n" for file in files))
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
    out = process.stdout
    assert out is not None
    try:
        for file in files:
            header = out.readline()
            if header != f"{file.object_id} blob {file.size_bytes}\n".encode():
                raise _damaged(git_dir, file)

            def chunks(file: SourceFile = file) -> Iterator[bytes]:
                digest = object_hash("blob", file.size_bytes, len(file.object_id))
                left_bytes = file.size_bytes
                while left_bytes:
                    chunk = out.read(min(left_bytes, _CHUNK_BYTES))
                    if not chunk:
                        raise _damaged(git_dir, file)
                    left_bytes -= len(chunk)
                    digest.update(chunk)
                    yield chunk
                if out.read(1) != b"\n" or digest.hexdigest() != file.object_id:
                    raise _damaged(git_dir, file)

            yield file, chunks()
    finally:
        process.kill()
        process.wait()
        out.close()


def _damaged(git_dir: Path, file: SourceFile) -> GitError:
    return GitError("cat-file", f"object {file.object_id} of {well_formed(file.path)} is damaged in {git_dir}")


def _add_repository(git_dir: Path, base_commit: str, top: Path) -> None:
    """A git directory with copies of what the base commit needs, with no way back to ours or to the user's."""
    own = top / ".git"
    object_format = "sha1" if len(base_commit) == 40 else "sha256"
    fast = [("core.fsync", "none"), ("pack.compression", "1")]
    run_git(
        ["init", "--quiet", "--template=", "--initial-branch=work", f"--object-format={object_format}", str(top)],
        git_dir=None,
        cwd=top,
        settings=fast,
    )
    (own / "info").mkdir()
    (own / "info" / "attributes").write_text(_CLONE_ATTRIBUTES)
    with (own / "config").open("a") as config:
        config.write(_CLONE_CONFIG)
    listing = ["rev-list", "--objects", "--no-object-names", "--no-walk", base_commit]
    objects = run_git(listing, git_dir=git_dir, timeout_s=600)
    packing = ["pack-objects", "--quiet", "--window=0", "--delta-base-offset", str(own / "objects" / "pack" / "pack")]
    run_git(packing, git_dir=git_dir, settings=fast, stdin=objects, timeout_s=600)
    (own / "refs" / "heads" / "work").write_text(f"{base_commit}\n")
    if b"\nparent " in run_git(["cat-file", "commit", base_commit], git_dir=git_dir).partition(b"\n\n")[0]:
        (own / "shallow").write_text(f"{base_commit}\n")
    run_git(["read-tree", base_commit], git_dir=own, settings=fast, timeout_s=600)
    refresh = [f"--work-tree={top}", "update-index", "-q", "--refresh"]
    ask_git(refresh, git_dir=own, cwd=top, settings=fast, timeout_s=600)
