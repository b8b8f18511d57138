"""The read-only source of a run: pinned once, kept in the run's own git directory, read from there."""

from __future__ import annotations

from workspaces.fetch import fetch_source
from workspaces.git import GitError
from workspaces.source import SourcePin, pin_source
from workspaces.tree import TreeReader

__all__ = ["GitError", "SourcePin", "TreeReader", "fetch_source", "pin_source"]
