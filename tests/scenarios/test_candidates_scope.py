"""Where children may write: the candidate's tree is compared, not what the child or its git says of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

CHILDREN = Path(__file__).parent / "children.py"
REFUSED = {
    "another file": ("(HERE / 'out' / 'new.txt').write_text('x')", ["out/new.txt"]),
    "a change": ("(HERE / 'out' / 'a.txt').write_text('x')", ["out/a.txt"]),
    "a deletion": ("(HERE / 'out' / 'a.txt').unlink()", ["out/a.txt"]),
    "a rename into the scope": ("os.rename(HERE / 'out' / 'a.txt', HERE / 'in' / 'a.txt')", ["out/a.txt"]),
    "a rename out of the scope": ("os.rename(HERE / 'in' / 'b.txt', HERE / 'out' / 'b.txt')", ["out/b.txt"]),
    "a changed mode": ("(HERE / 'out' / 'a.txt').chmod(0o755)", ["out/a.txt"]),
    "a link for a file": (
        "(HERE / 'out' / 'a.txt').unlink(); (HERE / 'out' / 'a.txt').symlink_to('../in/b.txt')", ["out/a.txt"],
    ),
    "a folder with the scope's name as its start": (
        "(HERE / 'inside').mkdir(); (HERE / 'inside' / 'c.txt').write_text('x')", ["inside/c.txt"],
    ),
    "a staged deletion": ("git('rm', '-q', '--cached', 'out/a.txt'); os.unlink('out/a.txt')", ["out/a.txt"]),
    "what was committed": (
        "open('out/c.txt', 'w').write('x'); git('add', '-A'); git('commit', '-q', '-m', 'x')", ["out/c.txt"],
    ),
    "a name with a line end": ("open('out/a\\nb', 'w').close()", ["out/a\nb"]),
    "a name that is not UTF-8": ("open(b'out/\\xff.txt', 'w').close()", ["out/\\udcff.txt"]),
    "an attributes file": ("open('.gitattributes', 'w').write('* -text')", [".gitattributes"]),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=[*REFUSED])
def test_what_is_written_outside_the_scope_is_rejected_with_the_list(bench: Any, case: Any) -> None:
    line, outside = case
    base = bench.commit({"in/b.txt": "b", "out/a.txt": "a", "out/keep.txt": "k"})
    body = f"(HERE / 'in' / 'fine.txt').write_text('fine')\n{line}\nhand_in(output=1)\n"
    one = bench.one(bench.program("child", body, write_scope=["in/"], limits={"max_repairs": 2, "max_claims": 3}))
    assert one.state == "failed"  # rejected: it is not sent back, and not tried again
    assert one.decision.decision == "rejected"
    assert one.attempts == 1
    assert one.reason.startswith("changed outside the write scope: ")
    assert one.manifest.workspace.outside_scope == outside
    (check,) = one.decision.checks
    assert (check.check, check.outcome) == ("write_scope", "refused")
    assert bench.place.run().head == base


def test_what_is_written_within_the_scope_is_accepted_with_every_kind_of_change(bench: Any) -> None:
    base = bench.commit({"in/old.txt": "old", "in/gone.txt": "g", "in/script.sh": "#!/bin/sh\n", "out.txt": "o"})
    body = r"""
