"""What people see of children that change files and of programs, in a run on a real repository."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

RUN = """\
schema: coordinator/v1
name: fix
objective: Fix it.
source: {repo: .}
defaults: {workspace: clone, isolation: none, limits: {deadline_s: 60, max_claims: 1}}
tasks:
  fix:
    objective: Make f return 2.
    agent: {function: "kids.py:fix"}
    resources: {tools: [read_file, edit_file, git_diff], write_scope: [src/]}
    acceptance:
      - {command: [sh, check.sh], timeout_s: 50, env: {WANTED: "2"}}
      - {paths_unchanged: [tests/]}
  prog:
    needs: [fix]
    objective: Write a report.
    agent: {command: [sh, prog.sh]}
    resources: {write_scope: [report.md, "*.bin"]}
    required_evidence:
      - {name: my run, kind: command, min_origin: observed}
    acceptance:
      - {sections: [Summary], of: report.md}
  cites:
    needs: [fix]
    objective: Cite f.
    workspace: none
    agent: {scripted: "kids.py:cites"}
    resources: {tools: [read_file]}
    required_evidence:
      - {name: places, kind: citation, min_origin: verified}
    acceptance:
      - {citations_resolve: places}
  same:
    needs: [fix]
    objective: Change nothing.
    agent: {function: "kids.py:same"}
    acceptance: [{cel: "true"}]
  bad:
    needs: [fix]
    objective: Go out of bounds.
    agent: {command: [sh, bad.sh]}
    resources: {write_scope: [report.md]}
    acceptance: [{cel: "true"}]
"""
KIDS = """\
from coordinator import ToolUse


def fix(a):
    a.tools.edit_file("src/a.py", "return 1", "return 2" if a.feedback else "return 3")
    return a.completed({})


def same(a):
    return a.completed({})


def cites(view):
    yield ToolUse("read_file", {"path": "src/a.py"})
    place = {"name": "places", "kind": "citation", "path": "src/a.py", "line": 1, "symbol": "f", "text": "def f():"}
    second = {**place, "line": 2, "text": "    return 2"}
    yield ToolUse("submit_result", {"outcome": "completed", "evidence": [place, second]})
