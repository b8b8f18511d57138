"""The source of a run, pinned once and kept in the run's own git directory, and the folders in which children work."""

from __future__ import annotations

from workspaces.candidate import Candidate, snapshot
from workspaces.changes import Change, changes_between, outside_scope
from workspaces.checkout import Workspace, WorkspaceKind, checkout_tree, make_workspace
from workspaces.fetch import fetch_source
from workspaces.git import GitError
from workspaces.merge import Merge, merge_onto
from workspaces.removal import has_unsaved, remove_workspace
from workspaces.source import SourcePin, pin_source
from workspaces.tree import TreeReader

__all__ = [
    "Candidate",
    "Change",
    "GitError",
    "Merge",
    "SourcePin",
    "TreeReader",
    "Workspace",
    "WorkspaceKind",
    "changes_between",
    "checkout_tree",
    "fetch_source",
    "has_unsaved",
    "make_workspace",
    "merge_onto",
    "outside_scope",
    "pin_source",
    "remove_workspace",
    "snapshot",
]
