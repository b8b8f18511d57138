"""Commits written through ``git fast-import``: by no work tree and no index, and with no attribute, filter or hook.

It puts what is new into one pack of its own. Unlike every other way of writing objects it sets no new time on those
that exist already, which may be files of the user's repository.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO

from contracts.canonical import well_formed
from contracts.steps import reached
from workspaces.durable import sync
from workspaces.git import GitError, git_argv, git_environment, run_git
from workspaces.locks import held

__all__ = ["begin_commit", "drop", "fast_import", "keeping", "kept", "put_file", "put_known", "signature"]

_KEPT = "refs/coordinator/"
_KEEP_REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(?:[./][A-Za-z0-9_-]+)*")


@contextlib.contextmanager
def keeping(git_dir: Path, keep_ref: str, message: str, parents: Sequence[str], at: datetime) -> Iterator[IO[bytes]]:
    """Takes the changes of a new commit on its first parent: durable when the block ends well, else not there.

    It is kept as ``refs/coordinator/<keep_ref>``, which must be new or hold this very commit: ``GitError`` else.
    """
    if not _KEEP_REF.fullmatch(keep_ref) or any(part.endswith(".lock") for part in keep_ref.split("/")):
        raise ValueError(f"{keep_ref!r} cannot name a ref")
    # Two importers that make the same pack would get in each other's way.
    with held(git_dir), fast_import(git_dir) as out:
        text = well_formed(message).replace("\0", "\\0").strip() + "\n"
        begin_commit(out, _KEPT + keep_ref, text.encode(), parents, int(at.timestamp()))
        yield out
    reached("commit_imported")
    sync(git_dir / "objects" / "pack")
    # Refs are flushed by git, the names of their files and folders are not.
    folder = (git_dir / _KEPT / keep_ref).parent
    while folder != git_dir:
        sync(folder)
        folder = folder.parent


def kept(git_dir: Path, keep_ref: str) -> tuple[str, str]:
    """Ids of the commit that is kept under the name, and of its tree."""
    names = [f"{_KEPT}{keep_ref}^{{commit}}", f"{_KEPT}{keep_ref}^{{tree}}"]
    commit, tree = run_git(["rev-parse", *names], git_dir=git_dir).decode().split()
    return commit, tree


@contextlib.contextmanager
def fast_import(git_dir: Path, timeout_s: float = 600) -> Iterator[IO[bytes]]:
    """Takes the commands of fast-import. What they say happens when the block ends well, and else not at all.

    Raises ``GitError`` with git's own words when it fails.
    """
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            git_argv(["fast-import", "--quiet", "--done", "--depth=0"], git_dir),
            cwd="/",
            env=git_environment([("fastimport.unpackLimit", "0")]),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=complaints,
            start_new_session=True,
        )
        assert process.stdin is not None
        try:
            try:
                yield process.stdin
                process.stdin.write(b"done\n")
                process.stdin.close()
                process.wait(timeout_s)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                pass  # what git said is better than this
        finally:
            process.kill()
            process.wait()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        if process.returncode != 0:
            complaints.seek(0)
            message = complaints.read(10_000).decode("utf-8", "backslashreplace").strip()
            raise GitError("fast-import", message or "did not end", process.returncode)


def signature(at_s: int) -> bytes:
    """Author and committer of every commit that is made here, at a second of the epoch."""
    return b"coordinator <coordinator@localhost> %d +0000" % at_s


def begin_commit(out: IO[bytes], ref: str, message: bytes, parents: Sequence[str] = (), at_s: int = 0) -> None:
    """A commit that starts with the files of its first parent. ``ref`` must be new, or hold this very commit."""
    out.write(b"commit %s\ncommitter %s\n" % (ref.encode(), signature(at_s)))
    out.write(b"data %d\n%s\n" % (len(message), message))
    for number, parent in enumerate(parents):
        out.write(b"%s %s\n" % (b"merge" if number else b"from", parent.encode()))


def put_file(out: IO[bytes], path: bytes, mode: bytes, size_bytes: int, chunks: Iterable[bytes]) -> None:
    """One file or link; ``chunks`` must be ``size_bytes`` long together."""
    out.write(b"M %s inline %s\ndata %d\n" % (mode, _quoted(path), size_bytes))
    for chunk in chunks:
        out.write(chunk)
    out.write(b"\n")


def put_known(out: IO[bytes], path: bytes, mode: bytes, object_id: str) -> None:
    """One file, link or submodule, by an object that is there."""
    out.write(b"M %s %s %s\n" % (mode, object_id.encode(), _quoted(path)))


def drop(out: IO[bytes], path: bytes) -> None:
    out.write(b"D %s\n" % _quoted(path))


def _quoted(path: bytes) -> bytes:
    return b'"%s"' % path.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
