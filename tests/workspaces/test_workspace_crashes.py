"""Workspaces, snapshots and removals in processes that die, and many at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workspaces.git import run_git
from workspaces.places import appearing
from workspaces.removal import remove_workspace
from workspaces.tree import list_tree

Git = Callable[..., str]
NewRun = Callable[[Path], Any]
ROOT = Path(__file__).parents[2]

ACT = """
import json, os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
from workspaces.checkout import Workspace, make_workspace
from workspaces.removal import remove_workspace
from workspaces.candidate import snapshot

action, git_dir, folder, commit, function, calls = sys.argv[1:]
calls_left = int(calls)
module = os
if function == "Popen":
    import subprocess as module
if function:
    real = getattr(module, function)
    def counted(*args, **options):
        global calls_left
        calls_left -= 1
        if calls_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **options)
    if function == "Popen":
        real_init = real.__init__
        def init(self, *args, **options):
            global calls_left
            calls_left -= 1
            if calls_left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            real_init(self, *args, **options)
        real.__init__ = init
    else:
        setattr(module, function, counted)
git_dir, folder = Path(git_dir), Path(folder)
sys.stdin.read()
if action in ("directory", "clone"):
    make_workspace(git_dir, folder, action, commit)
else:
    from workspaces.git import run_git
    tree = run_git(["rev-parse", commit + "^{tree}"], git_dir=git_dir).decode().strip()
    calls_left = int(calls)
    space = Workspace(folder, "clone", commit, tree)
    def take():
        return snapshot(git_dir, space, write_scope=["**"], message="work", keep_ref="tasks/" + folder.name,
                        at=datetime(2026, 3, 1, 12, tzinfo=UTC))
    if action == "take":
        take()
    else:
        remove_workspace(git_dir, space, saved=take())
"""


def start(action: str, run: Any, name: str, function: str = "", calls: int = 0) -> subprocess.Popen[bytes]:
    """A process that acts as soon as its input ends, and kills itself at the given call of ``os.<function>``."""
    arguments = [action, str(run.git_dir), str(run.home / "spaces" / name), run.commit, function, str(calls)]
    return subprocess.Popen(
        [sys.executable, "-c", ACT, *arguments], cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(process: subprocess.Popen[bytes]) -> int:
    with process:
        _, complaints = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), complaints
    return process.returncode


@pytest.fixture
def run(repository: Path, git: Git, new_run: NewRun) -> Any:
    for number in range(100):
        (repository / f"d{number % 5}").mkdir(exist_ok=True)
        (repository / f"d{number % 5}" / f"f{number}").write_text(f"{number}")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "-m", "x")
    return new_run(repository)


MAKING = [("directory", "mkdir", 3), ("directory", "write", 1), ("directory", "write", 60), ("directory", "rename", 1),
          ("clone", "write", 60), ("clone", "rename", 1),
          *[("clone", "Popen", calls) for calls in range(1, 6)]]  # fmt: skip


@pytest.mark.parametrize(("kind", "function", "calls"), MAKING)
def test_a_workspace_whose_making_was_killed_is_made_by_the_next(
    run: Any, git: Git, kind: Any, function: str, calls: int
) -> None:
    assert finish(start(kind, run, "a", function, calls)) == -signal.SIGKILL
    spaces = run.home / "spaces"
    assert not (spaces / "a").exists()

    workspace = run.workspace("a", kind)

    assert os.listdir(spaces) == ["a"]
    files = {str(path.relative_to(workspace.folder)) for path in workspace.folder.rglob("*") if not path.is_dir()}
    assert {path for path in files if not path.startswith(".git/")} == set(run.files(run.commit))
    if kind == "clone":
        assert git(workspace.folder, "status", "--porcelain") == ""
        assert git(workspace.folder, "fsck") == ""


def test_one_that_is_still_being_made_is_not_taken_for_a_dead_one(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    place = (run.home / "spaces").resolve() / "a"
    place.parent.mkdir()
    with appearing(place) as partial:
        (partial / "mine").write_text("x")
        run.workspace("b")
        assert finish(start("directory", run, "a")) == 0
        assert (partial / "mine").exists()
        place.rename(place.with_name("other"))
    assert os.listdir(place) == ["mine"]


SNAPPING = [*[("Popen", calls) for calls in range(1, 6)], ("read", 3), ("read", 120), ("fsync", 1), ("fsync", 3)]


@pytest.mark.parametrize(("function", "calls"), SNAPPING)
def test_a_snapshot_that_was_killed_is_taken_by_the_next(run: Any, function: str, calls: int) -> None:
    workspace = run.workspace("a", "clone")
    for number in range(60):
        (workspace.folder / f"new{number}").write_text("x" * number)
    code = finish(start("take", run, "a", function, calls))
    assert code == -signal.SIGKILL or (function, calls) == ("Popen", 5)
    found = run_git(["for-each-ref", "--format=%(objectname)", "refs/coordinator/tasks"], git_dir=run.git_dir)
    if found:  # whole, or not there
        list_tree(run.git_dir, found.decode().strip())

    candidate = run.take(workspace, ["**"])

    assert len(candidate.changes) == 60
    assert run_git(["fsck", "--full", "--no-dangling"], git_dir=run.git_dir) == b""
    assert run.take(workspace, ["**"]) == candidate


REMOVING = [("rename", 1), ("fsync", 5), ("unlink", 1), ("unlink", 50), ("rmdir", 1), ("rmdir", 3)]


@pytest.mark.parametrize(("function", "calls"), REMOVING)
def test_a_removal_that_was_killed_is_ended_by_the_next(run: Any, function: str, calls: int) -> None:
    workspace = run.workspace("a", "clone")
    (workspace.folder / "new").write_text("x")
    assert finish(start("remove", run, "a", function, calls)) == -signal.SIGKILL

    candidate = run.take(workspace, ["**"]) if workspace.folder.exists() else None
    remove_workspace(run.git_dir, workspace, saved=candidate)

    assert os.listdir(run.home / "spaces") == []
    kept = run_git(["rev-parse", "refs/coordinator/tasks/a"], git_dir=run.git_dir).decode().strip()
    assert run.files(kept)["new"] == b"x"
    # The name is free again.
    run.workspace("a")


def test_sixteen_processes_make_take_and_remove_at_once(run: Any) -> None:
    names = [f"w{number}" for number in range(16)]
    for action in ("clone", "take", "remove"):
        processes = [start(action, run, name) for name in names]
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
            process.stdin = None
        assert [finish(process) for process in processes] == [0] * 16
        if action == "clone":
            for name in names:
                (run.home / "spaces" / name / "new").write_text(name)

    assert os.listdir(run.home / "spaces") == []
    for name in names:
        kept = run_git(["rev-parse", f"refs/coordinator/tasks/{name}"], git_dir=run.git_dir).decode().strip()
        assert run.files(kept)["new"] == name.encode()


def test_everything_of_a_candidate_is_flushed_before_it_is_named(run: Any, tmp_path: Path) -> None:
    workspace = run.workspace()
    (workspace.folder / "new").write_text("x")
    seen: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        seen.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        run.take(workspace)

    own = run.git_dir
    assert seen == [str(own / path) for path in ("objects/pack", "refs/coordinator/tasks", "refs/coordinator", "refs")]
