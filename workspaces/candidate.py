"""Taking what a child left in its folder as a commit in the run's own git directory.

The folder is hostile. It is read entry by entry; the only git that ever looks at it reads its ignore files. Whoever
calls this has seen to it that no process of the child is left; a folder that changes all the same is refused.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from contracts.canonical import well_formed
from contracts.errors import Refused
from contracts.scopes import in_scope
from workspaces.changes import Change, changes_between
from workspaces.checkout import Workspace
from workspaces.git import ask_git
from workspaces.hazards import escaping_links, name_fault
from workspaces.importer import drop, keeping, kept, put_file
from workspaces.tree import TreeReader, list_tree
from workspaces.walk import Entry, content, holds, special_kind, walk

__all__ = ["Candidate", "snapshot"]

_MAX_LISTED = 1000
_MAX_NAMED = 20
_MAX_SHOWN = 500
_ASKED = 1000
"""Characters of a path that git is asked about: a folder decides for what lies deeper."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a child made: a commit on its base, kept by a ref.

    ``left_out`` names ignored files outside the write scope (a folder ends with ``/``), in a form that can be shown.
    """

    commit: str
    tree: str
    base_commit: str
    changes: tuple[Change, ...]
    left_out: tuple[str, ...]


def snapshot(
    git_dir: Path,
    workspace: Workspace,
    *,
    write_scope: Sequence[str],
    message: str,
    keep_ref: str,
    at: datetime,
    max_files: int = 20_000,
    max_bytes: int = 1 << 30,
    max_file_bytes: int = 100 << 20,
    holds_secret: Callable[[bytes], bool] = lambda data: False,
) -> Candidate:
    """Durably keeps the folder's files as ``refs/coordinator/<keep_ref>``.

    Taken are: all tracked files as they are now, untracked ones that are not ignored, and ignored ones within
    ``write_scope``; nothing of a ``.git`` at the top. The limits count added and modified files. The commit is a
    function of the arguments and the files: doing it again is fine, another commit under the same ref is refused.

    Raises ``Refused``, naming what and where, for: a missing folder; other repositories within; fifos, sockets and
    devices; new links that leave the tree; new files with another name elsewhere; names that git cannot hold; files
    over a limit, unreadable, or changing meanwhile; files of which ``holds_secret`` says so, before they are stored.
    """
    files, gitlinks = list_tree(git_dir, workspace.base_tree)
    base = {file.path: file for file in files}
    seen: list[Entry] = []
    unchanged: set[str] = set()
    for entry, folder_fd in walk(workspace.folder):
        seen.append(entry)
        if entry.path in base and (
            workspace.stamps.get(entry.path) == entry or holds(entry, folder_fd, base[entry.path])
        ):
            unchanged.add(entry.path)
    taken, left_out = _chosen(git_dir, workspace, write_scope, seen, base)
    changed = {entry.path: entry for entry in taken if entry.path not in unchanged}
    faults = [
        *_faults(taken, changed.values(), Counter((entry.device, entry.inode) for entry in seen)),
        *_new_escapes(git_dir, workspace, taken, changed),
        *_over_limits(list(changed.values()), max_files, max_bytes, max_file_bytes),
    ]
    if faults:
        more = [f"and {len(faults) - _MAX_NAMED} more"] if len(faults) > _MAX_NAMED else []
        raise Refused("the workspace cannot be taken: " + "; ".join([*faults[:_MAX_NAMED], *more]))

    near = _folders_above(changed)
    for entry, folder_fd in _again(workspace, seen, near):
        if entry.path in changed and holds_secret(b"".join(content(entry, folder_fd))):
            raise Refused(f"{well_formed(entry.path)} holds a secret of the coordinator's environment; take it out")
    paths = {entry.path for entry in taken}
    folders = {entry.path for entry in seen if entry.is_folder}
    with keeping(git_dir, keep_ref, message, [workspace.base_commit], at) as out:
        for path in [*(base.keys() - paths), *(set(gitlinks) - folders)]:
            drop(out, os.fsencode(path))
        for entry, folder_fd in _again(workspace, seen, near):
            if entry.path in changed:
                assert entry.tree_mode is not None
                mode = entry.tree_mode.encode()
                put_file(out, os.fsencode(entry.path), mode, entry.size_bytes, content(entry, folder_fd))
        # What was read may have been written to after that.
        for _ in _again(workspace, seen):
            pass
    commit, tree = kept(git_dir, keep_ref)
    changes = changes_between(git_dir, workspace.base_tree, tree)
    return Candidate(commit, tree, workspace.base_commit, changes, _listed(left_out, paths))


def _again(
    workspace: Workspace, seen: Sequence[Entry], within: Container[str] | None = None
) -> Iterator[tuple[Entry, int]]:
    """What was seen before, or just what lies at the top and in some folders. ``Refused`` if it differs now."""
    if within is not None:
        seen = [entry for entry in seen if "/" not in entry.path or _parent(entry.path) in within]
    count = 0
    for entry, folder_fd in walk(workspace.folder, within):
        if count == len(seen) or entry != seen[count]:
            raise Refused(f"{well_formed(entry.path)} changed while the workspace was read")
        count += 1
        yield entry, folder_fd
    if count != len(seen):
        raise Refused(f"{well_formed(seen[count].path)} vanished while the workspace was read")


def _chosen(
    git_dir: Path, workspace: Workspace, write_scope: Sequence[str], seen: Iterable[Entry], base: Container[str]
) -> tuple[list[Entry], list[Entry]]:
    """What belongs to the candidate, and what is ignored and stays out of it."""
    certain: list[Entry] = []
    questions: dict[str, list[Entry]] = {}
    for entry in seen:
        if entry.name == ".gitignore" and entry.tree_mode is None and not entry.is_folder:
            raise Refused(f"{well_formed(entry.path)} is {special_kind(entry.mode)}")  # git would wait for it
        if entry.is_folder and not entry.is_repository:
            continue
        # A file of ignore rules that ignores itself would hide what it is there to hide.
        if entry.path in base or entry.name == ".gitignore" or in_scope(write_scope, entry.path):
            certain.append(entry)
        else:
            asked = _parent(entry.path) if entry.is_repository else entry.path
            if len(asked) > _ASKED:
                asked = asked[: asked.rindex("/", 0, _ASKED)]
            questions.setdefault(asked, []).append(entry)
    ignored = _ignored(git_dir, workspace, questions)
    taken = certain + [entry for asked, entries in questions.items() if asked not in ignored for entry in entries]
    left_out = [entry for asked, entries in questions.items() if asked in ignored for entry in entries]
    return taken, left_out


def _ignored(git_dir: Path, workspace: Workspace, paths: Iterable[str]) -> set[str]:
    # A path such as ":x" would be read as a pattern, and this command has no other way to keep it from that.
    question = b"".join(b"./%s\0" % os.fsencode(path) for path in paths)
    if not question:
        return set()
    # Without an index git has no tracked files here, and reads nothing but .gitignore files.
    asking = [
        "--no-literal-pathspecs",
        f"--work-tree={workspace.folder}",
        "check-ignore",
        "--no-index",
        "-z",
        "--stdin",
    ]
    _, out = ask_git(asking, git_dir=git_dir, cwd=workspace.folder, stdin=question, timeout_s=120)
    return {os.fsdecode(path.removeprefix(b"./")) for path in out.split(b"\0")[:-1]}


def _faults(taken: Iterable[Entry], changed: Iterable[Entry], names: Counter[tuple[int, int]]) -> Iterator[str]:
    for entry in taken:
        if entry.is_repository:
            yield f"{_shown(_parent(entry.path))} is a repository that nobody declared"
        elif entry.tree_mode is None:
            yield f"{_shown(entry.path)} is {special_kind(entry.mode)}"
    for entry in changed:
        fault = None if entry.is_repository else name_fault(entry.path, is_link=entry.target is not None)
        if fault:
            yield f"{_shown(entry.path)} {fault}"
        elif stat.S_ISREG(entry.mode) and entry.links > names[entry.device, entry.inode]:
            # It may be another user's secret, and whoever writes to it writes elsewhere too.
            yield f"{_shown(entry.path)} is a hard link to a file outside of the workspace"


def _new_escapes(git_dir: Path, workspace: Workspace, taken: Iterable[Entry], changed: Container[str]) -> Iterator[str]:
    links = {entry.path: entry.target for entry in taken if entry.target is not None}
    escaping = escaping_links(links)
    if any(path not in changed for path in escaping):
        # Those of the base may stay, if they led out of it there already.
        with TreeReader(git_dir, workspace.base_tree) as reader:
            base_links = {
                file.path: os.fsdecode(reader.read_bytes(file.path)) for file in reader.files() if file.mode == "120000"
            }
        escaping -= {path for path in escaping_links(base_links) if path not in changed}
    for path in sorted(escaping):
        yield f"{_shown(path)} is a link that leaves the workspace, to {_shown(links[path])}"


def _over_limits(changed: Sequence[Entry], max_files: int, max_bytes: int, max_file_bytes: int) -> Iterator[str]:
    if len(changed) > max_files:
        yield f"{len(changed):,} files were added or modified, more than {max_files:,}"
    total_bytes = sum(entry.size_bytes for entry in changed)
    if total_bytes > max_bytes:
        yield f"the files added or modified hold {total_bytes:,} bytes, more than {max_bytes:,}"
    for entry in changed:
        if entry.size_bytes > max_file_bytes:
            yield f"{_shown(entry.path)} holds {entry.size_bytes:,} bytes, more than {max_file_bytes:,}"


def _listed(left_out: Iterable[Entry], taken: Iterable[str]) -> tuple[str, ...]:
    """Names to show; a folder of which nothing was taken stands for all in it."""
    used = _folders_above(taken)
    names: set[str] = set()
    for entry in left_out:
        path, name = entry.path, entry.path
        while (path := _parent(path)) and path not in used:
            name = f"{path}/"
        names.add(name)
    shown = [_shown(name) for name in sorted(names)]
    return (*shown[:_MAX_LISTED], *([f"... and {len(shown) - _MAX_LISTED:,} more"] if len(shown) > _MAX_LISTED else []))


def _folders_above(paths: Iterable[str]) -> set[str]:
    folders: set[str] = set()
    for path in paths:
        while (path := _parent(path)) and path not in folders:
            folders.add(path)
    return folders


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _shown(path: str) -> str:
    text = well_formed(path)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
