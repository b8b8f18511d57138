from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from workspaces import TreeReader, fetch_source, pin_source
from workspaces.candidate import Candidate, snapshot
from workspaces.checkout import Workspace, WorkspaceKind, make_workspace
from workspaces.merge import Merge, merge_onto

Git = Callable[..., str]


@pytest.fixture
def git() -> Git:
    """Git as a user runs it: ``git(folder, "commit", ...)`` gives its output."""

    def run(folder: Path, *args: str, **options: Any) -> str:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_AUTHOR_NAME": "Ann",
            "GIT_AUTHOR_EMAIL": "ann@example.org",
            "GIT_COMMITTER_NAME": "Ann",
            "GIT_COMMITTER_EMAIL": "ann@example.org",
        }
        command = ["git", "-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main", *args]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, **options)
        assert done.returncode == 0, done.stderr
        return os.fsdecode(done.stdout).strip()

    return run


@pytest.fixture
def repository(tmp_path: Path, git: Git) -> Path:
    """A small repository with two commits."""
    top = tmp_path / "payments"
    (top / "src").mkdir(parents=True)
    git(top, "init", "--quiet")
    (top / "readme.md").write_bytes(b"first\n")
    git(top, "add", "--all")
    git(top, "commit", "--quiet", "-m", "first")
    (top / "readme.md").write_bytes(b"second\r\n")
    (top / "src" / "run.sh").write_bytes(b"#!/bin/sh\n")
    (top / "src" / "run.sh").chmod(0o755)
    (top / "link").symlink_to("src/run.sh")
    git(top, "add", "--all")
    git(top, "commit", "--quiet", "-m", "second")
    return top


State = dict[str, tuple[int, int, int, bytes | str]]


@pytest.fixture
def state_of() -> Callable[[Path], State]:
    """Everything below a folder that a user could notice: mode, owner, time of change, bytes."""

    def read(root: Path) -> State:
        state: State = {}
        for path in [root, *root.rglob("*")]:
            status = path.lstat()
            content: bytes | str = ""
            if path.is_symlink():
                content = os.readlink(path)
            elif path.is_file():
                content = path.read_bytes()
            state[str(path)] = (status.st_mode, status.st_uid, status.st_mtime_ns, content)
        return state

    return read


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Run:
    """A run on a repository, with its own git directory, and workspaces outside of any."""

    def __init__(self, repository: Path, home: Path) -> None:
        self.home = home
        self.git_dir = home / "git" / "run"
        pin = pin_source(repository)
        fetch_source(pin, self.git_dir)
        self.commit, self.tree = pin.commit, pin.tree

    def workspace(self, name: str = "w", kind: WorkspaceKind = "directory", base: str | None = None) -> Workspace:
        return make_workspace(self.git_dir, self.home / "spaces" / name, kind, base or self.commit)

    def take(
        self, workspace: Workspace, write_scope: Sequence[str] = (), keep_ref: str | None = None, **limits: int
    ) -> Candidate:
        return snapshot(
            self.git_dir,
            workspace,
            write_scope=write_scope,
            message="work",
            keep_ref=keep_ref or f"tasks/{workspace.folder.name}",
            at=NOON,
            **limits,
        )

    def merge(self, head: str, candidate: str, keep_ref: str = "merges/1") -> Merge:
        return merge_onto(self.git_dir, head, candidate, message="merge", keep_ref=keep_ref, at=NOON)

    def files(self, tree: str) -> dict[str, bytes]:
        with TreeReader(self.git_dir, tree) as reader:
            return {file.path: reader.read_bytes(file.path) for file in reader.files()}


@pytest.fixture
def new_run(tmp_path: Path) -> Callable[[Path], Run]:
    return lambda repository: Run(repository, tmp_path / "home")
