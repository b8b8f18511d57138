"""Nothing of a program is left: daemons, forks, a lost supervisor, a dead worker, and the lock that tells."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agents.processes.running import SUPERVISOR
from tests.agents.processes.conftest import DAEMON, Run, alive, python, stands_still, wait_for


def test_a_daemon_that_is_left_behind_is_found_counted_and_killed(run: Run, tmp_path: Path, tag: str) -> None:
    end = run(*python(DAEMON, tag))

    assert (end.how, end.exit_status, end.killed_left_behind, end.all_gone) == ("exited", 0, 1, True)
    assert alive(tag) == []
    assert stands_still(tmp_path / "work" / "beats")


def test_control_a_process_group_does_not_reach_that_daemon(tmp_path: Path, env: dict[str, str]) -> None:
    word = f"control-{time.monotonic_ns()}"
    (tmp_path / "work").mkdir()
    program = subprocess.Popen([*python(DAEMON, word)], cwd=tmp_path / "work", env=env, start_new_session=True)
    program.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)
    try:
        assert len(alive(word)) == 1
        assert not stands_still(tmp_path / "work" / "beats")
    finally:
        for pid in alive(word):
            os.kill(pid, signal.SIGKILL)


def test_a_daemon_that_holds_the_output_is_not_waited_for(run: Run, tag: str) -> None:
    code = "import subprocess, sys; subprocess.Popen(['sleep', '60'], start_new_session=True); print('done')"

    end = run(*python(code, tag))

    assert (end.how, end.stdout, end.killed_left_behind) == ("exited", b"done\n", 1)
    assert end.elapsed_s < 10


def test_what_ends_by_itself_right_after_is_neither_killed_nor_lost(run: Run) -> None:
    end = run("sh", "-c", "(trap '' HUP; sleep 0.02; echo last words) & exit 0")

    assert (end.stdout, end.killed_left_behind) == (b"last words\n", 0)


@pytest.mark.slow
def test_a_tree_that_forks_while_it_is_killed_is_killed(run: Run, tag: str) -> None:
    # Each process replaces its dead children, in sessions of their own, at most 60 in all.
    bomb = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def grow(depth):
    children = set()
    while True:
        if depth and len(children) < 3:
            pid = os.fork()
            if pid == 0:
                os.setsid()
                grow(depth - 1)
            children.add(pid)
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            children.discard(pid)
        except ChildProcessError:
            pass
        time.sleep(0.002)
grow(3)
"""
    end = run(*python(bomb, tag), timeout_s=1.5, grace_s=0.1)

    assert (end.how, end.all_gone) == ("timeout", True)
    assert alive(tag) == []


def test_descendants_with_subreapers_and_namespaces_of_their_own_are_killed(run: Run, tag: str) -> None:
    code = DAEMON.replace("import os", "import ctypes, os").replace(
        "    os.setsid()\n", "    os.setsid()\n    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
    )
    nested = f"{code}\nos.system('unshare -Urpf --kill-child=KILL sleep 60 2>/dev/null & sleep 0.2')"

    end = run(*python(nested, tag))

    assert end.killed_left_behind >= 1
    assert end.all_gone


@pytest.mark.slow
def test_a_program_cannot_stop_its_supervisor_for_good(run: Run, tag: str) -> None:
    end = run(*python(DAEMON + "os.kill(os.getppid(), 19); time.sleep(60)", tag), timeout_s=0.5)

    assert (end.how, end.all_gone) == ("timeout", True)


def test_signals_to_the_supervisor_achieve_nothing(run: Run, tag: str) -> None:
    code = "import os\nfor n in (1, 2, 3, 10, 12, 13, 15, 20, 34, 64): os.kill(os.getppid(), n)\nprint('still here')"

    end = run(*python(code, tag))

    assert (end.how, end.exit_status, end.stdout) == ("exited", 0, b"still here\n")


@pytest.mark.skipif(os.getuid() == 0, reason="root may open everything")
def test_a_program_can_open_neither_memory_nor_descriptors_of_its_supervisor(run: Run) -> None:
    end = run("sh", "-c", "cat /proc/$PPID/environ; ls /proc/$PPID/fd; echo x > /proc/$PPID/fd/1; cat /proc/self/comm")

    assert end.stdout == b"cat\n"
    assert end.stderr.count(b"ermission denied") >= 2


def test_a_lost_supervisor_is_unknown_and_takes_the_program_with_it(run: Run, tmp_path: Path) -> None:
    word = f"lost-{time.monotonic_ns()}"

    end = run(*python(DAEMON + "print(1); sys.stdout.flush(); os.kill(os.getppid(), 9); time.sleep(60)", word))

    try:
        assert (end.how, end.exit_status, end.all_gone) == ("unknown", None, False)
        assert "supervisor" in end.message
        assert end.stdout == b"1\n"
        # The program itself is dead, by the parent's death signal; the daemon is what remains, and is not denied.
        wait_for(lambda: len(alive(word)) == 1)
    finally:
        for pid in alive(word):
            os.kill(pid, signal.SIGKILL)


FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.mark.slow
@pytest.mark.skipif(not os.access(FREEZER / "tasks", os.W_OK), reason="needs a cgroup that freezes (v1, as root)")
def test_what_cannot_be_killed_is_said_and_keeps_the_lock(run: Run, tmp_path: Path, tag: str) -> None:
    lock = tmp_path / "owner.lock"
    lock.touch()
    cage = FREEZER / tag
    cage.mkdir()
    code = (
        f"import os, time\nopen({str(cage / 'tasks')!r}, 'w').write(str(os.getpid()))\nprint('in', flush=True)\n"
        f"open({str(cage / 'freezer.state')!r}, 'w').write('FROZEN')\ntime.sleep(60)"
    )
    try:
        end = run(*python(code, tag), timeout_s=0.5, lock_path=lock)

        assert (end.how, end.all_gone) == ("timeout", False)
        assert is_held(lock)
    finally:
        (cage / "freezer.state").write_text("THAWED")
        wait_for(lambda: not is_held(lock))
        wait_for(lambda: not (cage / "tasks").read_text())
        cage.rmdir()


def is_held(lock: Path) -> bool:
    with lock.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_the_lock_is_held_while_anything_runs_and_not_by_the_program(run: Run, tmp_path: Path, tag: str) -> None:
    lock = tmp_path / "owner.lock"
    lock.touch()
    probe = (
        "import fcntl, os\nfile = open(os.environ['LOCK'], 'r+')\n"
        "try: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\nexcept BlockingIOError: print('held')\n"
        "print(sorted(int(n) for n in os.listdir('/proc/self/fd')))"
    )
    end = run(*python(probe, tag), lock_path=lock, env={"LOCK": str(lock), "PATH": "/usr/bin:/bin"})

    assert end.stdout == b"held\n[0, 1, 2, 3, 4]\n"  # 3: its own file; 4: the folder that it lists
    assert not is_held(lock)


def test_a_lock_that_somebody_proves_gone_or_that_is_not_there_starts_nothing(run: Run, tmp_path: Path) -> None:
    lock = tmp_path / "owner.lock"
    end = run("touch", "started", lock_path=lock)
    assert (end.how, end.all_gone) == ("start_failed", True)
    assert "owner.lock: No such file" in end.message

    lock.touch()
    with lock.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        end = run("touch", "started", lock_path=lock)
    assert end.how == "start_failed"
    assert "cannot lock" in end.message
    assert not (tmp_path / "work" / "started").exists()


def test_no_program_starts_for_a_worker_that_died_before_the_lock_was_taken(tmp_path: Path) -> None:
    lock = tmp_path / "owner.lock"
    lock.touch()
    order = {
        "argv": ["touch", "started"], "cwd": str(tmp_path), "env": {"PATH": "/usr/bin:/bin"}, "timeout_s": 60,
        "grace_s": 1, "stdout_fd": 1, "stderr_fd": 2, "lock_path": str(lock),
    }  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-I", "-S", SUPERVISOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as it:
        assert it.stdin is not None
        assert it.stdout is not None
        it.stdin.write(json.dumps(order).encode() + b"\n")
        it.stdin.flush()
        assert json.loads(it.stdout.readline()) == {"is": "locked"}
        assert is_held(lock)
        it.stdin.close()
        assert json.loads(it.stdout.readline())["how"] == "worker_gone"

    assert not is_held(lock)
    assert not (tmp_path / "started").exists()


WORKER = """
import asyncio, sys, threading
from pathlib import Path
from agents.processes import ProcessSpec, run_process
work, lock, program, tag = sys.argv[1:]
spec = ProcessSpec(argv=[sys.executable, "-c", program, tag], cwd=Path(work), env={"PATH": "/usr/bin:/bin"},
                   timeout_s=60, lock_path=Path(lock), grace_s=30)
asyncio.run(run_process(spec, threading.Event()))
"""


@pytest.mark.parametrize("stubborn", [False, True], ids=["polite", "ignores SIGTERM"])
def test_when_the_worker_is_killed_everything_is_gone_and_only_then_the_lock(
    tmp_path: Path, tag: str, stubborn: bool
) -> None:
    lock = tmp_path / "owner.lock"
    lock.touch()
    work = tmp_path / "work"
    work.mkdir()
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if stubborn else ""
    # The program's arguments must carry the tag, the worker's too: nothing else tells that all are gone.
    argv = [sys.executable, "-c", WORKER, str(work), str(lock), ignore + DAEMON + "time.sleep(60)", tag]
    worker = subprocess.Popen(argv)
    wait_for((work / "beats").exists)
    assert is_held(lock)
    assert len(alive(tag)) == 3

    worker.kill()
    killed = time.monotonic()
    worker.wait()
    while is_held(lock):
        pass
    took_s = time.monotonic() - killed

    assert alive(tag) == []  # before the lock was free, not some time after
    assert took_s < 2  # well below a second on a machine that has nothing else to do
    assert stands_still(work / "beats")