os.rename("in/old.txt", "in/new name's \"quoted\".txt")
os.unlink("in/gone.txt")
os.chmod("in/script.sh", 0o755)
open(b"in/\xff\n.bin", "wb").write(bytes(range(256)))
os.makedirs("in/deep/er")
open("in/deep/er/crlf.txt", "wb").write(b"a\r\nb\n\rc")
os.symlink("new name's \"quoted\".txt", "in/link")
hand_in()
"""
    one = bench.one(bench.program("child", body, write_scope=["in/"]))
    assert one.accepted, one.reason
    assert {(change.path, change.status) for change in one.manifest.workspace.changes} == {
        ("in/old.txt", "deleted"), ("in/new name's \"quoted\".txt", "added"), ("in/gone.txt", "deleted"),
        ("in/script.sh", "modified"), ("in/\\udcff\n.bin", "added"), ("in/deep/er/crlf.txt", "added"),
        ("in/link", "added"),
    }  # fmt: skip
    files = bench.head_files()
    assert files["in/deep/er/crlf.txt"] == b"a\r\nb\n\rc"  # no line end was touched
    assert files[os.fsdecode(b"in/\xff\n.bin")] == bytes(range(256))
    assert files["out.txt"] == b"o"
    assert bench.place.run().head != base
    # All that was in it is saved.
    assert bench.workspaces == []
    assert bench.attempts()[0].workspace is None


SAME = {
    "nothing done to git": "",
    "a commit": "git('add', '-A'); git('commit', '-q', '-m', 'own')",
    "a commit and a dirty tree": "git('add', '-A'); git('commit', '-q', '-m', 'own'); open('b.txt', 'a').write('')",
    "a staged change that differs": (
        "open('b.txt', 'w').write('staged'); git('add', '-A'); open('b.txt', 'w').write('new\\n')"
    ),
    "another branch": "git('checkout', '-q', '-b', 'feature'); git('add', '-A'); git('commit', '-q', '-m', 'x')",
    "no git directory": "shutil.rmtree('.git')",
    "a git directory of its own": (
        "shutil.rmtree('.git'); git('init', '-q'); git('add', '-A'); git('commit', '-q', '-m', 'other history')"
    ),
    "a broken git directory": "open('.git/HEAD', 'w').write('nonsense')",
    "a git file that leads elsewhere": "shutil.rmtree('.git'); open('.git', 'w').write('gitdir: /nonexistent')",
    "hostile settings": (
        "git('config', 'core.fsmonitor', 'touch ' + str(MARKS / 'ran'));"
        "git('config', 'filter.x.clean', 'touch ' + str(MARKS / 'ran'));"
        "open('.git/info/attributes', 'w').write('* filter=x');"
        "os.makedirs('.git/hooks', exist_ok=True);"
        "open('.git/hooks/post-index-change', 'w').write('#!/bin/sh\\ntouch ' + str(MARKS / 'ran'));"
        "os.chmod('.git/hooks/post-index-change', 0o755)"
    ),
    "an index that hides a change": "git('update-index', '--assume-unchanged', 'b.txt')",
    "a base that is said to be another": (
        "git('add', '-A'); git('commit', '-q', '-m', 'x'); git('update-ref', 'refs/coordinator/base', 'HEAD')"
    ),
}


@pytest.mark.parametrize("line", SAME.values(), ids=[*SAME])
def test_whatever_a_child_does_to_its_own_git_the_candidate_is_what_lies_there(bench: Any, line: str) -> None:
    base = bench.commit({"a.txt": "a", "b.txt": "old\n"})
    body = f"open('b.txt', 'w').write('new\\n')\nopen('c.txt', 'w').write('c')\n{line}\nhand_in()\n"
    one = bench.one(bench.program("child", body))
    assert one.accepted, one.reason
    record = one.manifest.workspace
    assert [(change.path, change.status) for change in record.changes] == [("b.txt", "modified"), ("c.txt", "added")]
    assert record.base_commit == base
    assert bench.head_files() == {"a.txt": b"a", "b.txt": b"new\n", "c.txt": b"c"}
    assert not (bench.folder / "ran").exists()
    assert bench.workspaces == []


def test_ignored_files_outside_the_scope_are_left_out_and_named_and_their_folder_is_kept(bench: Any) -> None:
    bench.commit({".gitignore": "*.log\nreports/\n", "a.txt": "a"})
    body = """
