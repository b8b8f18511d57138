"""What differs between two trees, judged on the trees themselves."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from contracts.canonical import well_formed
from contracts.scopes import in_scope
from workspaces.git import run_git

__all__ = ["Change", "ChangeStatus", "changes_between", "outside_scope"]

ChangeStatus = Literal["added", "modified", "deleted", "type"]
_STATUS: dict[str, ChangeStatus] = {"A": "added", "M": "modified", "D": "deleted", "T": "type"}


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs, in content, mode or type.

    ``path`` is byte-true: what is not UTF-8 in it is surrogate escapes. Modes are those of git trees (``100644``); mode
    and id are all zeros on the side that has no such path.
    """

    path: str
    status: ChangeStatus
    old_mode: str
    new_mode: str
    old_id: str
    new_id: str


def changes_between(git_dir: Path, old_tree: str, new_tree: str) -> tuple[Change, ...]:
    """Every path that differs between two trees or commits, by the bytes of the path. A rename is two of them."""
    raw = ["--raw", "-r", "-z", "--no-abbrev", "--no-renames"]
    out = run_git(["diff-tree", *raw, old_tree, new_tree], git_dir=git_dir, timeout_s=600)
    fields = out.split(b"\0")[:-1]
    changes: list[Change] = []
    for about, path in zip(fields[::2], fields[1::2], strict=True):
        old_mode, new_mode, old_id, new_id, letter = about.decode("ascii").removeprefix(":").split(" ")
        changes.append(Change(os.fsdecode(path), _STATUS[letter], old_mode, new_mode, old_id, new_id))
    return tuple(sorted(changes, key=lambda change: os.fsencode(change.path)))


def outside_scope(changes: Iterable[Change], write_scope: Sequence[str]) -> list[str]:
    """Paths of the changes that no pattern of the scope matches, in a form that can be shown."""
    return [well_formed(change.path) for change in changes if not in_scope(write_scope, change.path)]
