"""Candidates brought onto a head, as objects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import Refused
from workspaces.changes import changes_between
from workspaces.git import run_git

Git = Callable[..., str]
NewRun = Callable[[Path], Any]
Work = Callable[[Path], None]
LINES = "".join(f"line {number}\n" for number in range(30))


@pytest.fixture
def run(repository: Path, git: Git, new_run: NewRun) -> Any:
    (repository / "f").write_text(LINES)
    (repository / "dos").write_bytes(LINES.replace("\n", "\r\n").encode())
    for number in range(3):
        (repository / "pkg").mkdir(exist_ok=True)
        (repository / "pkg" / f"m{number}").write_text(LINES + f"{number}\n")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "-m", "x")
    return new_run(repository)


def candidate(run: Any, name: str, work: Work, base: str | None = None) -> Any:
    workspace = run.workspace(name, base=base)
    work(workspace.folder)
    return run.take(workspace)


def edit(path: str, line: int, text: str) -> Work:
    def work(top: Path) -> None:
        data = (top / path).read_bytes()
        (top / path).write_bytes(data.replace(f"line {line}".encode(), text.encode(), 1))

    return work


def write(path: str, data: bytes = b"x") -> Work:
    def work(top: Path) -> None:
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_bytes(data)

    return work


def refs(run: Any) -> bytes:
    return run_git(["for-each-ref"], git_dir=run.git_dir)  # type: ignore[no-any-return]


def test_on_its_own_base_a_candidate_is_the_result_itself(run: Any) -> None:
    one = candidate(run, "a", write("new"))
    before = refs(run)

    merge = run.merge(run.commit, one.commit)

    assert (merge.tree, merge.commit, merge.conflicts) == (one.tree, one.commit, ())
    assert refs(run) == before


def test_candidates_follow_each_other_onto_the_head(run: Any) -> None:
    works = [write("a/1"), write("a/2"), edit("f", 0, "first"), edit("f", 29, "last"), edit("dos", 3, "three")]
    made = [candidate(run, f"w{number}", work) for number, work in enumerate(works)]

    head = made[0].commit
    for number, one in enumerate(made[1:]):
        merge = run.merge(head, one.commit, f"heads/{number}")
        assert merge.conflicts == ()
        parents = run_git(["rev-parse", f"{merge.commit}^1", f"{merge.commit}^2"], git_dir=run.git_dir).decode().split()
        assert parents == [head, one.commit]
        kept = run_git(["rev-parse", f"refs/coordinator/heads/{number}"], git_dir=run.git_dir).decode().strip()
        assert kept == merge.commit
        head = merge.commit

    files = run.files(head)
    assert (files["a/1"], files["a/2"]) == (b"x", b"x")
    assert files["f"] == LINES.replace("line 0", "first").replace("line 29", "last").encode()
    assert files["dos"] == LINES.replace("line 3", "three", 1).replace("\n", "\r\n").encode()
    # The next one starts from the head, and one that started before is still merged by its own base.
    late = candidate(run, "late", write("late"), base=head)
    assert run.merge(head, late.commit).commit == late.commit
    assert run.merge(late.commit, made[1].commit, "again").tree == late.tree


@pytest.mark.parametrize(
    ("one", "other", "paths"),
    [
        (edit("f", 5, "mine"), edit("f", 5, "yours"), {"f"}),
        (edit("f", 5, "mine"), lambda top: (top / "f").unlink(), {"f"}),
        (write("new", b"a"), write("new", b"b"), {"new"}),
        (write("new", b"\0a"), write("new", b"\0b"), {"new"}),
        (write("caf\udce9\n", b"a"), write("caf\udce9\n", b"b"), {"caf\\udce9\n"}),
        (write("new/deep", b"a"), write("new", b"b"), {"new"}),
        (lambda top: (top / "link").unlink(), lambda top: _relinked(top / "link"), {"link"}),
    ],
)  # fmt: skip
def test_a_conflict_is_named_and_nothing_is_kept(run: Any, one: Work, other: Work, paths: set[str]) -> None:
    made = [candidate(run, "a", one), candidate(run, "b", other)]
    before = refs(run)

    merge = run.merge(made[0].commit, made[1].commit)

    assert (merge.tree, merge.commit) == (None, None)
    assert any(any(conflict.startswith(path) for conflict in merge.conflicts) for path in paths)
    assert any("CONFLICT" in message for message in merge.messages)
    assert refs(run) == before


def _relinked(path: Path) -> None:
    path.unlink()
    path.symlink_to("elsewhere")


def test_an_edit_follows_a_file_that_was_renamed(run: Any) -> None:
    def rename(top: Path) -> None:
        (top / "pkg").rename(top / "lib")
        (top / "lib" / "m0").rename(top / "lib" / "zero")

    made = [candidate(run, "a", rename), candidate(run, "b", edit("pkg/m0", 4, "four"))]

    merge = run.merge(made[0].commit, made[1].commit)

    assert merge.conflicts == ()
    changes = {change.path: change.status for change in changes_between(run.git_dir, made[0].tree, merge.tree)}
    assert changes == {"lib/zero": "modified"}
    assert b"four" in run.files(merge.tree)["lib/zero"]


def test_modes_links_deletions_and_folders_for_files_are_merged(run: Any) -> None:
    def one(top: Path) -> None:
        (top / "f").chmod(0o755)
        (top / "pkg" / "m1").unlink()
        (top / "to").symlink_to("f")
        (top / "readme.md").unlink()
        write("readme.md/part")(top)

    made = [candidate(run, "a", write("pkg/m9")), candidate(run, "b", one)]

    merge = run.merge(made[0].commit, made[1].commit)

    changes = {(change.path, change.new_mode) for change in changes_between(run.git_dir, made[0].tree, merge.tree)}
    assert changes == {("f", "100755"), ("pkg/m1", "000000"), ("to", "120000"), ("readme.md", "000000"),
                       ("readme.md/part", "100644")}  # fmt: skip


def test_the_same_change_twice_is_no_conflict(run: Any) -> None:
    made = [candidate(run, "a", edit("f", 1, "same")), candidate(run, "b", edit("f", 1, "same"))]
    assert made[0].commit == made[1].commit

    merge = run.merge(made[0].commit, made[1].commit)

    assert merge.tree == made[0].tree


def test_a_merge_may_be_done_again(run: Any) -> None:
    made = [candidate(run, "a", write("a")), candidate(run, "b", write("b"))]

    assert run.merge(made[0].commit, made[1].commit) == run.merge(made[0].commit, made[1].commit)


def test_submodules_on_either_side_are_kept(repository: Path, git: Git, new_run: NewRun) -> None:
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},lib")
    git(repository, "commit", "--quiet", "-m", "x")
    run = new_run(repository)
    made = [candidate(run, "a", lambda top: (top / "lib").rmdir()), candidate(run, "b", write("b"))]

    assert "lib" not in run_git(["ls-tree", "-r", run.merge(made[0].commit, made[1].commit, "m1").tree],
                                git_dir=run.git_dir).decode()  # fmt: skip
    other = candidate(run, "c", write("c"))
    assert "1" * 40 in run_git(["ls-tree", "-r", run.merge(made[1].commit, other.commit, "m2").tree],
                               git_dir=run.git_dir).decode()  # fmt: skip


def test_a_submodule_that_moved_on_is_merged(repository: Path, git: Git, new_run: NewRun) -> None:
    for digit in "12":
        git(repository, "update-index", "--add", "--cacheinfo", f"160000,{digit * 40},lib")
        git(repository, "commit", "--quiet", "-m", digit)
    run = new_run(repository)
    head = candidate(run, "a", write("a"), base=git(repository, "rev-parse", "HEAD~1"))

    merge = run.merge(head.commit, run.commit)

    [change] = changes_between(run.git_dir, head.tree, merge.tree)
    assert (change.path, change.new_mode, change.new_id) == ("lib", "160000", "2" * 40)


def test_what_is_no_candidate_is_refused(run: Any, repository: Path, git: Git) -> None:
    made = [candidate(run, "a", write("a")), candidate(run, "b", write("b"))]
    merge = run.merge(made[0].commit, made[1].commit)

    with pytest.raises(Refused, match="no candidate: it has 2 parents"):
        run.merge(made[0].commit, merge.commit, "m2")
    first = run_git(["rev-list", "--max-parents=0", run.commit], git_dir=run.git_dir).decode().strip()
    with pytest.raises(Refused, match="no candidate: it has 0 parents"):
        run.merge(made[0].commit, first, "m2")
    with pytest.raises(Refused):
        run.merge(made[0].commit, "1" * 40, "m2")
