"""Finding the user's repository and resolving names in it. Nothing here writes to it or runs its code."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import BadInput, Fault
from workspaces.git import GitError, Setting, run_git
from workspaces.tree import OBJECT_ID

__all__ = ["Repository", "find_repository"]


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository of the user. ``origin`` is its top folder; a bare one has no ``work_tree``."""

    origin: Path
    git_dir: Path
    common_dir: Path
    work_tree: Path | None

    def resolve(self, ref: str) -> tuple[str, str]:
        """Full ids of the commit and the tree that ``ref`` names now. Raises ``BadInput``."""
        commit = self._object_id(f"{ref}^{{commit}}")
        if commit is None:
            if not self._has_commits():
                raise _fault(f"{self.origin} has no commit yet", "commit something first")
            raise _fault(f"{ref!r} names no commit in {self.origin}", "give a branch, a tag or a commit id")
        tree = self._object_id(f"{commit}^{{tree}}")
        if tree is None:
            raise _fault(f"the tree of commit {commit} is missing in {self.origin}", "complete the clone first")
        return commit, tree

    def is_dirty(self) -> bool:
        """Whether the checkout has changes or untracked files (ignored files and submodules do not count)."""
        if self.work_tree is None:
            return False
        out = run_git(
            [
                f"--work-tree={self.work_tree}",
                "status",
                "--porcelain",
                "-z",
                "--untracked-files=normal",
                "--ignore-submodules=all",
                "--no-renames",
            ],
            git_dir=self.git_dir,
            cwd=self.work_tree,
            settings=self._filters_off(),
            timeout_s=600,
        )
        return out != b""

    def object_folders(self) -> Iterator[Path]:
        """Every folder that holds objects of this repository: its own, then its alternates, and theirs."""
        yield self.common_dir / "objects"
        for line in run_git(["count-objects", "-v"], git_dir=self.git_dir, timeout_s=600).splitlines():
            name, _, value = line.partition(b": ")
            if name == b"alternate":
                yield Path(os.fsdecode(_unquoted(value)))

    def _object_id(self, name: str) -> str | None:
        try:
            found = run_git(["rev-parse", "--verify", "--end-of-options", name], git_dir=self.git_dir)
        except (GitError, ValueError):  # ValueError: the name holds a NUL
            return None
        text = found.decode("utf-8", "backslashreplace").strip()
        return text if OBJECT_ID.fullmatch(text) else None

    def _has_commits(self) -> bool:
        return run_git(["for-each-ref", "--count=1"], git_dir=self.git_dir) != b"" or (
            self._object_id("HEAD^{commit}") is not None
        )

    def _filters_off(self) -> list[Setting]:
        # Comparing a file with the index runs the clean filters that the repository's configuration names.
        keys = run_git(["config", "--list", "--name-only", "-z"], git_dir=self.git_dir).split(b"\0")
        drivers = {os.fsdecode(key).rpartition(".")[0] for key in keys if key.startswith(b"filter.")}
        return [
            (f"{driver}.{key}", value)
            for driver in sorted(drivers)
            for key, value in (("clean", ""), ("smudge", ""), ("process", ""), ("required", "false"))
        ]


def find_repository(folder: Path) -> Repository | None:
    """The repository that ``folder`` (absolute, existing) lies in, or None. Raises ``BadInput`` for a broken one."""
    if (folder / "HEAD").is_file() and (folder / "objects").is_dir() and (folder / "refs").is_dir():
        # Discovery from inside a git directory is switched off (safe.bareRepository): this one was named by the user.
        if folder.name == ".git":
            return find_repository(folder.parent)
        try:
            bare = _rev_parse("--is-bare-repository", folder, folder) == "true"
        except GitError as error:
            raise _fault(f"git does not accept the repository {folder}: {error.message}", "repair it") from error
        if not bare:
            raise _fault(f"{folder} is the git directory of a work tree", "give the work tree")
        return Repository(folder, folder, Path(_rev_parse("--git-common-dir", folder, folder)), None)

    marker = _nearest_marker(folder)
    try:
        git_dir = Path(_rev_parse("--absolute-git-dir", None, folder))
        inside = _rev_parse("--is-inside-work-tree", None, folder) == "true"
        bare = _rev_parse("--is-bare-repository", None, folder) == "true"
        common_dir = Path(_rev_parse("--git-common-dir", None, folder))
        top = Path(_rev_parse("--show-toplevel", None, folder)) if inside else None
    except GitError as error:
        if marker is None and "not a git repository (or any" in error.message:
            return None
        raise _fault(f"git does not accept the repository of {folder}: {error.message}", "repair it") from error
    if marker is not None and marker.is_dir() and not marker.samefile(git_dir):
        # Git walks past a broken one, up to a repository that the user does not mean.
        raise _fault(f"{marker} is not a git directory", "repair or remove it")
    if top is not None:
        return Repository(top, git_dir, common_dir, top)
    if bare and marker is not None:
        return Repository(marker.parent, git_dir, common_dir, None)
    raise _fault(f"{folder} lies in the git directory {git_dir}", "give the work tree")


def _rev_parse(question: str, git_dir: Path | None, cwd: Path) -> str:
    """One answer a call: an answer may itself hold line ends."""
    out = run_git(["rev-parse", "--path-format=absolute", question], git_dir=git_dir, cwd=cwd)
    return os.fsdecode(out.removesuffix(b"\n"))


def _nearest_marker(folder: Path) -> Path | None:
    device = folder.stat().st_dev
    for parent in (folder, *folder.parents):
        if parent.stat().st_dev != device:  # git stops here too
            return None
        if os.path.lexists(parent / ".git"):
            return parent / ".git"
    return None


_ESCAPE = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_LETTERS = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


def _unquoted(value: bytes) -> bytes:
    """Undoes git's C-style quoting, which it uses only for names that need it."""
    if not value.startswith(b'"'):
        return value

    def character(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code, 8)]) if len(code) == 3 else _LETTERS.get(code, code)

    return _ESCAPE.sub(character, value[1:-1])


def _fault(message: str, hint: str) -> BadInput:
    return BadInput([Fault("source", message, hint)])