"""
CHECK = """\
printf '    indented \\033[31mred\\n'
grep "return $WANTED" src/a.py || { echo "f does not return $WANTED"; exit 7; }
"""
PROG = """\
sleep 300 &
printf '# Summary\\n\\nGood.\\n' > report.md
printf 'x' > data.bin
chmod +x data.bin
echo kept only here > notes.tmp
ran='{"name":"my run","kind":"command","data":{"argv":["sh","prog.sh"]}}'
echo '{"outcome":"completed","evidence":['"$ran"']}' > "$COORDINATOR_RESULT"
"""
BAD = """\
echo over > src/a.py
rm tests/t.py
echo '{"outcome":"completed"}' > "$COORDINATOR_RESULT"
"""
FILES = {
    "src/a.py": b"def f():\n    return 1\n", "tests/t.py": b"\n", ".gitignore": b"*.tmp\n.coordinator/\n",
    "check.sh": CHECK.encode(), "orchestration.yaml": RUN.encode(), "kids.py": KIDS.encode(),
    "prog.sh": PROG.encode(), "bad.sh": BAD.encode(),
}  # fmt: skip


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory, cli_of: Any, git_repository: Any) -> Any:
    """A run that has ended: all accepted but one, which was rejected; only looked at."""
    cli = cli_of(tmp_path_factory.mktemp("worked") / "repo")
    git_repository(cli.folder, FILES)
    done = cli("run")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "  pinned beside it: bad.sh, kids.py, prog.sh\n" in done.stderr
    return cli


def lines_of(cli: Any, *words: str) -> list[str]:
    return [" ".join(line.split()) for line in cli(*words).stdout.splitlines()]


def test_what_was_claimed_stands_beside_what_was_seen_and_proved(worked: Any) -> None:
    prog = lines_of(worked, "evidence", "fix/prog")
    assert any(
        line.startswith("my run (command, owed at least observed)") and "it exited 0 no; observed is enough" in line
        for line in prog
    ), prog
    assert any(re.fullmatch(r"program `sh prog.sh` exited 0 after [0-9.]+ s, 1 process left behind and killed", line)
               for line in prog), prog  # fmt: skip
    for line in ("changed added data.bin (mode 100755)", "added report.md"):
        assert line in prog
    assert "left out ignored files, no part of the candidate: notes.tmp" in prog
    cites = lines_of(worked, "evidence", "fix/cites")
    assert any("yes, by the gate, all 2" in line for line in cites)
    assert "read 1 file, with digests: src/a.py" in cites
    fix = lines_of(worked, "evidence", "fix/fix")
    assert "changed modified src/a.py" in fix
    assert any(re.fullmatch(r"gate ran `sh check.sh` exited 0 after [0-9.]+ s", line) for line in fix), fix
    record = worked.json("evidence", "fix/fix")[0]
    assert f"judged {record['decision']['judged_tree']}" in fix
    assert f"new head {record['decision']['new_head']}" in fix
    assert "candidate the base itself: nothing was changed" in " ".join(lines_of(worked, "evidence", "fix/same"))


def test_a_change_out_of_bounds_is_named(worked: Any) -> None:
    bad = lines_of(worked, "inspect", "fix/bad")
    assert "OUTSIDE the write scope: src/a.py, tests/t.py" in bad
    assert "deleted tests/t.py" in bad
    assert "next: coordinator inspect fix/bad" in worked("status").stdout


def test_inspect_names_agents_workspaces_and_what_failing_programs_wrote(worked: Any) -> None:
    assert "agent command sh prog.sh" in lines_of(worked, "inspect", "fix/prog")
    assert "agent scripted kids.py:cites" in lines_of(worked, "inspect", "fix/cites")
    text = worked("inspect", "fix/fix").stdout
    lines = lines_of(worked, "inspect", "fix/fix")
    assert "agent function kids.py:fix" in lines
    assert "workspace clone" in lines
    assert "check failed: command sh check.sh (at most 50 s, with WANTED)" in lines
    assert "- `sh check.sh` exited 7" in lines
    assert any(re.fullmatch(r"gate ran `sh check.sh` exited 7 after [0-9.]+ s", line) for line in lines)
    assert re.search(r"^  \| {10,}indented \ufffd\[31mred *$", text, re.MULTILINE), text
    assert "| f does not return 2" in lines
    assert text.count("f does not return 2") <= 2  # the reason, and the output itself
    assert any(line.startswith("changed modified src/a.py") for line in lines)


def test_a_folder_with_unsaved_work_is_named_wherever_one_looks(worked: Any) -> None:
    folder = next(attempt["workspace"] for attempt in worked.json("inspect", "fix/prog")["attempts"])
    assert Path(folder, "notes.tmp").read_text() == "kept only here\n"
    for words in (["status"], ["inspect", "fix/prog"], ["evidence", "fix/prog"]):
        assert f"work kept at {folder}" in " ".join(lines_of(worked, *words)), words
    assert worked.json("inspect", "fix/fix")["attempts"][1]["workspace"] is None


def unpacked(git_dir: Path) -> Path:
    """A git directory's objects, each made a file of its own."""
    for pack in list((git_dir / "objects" / "pack").glob("*.pack")):
        moved = git_dir / pack.name
        pack.rename(moved)
        pack.with_suffix(".idx").unlink()
        with moved.open("rb") as data:
            subprocess.run(["git", f"--git-dir={git_dir}", "unpack-objects", "-q"], stdin=data, check=True)
    return git_dir / "objects"


def test_the_objects_of_candidates_and_of_the_head_are_verified(worked: Any, tmp_path: Path) -> None:
    done = worked("evidence", "--verify")
    assert done.returncode == 0, done.stdout
    for count in ("candidate commits", "candidate trees", "judged trees", "2 new heads"):
        assert count in done.stdout
    record = worked.json("evidence", "fix/prog")[0]
    tree, commit = (record["manifest"]["workspace"][f"candidate_{kind}"] for kind in ("tree", "commit"))
    head = record["decision"]["bound"]["head"]
    for name, object_id, damage, message in (
        ("lost", tree, None, f"fix/prog@1: candidate tree: {tree} "),
        ("other", commit, head, f"fix/prog@1: candidate commit: stored bytes of {commit}"),
        ("broken", tree, b"nonsense", f"fix/prog@1: candidate tree: {tree} cannot be read"),
    ):  # fmt: skip
        copy = type(worked)(tmp_path / name / "repo")
        shutil.copytree(worked.folder, copy.folder, symlinks=True)
        objects = unpacked(next((copy.folder / ".coordinator" / "git").glob("fix-*.git")))
        file = objects / object_id[:2] / object_id[2:]
        if damage is None:
            file.unlink()
        else:
            good = damage if isinstance(damage, bytes) else (objects / damage[:2] / damage[2:]).read_bytes()
            file.chmod(0o644)
            file.write_bytes(good)
        done = copy("evidence", "--verify")
        assert done.returncode == 1, name
        assert message in done.stdout, name
        assert copy("evidence", "fix/cites", "--verify").returncode == 0
    shutil.rmtree(copy.folder / ".coordinator" / "git")
    assert " is missing" in copy("evidence", "--verify").stdout


