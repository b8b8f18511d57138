"""Repositories of every kind: a child works in them end to end, or they are refused by name before one starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

Make = Callable[[Any], str]
BODY = """
if (HERE / ".git").exists():
    git("add", "-A")
open("by-child.txt", "w").write("c")
hand_in(output=sorted(os.fsencode(name).decode("utf-8", "backslashreplace") for name in os.listdir()))
"""
CHECK = {"command": ["python", "-c", "assert open('by-child.txt').read() == 'c'"]}


def detached(bench: Any) -> None:
    bench.commit({"a.txt": "1"})
    first = bench.git("rev-parse", "HEAD")
    bench.commit({"a.txt": "2"})
    bench.git("checkout", "-q", first)


def shallow(bench: Any) -> None:
    for number in range(3):
        bench.commit({"a.txt": f"{number}"})
    bench.git("clone", "-q", "--depth=1", f"file://{bench.repo}", str(bench.folder / "shallow"))
    os.rename(bench.repo, bench.folder / "deep")
    os.rename(bench.folder / "shallow", bench.repo)


def bare(bench: Any) -> None:
    bench.commit({"a.txt": "a"})
    bench.git("clone", "-q", "--bare", str(bench.repo), str(bench.folder / "bare"))
    os.rename(bench.repo, bench.folder / "with-files")
    os.rename(bench.folder / "bare", bench.repo)


def dirty(bench: Any) -> None:
    bench.commit({"a.txt": "a", "b.txt": "b"})
    bench.write({"a.txt": "dirty", "new.txt": "n", "staged.txt": "s"})
    (bench.repo / "b.txt").unlink()
    bench.git("add", "staged.txt")


def submodule(bench: Any) -> None:
    inner = bench.folder / "inner"
    inner.mkdir()
    bench.git("init", "-q", cwd=inner)
    bench.write({"in.txt": "i"}, inner)
    bench.git("add", "-A", cwd=inner)
    bench.git("commit", "-q", "-m", "inner", cwd=inner)
    bench.commit({"a.txt": "a"})
    bench.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "sub")
    bench.git("commit", "-q", "-m", "sub")


def links(bench: Any) -> None:
    bench.commit({"a.txt": "a", "folder/b.txt": "b"})
    (bench.repo / "link").symlink_to("a.txt")
    (bench.repo / "folder-link").symlink_to("folder")
    (bench.repo / "dangling").symlink_to("nowhere")
    bench.commit()


def failing_hooks(bench: Any) -> None:
    bench.commit({"a.txt": "a"})
    hooks = bench.repo / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("pre-commit", "commit-msg", "post-checkout", "reference-transaction", "post-index-change"):
        (hooks / name).write_text(f"#!/bin/sh\necho {name} >> '{bench.folder}/hook-ran'\nexit 1\n")
        (hooks / name).chmod(0o755)


def signing(bench: Any) -> None:
    bench.commit({"a.txt": "a"})
    for key in ("commit.gpgSign", "tag.gpgSign"):
        bench.git("config", key, "true")
    bench.git("config", "gpg.program", "/bin/false")
    bench.git("config", "user.signingKey", "nobody")


def odd_names(bench: Any) -> None:
    bench.commit({"with space.txt": "1", "quo\"te's.txt": "2", "line\nend.txt": "3", "-dash": "4", ":colon": "5"})
    with open(os.fsencode(bench.repo) + b"/\xff\xfe.txt", "wb") as file:
        file.write(b"6")
    bench.commit()


def line_ends(bench: Any) -> None:
    bench.commit({"a.txt": b"a\r\nb\nc\r", "b.bin": bytes(range(256))})
    bench.write({".gitattributes": "*.txt text eol=crlf\n"})
    bench.git("add", ".gitattributes")  # alone: the committed bytes stay as they are
    bench.git("commit", "-q", "-m", "attributes")
    bench.git("config", "core.autocrlf", "true")


def filters(bench: Any) -> None:
    bench.commit({"a.txt": "a", ".gitattributes": "*.txt filter=bad\n"})
    bench.git("config", "filter.bad.clean", f"touch '{bench.folder}/hook-ran'; false")
    bench.git("config", "filter.bad.smudge", f"touch '{bench.folder}/hook-ran'; false")
    bench.git("config", "filter.bad.required", "true")


def stale_locks(bench: Any) -> None:
    bench.commit({"a.txt": "a"})
    for name in ("index.lock", "config.lock", "HEAD.lock"):
        (bench.repo / ".git" / name).touch()


def linked_worktree(bench: Any) -> None:
    bench.commit({"a.txt": "a"})
    bench.git("worktree", "add", "-q", "-b", "feature", str(bench.folder / "linked"))
    bench.write({"in-linked.txt": "l"}, bench.folder / "linked")
    bench.git("add", "-A", cwd=bench.folder / "linked")
    bench.git("commit", "-q", "-m", "linked", cwd=bench.folder / "linked")
    os.rename(bench.repo, bench.folder / "main")
    (bench.folder / "linked" / ".git").write_text(f"gitdir: {bench.folder}/main/.git/worktrees/linked\n")
    os.rename(bench.folder / "linked", bench.repo)
    (bench.folder / "main" / ".git" / "worktrees" / "linked" / "gitdir").write_text(f"{bench.repo}/.git\n")


def packed(bench: Any) -> None:
    for number in range(4):
        bench.commit({f"{number}.txt": str(number) * 1000})
    bench.git("tag", "-a", "-m", "t", "v1")
    bench.git("gc", "-q", "--aggressive", "--prune=now")


WORK = {
    "detached": (detached, ["a.txt"]),
    "shallow": (shallow, ["a.txt"]),
    "bare": (bare, ["a.txt"]),
    "dirty": (dirty, ["a.txt", "b.txt"]),
    "with a submodule": (submodule, [".gitmodules", "a.txt", "sub"]),
    "with links": (links, ["a.txt", "dangling", "folder", "folder-link", "link"]),
    "with hooks that fail": (failing_hooks, ["a.txt"]),
    "with signing required": (signing, ["a.txt"]),
    "with odd names": (
        odd_names, ["-dash", ":colon", "line\nend.txt", "quo\"te's.txt", "with space.txt", "\\xff\\xfe.txt"],
    ),
    "with line ends of its own": (line_ends, [".gitattributes", "a.txt", "b.bin"]),
    "with filters": (filters, [".gitattributes", "a.txt"]),
    "with locks of dead processes": (stale_locks, ["a.txt"]),
    "a linked work tree": (linked_worktree, ["a.txt", "in-linked.txt"]),
    "packed and tagged": (packed, ["0.txt", "1.txt", "2.txt", "3.txt"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["clone", "directory"])
@pytest.mark.parametrize("case", WORK.values(), ids=[*WORK])
def test_a_child_works_in_it_end_to_end_and_leaves_it_as_it_was(bench: Any, tree_of: Any, case: Any, kind: str) -> None:
    make, names = case
    make(bench)
    before = tree_of(bench.repo)
    one = bench.one(bench.program("child", BODY, workspace=kind, acceptance=[CHECK]))
    assert one.accepted, one.reason
    own = [".git"] if kind == "clone" else []
    assert sorted(one.output) == sorted([*own, *names, "by-child.txt"])
    assert [change.path for change in one.manifest.workspace.changes] == ["by-child.txt"]
    assert tree_of(bench.repo) == before
    assert not (bench.folder / "hook-ran").exists()
    assert bench.workspaces == []


def test_bytes_arrive_and_return_as_they_are_whatever_the_line_ends(bench: Any) -> None:
    line_ends(bench)
    body = """
