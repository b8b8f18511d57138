"""Folders with the exact files of a tree: for a child to work in, or for a check to run in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from contracts.errors import BadInput, Fault
from workspaces.clone import add_repository
from workspaces.filling import fill
from workspaces.git import run_git
from workspaces.places import appearing, place_of
from workspaces.stamps import stamps_of
from workspaces.tree import OBJECT_ID, list_entries
from workspaces.walk import Entry

__all__ = ["Workspace", "WorkspaceKind", "checkout_tree", "make_workspace"]

WorkspaceKind = Literal["directory", "clone"]


@dataclass(frozen=True, slots=True)
class Workspace:
    """A child's folder. Only this record says what it started from: what lies in the folder proves nothing.

    ``directory`` holds files only; ``clone`` has a git directory of the child's own beside them. ``stamps`` is known
    only to who made it, and only saves time.
    """

    folder: Path
    kind: WorkspaceKind
    base_commit: str
    base_tree: str
    stamps: Mapping[str, Entry] = field(default_factory=dict, compare=False, repr=False)

    def to_json(self) -> dict[str, str]:
        return {
            "folder": str(self.folder),
            "kind": self.kind,
            "base_commit": self.base_commit,
            "base_tree": self.base_tree,
        }

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


def make_workspace(
    git_dir: Path, folder: Path, kind: WorkspaceKind, base_commit: str, *, files_of: str | None = None
) -> Workspace:
    """A new folder with the files of a commit; it appears whole or not at all. Submodules are empty folders.

    ``files_of``: another tree, whose files are there instead, as changes that an earlier child has made.

    Raises ``Refused`` when ``folder`` exists or lies in a repository, ``GitError`` and ``BadInput`` when an object is
    missing. It is not flushed to the disk: until a child has worked there it can be made again.
    """
    for object_id in (base_commit, files_of or base_commit):
        if not OBJECT_ID.fullmatch(object_id):
            raise ValueError(f"{object_id!r} is not a full id")
    place = place_of(folder)
    header = run_git(["cat-file", "commit", base_commit], git_dir=git_dir).partition(b"\n\n")[0].decode("latin-1")
    tree = header.partition("\n")[0].removeprefix("tree ")
    entries = list_entries(git_dir, tree)
    changed = None if files_of is None or files_of == tree else list_entries(git_dir, files_of)
    with appearing(place) as partial:
        written = fill(git_dir, entries if changed is None else changed, partial)
        if changed is not None:  # of the base is only what is in both
            same = set(entries) & set(changed)
            written = {entry.path: written[entry.path] for entry in same if entry.path in written}
        if kind == "clone":
            add_repository(
                git_dir,
                base_commit,
                base_tree=tree,
                is_shallow="\nparent " in header,
                entries=entries,
                written=written,
                top=partial,
            )
        stamps = stamps_of(partial, written)
    return Workspace(place, kind, base_commit, tree, stamps)


def checkout_tree(git_dir: Path, tree: str, folder: Path) -> None:
    """The exact files of a tree (or commit) in a new folder. Raises like ``make_workspace``."""
    if not OBJECT_ID.fullmatch(tree):
        raise ValueError(f"{tree!r} is not a full tree id")
    entries = list_entries(git_dir, tree)
    with appearing(place_of(folder)) as partial:
        fill(git_dir, entries, partial)
