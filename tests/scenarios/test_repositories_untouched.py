"""What belongs to the user stays as it was, byte for byte, and what lies above the user's files decides nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import Refused

CHILDREN = Path(__file__).parent / "children.py"


def all_kinds(bench: Any) -> dict[str, Any]:
    """One child of every kind, that write, fail, ignore their end, and reach for the repository."""
    writes = "open('by-program.txt', 'w').write('x')\ngit('add', '-A')\ngit('commit', '-q', '-m', 'x')\nhand_in()\n"
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(1)\n"
    tools = ["read_file", "write_file", "git_diff"]
    listing = {"command": ["python", "-c", "import os; print(os.listdir())"]}
    return {
        "program": bench.program("program", writes, write_scope=["by-program.txt"], acceptance=[listing]),
        "folder": bench.program("folder", "open('in-folder.txt', 'w').write('x')\nhand_in()\n", workspace="directory",
                                write_scope=["in-folder.txt"]),
        "outside": bench.program("outside", "open('elsewhere.txt', 'w').write('x')\nhand_in()\n", write_scope=[]),
        "deaf": bench.program("deaf", deaf, write_scope=[], limits={"deadline_s": 1}),
        "none": bench.program("none", "hand_in(output=os.listdir())\n", workspace="none", write_scope=[]),
        "function": bench.task({"function": f"{CHILDREN}:writes_by_tools"}, write_scope=["by-function.txt"],
                               resources={"tools": tools, "write_scope": ["by-function.txt"]}, needs=["program"]),
        "scripted": bench.task({"scripted": f"{CHILDREN}:plays"}, workspace="directory",
                               resources={"tools": tools, "write_scope": ["by-script.txt"]}),
    }  # fmt: skip


def test_a_run_with_children_of_every_kind_changes_no_byte_of_the_repository(bench: Any, tree_of: Any) -> None:
    bench.commit({"a.txt": "a", "src/b.py": "b = 1\n", "run.sh": "#!/bin/sh\n"})
    (bench.repo / "run.sh").chmod(0o755)
    bench.git("commit", "-q", "-am", "mode")
    bench.git("gc", "-q")
    bench.commit({"later.txt": "loose objects too"})
    bench.git("config", "user.name", "somebody")
    bench.git("branch", "other")
    bench.git("stash", "list")
    bench.write({"a.txt": "dirty", "untracked.txt": "u", "staged.txt": "s"})
    bench.git("add", "staged.txt")
    before = tree_of(bench.repo)
    times = {path: os.lstat(bench.repo / path).st_mtime_ns for path in before}
    result = bench.run(all_kinds(bench))
    states = {name: str(task.state) for name, task in result.tasks.items()}
    reasons = {name: task.reason for name, task in result.tasks.items() if task.reason}
    assert states == {
        "program": "accepted", "folder": "accepted", "outside": "failed", "deaf": "failed", "none": "accepted",
        "function": "accepted", "scripted": "accepted",
    }, reasons  # fmt: skip
    assert tree_of(bench.repo) == before
    assert {path: os.lstat(bench.repo / path).st_mtime_ns for path in before} == times
    files = bench.head_files()
    assert files["a.txt"] == b"a"  # the user's unfinished edit is in no candidate
    assert {"by-program.txt", "in-folder.txt", "by-function.txt", "by-script.txt"} <= set(files)
    assert not {"untracked.txt", "staged.txt", "elsewhere.txt"} & set(files)


def test_with_the_store_in_the_repository_only_its_own_folder_is_new(
    bench: Any, tree_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coordinator import Coordinator, Orchestration

    bench.commit({"a.txt": "a"})
    before = tree_of(bench.repo)
    monkeypatch.setenv("XDG_STATE_HOME", str(bench.folder / "state"))
    monkeypatch.delenv("COORDINATOR_STORE", raising=False)
    monkeypatch.chdir(bench.repo)
    here = "open('b.txt', 'w').write('b')\nhand_in(output=str(HERE))\n"
    work = Orchestration.from_file(bench.file({"one": bench.program("child", here)}))
    with Coordinator() as coordinator:
        one = coordinator.run(work).tasks["one"]
    assert one.accepted, one.reason
    assert not Path(one.output).is_relative_to(bench.repo)
    assert Path(one.output).is_relative_to(bench.folder / "state")
    assert tree_of(bench.repo) == before
    assert (bench.repo / ".coordinator").is_dir()
    assert bench.git("status", "--porcelain") == ""


MAKE_GREEN = {
    "conftest.py": {
        "conftest.py": "def pytest_collection_modifyitems(items): items[:] = items[1:]\n",
        "pytest.ini": "[pytest]\n",
    },
    "pytest.ini": {"pytest.ini": "[pytest]\naddopts = -k holds\n"},
    "pyproject.toml": {"pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-k holds'\n"},
    "setup.cfg": {"setup.cfg": "[tool:pytest]\naddopts = -k holds\n"},
}
SUITE = "def test_fails(): assert False\ndef test_holds(): pass\n"
PYTEST = ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]


@pytest.mark.parametrize("name", MAKE_GREEN)
def test_a_configuration_file_in_the_repository_does_not_reach_into_checkouts(
    bench: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Untracked, in the user's folder: below it, a failing suite is green."""
    from coordinator import Coordinator, Orchestration

    bench.commit({"tests/test_it.py": SUITE})
    bench.write(MAKE_GREEN[name])
    # The control: a checkout below the repository, where others put theirs.
    below = bench.repo / ".coordinator" / "checks" / "one"
    bench.write({"tests/test_it.py": SUITE}, below)
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    control = subprocess.run([sys.executable, *PYTEST[1:]], cwd=below, env=clean, capture_output=True, text=True)
    assert control.returncode == 0, control.stdout
    monkeypatch.setenv("XDG_STATE_HOME", str(bench.folder / "state"))
    monkeypatch.delenv("COORDINATOR_STORE", raising=False)
    monkeypatch.chdir(bench.repo)
    work = Orchestration.from_file(
        bench.file({"one": bench.program("child", "hand_in()\n", acceptance=[{"command": PYTEST}])})
    )
    with Coordinator() as coordinator:
        one = coordinator.run(work).tasks["one"]
    assert one.state == "failed"
    assert "1 failed, 1 passed" in one.decision.processes[0].output_tail


