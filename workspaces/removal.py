"""Taking a workspace away: never with something in it that is not kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from contracts.canonical import well_formed
from contracts.errors import Refused
from contracts.ports import SourceFile
from workspaces.candidate import Candidate
from workspaces.checkout import Workspace
from workspaces.places import disappear
from workspaces.tree import list_tree
from workspaces.walk import holds, walk

__all__ = ["has_unsaved", "remove_workspace"]

_MAX_NAMED = 20


def has_unsaved(git_dir: Path, workspace: Workspace, candidate: Candidate | None) -> bool:
    """Whether the folder holds a file, ignored or not, that is neither in its base nor in the candidate.

    A folder that is gone holds nothing. A ``.git`` at the top does not count: it is the child's scratch, what it
    committed and then took away again is no part of its work. Raises ``Refused`` for what cannot be read.
    """
    return next(_unsaved(git_dir, workspace, candidate), None) is not None


def remove_workspace(git_dir: Path, workspace: Workspace, *, saved: Candidate | None) -> None:
    """Deletes the folder, following no link. Doing it again, after a crash half-way too, is fine.

    Raises ``Refused``, and leaves the folder as it is, when it holds something that is not saved, or cannot be read.
    """
    unsaved: list[str] = []
    for path in _unsaved(git_dir, workspace, saved):
        if len(unsaved) == _MAX_NAMED:
            unsaved.append("and more")
            break
        unsaved.append(well_formed(path))
    if unsaved:
        raise Refused(f"{workspace.folder} stays, since these files are kept nowhere else: {'; '.join(unsaved)}")
    if workspace.folder.parent.is_dir():
        disappear(workspace.folder)


def _unsaved(git_dir: Path, workspace: Workspace, saved: Candidate | None) -> Iterator[str]:
    if not os.path.lexists(workspace.folder):
        return
    kept: dict[str, list[SourceFile]] = {}
    for tree in [workspace.base_tree, *([saved.tree] if saved else [])]:
        for file in list_tree(git_dir, tree)[0]:
            kept.setdefault(file.path, []).append(file)
    for entry, folder_fd in walk(workspace.folder):
        # Fifos, sockets and devices hold nothing of their own.
        is_content = entry.is_repository or entry.tree_mode is not None
        if is_content and not any(holds(entry, folder_fd, file) for file in kept.get(entry.path, ())):
            yield entry.path
