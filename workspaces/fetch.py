"""Bringing a pinned source into the run's own git directory, which then needs nothing of the user's any more."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from contracts.errors import BadInput, Fault, Refused
from workspaces.durable import make_folders, sync, sync_tree
from workspaces.folder import import_folder
from workspaces.git import GitError, run_git
from workspaces.repository import Repository, find_repository
from workspaces.source import SourcePin
from workspaces.tree import check_complete

__all__ = ["fetch_source"]

_REF = "refs/coordinator/source"
_LOOSE_FOLDER = re.compile(r"[0-9a-f]{2}")
_LOOSE_FILE = re.compile(r"[0-9a-f]{38}|[0-9a-f]{62}")
_MANY_FILES = 500
_FAST = (("core.fsync", "none"), ("pack.compression", "1"))
"""All is flushed at the end."""
_PASSES = 3
"""The user may repack while we link: what vanished from one place is then found in another."""


def fetch_source(pin: SourcePin, git_dir: Path, *, exclude: Collection[Path] = ()) -> None:
    """Makes ``git_dir``, a bare git directory that holds the pinned commit with its trees and blobs, durably.

    It appears whole or not at all, and doing it again, or in several processes at once, is fine. Objects of a git
    source are hard links or copies: the source is only read. Raises ``BadInput`` when the source or
    part of it is gone, ``Refused`` when a folder is no longer what was pinned or ``git_dir`` holds something else.
    """
    git_dir = Path(os.path.abspath(git_dir))
    make_folders(git_dir.parent)
    with _held(git_dir.parent / f".{git_dir.name}.lock"):
        if os.path.lexists(git_dir):
            _check_existing(pin, git_dir)
        else:
            _make(pin, git_dir, exclude)
        sync(git_dir.parent)


def _check_existing(pin: SourcePin, git_dir: Path) -> None:
    try:
        found = run_git(["rev-parse", "--verify", _REF], git_dir=git_dir).decode().strip()
    except GitError as error:
        raise Refused(f"{git_dir} exists and is not a fetched source: {error.message}") from error
    if found != pin.commit:
        raise Refused(f"{git_dir} holds the source {found}, needed is {pin.commit}")
    check_complete(git_dir, pin.commit)


def _make(pin: SourcePin, git_dir: Path, exclude: Collection[Path]) -> None:
    prefix = f".{git_dir.name}.partial-"
    for name in os.listdir(git_dir.parent):
        if name.startswith(prefix):  # its maker is dead: the lock is ours
            _remove(git_dir.parent / name)
    # A name of its own each time: a git process that outlives its dead parent writes into nothing.
    partial = Path(tempfile.mkdtemp(prefix=prefix, dir=git_dir.parent))
    try:
        object_format = "sha1" if len(pin.commit) == 40 else "sha256"
        run_git(["init", "--quiet", "--bare", "--template=", f"--object-format={object_format}"], git_dir=partial)
        if pin.kind == "git":
            _take_objects(pin, partial)
        else:
            _take_files(pin, partial, exclude)
        tree = run_git(["rev-parse", "--verify", f"{pin.commit}^{{tree}}"], git_dir=partial).decode().strip()
        if tree != pin.tree:
            raise Refused(f"commit {pin.commit} has the tree {tree}, pinned was {pin.tree}")
        sync_tree(partial)
        os.rename(partial, git_dir)
    except BaseException:
        _remove(partial)
        raise


def _remove(partial: Path) -> None:
    # The git process of a dead parent may still be putting its last words there. What stays, the next fetch removes.
    for _ in range(_PASSES):
        shutil.rmtree(partial, ignore_errors=True)
        if not partial.exists():
            return


def _take_objects(pin: SourcePin, target: Path) -> None:
    repository = _origin(pin)
    for attempt in range(1, _PASSES + 1):
        try:
            for folder in repository.object_folders():
                _link_objects(folder, target / "objects")
        except OSError as error:
            raise _fault(f"the objects of {pin.origin} cannot be read: {error}", "make them readable") from error
        try:
            check_complete(target, pin.commit)
            break
        except BadInput:
            if attempt == _PASSES:
                raise
    _pack_loose(target, pin.commit)
    shallow = repository.common_dir / "shallow"
    if shallow.is_file():
        # Without it git takes the cut-off history for a broken one.
        (target / "shallow").write_bytes(shallow.read_bytes())
    run_git(["update-ref", _REF, pin.commit], git_dir=target)


def _take_files(pin: SourcePin, target: Path, exclude: Collection[Path]) -> None:
    folder = Path(pin.origin)
    if not folder.is_dir():
        raise _fault(f"the folder {pin.origin} is gone", "bring it back, or launch a new run")
    import_folder(folder, target, _REF, exclude)
    found = run_git(["rev-parse", "--verify", _REF], git_dir=target).decode().strip()
    if found != pin.commit:
        raise Refused(f"the files in {pin.origin} changed since they were pinned, launch a new run")
    check_complete(target, pin.commit)


def _origin(pin: SourcePin) -> Repository:
    folder = Path(pin.origin)
    repository = find_repository(folder) if folder.is_dir() else None
    if repository is None or repository.origin != folder:
        raise _fault(f"the repository {pin.origin} is gone", "bring it back, or launch a new run")
    return repository


def _link_objects(source: Path, target: Path) -> None:
    """Takes packs and loose objects; indexes over them (multi-pack, commit-graph, bitmaps) only speed git up."""
    for name in sorted(_names(source)):  # packs last: what is packed meanwhile moves there
        if name == "pack":
            wanted = [file for file in _names(source / name) if file.endswith((".pack", ".idx"))]
        elif _LOOSE_FOLDER.fullmatch(name):
            wanted = [file for file in _names(source / name) if _LOOSE_FILE.fullmatch(file)]
        else:
            continue
        os.makedirs(target / name, exist_ok=True)
        for file in wanted:
            _link_or_copy(f"{source}/{name}/{file}", f"{target}/{name}/{file}")


def _pack_loose(target: Path, commit: str) -> None:
    """One pack for the loose objects of the commit, when they are many: each workspace reads them all."""
    if sum(len(_names(target / "objects" / name)) for name in _names(target / "objects")) < _MANY_FILES:
        return
    listing = ["rev-list", "--objects", "--no-object-names", "--no-walk", commit]
    ids = run_git(listing, git_dir=target, timeout_s=600)
    pack = str(target / "objects" / "pack" / "pack")
    packing = ["pack-objects", "--quiet", "--incremental", "--non-empty", "--window=0", pack]
    run_git(packing, git_dir=target, settings=_FAST, stdin=ids, timeout_s=600)
    run_git(["prune-packed", "--quiet"], git_dir=target, timeout_s=600)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _link_or_copy(source: str, target: str) -> None:
    if os.path.lexists(target):
        return
    try:
        if not os.path.islink(source):
            try:
                os.link(source, target)
                return
            except FileNotFoundError:
                raise
            except OSError:
                pass  # another file system, another owner, too many links: copied below
        with (
            open(source, "rb") as reader,
            open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444), "wb") as out,
        ):
            shutil.copyfileobj(reader, out, 1 << 20)
    except FileNotFoundError:
        pass  # repacked meanwhile: check_complete tells whether anything is missing


@contextmanager
def _held(lock_file: Path) -> Iterator[None]:
    """Exclusive among threads and processes; the kernel lets go when the holder dies."""
    fd = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _fault(message: str, hint: str) -> BadInput:
    return BadInput([Fault("source", message, hint)])
