"""A child that wants to run something with our rights, or to leave a trace in the user's repository."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workspaces.checkout import checkout_tree
from workspaces.removal import remove_workspace

Git = Callable[..., str]
NewRun = Callable[[Path], Any]
StateOf = Callable[[Path], dict[str, Any]]
HOOKS = ("pre-commit", "post-commit", "post-index-change", "reference-transaction", "post-checkout", "post-merge")


def set_traps(top: Path, marker: Path) -> None:
    """Everything by which a git in this folder can be made to run a program. ``top`` becomes a repository."""
    script = top / "trap.sh"
    script.write_text(f"#!/bin/sh\necho \"$0 $*\" >> '{marker}'\ncat 2>/dev/null\n")
    script.chmod(0o755)
    if not (top / ".git").exists():
        subprocess.run(["git", "init", "--quiet"], cwd=top, check=True)
    with (top / ".git" / "config").open("a") as config:
        config.write(
            f'[core]\n\tfsmonitor = {script}\n\thooksPath = {top}/hooks\n\tsshCommand = {script}\n\teditor = {script}\n'
            f'\tattributesFile = {top}/attributes\n\tpager = {script}\n\talternateRefsCommand = {script}\n'
            f'[diff]\n\texternal = {script}\n[diff "x"]\n\ttextconv = {script}\n\tcommand = {script}\n'
            f'[filter "x"]\n\tclean = {script}\n\tsmudge = {script}\n\tprocess = {script}\n\trequired = true\n'
            f'[merge "x"]\n\tdriver = {script} %A\n[merge]\n\tdefault = x\n[gpg]\n\tprogram = {script}\n'
            f'[commit]\n\tgpgSign = true\n[credential]\n\thelper = "!{script}"\n[include]\n\tpath = {top}/more\n'
        )  # fmt: skip
    (top / ".git" / "info").mkdir(exist_ok=True)
    for attributes in (top / ".gitattributes", top / ".git" / "info" / "attributes", top / "attributes"):
        attributes.write_text("* filter=x diff=x merge=x text eol=crlf ident\n")
    (top / "hooks").mkdir()
    for hook in HOOKS:
        for folder in (top / "hooks", top / ".git" / "hooks"):
            folder.mkdir(exist_ok=True)
            (folder / hook).write_text(script.read_text())
            (folder / hook).chmod(0o755)


@pytest.mark.parametrize("kind", ["directory", "clone"])
def test_nothing_that_a_child_sets_up_is_ever_run(
    repository: Path, git: Git, new_run: NewRun, tmp_path: Path, kind: Any
) -> None:
    marker = tmp_path / "marker"
    run = new_run(repository)
    workspace = run.workspace("a", kind)
    set_traps(workspace.folder, marker)
    (workspace.folder / "readme.md").write_text("mine\r\n")
    other = run.workspace("b", kind)
    (other.folder / "new").write_text("x")

    candidate = run.take(workspace, ["**"])
    merge = run.merge(run.take(other).commit, candidate.commit)
    checkout_tree(run.git_dir, merge.tree, run.home / "check")
    again = run.workspace("c", "clone", base=merge.commit)
    run.take(again)

    assert not marker.exists()
    assert run.files(merge.tree)["readme.md"] == b"mine\r\n"
    assert (run.home / "check" / "readme.md").read_bytes() == b"mine\r\n"
    # Control: the traps are real. A status, a diff and an add, with hooks switched off, run them.
    commands = [["status"], ["-c", "core.fsmonitor=false", "diff"]] if kind == "clone" else []
    for command in [*commands, ["-c", "core.fsmonitor=false", "add", "-A"]]:
        marker.unlink(missing_ok=True)
        subprocess.run(["git", "-c", "core.hooksPath=/dev/null", *command], cwd=workspace.folder, capture_output=True)
        assert marker.exists(), command
    marker.unlink()
    remove_workspace(run.git_dir, workspace, saved=candidate)
    assert not marker.exists()


def test_a_merge_driver_that_the_trees_ask_for_is_not_run(
    repository: Path, git: Git, new_run: NewRun, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    (repository / ".gitattributes").write_text("* merge=x\n")
    (repository / "f").write_text("".join(f"{n}\n" for n in range(20)))
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "-m", "x")
    git(repository, "config", "merge.x.driver", f"touch {marker}")
    run = new_run(repository)
    made = []
    for name, line in (("a", "0\n"), ("b", "19\n")):
        workspace = run.workspace(name)
        (workspace.folder / "f").write_text((workspace.folder / "f").read_text().replace(line, f"new{line}", 1))
        made.append(run.take(workspace))

    merge = run.merge(made[0].commit, made[1].commit)

    assert not marker.exists()
    assert merge.conflicts == ()
    assert run.files(merge.tree)["f"].startswith(b"new0\n")
    # Control: in the user's repository the same merge runs the driver.
    for number, candidate in enumerate(made):
        git(repository, "fetch", "--quiet", str(run.git_dir), f"{candidate.commit}:refs/heads/c{number}")
    git(repository, "checkout", "--quiet", "c0")
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a", "merge", "--quiet", "c1"], cwd=repository)
    assert marker.exists()


@pytest.mark.parametrize("packed", [False, True])
def test_the_users_repository_stays_as_it_is_to_the_last_time_of_change(
    repository: Path, git: Git, new_run: NewRun, state_of: StateOf, packed: bool
) -> None:
    old = git(repository, "show", "HEAD~1:readme.md")
    (repository / "both").write_text("1\n" * 9 + "x\n" * 9 + "2\n" * 9)
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "-m", "both")
    # What children and merges will make is there already: writing it again would give it a new time.
    future = (repository / "both").read_text()
    for text in (future.replace("1", "one"), future.replace("2", "two"),
                 future.replace("1", "one").replace("2", "two")):  # fmt: skip
        (repository / "both").write_text(text)
        git(repository, "add", "--all")
        git(repository, "commit", "--quiet", "-m", "future")
    git(repository, "reset", "--quiet", "--hard", "HEAD~3")
    if packed:
        git(repository, "repack", "--quiet", "-a", "-d")
    for path in (repository / ".git" / "objects").rglob("*"):
        os.utime(path, (1_600_000_000, 1_600_000_000))
    before = state_of(repository)
    run = new_run(repository)

    made = []
    for name, (past, now) in {"a": ("1", "one"), "b": ("2", "two")}.items():
        workspace = run.workspace(name, "clone")
        (workspace.folder / "both").write_text((workspace.folder / "both").read_text().replace(past, now))
        (workspace.folder / "copy").write_text(old + "\n")
        git(workspace.folder, "commit", "--quiet", "--all", "-m", "x")
        git(workspace.folder, "gc", "--quiet", "--prune=now")
        made.append(run.take(workspace, ["**"]))
        remove_workspace(run.git_dir, workspace, saved=made[-1])
    # Control: git's own way of merging in the run's git directory does touch the user's files.
    subprocess.run(
        ["git", f"--git-dir={run.git_dir}", "merge-tree", "--write-tree", made[0].commit, made[1].commit],
        capture_output=True, check=True,
    )  # fmt: skip
    assert state_of(repository) != before
    for path in (repository / ".git" / "objects").rglob("*"):
        os.utime(path, (1_600_000_000, 1_600_000_000))
    assert state_of(repository) == before
    merge = run.merge(made[0].commit, made[1].commit)
    checkout_tree(run.git_dir, merge.tree, run.home / "check")

    assert run.files(merge.tree)["both"] == future.replace("1", "one").replace("2", "two").encode()
    assert state_of(repository) == before