data = open("a.txt", "rb").read()
open("a.txt", "wb").write(data.replace(b"b", b"B"))
hand_in(output=[data.hex(), git("diff", "--stat")])
"""
    one = bench.one(bench.program("child", body))
    assert bytes.fromhex(one.output[0]) == b"a\r\nb\nc\r"
    assert bench.head_files()["a.txt"] == b"a\r\nB\nc\r"


def empty(bench: Any) -> None:
    bench.git("init", "-q")


def broken(bench: Any) -> None:
    bench.commit({"a.txt": "a"})
    (bench.repo / ".git" / "HEAD").write_text("nonsense")


def with_a_missing_object(bench: Any) -> None:
    bench.commit({"a.txt": "a"})
    blob = bench.git("rev-parse", "HEAD:a.txt")
    (bench.repo / ".git" / "objects" / blob[:2] / blob[2:]).unlink()


REFUSED = {
    "empty": (empty, "has no commit yet"),
    "broken": (broken, "repo"),
    "incomplete": (with_a_missing_object, "missing"),
    "absent": (lambda bench: bench.repo.rmdir(), "does not exist"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=[*REFUSED])
def test_what_cannot_be_worked_in_is_refused_by_name_before_a_child_starts(bench: Any, case: Any) -> None:
    make, said = case
    make(bench)
    file = bench.file({"one": bench.program("child", "mark('ran')\nhand_in()\n")})
    _, err = bench.place.ended(bench.place.cli("run", str(file)), 2)
    assert said in err
    assert "source" in err
    assert not bench.place.marks()
    assert bench.place.store.newest_run() is None


def test_sixteen_workspaces_prepared_at_once_fail_not_once(bench: Any) -> None:
    bench.commit({f"src/{number}.txt": str(number) for number in range(50)})
    body = "mark('ready')\nwait_for('go')\nopen(P['task_id'], 'w').write('x')\nhand_in(output=str(HERE))\n"
    (bench.folder / "go").touch()
    tasks = {f"t{n}": bench.program("child", body, write_scope=[f"t{n}"]) for n in range(16)}
    result = bench.run(tasks, workers=16)
    assert result.ok, {name: one.reason for name, one in result.tasks.items() if not one.accepted}
    assert len({one.output for one in result.tasks.values()}) == 16
    assert all(one.attempts == 1 for one in result.tasks.values())
    assert {f"t{n}" for n in range(16)} <= set(bench.head_files())
    assert bench.workspaces == []


def test_two_runs_of_one_name_never_share_a_folder(bench: Any) -> None:
    from coordinator import Coordinator, Orchestration

    bench.commit({"a.txt": "a"})
    work = Orchestration.from_file(bench.file({"one": bench.program("child", "hand_in(output=str(HERE))\n")}))
    with Coordinator(bench.place.url, home=bench.place.home) as coordinator:
        outputs = {coordinator.run(work, new=True).tasks["one"].output for _ in range(3)}
    assert len(outputs) == 3