def test_dry_run_shows_agents_workspaces_scopes_and_pins(worked: Any) -> None:
    done = worked("run", "--dry-run", "--new")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    for line in (
        "agent command sh prog.sh", "agent scripted kids.py:cites", "agent function kids.py:fix", "workspace clone",
        "workspace none", "writes report.md, *.bin", "check paths_unchanged: tests/",
        "check citations_resolve of places",
        "check command sh check.sh (at most 50 s, with WANTED)", "evidence my run (command, at least observed)",
    ):  # fmt: skip
        assert line in lines, line
    assert any(line.startswith("pinned prog.sh: prog.sh@sha256:") for line in lines)
    assert lines[-1] == "nothing was started"


@pytest.mark.parametrize(
    "words", [["status"], ["evidence", "fix/fix"], ["inspect", "fix/fix"], ["run", "--dry-run", "--new"]]
)
def test_at_eighty_columns_what_is_not_enforced_is_said_once_and_whole(words: list[str], worked: Any) -> None:
    ours, theirs = pty.openpty()
    subprocess.run(["stty", "cols", "80", "rows", "50"], stdin=theirs, check=True)
    env = worked.env(TERM="xterm", NO_COLOR="1")
    process = subprocess.Popen(worked.argv(*words), cwd=worked.folder, env=env, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    while data := _read(ours):
        seen += data
    os.close(ours)
    process.wait(30)
    text = re.sub(r"\x1b\[[0-9;]*m", "", seen.decode()).replace("\r\n", "\n")
    assert max(len(line) for line in text.splitlines()) <= 80
    said = " ".join(text.split())
    assert said.count("unenforced") == 1
    assert "isolation: none. Nothing keeps a child from the network" in said
    assert "run only code that you trust, or run the coordinator itself in a container" in said


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # its other end is closed
        return b""


def test_a_running_child_of_tools_shows_its_last_call(cli: Any, git_repository: Any) -> None:
    kids = (
        "import pathlib, time\n"
        "def kid(a):\n"
        '    a.tools.read_file("kids.py")\n'
        '    a.tools.list_files("**")\n'
        '    a.tools.read_file("a/b.txt")\n'
        '    while not pathlib.Path(a.inputs["go"]).exists():\n'
        "        time.sleep(0.05)\n"
        "    return a.completed({})\n"
    )
    go = cli.folder.parent / "go"
    document = {
        "schema": "coordinator/v1", "name": "one", "objective": "x", "source": {"repo": "."},
        "inputs": {"go": str(go)}, "defaults": {"isolation": "none"},
        "tasks": {
            "kid": {
                "objective": "x", "agent": {"function": "kids.py:kid"}, "acceptance": [{"cel": "true"}],
                "resources": {"tools": ["read_file", "list_files"]}, "workspace": "directory",
            }
        },
    }  # fmt: skip
    git_repository(cli.folder, {"kids.py": kids.encode(), "a/b.txt": b"x\n",
                                "orchestration.yaml": json.dumps(document).encode()})  # fmt: skip
    run = subprocess.Popen(cli.argv("run"), cwd=cli.folder, env=cli.env(), stderr=subprocess.PIPE, text=True)
    try:
        assert run.stderr is not None
        assert any("kid: claimed" in line for line in iter(run.stderr.readline, ""))
        follower = subprocess.Popen(
            cli.argv("logs", "one/kid", "-f"), cwd=cli.folder, env=cli.env(), stdout=subprocess.PIPE, text=True
        )
        assert follower.stdout is not None
        assert any("path=a/b.txt" in line for line in iter(follower.stdout.readline, ""))
        assert "    last call: read_file a/b.txt\n" in cli("status").stdout
        assert any(line.startswith("works in /") for line in lines_of(cli, "inspect", "one/kid"))
    finally:
        go.touch()
        run.communicate(timeout=60)
        follower.communicate(timeout=60)
    assert run.returncode == 0
    assert "last call" not in cli("status").stdout