@pytest.mark.parametrize("where", ["top", "deep"])
def test_a_home_inside_a_repository_is_refused_by_name_before_anything_starts(bench: Any, where: str) -> None:
    from coordinator import Coordinator, Orchestration

    bench.commit({"a.txt": "a"})
    home = bench.repo if where == "top" else bench.repo / "some" / "where"
    work = Orchestration.from_file(bench.file({"one": bench.program("child", "mark('ran')\nhand_in()\n")}))
    with Coordinator(bench.place.url, home=home) as coordinator, pytest.raises(Refused) as refused:
        coordinator.run(work)
    assert f"lies in the repository {bench.repo}" in str(refused.value)
    assert "choose another --home" in str(refused.value)
    assert not bench.place.marks()


def test_children_that_need_no_place_may_have_their_home_in_a_repository(bench: Any) -> None:
    from coordinator import Coordinator, Orchestration

    bench.commit({"a.txt": "a"})
    task = bench.task({"function": f"{CHILDREN}:quick"}, workspace="none", write_scope=[])
    with Coordinator(bench.place.url, home=bench.repo / "home") as coordinator:
        assert coordinator.run(Orchestration.from_file(bench.file({"one": task}))).ok


def test_git_variables_around_the_coordinator_lead_nowhere(
    bench: Any, tree_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a hook of another repository."""
    bench.commit({"a.txt": "a"})
    other = bench.folder / "other"
    other.mkdir()
    bench.git("init", "-q", cwd=other)
    bench.write({"secret.txt": "s"}, other)
    before = tree_of(other)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    body = "open('b.txt', 'w').write('b')\ngit('add', '-A')\ngit('commit', '-q', '-m', 'x')\n"
    body += "hand_in(output=os.listdir())\n"
    one = bench.one(bench.program("child", body, acceptance=[{"command": ["python", "-c", "open('b.txt')"]}]))
    assert one.accepted, one.reason
    assert "secret.txt" not in one.output
    assert tree_of(other) == before
    assert sorted(bench.head_files()) == ["a.txt", "b.txt"]
