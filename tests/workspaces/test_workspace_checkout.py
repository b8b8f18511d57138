"""Workspaces and checkouts as they appear."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import BadInput, Refused
from workspaces.checkout import Workspace, checkout_tree, make_workspace
from workspaces.git import GitError, run_git

Git = Callable[..., str]
NewRun = Callable[[Path], Any]
StateOf = Callable[[Path], dict[str, Any]]

KINDS = pytest.mark.parametrize("kind", ["directory", "clone"])
PITFALLS = {
    ".gitattributes": b"* text=auto eol=crlf\n*.id ident\n*.f filter=shout\n*.u working-tree-encoding=UTF-16\n",
    "lf.txt": b"one\ntwo\n",
    "crlf.txt": b"one\r\ntwo\r\n",
    "mixed.txt": b"one\r\ntwo\nthree\rfour",
    "bom.txt": b"\xef\xbb\xbfone\r\n",
    "latin.txt": b"caf\xe9\r\n",
    "utf16.u": "wide\n".encode("utf-16"),
    "a.id": b"$Id$ and $Id: made up $\n",
    "loud.f": b"quiet\n",
    "binary": bytes(range(256)) * 100,
    "empty": b"",
}


def raw_commit(git: Git, repository: Path, files: dict[str, bytes]) -> None:
    """Commits the bytes as they are, whatever attributes say."""
    for path, data in files.items():
        blob = git(repository, "hash-object", "-w", "--no-filters", "--stdin", input=data)
        git(repository, "update-index", "--add", "--cacheinfo", f"100644,{blob},{path}")
    git(repository, "commit", "--quiet", "-m", "raw")


def contents(top: Path) -> dict[str, bytes]:
    found = {}
    for path in top.rglob("*"):
        if ".git" in path.relative_to(top).parts[:1]:
            continue
        name = str(path.relative_to(top))
        if path.is_symlink():
            found[name] = os.fsencode(os.readlink(path))
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


@KINDS
def test_a_workspace_has_the_files_of_its_base_with_their_modes(repository: Path, new_run: NewRun, kind: Any) -> None:
    run = new_run(repository)

    workspace = run.workspace("a", kind)

    assert workspace == Workspace(run.home / "spaces" / "a", kind, run.commit, run.tree)
    assert contents(workspace.folder) == run.files(run.commit)
    assert os.access(workspace.folder / "src" / "run.sh", os.X_OK)
    assert not (workspace.folder / "readme.md").stat().st_mode & 0o111
    assert (workspace.folder / ".git").is_dir() == (kind == "clone")
    assert os.listdir(workspace.folder.parent) == ["a"]


@KINDS
def test_a_checkout_is_byte_true_whatever_the_attributes_say(
    repository: Path, git: Git, new_run: NewRun, tmp_path: Path, kind: Any
) -> None:
    raw_commit(git, repository, PITFALLS)
    marker = tmp_path / "marker"
    git(repository, "config", "filter.shout.smudge", f"touch {marker}; tr a-z A-Z")
    # Control: the user's git does convert all of them.
    git(repository, "worktree", "add", "--quiet", "--detach", str(tmp_path / "control"))
    control = contents(tmp_path / "control")
    for name in ("lf.txt", "a.id", "loud.f"):
        assert control[name] != PITFALLS[name]
    assert marker.exists()
    marker.unlink()
    run = new_run(repository)

    workspace = run.workspace("a", kind)
    checkout_tree(run.git_dir, run.tree, tmp_path / "check")

    assert {name: data for name, data in contents(workspace.folder).items() if name in PITFALLS} == PITFALLS
    assert contents(tmp_path / "check") == contents(workspace.folder)
    assert not marker.exists()
    if kind == "clone":
        assert git(workspace.folder, "status", "--porcelain") == ""


def test_a_clone_is_a_repository_of_its_own(repository: Path, git: Git, new_run: NewRun) -> None:
    git(repository, "gc", "--quiet")
    run = new_run(repository)

    folder = run.workspace("a", "clone").folder

    links = [path for path in (folder / ".git").rglob("*") if path.is_symlink() or path.lstat().st_nlink > 1]
    assert [path for path in links if not path.is_dir()] == []
    assert not (folder / ".git" / "objects" / "info" / "alternates").exists()
    shutil.rmtree(repository)
    shutil.rmtree(run.git_dir)
    assert git(folder, "status", "--porcelain", "--branch") == "## work"
    assert git(folder, "rev-parse", "HEAD") == run.commit
    assert git(folder, "remote") == ""
    assert git(folder, "fsck", "--full") == ""
    (folder / "readme.md").write_text("mine\n")
    git(folder, "commit", "--quiet", "-am", "mine")
    assert git(folder, "log", "--format=%s") == "mine\nsecond"


def test_a_clone_of_a_first_commit_is_not_shallow(repository: Path, git: Git, new_run: NewRun) -> None:
    git(repository, "checkout", "--quiet", "HEAD~1")
    folder = new_run(repository).workspace("a", "clone").folder

    assert git(folder, "rev-parse", "--is-shallow-repository") == "false"
    assert git(folder, "fsck", "--full") == ""


def test_the_index_of_a_clone_knows_every_file_as_it_is(
    repository: Path, git: Git, new_run: NewRun, tmp_path: Path
) -> None:
    git(tmp_path, "init", "--quiet", "library")
    git(tmp_path / "library", "commit", "--quiet", "--allow-empty", "-m", "x")
    git(repository, "submodule", "--quiet", "add", str(tmp_path / "library"), "lib")
    # Names around the end of a word of the index, one longer than its length field, and an order that folders mislead.
    for name in [*("x" * length for length in range(1, 20)), "/".join(["d" * 250] * 18), "src.a", "src-b", "src0"]:
        blob = git(repository, "hash-object", "-w", "--stdin", input=name.encode())
        git(repository, "update-index", "--add", "--cacheinfo", f"100644,{blob},{name}")
    git(repository, "commit", "--quiet", "-m", "names")

    folder = new_run(repository).workspace("a", "clone").folder

    # Git compares what it finds with the index, and shows what differs in anything at all; it did not look before.
    assert git(folder, "diff-files", "--raw") == ""
    assert git(folder, "ls-files", "--stage") == git(repository, "ls-files", "--stage")
    assert git(folder, "fsck", "--full") == ""
    (folder / "src.a").write_bytes(b"x" * len("src.a"))
    assert git(folder, "status", "--porcelain") == "M src.a"


def test_all_missing_objects_are_named(repository: Path, git: Git, new_run: NewRun) -> None:
    run = new_run(repository)
    for path in ("readme.md", "src/run.sh"):
        blob = git(repository, "rev-parse", f"HEAD:{path}")
        (run.git_dir / "objects" / blob[:2] / blob[2:]).unlink()

    with pytest.raises(BadInput, match="missing") as refusal:
        run.workspace("a")

    assert ["readme.md" in str(fault) for fault in refusal.value.faults] == [True, False]
    assert os.listdir(run.home / "spaces") == []


@KINDS
def test_an_existing_name_is_refused_and_not_touched(
    repository: Path, new_run: NewRun, state_of: StateOf, kind: Any
) -> None:
    run = new_run(repository)
    spaces = run.home / "spaces"
    (spaces / "empty").mkdir(parents=True)
    (spaces / "full").mkdir()
    (spaces / "full" / "precious").write_text("x")
    (spaces / "file").write_text("x")
    (spaces / "dangling").symlink_to("nowhere")
    before = state_of(spaces)

    for name in ("empty", "full", "file", "dangling"):
        with pytest.raises(Refused, match=f"{name} exists already"):
            run.workspace(name, kind)
        with pytest.raises(Refused, match="exists already"):
            checkout_tree(run.git_dir, run.tree, spaces / name)

    assert {**state_of(spaces), str(spaces): None} == {**before, str(spaces): None}


def test_a_name_taken_while_the_workspace_was_made_is_left_alone(
    repository: Path, new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(repository)
    real = os.symlink

    def symlink(*args: Any, **options: Any) -> None:
        (run.home / "spaces" / "a").mkdir()
        real(*args, **options)

    monkeypatch.setattr(os, "symlink", symlink)
    with pytest.raises(Refused, match="exists already"):
        run.workspace("a")

    assert os.listdir(run.home / "spaces") == ["a"]
    assert os.listdir(run.home / "spaces" / "a") == []


@KINDS
def test_a_place_inside_a_repository_is_refused_by_name(
    repository: Path, git: Git, new_run: NewRun, tmp_path: Path, kind: Any
) -> None:
    run = new_run(repository)
    git(tmp_path, "init", "--quiet", "--bare", "bare.git")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / ".git").write_text("gitdir: /nowhere\n")
    (tmp_path / "by-link").symlink_to(repository / "src")

    for place in (repository / "a", repository / "new" / "deep" / "a", tmp_path / "bare.git" / "a",
                  tmp_path / "linked" / "a", tmp_path / "by-link" / "a", run.git_dir / "a"):  # fmt: skip
        with pytest.raises(Refused, match="lies in the repository"):
            make_workspace(run.git_dir, place, kind, run.commit)
        assert not place.exists()


def test_a_configuration_file_above_a_check_would_decide_and_is_not_above_it(
    repository: Path, git: Git, new_run: NewRun, tmp_path: Path
) -> None:
    (repository / "test_it.py").write_text("def test_it():\n    assert False\n")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "-m", "a failing suite")
    (repository / "pytest.ini").write_text("[pytest]\naddopts = --collect-only\n")
    run = new_run(repository)
    pytest_here = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    inside = repository / "inside"
    inside.mkdir()
    shutil.copy(repository / "test_it.py", inside)
    assert subprocess.run(pytest_here, cwd=inside, capture_output=True).returncode == 0  # control: green by collecting

    checkout_tree(run.git_dir, run.tree, run.home / "checks" / "1")

    assert subprocess.run(pytest_here, cwd=run.home / "checks" / "1", capture_output=True).returncode == 1


NAMES = ["with space", 'quo"te', "new\nline", "tab\t", "-dash", "--help", "back\\slash", ":magic", ":!no", "*.txt",
         "a[b]", "caf\udce9", "ünï", "#hash", "!bang", "a b/c d", "nl\n/x\n", "trailing ", "$HOME",
         "\x01", "x" * 255]  # fmt: skip


@KINDS
def test_files_may_have_any_name(repository: Path, git: Git, new_run: NewRun, kind: Any) -> None:
    for name in NAMES:
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text(name, errors="surrogateescape")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "-m", "names")
    run = new_run(repository)

    workspace = run.workspace("a", kind)
    for name in NAMES:
        assert (workspace.folder / name).read_text(errors="surrogateescape") == name
        (workspace.folder / name).write_text("changed")
        (workspace.folder / f"{name[:200]}2").write_text("new")
    candidate = run.take(workspace)

    assert {change.path for change in candidate.changes if change.status == "modified"} == set(NAMES)
    assert {change.path for change in candidate.changes if change.status == "added"} == {f"{n[:200]}2" for n in NAMES}
    assert candidate.left_out == ()
    checkout_tree(run.git_dir, candidate.tree, run.home / "checks" / "1")
    assert contents(run.home / "checks" / "1") == run.files(candidate.tree)
    if kind == "clone":
        git(workspace.folder, "checkout", "--quiet", "--", ".")
        git(workspace.folder, "clean", "-dffq")
        assert git(workspace.folder, "status", "--porcelain") == ""


@pytest.mark.parametrize("name", ["with space", 'quo"te', "new\nline", "-dash", "caf\udce9", "..a", "x" * 255])
@KINDS
def test_a_workspace_may_have_any_name(repository: Path, new_run: NewRun, name: str, kind: Any) -> None:
    run = new_run(repository)
    workspace = run.workspace(name, kind)
    (workspace.folder / "new").write_text("x")
    (workspace.folder / ".gitignore").write_text("*.log\n")
    (workspace.folder / "a.log").write_text("x")

    candidate = run.take(workspace, keep_ref="t")

    assert [change.path for change in candidate.changes] == [".gitignore", "new"]
    assert candidate.left_out == ("a.log",)


@pytest.mark.parametrize("shape", ["detached", "shallow", "bare", "dirty", "hook", "signing", "submodule", "sha256"])
@KINDS
def test_every_shape_of_repository_works_and_stays_as_it_was(
    repository: Path, git: Git, new_run: NewRun, tmp_path: Path, state_of: StateOf, shape: str, kind: Any
) -> None:
    source = repository
    if shape == "detached":
        git(repository, "checkout", "--quiet", "--detach", "HEAD~1")
    elif shape == "shallow":
        git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{repository}", "shallow")
        source = tmp_path / "shallow"
    elif shape == "bare":
        git(tmp_path, "clone", "--quiet", "--bare", str(repository), "bare.git")
        source = tmp_path / "bare.git"
    elif shape == "dirty":
        (repository / "readme.md").write_text("unfinished")
        (repository / ".env").write_text("SECRET=1")
        git(repository, "rm", "--quiet", "--cached", "src/run.sh")
    elif shape == "hook":
        for hook in ("pre-commit", "post-checkout", "reference-transaction", "post-index-change"):
            (repository / ".git" / "hooks" / hook).write_text("#!/bin/sh\nexit 1\n")
            (repository / ".git" / "hooks" / hook).chmod(0o755)
    elif shape == "signing":
        git(repository, "config", "commit.gpgSign", "true")
        git(repository, "config", "gpg.program", "/nonexistent")
    elif shape == "submodule":
        git(tmp_path, "init", "--quiet", "library")
        git(tmp_path / "library", "commit", "--quiet", "--allow-empty", "-m", "x")
        git(repository, "submodule", "--quiet", "add", str(tmp_path / "library"), "lib")
        git(repository, "commit", "--quiet", "-m", "submodule")
    elif shape == "sha256":
        git(tmp_path, "init", "--quiet", "--object-format=sha256", "modern")
        source = tmp_path / "modern"
        (source / "readme.md").write_bytes(b"second\r\n")
        git(source, "add", "--all")
        git(source, "commit", "--quiet", "-m", "x")
    before = state_of(source)

    run = new_run(source)
    workspace = run.workspace("a", kind)
    assert contents(workspace.folder) == run.files(run.commit)
    nothing = run.take(workspace, keep_ref="nothing")
    (workspace.folder / "readme.md").write_text("mine")
    candidate = run.take(workspace)

    assert (nothing.tree, nothing.changes) == (run.tree, ())
    assert [(change.path, change.status) for change in candidate.changes] == [("readme.md", "modified")]
    assert run_git(["rev-parse", f"{candidate.commit}^"], git_dir=run.git_dir).decode().strip() == run.commit
    if shape == "submodule":
        assert os.listdir(workspace.folder / "lib") == []
    if kind == "clone":
        assert git(workspace.folder, "status", "--porcelain") == "M readme.md"
    assert state_of(source) == before


@KINDS
def test_sixteen_workspaces_at_once_are_all_made(repository: Path, git: Git, new_run: NewRun, kind: Any) -> None:
    for number in range(200):
        (repository / f"f{number}").write_text(f"{number}")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "-m", "more")
    run = new_run(repository)

    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda number: run.workspace(f"w{number}", kind), range(16)))

    expected = run.files(run.commit)
    assert all(contents(workspace.folder) == expected for workspace in made)
    assert sorted(os.listdir(run.home / "spaces")) == sorted(f"w{number}" for number in range(16))


def test_of_sixteen_that_want_one_name_one_gets_it(repository: Path, new_run: NewRun) -> None:
    run = new_run(repository)

    def make(_: int) -> bool:
        try:
            run.workspace("one", "clone")
        except Refused:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sorted(pool.map(make, range(16))) == [False] * 15 + [True]
    assert os.listdir(run.home / "spaces") == ["one"]


@pytest.mark.parametrize("other", ["link first", "folder first"])
def test_a_tree_that_would_write_through_its_own_link_is_refused(
    repository: Path, git: Git, new_run: NewRun, tmp_path: Path, other: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    blob = bytes.fromhex(git(repository, "hash-object", "-w", "--stdin", input=b"evil"))
    link = bytes.fromhex(git(repository, "hash-object", "-w", "--stdin", input=os.fsencode(outside)))
    inner = bytes.fromhex(git(repository, "hash-object", "-t", "tree", "-w", "--stdin", input=b"100644 f\0" + blob))
    entries = [b"120000 a\0" + link, b"40000 a\0" + inner]
    if other == "folder first":
        entries.reverse()
    tree = git(repository, "hash-object", "-t", "tree", "-w", "--literally", "--stdin", input=b"".join(entries))
    git(repository, "reset", "--quiet", "--soft", git(repository, "commit-tree", "-m", "x", tree))
    run = new_run(repository)

    with pytest.raises(Refused, match="twice"):
        run.workspace("a")

    assert os.listdir(outside) == []
    assert os.listdir(run.home / "spaces") == []


def test_a_damaged_or_missing_object_is_refused_and_leaves_nothing(repository: Path, git: Git, new_run: NewRun) -> None:
    run = new_run(repository)
    blob = git(repository, "rev-parse", "HEAD:readme.md")
    other = git(repository, "rev-parse", "HEAD:src/run.sh")
    file, lie = (run.git_dir / "objects" / i[:2] / i[2:] for i in (blob, other))
    file.unlink()
    with pytest.raises(BadInput, match="missing"):
        run.workspace("a")

    shutil.copy(lie, file)
    with pytest.raises((BadInput, GitError)):
        run.workspace("a")
    with pytest.raises(GitError):
        run.workspace("a", base="0" * 40)

    assert os.listdir(run.home / "spaces") == []


def test_a_workspace_survives_json_and_is_checked_field_by_field(repository: Path, new_run: NewRun) -> None:
    workspace = new_run(repository).workspace()
    document = json.loads(json.dumps(workspace.to_json()))

    assert Workspace.from_json(document) == workspace
    with pytest.raises(BadInput) as refusal:
        Workspace.from_json({**document, "folder": "a", "kind": "none", "base_commit": "-x", "more": 1})
    assert [fault.path for fault in refusal.value.faults] == ["folder", "kind", "base_commit", "more"]


def test_variables_of_a_surrounding_git_do_not_reach_us(
    repository: Path, git: Git, new_run: NewRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state_of: StateOf
) -> None:
    git(tmp_path, "init", "--quiet", "other")
    git(tmp_path / "other", "commit", "--quiet", "--allow-empty", "-m", "x")
    run = new_run(repository)
    other = tmp_path / "other" / ".git"
    before = state_of(tmp_path / "other")
    for name, value in {
        "GIT_DIR": str(other),
        "GIT_WORK_TREE": str(tmp_path / "other"),
        "GIT_INDEX_FILE": str(other / "index"),
        "GIT_OBJECT_DIRECTORY": str(other / "objects"),
        "GIT_COMMON_DIR": str(other),
        "GIT_NAMESPACE": "x",
        "GIT_CONFIG_PARAMETERS": "'core.bare'='true'",
        "GIT_TEMPLATE_DIR": str(other),
    }.items():
        monkeypatch.setenv(name, value)
    # Control: git does go to the other repository.
    found = subprocess.run(["git", "-C", str(repository), "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    assert found.strip() != run.commit

    made = [run.workspace(f"w{number}", "clone") for number in range(2)]
    candidates = []
    for number, workspace in enumerate(made):
        (workspace.folder / f"new{number}").write_text("x")
        candidates.append(run.take(workspace))
    merge = run.merge(candidates[0].commit, candidates[1].commit)

    assert {"new0", "new1"} < set(run.files(merge.tree))
    monkeypatch.undo()
    assert state_of(tmp_path / "other") == before
    assert git(made[0].folder, "status", "--porcelain") == "?? new0"
