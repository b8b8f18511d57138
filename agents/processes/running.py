"""Runs one program under a supervisor of its own, and waits until nothing of it is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from agents.processes.capture import Capture, LiveFile
from contracts.ports import CancelSignal
from contracts.steps import reached

__all__ = ["ProcessEnd", "ProcessSpec", "run_process"]

SUPERVISOR: Final = Path(__file__).with_name("supervisor.py")
POLL_S: Final = 0.1
START_LIMIT_S: Final = 30.0
"""How long a supervisor may take to start on a busy machine."""
ORPHAN_GRACE_S: Final = 0.3
KILL_LIMIT_S: Final = 5.0
"""As in the supervisor, which cannot be imported: what it may need for killing."""
MARGIN_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """One program to run. ``env`` is complete: nothing is inherited. Relative programs are looked up in ``env``'s PATH.

    ``output_path``: a file to which both streams are appended while the program runs, for people who follow it.
    ``max_output_bytes``: what is kept of each stream; the program is not held up by more.
    ``no_output_timeout_s``: the longest silence on both streams together.
    ``grace_s``: between SIGTERM to all and SIGKILL to what is left.
    ``lock_path``: an existing file on which the supervisor holds a shared flock, through an open file that the program
    never gets, until every descendant is gone.
    """

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    timeout_s: float
    output_path: Path | None = None
    max_output_bytes: int = 1024 * 1024
    no_output_timeout_s: float | None = None
    grace_s: float = 2.0
    lock_path: Path | None = None

    def __post_init__(self) -> None:
        if not self.argv:
            raise ValueError("argv is empty")


How = Literal["exited", "timeout", "no_output", "cancelled", "start_failed", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnd:
    """How a program ended. ``how`` says why: ``exited`` by itself; ``unknown``: its supervisor was lost.

    ``exit_status`` and ``signal``: at most one is there; neither when the program did not start or nobody saw its end.
    ``all_gone``: whether it is known that no descendant runs any more. ``killed_left_behind``: how many processes were
    still there when the program had ended by itself. ``stdout`` and ``stderr`` end in a mark when they were cut; the
    digests are of the whole streams as far as they were read. ``message`` is for people; empty where ``how`` says all.
    """

    exit_status: int | None
    signal: int | None
    how: How
    message: str
    all_gone: bool
    started_at: datetime
    ended_at: datetime
    elapsed_s: float
    stdout: bytes
    stderr: bytes
    stdout_digest: str
    stderr_digest: str
    dropped_bytes: int
    killed_left_behind: int


async def run_process(spec: ProcessSpec, cancel: CancelSignal) -> ProcessEnd:
    """Runs the program to its end; returns when all its descendants are gone, or it is known that some are not.

    A program that cannot be started is a ``ProcessEnd``; ``OSError`` means that there are no descriptors or processes
    to be had here, or that ``output_path`` cannot be opened. Cancelling the awaiting task ends the program too.
    A worker that forks without executing would share the control pipe, and its death would go unseen.
    """
    live = LiveFile(spec.output_path) if spec.output_path is not None else None
    try:
        return await _Run(spec, live).end(cancel)
    finally:
        if live is not None:
            live.close()


class _Run:
    """The worker's end of one supervisor."""

    def __init__(self, spec: ProcessSpec, live: LiveFile | None) -> None:
        self._spec = spec
        self._loop = asyncio.get_running_loop()
        self._stdout = Capture("stdout", spec.max_output_bytes, live, self._heard)
        try:
            self._stderr = Capture("stderr", spec.max_output_bytes, live, self._heard)
        except OSError:
            self._stdout.finish()
            raise
        self._outbox = b""
        self._reports = b""
        self._last: dict[str, Any] = {}
        self._over = asyncio.Event()
        self._allowed = self._started = False
        self._stop_word = ""
        self._trouble = ""
        self._began_at = datetime.now(UTC)
        self._began = self._heard_at = time.monotonic()
        self._overdue_at = self._began + START_LIMIT_S

    async def end(self, cancel: CancelSignal) -> ProcessEnd:
        try:
            supervisor = self._start()
            try:
                await self._watch(supervisor, cancel)
            finally:
                await self._close(supervisor)
        finally:
            self._stdout.finish()
            self._stderr.finish()
        reached("program_gone")
        return self._describe()

    def _start(self) -> subprocess.Popen[bytes]:
        spec = self._spec
        write_ends = (self._stdout.write_fd, self._stderr.write_fd)
        # Not in a thread: one that is no longer awaited would pass on numbers that mean other files by then.
        supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SUPERVISOR)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd="/",
            env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
            start_new_session=True,
            pass_fds=write_ends,
        )
        self._stdout.close_write_end()
        self._stderr.close_write_end()
        assert supervisor.stdin is not None
        assert supervisor.stdout is not None
        assert supervisor.stderr is not None
        self._control_fd, self._report_fd = supervisor.stdin.fileno(), supervisor.stdout.fileno()
        for fd in (self._control_fd, self._report_fd, supervisor.stderr.fileno()):
            os.set_blocking(fd, False)
        self._loop.add_reader(self._report_fd, self._reported)
        order = {
            "argv": list(spec.argv),
            "cwd": str(spec.cwd),
            "env": dict(spec.env),
            "timeout_s": spec.timeout_s,
            "grace_s": spec.grace_s,
            "stdout_fd": write_ends[0],
            "stderr_fd": write_ends[1],
            "lock_path": str(spec.lock_path) if spec.lock_path is not None else None,
        }
        # Through the pipe: the arguments and the environment of the supervisor can be read by its children.
        self._say(json.dumps(order))
        return supervisor

    def _say(self, line: str) -> None:
        self._outbox += line.encode() + b"\n"
        self._flush()

    def _flush(self) -> None:
        try:
            while self._outbox:
                self._outbox = self._outbox[os.write(self._control_fd, self._outbox) :]
        except BlockingIOError:
            self._loop.add_writer(self._control_fd, self._flush)
            return
        except OSError:
            self._outbox = b""  # it is gone; its report, or the lack of one, says the rest
        self._loop.remove_writer(self._control_fd)

    def _heard(self) -> None:
        self._heard_at = time.monotonic()

    def _reported(self) -> None:
        data = os.read(self._report_fd, 65536)
        if not data:
            self._loop.remove_reader(self._report_fd)
            self._over.set()
        *lines, self._reports = (self._reports + data).split(b"\n")
        for line in lines:
            try:
                self._last = json.loads(line)
            except ValueError:  # whatever this is, it is no supervisor of ours
                self._last = {"is": "lost"}
                self._over.set()
                return
            if self._last["is"] == "locked":
                self._allowed = not self._stop_word
                self._say(self._stop_word or "go")
            elif self._last["is"] == "ended":
                self._over.set()
            else:
                self._started = True
                reached("program_started")
                self._heard()
                self._overdue_at = self._heard_at + self._spec.timeout_s + self._spec.grace_s + MARGIN_S
                if self._stop_word:  # it may have been read together with the word before it
                    self._stop(self._stop_word)

    def _stop(self, word: str) -> None:
        self._stop_word = word
        self._say(word)
        self._overdue_at = min(self._overdue_at, time.monotonic() + self._spec.grace_s + MARGIN_S)

    async def _watch(self, supervisor: subprocess.Popen[bytes], cancel: CancelSignal) -> None:
        spec = self._spec
        quiet_limit_s = spec.no_output_timeout_s
        while not self._over.is_set():
            now = time.monotonic()
            if not self._stop_word:
                if cancel.is_set():
                    self._stop("cancelled")
                elif self._started and quiet_limit_s is not None and now - self._heard_at > quiet_limit_s:
                    self._stop("no_output")
            if now > self._overdue_at + spec.grace_s + KILL_LIMIT_S:
                supervisor.kill()
                return
            if now > self._overdue_at:
                supervisor.send_signal(signal.SIGCONT)  # a child may have stopped it
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), POLL_S)

    async def _close(self, supervisor: subprocess.Popen[bytes]) -> None:
        """Ends the supervisor, and with it the program if that still runs."""
        assert supervisor.stdin is not None
        assert supervisor.stdout is not None
        assert supervisor.stderr is not None
        self._loop.remove_writer(self._control_fd)
        supervisor.stdin.close()
        try:
            if self._last.get("all_gone", True):
                await asyncio.to_thread(supervisor.wait, ORPHAN_GRACE_S + KILL_LIMIT_S + MARGIN_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._loop.remove_reader(self._report_fd)
            supervisor.stdout.close()
            self._trouble = (supervisor.stderr.read(65536) or b"").decode("utf-8", "backslashreplace").strip()[-2000:]
            supervisor.stderr.close()
            if supervisor.returncode is None:
                # It stays, with its lock, as long as what it cannot kill. Waited for, so that it leaves no zombie.
                threading.Thread(target=supervisor.wait, name="supervisor", daemon=True).start()

    def _describe(self) -> ProcessEnd:
        last = self._last if self._last.get("is") == "ended" else {}
        status = last.get("status")
        code = os.waitstatus_to_exitcode(status) if status is not None else None
        how: How = last.get("how", "unknown")
        message = last.get("message", "")
        if how == "unknown" and not self._allowed:
            how, message = "start_failed", f"the supervisor of {self._spec.argv[0]!r} did not start: {self._trouble}"
        elif how == "unknown":
            message = f"the supervisor of {self._spec.argv[0]!r} was lost; nobody saw the program's end"
            message += f": {self._trouble}" if self._trouble else ""
        began, now = last.get("started_at"), datetime.now(UTC)
        return ProcessEnd(
            exit_status=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
            how=how,
            message=message,
            all_gone=last.get("all_gone", how != "unknown"),
            started_at=datetime.fromtimestamp(began, UTC) if began else self._began_at,
            ended_at=datetime.fromtimestamp(last["ended_at"], UTC) if began else now,
            elapsed_s=last.get("elapsed_s", time.monotonic() - self._began),
            stdout=self._stdout.content,
            stderr=self._stderr.content,
            stdout_digest=self._stdout.digest,
            stderr_digest=self._stderr.digest,
            dropped_bytes=self._stdout.dropped_bytes + self._stderr.dropped_bytes,
            killed_left_behind=last.get("left_behind", 0),
        )
