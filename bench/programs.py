"""Runs one measured program in a process of its own, traced if asked, and reads what it measured."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CALLS = ("fsync", "fdatasync")
TIMEOUT_S = 3600


class Failed(Exception):
    """A measured program did not do what it was started for; its output says why."""


def can_trace() -> bool:
    """Whether ``strace`` is there and may trace."""
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-f", "-qq", "-o", "/dev/null", "true"], capture_output=True).returncode == 0


def environment() -> dict[str, str]:
    """That of the bench, without what would change how a measured program runs.

    What is measured is the tree in which the bench lies, whatever else is installed.
    """
    own = ("COORDINATOR_", "PYTHON", "GIT_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return {**kept, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "PYTHONPATH": str(ROOT)}


def run_subject(
    interpreter: Path, subject: str, arguments: Mapping[str, Any], folder: Path, before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run ``subjects/<subject>.py`` in a folder, behind the words of ``before``."""
    script = ROOT / "bench" / "subjects" / f"{subject}.py"
    command = [*before, str(interpreter), str(script), json.dumps(arguments)]
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def measure(
    interpreter: Path, subject: str, arguments: Mapping[str, Any], folder: Path, *, trace: bool = False
) -> dict[str, Any]:
    """What a subject reports, run in a new folder.

    With ``trace``, ``fsyncs`` is how often it (or, with ``server_pid``, the server) flushed between its start and its
    stop, as the kernel saw it; the times of a traced run mean nothing. Raises ``Failed``.
    """
    folder.mkdir(parents=True)
    whole = {**arguments, "folder": str(folder)}
    log = folder / "calls.trace"
    server_pid = arguments.get("server_pid")
    try:
        if not trace:
            return _reported(run_subject(interpreter, subject, whole, folder))
        if server_pid is None:
            strace = ["strace", "-f", "--seccomp-bpf", "-qq", *_options(log)]
            measured = _reported(run_subject(interpreter, subject, whole, folder, strace))
        else:
            with _Attached(int(server_pid), log):
                measured = _reported(run_subject(interpreter, subject, whole, folder))
        return {**measured, "fsyncs": _count(log, measured["began_at"], measured["ended_at"])}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _options(log: Path) -> list[str]:
    return ["-ttt", "-e", f"trace={','.join(CALLS)}", "-e", "signal=none", "-o", str(log)]


def _reported(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    if done.returncode != 0:
        raise Failed(f"{done.args} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    report: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    return report


class _Attached:
    """Traces a server with all its processes, those included that it starts meanwhile."""

    def __init__(self, server_pid: int, log: Path) -> None:
        pids = [server_pid, *_children(server_pid)]
        self._command = ["strace", "-f", *_options(log), *[word for pid in pids for word in ("-p", str(pid))]]
        self._waits_for = len(pids)

    def __enter__(self) -> None:
        self._strace = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        assert self._strace.stderr is not None
        for _ in range(self._waits_for):
            line = self._strace.stderr.readline()
            if "attached" not in line:
                self.__exit__()
                raise Failed(f"strace cannot attach to the server: {line}")

    def __exit__(self, *_: object) -> None:
        self._strace.send_signal(signal.SIGINT)  # it detaches, and the server goes on
        self._strace.communicate()


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def _count(log: Path, began_at: float, ended_at: float) -> int:
    """Calls that began within an interval. A call that others interrupt has two lines, and one of them begins it."""
    begun = re.compile(rf"(?:\d+ +)?(\d+\.\d+) (?:{'|'.join(CALLS)})\(")
    found = [begun.match(line) for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    return sum(began_at <= float(match[1]) <= ended_at for match in found if match)
