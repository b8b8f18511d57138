"""Bringing a candidate onto the head as objects: nothing is checked out and nothing moves."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from contracts.canonical import well_formed
from contracts.errors import Refused
from workspaces.changes import changes_between
from workspaces.git import ask_git, run_git
from workspaces.importer import drop, keeping, kept, put_file, put_known, signature

__all__ = ["Merge", "merge_onto"]

_SIDE = re.compile(r"~[0-9a-f]{40,64}(?:_\d+)?$")
_UNFLUSHED = (("core.fsync", "none"),)
"""For what is thrown away at the end."""


@dataclass(frozen=True, slots=True)
class Merge:
    """``tree`` and ``commit`` are None exactly when there are ``conflicts`` (paths, in a form that can be shown).

    ``messages`` are git's words on how paths were merged, or why not.
    """

    tree: str | None
    commit: str | None
    conflicts: tuple[str, ...]
    messages: tuple[str, ...]


def merge_onto(
    git_dir: Path, head_commit: str, candidate_commit: str, *, message: str, keep_ref: str, at: datetime
) -> Merge:
    """Merges what a candidate changed on its base into the head; the result is kept as ``refs/coordinator/<keep_ref>``.

    On a head that is the candidate's base the result is the candidate itself, and nothing is written. No attribute of
    a tree, merge driver or line-end setting has a say. Raises ``Refused`` for a candidate without exactly one parent.
    """
    base, candidate_tree = _base_and_tree(git_dir, candidate_commit)
    if head_commit == base:
        return Merge(candidate_tree, candidate_commit, (), ())
    # Merging writes objects, and git gives those that exist already a new time: files of the user, where they are hard
    # links. So it is done in a repository of its own, on copies of just the objects that differ.
    with tempfile.TemporaryDirectory(prefix="coordinator-merge-") as name:
        scratch = Path(name)
        object_format = "sha1" if len(base) == 40 else "sha256"
        run_git(["init", "--quiet", "--bare", "--template=", f"--object-format={object_format}"], git_dir=scratch)
        copied = _copy_differing(git_dir, base, (head_commit, candidate_commit), scratch)
        base_twin = _twin(git_dir, base, None, scratch)
        twins = [_twin(git_dir, commit, base_twin, scratch) for commit in (head_commit, candidate_commit)]
        merging = ["merge-tree", "--write-tree", "-z", "--name-only", "--messages", *twins]
        code, out = ask_git(merging, git_dir=scratch, settings=_UNFLUSHED, timeout_s=600)
        tree, conflicts, messages = _parsed(out)
        if code != 0:
            return Merge(None, None, conflicts, messages)
        with keeping(git_dir, keep_ref, message, [head_commit, candidate_commit], at) as commands:
            for change in changes_between(scratch, twins[0], tree):
                path, mode = os.fsencode(change.path), change.new_mode.encode()
                if change.status == "deleted":
                    drop(commands, path)
                elif change.new_id in copied or change.new_mode == "160000":
                    put_known(commands, path, mode, change.new_id)
                else:
                    data = run_git(["cat-file", "blob", change.new_id], git_dir=scratch)
                    put_file(commands, path, mode, len(data), [data])
    commit, kept_tree = kept(git_dir, keep_ref)
    if kept_tree != tree:
        raise Refused(f"the merge came out as tree {kept_tree}, git had made {tree}")
    return Merge(tree, commit, (), messages)


def _base_and_tree(git_dir: Path, candidate_commit: str) -> tuple[str, str]:
    # A whole line of parents, so that a second one is seen.
    words = run_git(["rev-list", "--parents", "--no-walk", candidate_commit], git_dir=git_dir).decode().split()
    if len(words) != 2:
        raise Refused(f"{candidate_commit} is no candidate: it has {len(words) - 1} parents instead of its base")
    return words[1], _tree(git_dir, candidate_commit)


def _tree(git_dir: Path, commit: str) -> str:
    return run_git(["rev-parse", "--verify", f"{commit}^{{tree}}"], git_dir=git_dir).decode().strip()


def _copy_differing(git_dir: Path, base: str, sides: Sequence[str], scratch: Path) -> set[str]:
    """Copies every tree and blob on a path where a side differs from the base. Gives their ids."""
    ids = {_tree(git_dir, commit) for commit in (base, *sides)}
    for side in sides:
        raw = ["--raw", "-r", "-t", "-z", "--no-abbrev", "--no-renames"]
        out = run_git(["diff-tree", *raw, base, side], git_dir=git_dir, timeout_s=600)
        for about in out.split(b"\0")[:-1:2]:
            old_mode, new_mode, old_id, new_id, _ = about.decode("ascii").removeprefix(":").split(" ")
            # A submodule's commit is no object of ours, and zeros are none at all.
            ids |= {i for mode, i in ((old_mode, old_id), (new_mode, new_id)) if mode not in ("160000", "000000")}
    wanted = "".join(f"{object_id}\n" for object_id in sorted(ids)).encode()
    packing = ["pack-objects", "--quiet", "--window=0", str(scratch / "objects" / "pack" / "pack")]
    run_git(packing, git_dir=git_dir, settings=_UNFLUSHED, stdin=wanted, timeout_s=600)
    return ids


def _twin(git_dir: Path, commit: str, parent: str | None, scratch: Path) -> str:
    """A commit with the same tree, and no other history than the one that decides what the merge base is."""
    who = signature(0)
    parents = b"" if parent is None else b"parent %s\n" % parent.encode()
    text = b"tree %s\n%sauthor %s\ncommitter %s\n\n" % (_tree(git_dir, commit).encode(), parents, who, who)
    made = run_git(["hash-object", "-t", "commit", "-w", "--stdin"], git_dir=scratch, settings=_UNFLUSHED, stdin=text)
    return made.decode().strip()


def _parsed(out: bytes) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Tree, conflicting paths and messages of ``merge-tree -z --name-only --messages``."""
    tree, *fields = well_formed(os.fsdecode(out)).split("\0")
    end = fields.index("") if "" in fields else len(fields)
    # Where a file and a folder meet, git names the file after its side: nobody has a file of that name.
    conflicts = tuple(dict.fromkeys(_SIDE.sub("", path) for path in fields[:end]))
    messages: list[str] = []
    rest = fields[end + 1 : -1]
    while rest:
        path_count = int(rest[0])
        messages.append(rest[path_count + 2].strip())
        del rest[: path_count + 3]
    return tree.strip(), conflicts, tuple(messages)
