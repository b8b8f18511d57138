"""Pinning and fetching git sources of every shape."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import BadInput, Refused
from workspaces import SourcePin, TreeReader, fetch_source, pin_source
from workspaces.git import run_git

Git = Callable[..., str]
StateOf = Callable[[Path], dict[str, Any]]


def contents(pin: SourcePin, git_dir: Path) -> dict[str, bytes]:
    fetch_source(pin, git_dir)
    with TreeReader(git_dir, pin.commit) as reader:
        return {file.path: reader.read_bytes(file.path) for file in reader.files()}


SECOND = {"link": b"src/run.sh", "readme.md": b"second\r\n", "src/run.sh": b"#!/bin/sh\n"}


def test_a_repository_is_pinned_to_its_full_commit_and_read_from_the_runs_own_git_directory(
    repository: Path, git: Git, tmp_path: Path, state_of: StateOf
) -> None:
    before = state_of(repository)

    pin = pin_source(repository)
    found = contents(pin, tmp_path / "home" / "git" / "audit")

    assert found == SECOND
    assert state_of(repository) == before
    assert (pin.kind, pin.origin, pin.ref, pin.dirty) == ("git", str(repository), "HEAD", False)
    assert pin.commit == git(repository, "rev-parse", "HEAD")
    assert pin.tree == git(repository, "rev-parse", "HEAD^{tree}")
    assert pin.repo_ref() == f"payments@{pin.commit}"
    own = tmp_path / "home" / "git" / "audit"
    assert run_git(["rev-parse", "refs/coordinator/source"], git_dir=own).decode().strip() == pin.commit
    shutil.rmtree(repository)
    fetch_source(pin, own)
    assert contents(pin, own) == SECOND


def test_objects_are_linked_and_neither_owner_nor_mode_changes(repository: Path, tmp_path: Path) -> None:
    pin = pin_source(repository)

    fetch_source(pin, tmp_path / "own")

    name = f"objects/{pin.commit[:2]}/{pin.commit[2:]}"
    assert (tmp_path / "own" / name).samefile(repository / ".git" / name)


def test_many_loose_objects_become_one_pack_and_the_source_keeps_its_own(
    repository: Path, git: Git, tmp_path: Path, state_of: StateOf
) -> None:
    files = {f"f{number}": b"%d" % number for number in range(600)}
    for name, data in files.items():
        (repository / name).write_bytes(data)
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "-m", "many")
    elsewhere = git(repository, "hash-object", "-w", "--stdin", input=b"of no commit")
    before = state_of(repository)
    pin = pin_source(repository)
    own = tmp_path / "own"

    assert contents(pin, own) == {**SECOND, **files}

    assert state_of(repository) == before
    assert len(list((own / "objects" / "pack").glob("*.pack"))) == 1
    assert b"prune-packable: 0" in run_git(["count-objects", "-v"], git_dir=own).splitlines()
    assert not (own / "objects" / pin.commit[:2] / pin.commit[2:]).exists()
    assert run_git(["cat-file", "blob", elsewhere], git_dir=own) == b"of no commit"


def test_objects_are_copied_where_they_cannot_be_linked(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_file_system(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", other_file_system)
    pin = pin_source(repository)

    assert contents(pin, tmp_path / "own") == SECOND

    name = f"objects/{pin.commit[:2]}/{pin.commit[2:]}"
    assert (tmp_path / "own" / name).stat().st_nlink == 1
    assert (tmp_path / "own" / name).stat().st_mode & 0o777 == 0o444


def test_a_pack_that_is_a_link_is_copied(repository: Path, git: Git, tmp_path: Path) -> None:
    git(repository, "gc", "--quiet")
    for number, pack in enumerate((repository / ".git" / "objects" / "pack").glob("pack-*.pack")):
        pack.symlink_to(pack.rename(tmp_path / f"pack-{number}"))
    pin = pin_source(repository)
    fetch_source(pin, tmp_path / "own")

    for pack in tmp_path.glob("pack-*"):
        pack.unlink()

    assert contents(pin, tmp_path / "own") == SECOND


def test_packed_objects_are_taken_and_survive_a_prune_of_the_source(
    repository: Path, git: Git, tmp_path: Path, state_of: StateOf
) -> None:
    git(repository, "gc", "--quiet")
    before = state_of(repository)
    pin = pin_source(repository)
    fetch_source(pin, tmp_path / "own")
    assert state_of(repository) == before

    git(repository, "checkout", "--quiet", "--orphan", "other")
    git(repository, "commit", "--quiet", "-m", "other")
    git(repository, "branch", "-D", "main")
    git(repository, "reflog", "expire", "--expire=now", "--all")
    git(repository, "gc", "--quiet", "--prune=now")
    with pytest.raises(BadInput):
        pin_source(repository, pin.commit)

    assert contents(pin, tmp_path / "own") == SECOND


@pytest.mark.parametrize("ref", ["HEAD~1", "old", "annotated", "refs/heads/old"])
def test_any_name_of_a_commit_pins_that_commit(repository: Path, git: Git, tmp_path: Path, ref: str) -> None:
    git(repository, "branch", "old", "HEAD~1")
    git(repository, "tag", "-a", "-m", "x", "annotated", "HEAD~1")
    first = git(repository, "rev-parse", "HEAD~1")

    for name in (ref, first, first[:12]):
        assert pin_source(repository, name).commit == first

    assert contents(pin_source(repository, ref), tmp_path / "own") == {"readme.md": b"first\n"}


@pytest.mark.parametrize(
    "ref", ["absent", "", "--all", "-h", "^HEAD", "HEAD..HEAD", "HEAD:readme.md", "a\0b", "é\udce9"]
)
def test_a_ref_that_names_no_commit_is_refused_by_name(repository: Path, ref: str) -> None:
    with pytest.raises(BadInput, match="names no commit") as refusal:
        pin_source(repository, ref)

    str(refusal.value).encode("utf-8")


def test_a_dirty_checkout_is_told_and_its_edits_are_not_part_of_the_pin(
    repository: Path, tmp_path: Path, state_of: StateOf
) -> None:
    (repository / "readme.md").write_bytes(b"edited\n")
    (repository / "untracked.txt").write_bytes(b"new\n")
    before = state_of(repository)

    pin = pin_source(repository)

    assert pin.dirty
    assert contents(pin, tmp_path / "own") == SECOND
    assert state_of(repository) == before


def test_an_untracked_file_alone_makes_a_checkout_dirty_and_an_ignored_one_does_not(repository: Path, git: Git) -> None:
    (repository / ".git" / "info" / "exclude").write_text("*.log\n")
    (repository / "x.log").write_text("")
    assert not pin_source(repository).dirty

    (repository / "new.txt").write_text("")
    assert pin_source(repository).dirty


def test_a_file_touched_without_a_change_is_not_dirty_and_the_index_is_not_refreshed(
    repository: Path, state_of: StateOf
) -> None:
    os.utime(repository / "readme.md", (1, 1))
    before = state_of(repository)

    assert not pin_source(repository).dirty
    assert state_of(repository) == before


def test_programs_that_a_repository_names_are_not_run(repository: Path, git: Git, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    run = f"touch {trap}; cat"
    for name in ("evil", "od.d=x"):
        for key in ("clean", "smudge", "process"):
            git(repository, "config", f"filter.{name}.{key}", run)
        git(repository, "config", f"filter.{name}.required", "true")
    for key in ("core.fsmonitor", "core.pager", "core.editor", "diff.external", "core.sshCommand"):
        git(repository, "config", key, run)
    (repository / ".git" / "info" / "attributes").write_text("*.md filter=evil\n*.sh filter=od.d=x\n")
    os.utime(repository / "readme.md", (1, 1))
    os.utime(repository / "src" / "run.sh", (1, 1))
    trap.unlink(missing_ok=True)

    assert contents(pin_source(repository), tmp_path / "own") == SECOND

    assert not trap.exists()


def test_a_folder_inside_a_repository_stands_for_the_whole_repository(repository: Path) -> None:
    assert pin_source(repository / "src") == pin_source(repository) == pin_source(repository / ".git")


def test_a_path_through_a_link_and_a_relative_path_lead_to_the_same_pin(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shortcut").symlink_to(repository)
    monkeypatch.chdir(repository)

    assert pin_source(tmp_path / "shortcut") == pin_source(Path(".")) == pin_source(repository)


def test_a_linked_worktree_is_pinned_at_its_own_head(repository: Path, git: Git, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "--quiet", "--detach", str(tmp_path / "linked"), "HEAD~1")

    pin = pin_source(tmp_path / "linked")

    assert pin.origin == str(tmp_path / "linked")
    assert contents(pin, tmp_path / "own") == {"readme.md": b"first\n"}


def test_a_bare_repository_is_a_source_and_is_never_dirty(repository: Path, git: Git, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", "--bare", str(repository), "billing.git")

    pin = pin_source(tmp_path / "billing.git")

    assert (pin.name, pin.origin, pin.dirty) == ("billing", str(tmp_path / "billing.git"), False)
    assert contents(pin, tmp_path / "own") == SECOND


def test_a_folder_that_points_at_a_bare_repository_is_a_source(repository: Path, git: Git, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    git(tmp_path, "clone", "--quiet", "--bare", str(repository), "project/.bare")
    (tmp_path / "project" / ".git").write_text("gitdir: ./.bare\n")

    pin = pin_source(tmp_path / "project")

    assert pin.name == "project"
    assert contents(pin, tmp_path / "own") == SECOND


def test_a_detached_head_is_pinned(repository: Path, git: Git) -> None:
    git(repository, "checkout", "--quiet", "--detach", "HEAD~1")

    assert pin_source(repository).commit == git(repository, "rev-parse", "main~1")


def test_a_shallow_clone_is_a_source_and_its_copy_knows_where_history_ends(
    repository: Path, git: Git, tmp_path: Path
) -> None:
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{repository}", "shallow")
    pin = pin_source(tmp_path / "shallow")

    assert contents(pin, tmp_path / "own") == SECOND
    assert run_git(["rev-list", pin.commit], git_dir=tmp_path / "own").decode().split() == [pin.commit]


def test_objects_of_alternates_are_taken_too(repository: Path, git: Git, tmp_path: Path) -> None:
    odd = tmp_path / 'odd "name"\nä\\'
    shutil.copytree(repository, odd, symlinks=True)
    git(tmp_path, "clone", "--quiet", "--shared", str(repository), "one")
    (tmp_path / "one" / ".git" / "objects" / "info" / "alternates").write_text("../../../two/.git/objects\n")
    git(tmp_path, "init", "--quiet", "two")
    quoted = str(odd).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    (tmp_path / "two" / ".git" / "objects" / "info").mkdir(exist_ok=True)
    (tmp_path / "two" / ".git" / "objects" / "info" / "alternates").write_text(f'"{quoted}/.git/objects"\n')

    pin = pin_source(tmp_path / "one")
    fetch_source(pin, tmp_path / "own")

    for name in ("one", "two"):
        shutil.rmtree(tmp_path / name)
    shutil.rmtree(odd)
    assert contents(pin, tmp_path / "own") == SECOND


def test_a_repository_with_sha256_ids_is_a_source(git: Git, tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "--object-format=sha256", "modern")
    (tmp_path / "modern" / "a").write_bytes(b"a")
    git(tmp_path / "modern", "add", "a")
    git(tmp_path / "modern", "commit", "--quiet", "-m", "a")

    pin = pin_source(tmp_path / "modern")

    assert len(pin.commit) == 64
    assert contents(pin, tmp_path / "own") == {"a": b"a"}


@pytest.mark.parametrize("name", ["with space", 'it\'s "quoted"', "line\nend", "ending\n", "-dash", "$HOME;*", "ünï"])
def test_the_path_of_a_repository_may_hold_any_character(repository: Path, git: Git, tmp_path: Path, name: str) -> None:
    (tmp_path / "x").mkdir()
    odd = repository.rename(tmp_path / "x" / name)
    git(odd, "worktree", "add", "--quiet", "--detach", str(tmp_path / "linked"), "HEAD~1")

    pin = pin_source(odd)

    assert pin.origin == str(odd)
    assert contents(pin, tmp_path / "home" / name) == SECOND
    if not name.endswith("\n"):  # git itself loses a last line end in the file that points back
        assert contents(pin_source(tmp_path / "linked"), tmp_path / "own") == {"readme.md": b"first\n"}


def test_a_path_that_is_not_utf8_is_refused_by_name(repository: Path) -> None:
    odd = repository.rename(repository.parent / "caf\udce9")

    with pytest.raises(BadInput, match="not UTF-8"):
        pin_source(odd)


def test_variables_of_a_surrounding_git_do_not_reach_us(
    repository: Path, git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "--quiet", "other")
    git(tmp_path / "other", "commit", "--quiet", "--allow-empty", "-m", "x")
    expected = pin_source(repository)
    other = tmp_path / "other" / ".git"
    for name, value in {
        "GIT_DIR": str(other),
        "GIT_WORK_TREE": str(tmp_path / "other"),
        "GIT_INDEX_FILE": str(other / "index"),
        "GIT_OBJECT_DIRECTORY": str(other / "objects"),
        "GIT_COMMON_DIR": str(other),
        "GIT_NAMESPACE": "x",
        "GIT_CEILING_DIRECTORIES": str(repository),
        "GIT_CONFIG_PARAMETERS": "'core.bare'='true'",
    }.items():
        monkeypatch.setenv(name, value)

    assert pin_source(repository) == expected
    assert contents(expected, tmp_path / "own") == SECOND
    monkeypatch.undo()
    assert git(tmp_path / "other", "rev-list", "--all", "--count") == "1"


def test_replacements_and_grafts_do_not_change_what_is_read(repository: Path, git: Git, tmp_path: Path) -> None:
    head, first = git(repository, "rev-parse", "HEAD", "HEAD~1").split()
    git(repository, "replace", head, first)
    git(repository, "replace", git(repository, "--no-replace-objects", "rev-parse", "HEAD:src/run.sh"),
        git(repository, "rev-parse", "HEAD:readme.md"))  # fmt: skip
    (repository / ".git" / "info" / "grafts").write_text(f"{head}\n")

    pin = pin_source(repository)

    assert pin.commit == head
    assert pin_source(repository, f"{head}~1").commit == first
    assert contents(pin, tmp_path / "own") == SECOND


def test_a_lying_commit_graph_does_not_change_what_is_read(repository: Path, git: Git, tmp_path: Path) -> None:
    git(repository, "commit-graph", "write", "--reachable")
    graph = repository / ".git" / "objects" / "info" / "commit-graph"
    old, new = (bytes.fromhex(git(repository, "rev-parse", f"{ref}^{{tree}}")) for ref in ("HEAD", "HEAD~1"))
    data = graph.read_bytes()
    assert old in data
    graph.chmod(0o644)
    graph.write_bytes(data.replace(old, new))

    assert contents(pin_source(repository), tmp_path / "own") == SECOND


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_repository_of_another_user_is_a_source(repository: Path, tmp_path: Path, state_of: StateOf) -> None:
    for path in [repository, *repository.rglob("*")]:
        os.chown(path, 65534, 65534, follow_symlinks=False)
    before = state_of(repository)

    assert contents(pin_source(repository), tmp_path / "own") == SECOND
    assert state_of(repository) == before


@pytest.mark.parametrize("filter_spec", ["blob:none", "tree:0"])
def test_a_partial_clone_with_missing_objects_is_refused_and_contacts_nobody(
    repository: Path, git: Git, tmp_path: Path, filter_spec: str
) -> None:
    git(repository, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "--quiet", "--bare", f"--filter={filter_spec}", f"file://{repository}", "partial.git")
    trap = tmp_path / "trap"
    git(tmp_path / "partial.git", "config", "remote.origin.url", f"ext::touch {trap}")
    git(tmp_path / "partial.git", "config", "protocol.ext.allow", "always")

    with pytest.raises(BadInput, match="missing"):
        pin_source(tmp_path / "partial.git")
    with pytest.raises(BadInput, match="names no commit"):
        pin_source(tmp_path / "partial.git", "a" * 40)

    assert not trap.exists()


def test_an_object_lost_between_pin_and_fetch_is_refused_and_leaves_nothing(
    repository: Path, git: Git, tmp_path: Path
) -> None:
    pin = pin_source(repository)
    blob = git(repository, "rev-parse", "HEAD:readme.md")
    (repository / ".git" / "objects" / blob[:2] / blob[2:]).unlink()

    with pytest.raises(BadInput, match=f"missing.*{blob}"):
        fetch_source(pin, tmp_path / "home" / "own")

    assert os.listdir(tmp_path / "home") == [".own.lock"]


def test_a_source_that_moved_away_between_pin_and_fetch_is_refused(repository: Path, tmp_path: Path) -> None:
    pin = pin_source(repository)
    repository.rename(tmp_path / "elsewhere")

    with pytest.raises(BadInput, match="gone"):
        fetch_source(pin, tmp_path / "own")

    repository.mkdir()
    with pytest.raises(BadInput, match="gone"):
        fetch_source(pin, tmp_path / "own")


def test_an_empty_repository_is_refused_by_name(git: Git, tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "fresh")

    with pytest.raises(BadInput, match="no commit yet"):
        pin_source(tmp_path / "fresh")


def test_missing_paths_files_and_link_loops_are_refused_by_name(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")

    for path, words in {
        "absent": "does not exist",
        "payments/readme.md": "not a folder",
        "loop": "cannot be read",
        "a\0b": "cannot be read",
    }.items():
        with pytest.raises(BadInput, match=words):
            pin_source(tmp_path / path)


@pytest.mark.parametrize("inside", [".", "deep"])
def test_a_broken_git_folder_is_refused_and_no_repository_above_is_taken(
    repository: Path, tmp_path: Path, inside: str
) -> None:
    nested = repository / "nested"
    (nested / ".git").mkdir(parents=True)
    (nested / "deep").mkdir()

    with pytest.raises(BadInput, match="nested/.git"):
        pin_source(nested / inside)

    (nested / ".git").rmdir()
    (nested / ".git").write_text("gitdir: /nowhere\n")
    with pytest.raises(BadInput, match="nowhere"):
        pin_source(nested / inside)


def test_a_broken_git_folder_with_no_repository_above_is_not_taken_for_a_plain_folder(tmp_path: Path) -> None:
    (tmp_path / "lone" / ".git").mkdir(parents=True)

    with pytest.raises(BadInput, match="does not accept"):
        pin_source(tmp_path / "lone")


def test_the_inside_of_a_git_directory_is_refused_by_name(repository: Path, git: Git, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", "--bare", str(repository), "billing.git")

    for path in (repository / ".git" / "refs", tmp_path / "billing.git" / "refs"):
        with pytest.raises(BadInput):
            pin_source(path)


def test_a_git_directory_that_holds_something_else_is_refused_and_not_touched(
    repository: Path, git: Git, tmp_path: Path, state_of: StateOf
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "precious").write_text("x")
    before = state_of(tmp_path / "taken")
    with pytest.raises(Refused, match="not a fetched source"):
        fetch_source(pin_source(repository), tmp_path / "taken")
    assert state_of(tmp_path / "taken") == before

    fetch_source(pin_source(repository), tmp_path / "own")
    with pytest.raises(Refused, match="needed is"):
        fetch_source(pin_source(repository, "HEAD~1"), tmp_path / "own")


def test_a_pin_survives_json(repository: Path) -> None:
    pin = pin_source(repository)

    assert SourcePin.from_json(json.loads(json.dumps(pin.to_json()))) == pin


def test_a_pin_from_a_document_is_checked_field_by_field(repository: Path) -> None:
    document = pin_source(repository).to_json()
    bad = {**document, "commit": "--output=x", "origin": "relative", "dirty": 0, "more": 1}

    with pytest.raises(BadInput) as refusal:
        SourcePin.from_json(bad)

    assert [fault.path for fault in refusal.value.faults] == ["origin", "commit", "dirty", "more"]
    with pytest.raises(BadInput):
        SourcePin.from_json({})


def test_a_tree_with_names_that_no_folder_can_hold_is_refused(repository: Path, git: Git, tmp_path: Path) -> None:
    blob = bytes.fromhex(git(repository, "rev-parse", "HEAD:readme.md"))
    for name in (b"..", b".GIT", b"a/b/../c"):
        tree = git(repository, "hash-object", "-t", "tree", "-w", "--literally", "--stdin",
                   input=b"100644 %s\0%s" % (name, blob))  # fmt: skip
        commit = git(repository, "commit-tree", "-m", "x", tree)
        with pytest.raises(BadInput, match="holds the path"):
            pin_source(repository, commit)
