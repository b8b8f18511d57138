"""What a program can see of the coordinator, and what it can wait for: nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from agents.processes import child_environment
from contracts.errors import BadInput
from tests.agents.processes.conftest import Run, python

CANARY = "canary-7f3a"


def test_nothing_of_the_coordinators_environment_or_arguments_is_seen(
    run: Run, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_API_KEY", CANARY)
    # The child reads its own environment, and its supervisor's environment and arguments.
    look = "for p in self $PPID; do tr '\\0' '\\n' < /proc/$p/environ; tr '\\0' '\\n' < /proc/$p/cmdline; done; env"
    granted = "granted-5e1f"

    end = run("sh", "-c", look, env={**env, "GRANTED": granted})

    text = end.stdout.decode()
    assert CANARY not in text
    assert text.count(granted) == 2  # its own, twice: not in the arguments or environment of the supervisor
    assert "PYTEST" not in text


def test_control_a_plain_subprocess_inherits_the_canary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_API_KEY", CANARY)
    assert CANARY in subprocess.run(["env"], capture_output=True, text=True, check=True).stdout


def test_only_three_descriptors_are_inherited(run: Run, tmp_path: Path) -> None:
    left_open = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(left_open, True)
    try:
        end = run("ls", "-l", "/proc/self/fd")
        control = subprocess.run(["ls", "/proc/self/fd"], close_fds=False, capture_output=True, text=True, check=True)
    finally:
        os.close(left_open)

    # total, 0, 1, 2, and the folder that is listed
    assert len(end.stdout.splitlines()) == 5, end.stdout.decode()
    assert b"0 -> /dev/null" in end.stdout
    assert str(left_open) in control.stdout.split()


def test_a_child_has_no_terminal_and_an_empty_input(run: Run, tag: str) -> None:
    code = "import sys\nprint(repr(sys.stdin.read()))\ntry: open('/dev/tty')\nexcept OSError as e: print(e.strerror)"

    end = run(*python(code, tag), timeout_s=20)

    assert end.stdout == b"''\nNo such device or address\n"


IN_A_TERMINAL = """
import asyncio, fcntl, os, subprocess, sys, termios, threading
from pathlib import Path
from agents.processes import ProcessSpec, run_process
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
spec = ProcessSpec(argv=["sh", "-c", "echo asked > /dev/tty"], cwd=Path("/"), env={"PATH": "/bin"}, timeout_s=20)
print("control", subprocess.run(spec.argv).returncode)
end = asyncio.run(run_process(spec, threading.Event()))
print("child", end.how, end.exit_status != 0, "/dev/tty" in end.stderr.decode())
"""


def test_a_terminal_of_the_worker_is_not_the_childs() -> None:
    ours, theirs = os.openpty()
    try:
        argv = [sys.executable, "-c", IN_A_TERMINAL]
        done = subprocess.run(argv, stdin=theirs, stdout=subprocess.PIPE, text=True, timeout=60)
        os.set_blocking(ours, False)
        asked = os.read(ours, 1000).count(b"asked")
    finally:
        os.close(ours)
        os.close(theirs)

    assert done.stdout == "control 0\nchild exited True True\n"
    assert asked == 1  # by the control


def test_a_child_gains_no_privileges_dumps_no_core_and_ignores_no_signal(run: Run) -> None:
    signal_before = signal.signal(signal.SIGTRAP, signal.SIG_IGN)
    try:
        end = run("sh", "-c", "grep -E 'NoNewPrivs|SigIgn|SigBlk' /proc/self/status; ulimit -c")
    finally:
        signal.signal(signal.SIGTRAP, signal_before)

    told = dict(line.split(b":\t") for line in end.stdout.splitlines() if b":" in line)
    # 32 and 33 belong to the threads library: no program can set them, and they may be inherited.
    ignored = int(told[b"SigIgn"], 16) & ~(0b11 << 31)
    assert (int(told[b"SigBlk"], 16), ignored, told[b"NoNewPrivs"]) == (0, 0, b"1")
    assert end.stdout.endswith(b"\n0\n")


@pytest.fixture
def repository(tmp_path: Path, env: dict[str, str]) -> Path:
    folder = tmp_path / "work" / "repo"
    folder.mkdir()
    script = "git init -q && echo 1 > a && git add a && git commit -qm one && echo 2 > a && git add a"
    subprocess.run(script, shell=True, cwd=folder, env=env, check=True)
    return folder


def test_git_never_waits_for_a_person(run: Run, repository: Path, tag: str) -> None:
    end = run("git", "commit", cwd=repository, timeout_s=20)
    assert (end.how, end.exit_status) == ("exited", 1)
    assert b"editor" in end.stderr

    end = run("git", "-c", "color.ui=always", "-p", "log", cwd=repository, timeout_s=20)
    assert (end.how, end.exit_status) == ("exited", 0)
    assert b"one" in end.stdout

    end = run("git", "commit", "-qm", "two", cwd=repository, timeout_s=20)
    assert (end.how, end.exit_status) == ("exited", 0)


def test_git_never_asks_for_a_password(run: Run, tmp_path: Path) -> None:
    class Locked(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic realm=x")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Locked) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            end = run("git", "clone", f"http://127.0.0.1:{server.server_port}/x.git", timeout_s=20)
        finally:
            server.shutdown()
            thread.join()

    assert (end.how, end.exit_status) == ("exited", 128)
    assert b"could not read" in end.stderr or b"Authentication failed" in end.stderr


def test_an_editor_that_waits_is_ended_by_the_limit_of_silence(
    run: Run, repository: Path, env: dict[str, str], tag: str
) -> None:
    end = run("git", "commit", cwd=repository, env={**env, "GIT_EDITOR": "sleep 60 #"}, no_output_timeout_s=0.5)

    assert (end.how, end.all_gone) == ("no_output", True)


def test_the_environment_is_built_up_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MODEL_API_KEY", "GIT_DIR", "LD_PRELOAD", "PYTHONPATH", "HOME", "PATH", "SSH_AUTH_SOCK"):
        monkeypatch.setenv(name, CANARY)

    passed, extra = {"TOKEN": "x", "LANG": "de_DE.UTF-8"}, {"COORDINATOR_RESULT": "/r"}
    made = child_environment(home=tmp_path / "h", tmp=tmp_path / "t", passed=passed, extra=extra)

    assert CANARY not in str(made)
    assert {"GIT_DIR", "LD_PRELOAD", "PYTHONPATH", "SSH_AUTH_SOCK"}.isdisjoint(made)
    assert (made["HOME"], made["TMPDIR"]) == (str(tmp_path / "h"), str(tmp_path / "t"))
    assert (made["TOKEN"], made["LANG"], made["COORDINATOR_RESULT"]) == ("x", "de_DE.UTF-8", "/r")


def test_the_coordinators_own_words_cannot_be_replaced(tmp_path: Path) -> None:
    name = "COORDINATOR_RESULT"
    assert child_environment(home=tmp_path, tmp=tmp_path, passed={name: "/x"}, extra={name: "/r"})[name] == "/r"


def test_what_no_environment_can_hold_is_named_without_its_value(tmp_path: Path) -> None:
    bad = {"A B": "x", "": "x", "A=B": "x", "OK": f"{CANARY}\0"}

    with pytest.raises(BadInput) as caught:
        child_environment(home=tmp_path, tmp=tmp_path, passed=bad, extra={})

    assert len(caught.value.faults) == 4
    assert CANARY not in str(caught.value)


def test_python_is_the_coordinators_own(run: Run) -> None:
    end = run("python", "-c", "import sys; print(sys.executable)")
    assert end.stdout.decode().strip() == str(Path(sys.executable).parent / "python")
