"""What becomes of a child's files."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import Refused
from workspaces import candidate as candidate_module
from workspaces.candidate import snapshot
from workspaces.changes import Change, changes_between, outside_scope
from workspaces.checkout import checkout_tree
from workspaces.git import run_git
from workspaces.trash import delete_folder

Git = Callable[..., str]
NewRun = Callable[[Path], Any]
StateOf = Callable[[Path], dict[str, Any]]
KINDS = pytest.mark.parametrize("kind", ["directory", "clone"])
BINARY = bytes(range(256)) * 50


@pytest.fixture
def scoped(repository: Path, git: Git) -> Path:
    """A repository with files in and outside of the scope ``in/``."""
    for path in ("in/a", "in/old", "out/deleted", "out/moved", "out/reverted", "out/program", "out/link-to-be"):
        (repository / path).parent.mkdir(exist_ok=True)
        (repository / path).write_text(f"{path}\n" * 20)
    (repository / ".gitignore").write_text("*.log\nbuild/\n!keep.log\n")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "-m", "files")
    return repository


def by_path(changes: tuple[Change, ...]) -> dict[str, str]:
    return {change.path: change.status for change in changes}


@KINDS
def test_every_way_out_of_the_write_scope_is_named(scoped: Path, git: Git, new_run: NewRun, kind: Any) -> None:
    run = new_run(scoped)
    workspace = run.workspace("a", kind)
    top = workspace.folder
    if kind == "clone":
        git(top, "rm", "--quiet", "out/deleted")
        git(top, "mv", "out/moved", "in/moved")
        (top / "out" / "reverted").write_text("for a moment")
        git(top, "commit", "--quiet", "-am", "for a moment")
        (top / "out" / "reverted").write_text("out/reverted\n" * 20)
    else:
        (top / "out" / "deleted").unlink()
        (top / "out" / "moved").rename(top / "in" / "moved")
    (top / "untracked").write_text("x")
    (top / "out" / "link-to-be").unlink()
    (top / "out" / "link-to-be").symlink_to("deleted")
    (top / "new-link").symlink_to("in/a")
    (top / "out" / "program").chmod(0o755)
    (top / "in" / "binary").write_bytes(BINARY)
    (top / "in" / "a").write_text("mine")
    (top / "in" / "old").unlink()

    candidate = run.take(workspace, ["in/"])

    if kind == "clone":  # control: what the child's own git tells is less
        told = git(top, "diff", "--name-only", "HEAD").split()
        assert not {"out/deleted", "out/moved", "untracked", "new-link"} & set(told)
    assert by_path(candidate.changes) == {
        "in/a": "modified", "in/binary": "added", "in/moved": "added", "in/old": "deleted", "new-link": "added",
        "out/deleted": "deleted", "out/link-to-be": "type", "out/moved": "deleted", "out/program": "modified",
        "untracked": "added",
    }  # fmt: skip
    assert outside_scope(candidate.changes, ["in/"]) == [
        "new-link", "out/deleted", "out/link-to-be", "out/moved", "out/program", "untracked"
    ]  # fmt: skip
    assert outside_scope(candidate.changes, ["**"]) == []
    program = next(change for change in candidate.changes if change.path == "out/program")
    assert (program.old_mode, program.new_mode, program.old_id) == ("100644", "100755", program.new_id)
    files = run.files(candidate.commit)
    assert files["in/binary"] == BINARY
    assert files["out/reverted"] == b"out/reverted\n" * 20
    checkout_tree(run.git_dir, candidate.tree, run.home / "check")
    assert (run.home / "check" / "in" / "binary").read_bytes() == BINARY
    assert os.readlink(run.home / "check" / "new-link") == "in/a"


def test_a_path_outside_the_scope_is_shown_even_if_no_text_can_hold_it(scoped: Path, new_run: NewRun) -> None:
    run = new_run(scoped)
    workspace = run.workspace()
    (workspace.folder / "caf\udce9").write_text("x")

    changes = run.take(workspace).changes

    assert [change.path for change in changes] == ["caf\udce9"]
    assert outside_scope(changes, ["in/"]) == ["caf\\udce9"]


@KINDS
def test_ignored_files_are_taken_within_the_scope_and_listed_outside_of_it(
    scoped: Path, new_run: NewRun, kind: Any
) -> None:
    run = new_run(scoped)
    workspace = run.workspace("a", kind)
    for path in ("run.log", "keep.log", "build/deep/o1", "build/deep/o2", "in/build/report", "in/x.log", "out/y.log"):
        (workspace.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace.folder / path).write_text("x")

    candidate = run.take(workspace, ["in/"])

    assert by_path(candidate.changes) == {"keep.log": "added", "in/build/report": "added", "in/x.log": "added"}
    assert candidate.left_out == ("build/", "out/y.log", "run.log")


def test_a_tracked_file_is_taken_though_it_is_ignored(repository: Path, git: Git, new_run: NewRun) -> None:
    (repository / "kept.log").write_text("x")
    (repository / ".gitignore").write_text("*.log\n")
    git(repository, "add", "--all", "--force")
    git(repository, "commit", "--quiet", "-m", "x")
    run = new_run(repository)
    workspace = run.workspace()
    (workspace.folder / "kept.log").write_text("y")

    assert by_path(run.take(workspace).changes) == {"kept.log": "modified"}


def test_what_the_child_wants_to_be_ignored_is_listed_however_much_it_is(scoped: Path, new_run: NewRun) -> None:
    run = new_run(scoped)
    workspace = run.workspace()
    (workspace.folder / ".gitignore").write_text("*\n")
    for number in range(1100):
        (workspace.folder / f"f{number:04}").write_text("x")

    candidate = run.take(workspace, ["in/"])

    assert outside_scope(candidate.changes, ["in/"]) == [".gitignore"]
    assert len(candidate.left_out) == 1001
    assert (candidate.left_out[0], candidate.left_out[-1]) == ("f0000", "... and 100 more")


@KINDS
def test_files_become_folders_and_folders_files(scoped: Path, new_run: NewRun, kind: Any) -> None:
    run = new_run(scoped)
    workspace = run.workspace("a", kind)
    top = workspace.folder
    (top / "readme.md").unlink()
    (top / "readme.md" / "deep").mkdir(parents=True)
    (top / "readme.md" / "deep" / "f").write_text("x")
    shutil.rmtree(top / "out")
    (top / "out").write_text("a file")
    shutil.rmtree(top / "src")
    (top / "src").symlink_to("in")
    (top / "empty" / "deep").mkdir(parents=True)

    candidate = run.take(workspace)

    files = run.files(candidate.tree)
    assert set(files) == {".gitignore", "in/a", "in/old", "link", "out", "readme.md/deep/f", "src"}
    assert files["src"] == b"in"


def test_a_change_of_line_ends_alone_is_a_change(repository: Path, new_run: NewRun) -> None:
    run = new_run(repository)
    workspace = run.workspace()
    (workspace.folder / ".gitattributes").write_text("* text=auto eol=lf\n")
    (workspace.folder / "readme.md").write_bytes(b"second\n")

    candidate = run.take(workspace)

    assert by_path(candidate.changes) == {".gitattributes": "added", "readme.md": "modified"}
    assert run.files(candidate.tree)["readme.md"] == b"second\n"


def test_a_submodule_stays_unless_it_is_touched(repository: Path, git: Git, new_run: NewRun, tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "library")
    git(tmp_path / "library", "commit", "--quiet", "--allow-empty", "-m", "x")
    (repository / ".gitignore").write_text("*.log\n")
    for name in ("kept", "removed", "filled"):
        git(repository, "submodule", "--quiet", "add", str(tmp_path / "library"), name)
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "-m", "submodules")
    run = new_run(repository)
    workspace = run.workspace()
    (workspace.folder / "removed").rmdir()
    (workspace.folder / "filled" / "f").write_text("x")
    (workspace.folder / "kept" / "x.log").write_text("x")

    candidate = run.take(workspace)

    assert by_path(candidate.changes) == {"filled": "deleted", "filled/f": "added", "removed": "deleted"}
    assert {change.old_mode for change in candidate.changes} == {"160000", "000000"}


def test_the_same_files_give_the_same_commit_and_another_is_refused(scoped: Path, new_run: NewRun) -> None:
    run = new_run(scoped)
    workspace = run.workspace()
    (workspace.folder / "in" / "a").write_text("mine")

    first = run.take(workspace, keep_ref="t/1")

    assert run.take(workspace, keep_ref="t/1") == first
    twin = run.workspace("twin", "clone")
    (twin.folder / "in" / "a").write_text("mine")
    assert run.take(twin, keep_ref="t/2") == first
    (workspace.folder / "in" / "a").write_text("other")
    with pytest.raises(Refused):
        run.take(workspace, keep_ref="t/1")
    with pytest.raises(Refused):
        run.take(workspace, keep_ref="t/1/deeper")
    kept = run_git(["rev-parse", "refs/coordinator/t/1"], git_dir=run.git_dir).decode().strip()
    assert kept == first.commit
    assert run_git(["log", "-1", "--format=%an <%ae> %aI %cI%n%B", kept], git_dir=run.git_dir).decode().strip() == (
        "coordinator <coordinator@localhost> 2026-03-01T12:00:00+00:00 2026-03-01T12:00:00+00:00\nwork"
    )


@pytest.mark.parametrize("name", ["", "-x", "a//b", "../x", "a..b", "a/", "/a", "a.lock", "a/.b", "a b", "a\n", "@{u}"])
def test_what_is_no_name_for_a_ref_is_refused(repository: Path, new_run: NewRun, name: str) -> None:
    run = new_run(repository)
    at = datetime(2026, 3, 1, tzinfo=UTC)
    with pytest.raises(ValueError, match="cannot name a ref"):
        snapshot(run.git_dir, run.workspace(), write_scope=[], message="x", keep_ref=name, at=at)


@pytest.mark.parametrize("message", ["", "two\n\nparts\n", "nul\0", "half \udce9", "from\ndata <<X\ndone\n", "ünï"])
def test_any_message_is_kept_as_data(repository: Path, new_run: NewRun, message: str) -> None:
    run = new_run(repository)
    at = datetime(2026, 3, 1, tzinfo=UTC)
    made = snapshot(run.git_dir, run.workspace(), write_scope=[], message=message, keep_ref="t", at=at)

    assert made.tree == run.tree
    assert run_git(["rev-parse", f"{made.commit}^"], git_dir=run.git_dir).decode().strip() == run.commit


# What is refused, by name.


def fifo(top: Path) -> str:
    os.mkfifo(top / "in" / "pipe")
    return "in/pipe is a fifo"


def fifo_for_git(top: Path) -> str:
    (top / "in" / "deep").mkdir()
    os.mkfifo(top / "in" / "deep" / ".gitignore")
    return "in/deep/.gitignore is a fifo"


def tracked_fifo(top: Path) -> str:
    (top / "in" / "a").unlink()
    os.mkfifo(top / "in" / "a")
    return "in/a is a fifo"


def a_socket(top: Path) -> str:
    here = os.getcwd()
    os.chdir(top)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("s")
    finally:
        os.chdir(here)
    return "s is a socket"


def nested_repository(top: Path) -> str:
    (top / "in" / "nested").mkdir()
    subprocess.run(["git", "init", "--quiet"], cwd=top / "in" / "nested", check=True)
    return "in/nested is a repository that nobody declared"


def nested_worktree(top: Path) -> str:
    (top / "out" / "tree").mkdir()
    (top / "out" / "tree" / ".git").write_text("gitdir: /nowhere\n")
    return "out/tree is a repository that nobody declared"


def absolute_link(top: Path) -> str:
    (top / "in" / "link").symlink_to("/etc/passwd")
    return "in/link is a link that leaves the workspace, to /etc/passwd"


def absolute_link_to_itself(top: Path) -> str:
    (top / "in" / "link").symlink_to(top / "in")
    return "in/link is a link that leaves the workspace"


def relative_link(top: Path) -> str:
    (top / "in" / "link").symlink_to("../../elsewhere")
    return "in/link is a link that leaves the workspace"


def link_through_a_link(top: Path) -> str:
    (top / "in" / "up").symlink_to("..")
    (top / "in" / "link").symlink_to("up/../elsewhere")
    return "in/link is a link that leaves the workspace"


def redirected_link(top: Path) -> str:
    shutil.rmtree(top / "src")
    (top / "src").symlink_to(".")
    (top / "link").unlink()
    (top / "link").symlink_to("src/../x")
    return "link is a link that leaves the workspace"


def hard_link(top: Path) -> str:
    (top.parent / "secret").write_text("secret")
    os.link(top.parent / "secret", top / "in" / "hard")
    return "in/hard is a hard link to a file outside of the workspace"


def git_name(name: str) -> Callable[[Path], str]:
    def make(top: Path) -> str:
        (top / "in" / name).mkdir()
        (top / "in" / name / "config").write_text("[core]\n")
        return "has a name that git keeps for itself"

    make.__name__ = name
    return make


def linked_modules(top: Path) -> str:
    (top / ".gitmodules").symlink_to("in/a")
    return ".gitmodules is a link with a name that git reads"


def large(top: Path) -> str:
    (top / "in" / "large").write_bytes(b"x" * 5001)
    return "in/large holds 5,001 bytes, more than 5,000"


def large_hole(top: Path) -> str:
    with (top / "in" / "a").open("r+b") as file:
        file.truncate(1 << 40)
    return "in/a holds 1,099,511,627,776 bytes"


def much(top: Path) -> str:
    for number in range(5):
        (top / "in" / f"f{number}").write_bytes(b"x" * 4000)
    return "hold 20,000 bytes, more than 18,000"


def many(top: Path) -> str:
    for number in range(31):
        (top / "in" / f"f{number}").touch()
    return "31 files were added or modified, more than 30"


@pytest.mark.parametrize(
    "harm",
    [fifo, fifo_for_git, tracked_fifo, a_socket, nested_repository, nested_worktree, absolute_link,
     absolute_link_to_itself, relative_link, link_through_a_link, redirected_link, hard_link, git_name(".GIT"),
     git_name("git~1"), git_name(".git "), git_name(".gi\u200ct"), git_name(".git:x"), git_name("a\\.git"),
     linked_modules, large, large_hole, much, many],
)  # fmt: skip
@KINDS
def test_what_cannot_be_taken_is_refused_by_name(
    scoped: Path, new_run: NewRun, state_of: StateOf, kind: Any, harm: Callable[[Path], str]
) -> None:
    run = new_run(scoped)
    workspace = run.workspace("a", kind)
    words = harm(workspace.folder)
    before = state_of(run.git_dir)

    with pytest.raises(Refused) as refusal:
        run.take(workspace, ["**"], max_files=30, max_bytes=18_000, max_file_bytes=5_000)

    assert words in str(refusal.value)
    assert state_of(run.git_dir) == before


def test_several_faults_are_named_at_once_but_not_without_end(scoped: Path, new_run: NewRun) -> None:
    run = new_run(scoped)
    workspace = run.workspace()
    for number in range(50):
        os.mkfifo(workspace.folder / f"p{number:02}")
    with pytest.raises(Refused, match=r"p00 is a fifo; p01 .*; and 30 more$"):
        run.take(workspace)


@KINDS
def test_what_looks_alike_but_does_no_harm_is_taken(scoped: Path, new_run: NewRun, kind: Any) -> None:
    run = new_run(scoped)
    workspace = run.workspace("a", kind)
    top = workspace.folder
    (top / "in" / "self").symlink_to("self")
    (top / "in" / "dangling").symlink_to("nowhere/at/all")
    (top / "in" / "up").symlink_to("..")
    (top / "in" / "round").symlink_to("up/in/up/out/../in/a")
    (top / "in" / "exact").symlink_to("../.")
    os.link(top / "in" / "a", top / "in" / "hard")
    for name in (".gitkeep", ".github", "git", "git~2", ".gitmodules", "..git", ".git-x"):
        (top / "in" / name).write_text("x")
    (top / "in" / "hole").touch()
    os.truncate(top / "in" / "hole", 1 << 20)
    # Left out with the ignored folder that it is in.
    (top / "build" / "vendored" / ".git").mkdir(parents=True)
    (top / "build" / "vendored" / ".git" / "HEAD").write_text("x")
    os.mkfifo(top / "build" / "pipe")
    (top / "build" / "python").symlink_to("/usr/bin/python3")

    candidate = run.take(workspace, ["in/"])

    assert candidate.left_out == ("build/",)
    files = run.files(candidate.tree)
    assert files["in/hard"] == files["in/a"]
    assert files["in/hole"] == bytes(1 << 20)
    assert len(candidate.changes) == 5 + 1 + 7 + 1


@KINDS
def test_links_of_the_base_may_leave_it_as_they_always_did(
    repository: Path, git: Git, new_run: NewRun, kind: Any
) -> None:
    (repository / "absolute").symlink_to("/etc")
    (repository / "sibling").symlink_to("../sibling")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "-m", "links")
    run = new_run(repository)
    workspace = run.workspace("a", kind)
    (workspace.folder / "new").write_text("x")

    assert by_path(run.take(workspace).changes) == {"new": "added"}
    (workspace.folder / "absolute").unlink()
    (workspace.folder / "absolute").symlink_to("/root")
    with pytest.raises(Refused, match="absolute is a link that leaves the workspace, to /root"):
        run.take(workspace, keep_ref="t2")


def test_an_unchanged_link_that_a_new_one_sends_out_is_refused(repository: Path, git: Git, new_run: NewRun) -> None:
    (repository / "deep" / "er").mkdir(parents=True)
    (repository / "deep" / "er" / "f").write_text("x")
    (repository / "innocent").symlink_to("deep/er/../../readme.md")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "-m", "links")
    run = new_run(repository)
    workspace = run.workspace()
    shutil.rmtree(workspace.folder / "deep" / "er")
    (workspace.folder / "deep" / "er").symlink_to("..")

    with pytest.raises(Refused, match="innocent is a link that leaves the workspace"):
        run.take(workspace)


def test_a_folder_that_is_gone_or_stands_for_another_is_refused(
    scoped: Path, new_run: NewRun, state_of: StateOf
) -> None:
    run = new_run(scoped)
    workspace = run.workspace()
    shutil.rmtree(workspace.folder)
    with pytest.raises(Refused, match="cannot be entered"):
        run.take(workspace)

    workspace.folder.symlink_to(scoped)
    before = state_of(scoped)
    with pytest.raises(Refused, match="cannot be entered"):
        run.take(workspace)
    assert state_of(scoped) == before


WAYS = {
    "written": lambda top: (top / "in" / "a").write_bytes(b"y" * 100),
    "appended": lambda top: os.truncate(top / "in" / "a", 5),
    "same size and time": lambda top: _rewritten(top / "in" / "a"),
    "added": lambda top: (top / "in" / "new").write_text("y"),
    "removed": lambda top: (top / "in" / "a").unlink(),
    "removed last": lambda top: (top / "zzz").unlink(),
    "made a link": lambda top: _linked(top / "in" / "a"),
    "made executable": lambda top: (top / "in" / "a").chmod(0o755),
    "folder moved": lambda top: _moved(top / "in"),
}


def _rewritten(path: Path) -> None:
    status = path.stat()
    path.write_bytes(b"z" * status.st_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _linked(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def _moved(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.mkdir()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("moment", range(3))
def test_files_that_change_while_they_are_read_are_refused(
    scoped: Path, new_run: NewRun, monkeypatch: pytest.MonkeyPatch, way: str, moment: int
) -> None:
    run = new_run(scoped)
    workspace = run.workspace()
    (workspace.folder / "in" / "a").write_text("mine")
    (workspace.folder / "zzz").write_text("mine")
    real = candidate_module.walk
    walks: list[int] = []

    def walk(top: Path, *within: Any) -> Any:
        walks.append(len(walks))
        for entry, folder_fd in real(top, *within):
            yield entry, folder_fd
            # After the file was passed in this walk; the last walk could only be too late.
            if entry.path == "zzz" and walks[-1] == moment and moment < 2:
                WAYS[way](top)
            if entry.path == ".gitignore" and walks[-1] == moment == 2:
                WAYS[way](top)

    monkeypatch.setattr(candidate_module, "walk", walk)
    with pytest.raises(Refused, match=r"changed|vanished|moved"):
        run.take(workspace)
    monkeypatch.undo()

    assert run_git(["for-each-ref", "refs/coordinator/tasks"], git_dir=run.git_dir) == b""
    if way != "made a link":
        run.take(workspace)


def deep_chain(top: Path, depth: int) -> None:
    """A file below ``depth`` folders."""
    fd = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)


@pytest.mark.parametrize("inside", [".", "build"])
def test_a_tree_three_thousand_folders_deep_is_taken_and_checked_out(
    scoped: Path, new_run: NewRun, inside: str, request: pytest.FixtureRequest
) -> None:
    run = new_run(scoped)
    request.addfinalizer(lambda: delete_folder(run.home))  # what pytest uses for it would fail
    workspace = run.workspace()
    (workspace.folder / inside).mkdir(exist_ok=True)
    deep_chain(workspace.folder / inside, 3000)

    candidate = run.take(workspace)

    if inside == "build":
        assert (candidate.changes, candidate.left_out) == ((), ("build/",))
        return
    assert by_path(candidate.changes) == {"d/" * 3000 + "f": "added"}
    checkout_tree(run.git_dir, candidate.tree, run.home / "check")
    again = run.workspace("b", base=candidate.commit)
    assert run.take(again).tree == candidate.tree


def test_a_change_between_two_trees_shows_both_paths_of_a_rename_and_submodules(
    repository: Path, git: Git, new_run: NewRun
) -> None:
    old = git(repository, "rev-parse", "HEAD^{tree}")
    git(repository, "mv", "src/run.sh", "src/walk.sh")
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},lib")
    git(repository, "commit", "--quiet", "-m", "x")
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{'2' * 40},lib")
    git(repository, "commit", "--quiet", "-m", "y")
    run = new_run(repository)
    between = git(repository, "rev-parse", "HEAD~1")

    assert by_path(changes_between(run.git_dir, old, between)) == {
        "lib": "added", "src/run.sh": "deleted", "src/walk.sh": "added"
    }  # fmt: skip
    assert changes_between(run.git_dir, between, run.commit) == (
        Change("lib", "modified", "160000", "160000", "1" * 40, "2" * 40),
    )
    assert changes_between(run.git_dir, run.commit, run.tree) == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_what_its_owner_cannot_read_is_refused_by_name(scoped: Path, new_run: NewRun) -> None:
    run = new_run(scoped)
    workspace = run.workspace()
    (workspace.folder / "in" / "locked").write_text("x")
    (workspace.folder / "in" / "locked").chmod(0)
    for path in (workspace.folder, workspace.folder / "in", *(workspace.folder / "in").iterdir()):
        os.chown(path, 65534, 65534)
    code = (
        "import os, sys; from pathlib import Path; from workspaces.walk import walk, content\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "for entry, fd in walk(Path(sys.argv[1])):\n"
        "    entry.tree_mode and list(content(entry, fd))\n"
    )
    seen = subprocess.run(
        [sys.executable, "-c", code, f"/proc/self/fd/{(fd := os.open(workspace.folder, os.O_RDONLY))}/in"],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, pass_fds=[fd],
    )  # fmt: skip
    os.close(fd)

    assert "Refused: locked cannot be read: Permission denied" in seen.stderr


@KINDS
def test_rules_that_ignore_themselves_hide_nothing(scoped: Path, new_run: NewRun, kind: Any) -> None:
    run = new_run(scoped)
    workspace = run.workspace("a", kind)
    (workspace.folder / "out" / ".gitignore").write_text("*\n")
    (workspace.folder / "out" / "conftest.py").write_text("evil\n")

    found = run.take(workspace, ["in/"])

    assert "out/.gitignore" in outside_scope(found.changes, ["in/"])
