"""What may be deleted, and how."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import BadInput, Refused
from workspaces.git import run_git
from workspaces.removal import has_unsaved, remove_workspace
from workspaces.trash import delete_folder

Git = Callable[..., str]
NewRun = Callable[[Path], Any]
StateOf = Callable[[Path], dict[str, Any]]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def ignoring(repository: Path, git: Git) -> Path:
    (repository / ".gitignore").write_text("*.log\n")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "-m", "x")
    return repository


@pytest.mark.parametrize("kind", ["directory", "clone"])
def test_an_untouched_workspace_holds_nothing_and_goes(repository: Path, new_run: NewRun, kind: Any) -> None:
    run = new_run(repository)
    workspace = run.workspace("a", kind)
    (workspace.folder / "empty" / "deep").mkdir(parents=True)
    (workspace.folder / "readme.md").unlink()
    os.mkfifo(workspace.folder / "pipe")

    assert not has_unsaved(run.git_dir, workspace, None)
    remove_workspace(run.git_dir, workspace, saved=None)

    assert os.listdir(run.home / "spaces") == []
    assert not has_unsaved(run.git_dir, workspace, None)
    remove_workspace(run.git_dir, workspace, saved=None)


def changed(top: Path) -> str:
    (top / "readme.md").write_bytes(b"SECOND\r\n")
    return "readme.md"


def untracked(top: Path) -> str:
    (top / "new\nfile").write_text("x")
    return "new\nfile"


def ignored(top: Path) -> str:
    (top / "x.log").write_text("x")
    return "x.log"


def mode(top: Path) -> str:
    (top / "readme.md").chmod(0o755)
    return "readme.md"


def link(top: Path) -> str:
    (top / "link").unlink()
    (top / "link").symlink_to("elsewhere")
    return "link"


def nested(top: Path) -> str:
    (top / "sub").mkdir()
    subprocess.run(["git", "init", "--quiet"], cwd=top / "sub", check=True)
    return "sub/.git"


def moved_away(top: Path) -> str:
    (top / "readme.md").rename(top / "elsewhere.md")
    return "elsewhere.md"


@pytest.mark.parametrize("work", [changed, untracked, ignored, mode, link, nested, moved_away])
@pytest.mark.parametrize("kind", ["directory", "clone"])
def test_a_workspace_with_unsaved_work_stays_as_it_is(
    ignoring: Path, git: Git, new_run: NewRun, state_of: StateOf, kind: Any, work: Callable[[Path], str]
) -> None:
    run = new_run(ignoring)
    workspace = run.workspace("a", kind)
    (workspace.folder / "saved").write_text("x")
    saved = run.take(workspace)
    path = work(workspace.folder)
    if kind == "clone" and work is not nested:
        git(workspace.folder, "add", "--all", "--force")
        git(workspace.folder, "commit", "--quiet", "-m", "so that its own status is clean")
        assert git(workspace.folder, "status", "--porcelain") == ""
    before = state_of(workspace.folder)

    assert has_unsaved(run.git_dir, workspace, saved)
    with pytest.raises(Refused) as refusal:
        remove_workspace(run.git_dir, workspace, saved=saved)

    assert path in str(refusal.value)
    assert state_of(workspace.folder) == before
    with pytest.raises(Refused, match="saved"):
        remove_workspace(run.git_dir, workspace, saved=None)


@pytest.mark.parametrize("work", [changed, untracked, ignored, mode, link, moved_away])
def test_a_workspace_goes_when_all_of_it_is_saved_ignored_files_too(
    ignoring: Path, new_run: NewRun, work: Callable[[Path], str]
) -> None:
    run = new_run(ignoring)
    workspace = run.workspace("a", "clone")
    path = work(workspace.folder)
    data = os.fsencode(os.readlink(workspace.folder / path)) if work is link else (workspace.folder / path).read_bytes()

    saved = run.take(workspace, ["**"])
    remove_workspace(run.git_dir, workspace, saved=saved)

    assert not workspace.folder.exists()
    assert run.files(saved.commit)[path] == data


def test_a_candidate_that_is_not_really_kept_saves_nothing(ignoring: Path, new_run: NewRun) -> None:
    run = new_run(ignoring)
    workspace = run.workspace()
    (workspace.folder / "new").write_text("x")
    saved = run.take(workspace)

    with pytest.raises((Refused, BadInput)):
        remove_workspace(run.git_dir, workspace, saved=replace(saved, tree="1" * 40))
    for pack in (run.git_dir / "objects" / "pack").iterdir():
        pack.unlink()
    with pytest.raises((Refused, BadInput)):
        remove_workspace(run.git_dir, workspace, saved=saved)

    assert (workspace.folder / "new").exists()


def test_many_unsaved_files_are_not_named_without_end(ignoring: Path, new_run: NewRun) -> None:
    run = new_run(ignoring)
    workspace = run.workspace()
    for number in range(100):
        (workspace.folder / f"f{number:02}").write_text("x")
    with pytest.raises(Refused, match="f19; and more$"):
        remove_workspace(run.git_dir, workspace, saved=None)


def test_the_base_is_the_recorded_one_whatever_the_child_committed_since(
    ignoring: Path, git: Git, new_run: NewRun
) -> None:
    run = new_run(ignoring)
    workspace = run.workspace("a", "clone")
    (workspace.folder / "new").write_text("x")
    git(workspace.folder, "add", "--all")
    git(workspace.folder, "commit", "--quiet", "-m", "C1")
    git(workspace.folder, "update-ref", "refs/coordinator/base", "HEAD")
    # The child dies; the next holder looks at a status that is clean.
    assert git(workspace.folder, "status", "--porcelain") == ""

    assert has_unsaved(run.git_dir, workspace, None)
    saved = run.take(workspace)
    assert [change.path for change in saved.changes] == ["new"]
    remove_workspace(run.git_dir, workspace, saved=saved)

    parents = run_git(["rev-list", "--parents", "-1", "refs/coordinator/tasks/a"], git_dir=run.git_dir).decode().split()
    assert parents == [saved.commit, run.commit]


@pytest.mark.parametrize("trouble", ["hook", "signing", "lock"])
def test_saving_does_not_depend_on_what_blocks_a_commit(
    ignoring: Path, git: Git, new_run: NewRun, trouble: str
) -> None:
    run = new_run(ignoring)
    workspace = run.workspace("a", "clone")
    own = workspace.folder / ".git"
    (workspace.folder / "new").write_text("x")
    for place in (own, ignoring / ".git"):
        if trouble == "hook":
            (place / "hooks").mkdir(exist_ok=True)
            (place / "hooks" / "pre-commit").write_text("#!/bin/sh\nexit 1\n")
            (place / "hooks" / "pre-commit").chmod(0o755)
        elif trouble == "signing":
            git(place.parent, "config", "commit.gpgSign", "true")
            git(place.parent, "config", "gpg.program", "/nonexistent")
        else:
            (place / "index.lock").touch()
    blocked = subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a", "commit", "-am", "x"],
                             cwd=workspace.folder, capture_output=True)  # fmt: skip
    assert blocked.returncode != 0  # control

    saved = run.take(workspace)
    remove_workspace(run.git_dir, workspace, saved=saved)

    assert run.files(saved.tree)["new"] == b"x"


def test_links_are_deleted_and_not_followed(
    repository: Path, new_run: NewRun, tmp_path: Path, state_of: StateOf
) -> None:
    run = new_run(repository)
    (tmp_path / "outside" / "deep").mkdir(parents=True)
    (tmp_path / "outside" / "deep" / "precious").write_text("x")
    before = state_of(tmp_path / "outside")
    workspace = run.workspace("a", "clone")
    for folder in (workspace.folder / ".git", workspace.folder / ".git" / "deep"):
        folder.mkdir(exist_ok=True)
        (folder / "to-folder").symlink_to(tmp_path / "outside")
        (folder / "to-file").symlink_to(tmp_path / "outside" / "deep" / "precious")
        os.link(tmp_path / "outside" / "deep" / "precious", folder / "hard")

    remove_workspace(run.git_dir, workspace, saved=None)

    assert not workspace.folder.exists()
    assert state_of(tmp_path / "outside") == before


def test_a_workspace_that_a_link_stands_for_is_left_alone(repository: Path, new_run: NewRun, state_of: StateOf) -> None:
    run = new_run(repository)
    workspace = run.workspace()
    delete_folder(workspace.folder)
    workspace.folder.symlink_to(repository)
    before = state_of(repository)

    with pytest.raises(Refused, match="cannot be entered"):
        remove_workspace(run.git_dir, workspace, saved=None)

    assert state_of(repository) == before


def test_a_tree_three_thousand_folders_deep_goes(
    repository: Path, new_run: NewRun, request: pytest.FixtureRequest
) -> None:
    run = new_run(repository)
    request.addfinalizer(lambda: delete_folder(run.home))
    workspace = run.workspace()
    fd = os.open(workspace.folder, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=fd)
        os.mkdir("e", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)

    with pytest.raises(Refused, match="stays"):
        remove_workspace(run.git_dir, workspace, saved=None)
    remove_workspace(run.git_dir, workspace, saved=run.take(workspace))

    assert os.listdir(run.home / "spaces") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_folders_that_their_owner_may_not_write_go(tmp_path: Path) -> None:
    (tmp_path / "outer" / "w" / "a" / "b").mkdir(parents=True)
    for folder in (tmp_path / "outer" / "w" / "a" / "b", tmp_path / "outer" / "w" / "a", tmp_path / "outer" / "w"):
        (folder / "f").write_text("x")
        (folder / "f").chmod(0)
        folder.chmod(0o500 if folder.name != "b" else 0)
    for path in [tmp_path / "outer", *(tmp_path / "outer").rglob("*")]:
        os.chown(path, 65534, 65534)
    code = (
        "import os; from pathlib import Path; from workspaces.trash import delete_folder\n"
        f"os.chdir({str(tmp_path / 'outer')!r}); os.setgid(65534); os.setuid(65534)\n"
        "try:\n    import shutil; shutil.rmtree('w')\nexcept PermissionError:\n    print('control')\n"
        "delete_folder(Path('w'))\n"
    )

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("control\n", "")
    assert os.listdir(tmp_path / "outer") == []


def test_only_its_own_folder_goes(repository: Path, new_run: NewRun, state_of: StateOf) -> None:
    run = new_run(repository)
    spaces = [run.workspace(name) for name in ("a", "a b", "A", "aa")]
    before = [state_of(workspace.folder) for workspace in spaces[1:]]

    remove_workspace(run.git_dir, spaces[0], saved=None)

    assert [state_of(workspace.folder) for workspace in spaces[1:]] == before
    assert sorted(os.listdir(run.home / "spaces")) == ["A", "a b", "aa"]