open("run.log", "w").write("noise")
os.mkdir("reports"); open("reports/wanted.md", "w").write("# Wanted")
hand_in()
"""
    one = bench.one(bench.program("child", body, write_scope=["reports/wanted.md"]))
    assert one.accepted, one.reason
    assert one.manifest.workspace.left_out == ["run.log"]
    assert sorted(bench.head_files()) == [".gitignore", "a.txt", "reports/wanted.md"]
    # The log is nowhere else.
    (kept,) = bench.workspaces
    assert (kept / "run.log").read_text() == "noise"
    assert bench.attempts()[0].workspace == str(kept)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("os.mkfifo('pipe')", "pipe"),
        ("os.symlink('/etc/passwd', 'link')", "is a link that leaves the workspace"),
        ("os.mkdir('nested'); git('init', '-q', 'nested')", "nested"),
        ("os.link(os.environ['COORDINATOR_CONTRACT'], 'hard')", "hard"),
    ],
)
def test_what_no_tree_may_hold_is_no_result_and_stays_where_it_is(bench: Any, line: str, what: str) -> None:
    bench.commit({"a.txt": "a"})
    one = bench.one(bench.program("child", f"open('work.txt', 'w').write('w')\n{line}\nhand_in()\n"))
    assert one.state == "failed"
    assert "the workspace cannot be judged: the workspace cannot be taken: " in one.reason
    assert what in one.reason
    assert len(bench.workspaces) == 1


def test_a_failed_child_keeps_what_it_made_and_says_why_it_failed_though_it_cannot_be_taken(bench: Any) -> None:
    bench.commit({"a.txt": "a"})
    body = "open('work.txt', 'w').write('w')\nos.mkfifo('pipe')\nhand_in('failed', message='the pump is broken')\n"
    one = bench.one(bench.program("child", body))
    assert "the pump is broken" in one.reason
    assert len(bench.workspaces) == 1


def test_the_work_of_a_failed_child_is_saved_before_its_workspace_goes(bench: Any) -> None:
    bench.commit({"a.txt": "a"})
    bench.one(bench.program("child", "open('b.txt', 'w').write('half')\nhand_in('failed', message='no time')\n"))
    assert bench.workspaces == []
    (attempt,) = bench.attempts()
    assert bench.files_of(f"refs/coordinator/candidates/{attempt.child_run_id}") == {"a.txt": b"a", "b.txt": b"half"}


def test_a_committed_change_of_a_crashed_attempt_hides_no_change_of_the_next(bench: Any, until: Any) -> None:
    """The base is the recorded one, whatever the predecessor committed in its clone."""
    base = bench.commit({"a.txt": "a"})
    body = """
if ATTEMPT == 1:
    open("c1.txt", "w").write("by the first")
    git("add", "-A"); git("commit", "-q", "-m", "C1")
    mark("committed")
    signal.pause()
open("c2.txt", "w").write(git("rev-parse", "HEAD"))
hand_in()
"""
    file = bench.file({"one": bench.program("child", body, limits={"max_claims": 2})})
    worker = bench.place.worker(file=file)
    until(lambda: bench.place.marks("committed"))
    worker.kill()
    worker.wait()
    bench.place.ended(bench.place.worker())
    one = bench.last()
    assert one.accepted
    assert one.manifest.workspace.base_commit == base
    assert bench.head_files() == {"a.txt": b"a", "c2.txt": base.encode()}
    (kept,) = bench.workspaces
    assert bench.git("log", "--format=%s", "-1", cwd=kept) == "C1"


def test_a_workspace_that_is_gone_or_replaced_is_no_result_and_no_other_folder_is_taken(bench: Any) -> None:
    bench.commit({"a.txt": "a"})
    body = """
if ATTEMPT == 1:
    shutil.rmtree(HERE)
elif ATTEMPT == 2:
    os.rename(HERE, MARKS / "moved"); os.symlink(MARKS / "repo", HERE)
hand_in()
"""
    one = bench.one(bench.program("child", body, limits={"max_claims": 3}))
    assert one.accepted, one.reason
    assert [attempt.ended for attempt in bench.attempts()] == ["no_result", "no_result", "submitted"]
    assert bench.head_files() == {"a.txt": b"a"}
    assert sorted(path.name for path in bench.repo.iterdir()) == [".git", "a.txt"]


def test_a_function_that_outlives_its_deadline_disturbs_neither_the_next_workspace_nor_the_candidate(
    bench: Any,
) -> None:
    bench.commit({"a.txt": "a"})
    agent = {"function": f"{CHILDREN}:writes_on"}
    one = bench.one(
        bench.task(agent, limits={"deadline_s": 1, "max_claims": 2}, resources={"tools": ["write_file"],
                                                                              "write_scope": ["**"]})
    )  # fmt: skip
    assert one.accepted, one.reason
    assert bench.head_files() == {"a.txt": b"a", "by.txt": b"attempt 2"}
    first, second = bench.attempts()
    assert (first.ended, second.ended) == ("deadline", "submitted")
    bench.place.go()
