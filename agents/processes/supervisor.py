"""The supervisor: a small program of its own that starts one program and sees to it that nothing of it is left.

Run as ``python -I -S supervisor.py``; standard library only. It is a program and not a thread because it has to outlive
the worker: when its control pipe closes, however the worker died, it ends everything that it started.

It is the subreaper of its descendants: whoever forks twice, starts a session or loses its parent becomes its child, so
none is left exactly when it has no children. Talks in lines: the order comes on standard input as JSON, then ``go``,
then at most one word that says why to stop; ``locked``, ``started`` and ``ended`` go to standard output as JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any, NoReturn

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
WAIT_FOR_ANY_KIND = 0x40000000  # __WALL: children that were made by clone() too

STRAGGLERS_S = 0.25
"""How long what a program left behind may take to end by itself, such as the last part of a pipeline."""
ORPHAN_GRACE_S = 0.3
"""Grace when the worker died: whoever takes over is waiting for the lock."""
KILL_LIMIT_S = 5.0
"""How long killing may take before it is reported as not done."""
FREEZE_ROUNDS = 50

CONTROL, REPORT = 0, 1
FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
CATCHABLE = sorted(signal.valid_signals() - FAULTS - {signal.SIGKILL, signal.SIGSTOP})

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this kernel has no subreapers")
    # Neither its memory nor its descriptors are the child's to open, unless the child is root.
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    lines = Lines()
    line = lines.next()
    if not line:
        return
    order = json.loads(line)
    if order["lock_path"] is not None:
        try:
            hold(order["lock_path"])
        except OSError as error:
            report(is_="ended", how="start_failed", message=f"cannot lock {order['lock_path']}: {error.strerror}")
            return
    # Only a worker that is alive after the lock was taken can answer: no program starts behind the back of a takeover.
    report(is_="locked")
    word = lines.next()
    if word == "go":
        Supervisor(order).run()
    else:
        report(is_="ended", how=word or "worker_gone", message="stopped before it was started")


class Lines:
    """Reads the control pipe by lines; an empty one is its end."""

    def __init__(self) -> None:
        self._bytes = b""

    def next(self) -> str:
        while b"\n" not in self._bytes:
            more = os.read(CONTROL, 65536)
            if not more:
                return ""
            self._bytes += more
        line, self._bytes = self._bytes.split(b"\n", 1)
        return line.decode()


def hold(path: str) -> None:
    """Takes a shared lock that lasts as long as this process. The descriptor is closed when the program is executed."""
    fcntl.flock(os.open(path, os.O_RDWR | os.O_NOFOLLOW), fcntl.LOCK_SH | fcntl.LOCK_NB)


def report(*, is_: str, **more: Any) -> None:
    with contextlib.suppress(OSError):  # the worker may be gone
        os.write(REPORT, json.dumps({"is": is_, **more}).encode() + b"\n")


class Supervisor:
    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.main = 0
        self.status: int | None = None
        self.alone = False
        self.wakeup, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        for number in CATCHABLE:
            # Not ignored: that would be inherited. A child that signals its parent achieves nothing.
            signal.signal(number, lambda *_: None)
        self.poll = select.poll()
        self.poll.register(self.wakeup, select.POLLIN)
        self.poll.register(CONTROL, select.POLLIN)

    def run(self) -> None:
        started_at, started = time.time(), time.monotonic()
        try:
            self.main = self.start()
        except OSError as error:
            report(is_="ended", how="start_failed", message=error.args[1])
            return
        report(is_="started")
        how = self.watch(started + self.order["timeout_s"])
        self.poll.unregister(CONTROL)  # its end would wake every wait
        left_behind = 0
        if how == "exited":
            self.wait_until_alone(STRAGGLERS_S)
            if not self.alone:
                left_behind = sum(stat_fields(pid)[:1] != [b"Z"] for pid in descendants())
        else:
            for pid, start_time in descendants().items():
                send(pid, start_time, signal.SIGTERM)
            grace_s = self.order["grace_s"]
            self.wait_until_alone(min(grace_s, ORPHAN_GRACE_S) if how == "worker_gone" else grace_s)
        self.kill_all()
        report(
            is_="ended",
            how=how,
            status=self.status,
            all_gone=self.alone,
            left_behind=left_behind,
            started_at=started_at,
            ended_at=time.time(),
            elapsed_s=time.monotonic() - started,
        )
        while not self.alone:  # what cannot be killed now keeps the lock held
            self.wait_until_alone(10)
            self.kill_all()

    def start(self) -> int:
        """Forks and executes the program. Raises ``OSError`` with a text for people when it cannot be executed."""
        failed_read, failed_write = os.pipe()
        supervisor = os.getpid()
        pid = os.fork()
        if pid == 0:
            become(self.order, supervisor, failed_write)
        os.close(failed_write)
        for name in ("stdout_fd", "stderr_fd"):
            os.close(self.order[name])
        with open(failed_read, "rb") as stream:
            failure = stream.read()
        if failure:
            os.waitpid(pid, 0)
            raise OSError(errno.ENOEXEC, failure.decode())
        return pid

    def watch(self, deadline: float) -> str:
        """Waits for the program's end, a word from the worker, the worker's death, or the deadline."""
        while True:
            self.reap()
            if self.status is not None:
                return "exited"
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return "timeout"
            if self.wait(left_s):
                return os.read(CONTROL, 100).decode().strip() or "worker_gone"

    def wait(self, seconds: float) -> bool:
        """Sleeps until a signal comes or the time is over; reaps. Returns whether the control pipe has something."""
        ready = {fd for fd, _ in self.poll.poll(max(1, min(seconds, 3600) * 1000))}
        if self.wakeup in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self.wakeup, 65536)
        self.reap()
        return CONTROL in ready and self.status is None

    def wait_until_alone(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.reap()
        while not self.alone and (left_s := end - time.monotonic()) > 0:
            self.wait(left_s)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | WAIT_FOR_ANY_KIND)
            except ChildProcessError:
                self.alone = True
                return
            if pid == 0:
                return
            if pid == self.main:
                self.status = status

    def kill_all(self) -> None:
        """SIGKILL to every descendant until there is none; gives up after a time, which shows in ``alone``."""
        end = time.monotonic() + KILL_LIMIT_S
        self.reap()
        while not self.alone and time.monotonic() < end:
            stopped: dict[int, bytes] = {}
            for _ in range(FREEZE_ROUNDS):
                # Stopped first, so that what restarts its dead children, or forks faster than it is killed, cannot.
                found = {pid: start for pid, start in descendants().items() if stopped.get(pid) != start}
                for pid, start_time in found.items():
                    send(pid, start_time, signal.SIGSTOP)
                stopped |= found
                if not found:
                    break
            for pid, start_time in stopped.items():
                send(pid, start_time, signal.SIGKILL)
            self.wait_until_alone(0.02)


def become(order: dict[str, Any], supervisor: int, failed: int) -> NoReturn:
    """In the forked child: turns into the program, or writes to ``failed`` why it cannot."""
    argv, cwd = order["argv"], order["cwd"]
    try:
        os.setsid()  # no controlling terminal
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != supervisor:
            os._exit(1)
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for number in sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}):
            # What the worker ignored is not ignored here, and a signal that comes already now is not lost.
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        for fd, name in ((1, "stdout_fd"), (2, "stderr_fd")):
            os.dup2(order[name], fd)
            os.close(order[name])  # every other descriptor closes itself when the program is executed
        try:
            os.chdir(cwd)
        except OSError as error:
            raise ValueError(f"the working folder cannot be entered: {error.strerror}") from None
        os.execvpe(argv[0], argv, order["env"])  # noqa: S606
    except Exception as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        if isinstance(error, OSError) and error.errno == errno.ENOEXEC:
            why += " (a script needs a first line such as #!/bin/sh)"
        if isinstance(error, OSError) and error.errno == errno.ENOENT:
            why += " (of the program itself, or of the interpreter that its first line names)"
        os.write(failed, f"cannot start {argv[0]!r} in {cwd!r}: {why}".encode("utf-8", "backslashreplace")[:4000])
    os._exit(127)


def descendants() -> dict[int, bytes]:
    """Every process below this one, zombies too: its number and its start time, which together name it for good."""
    parents: dict[int, int] = {}
    starts: dict[int, bytes] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := stat_fields(int(name))):
            parents[int(name)] = int(fields[1])
            starts[int(name)] = fields[19]
    below: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        below.setdefault(parent, []).append(pid)
    found: dict[int, bytes] = {}
    todo = [os.getpid()]
    while todo:
        for pid in below.get(todo.pop(), []):
            if pid not in found:
                found[pid] = starts[pid]
                todo.append(pid)
    return found


def stat_fields(pid: int) -> list[bytes]:
    """The fields of ``/proc/PID/stat`` after the name, which may hold anything. Empty when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            data = stream.read()
    except OSError:
        return []
    return data[data.rindex(b")") + 2 :].split()


def send(pid: int, start_time: bytes, number: signal.Signals) -> None:
    """Signals exactly this process, or nobody if it ended and its number was given to another."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        fields = stat_fields(pid)
        if fields and fields[19] == start_time:
            signal.pidfd_send_signal(handle, number)
    except OSError:
        pass  # it ended meanwhile
    finally:
        os.close(handle)


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        report(is_="ended", how="start_failed", message=f"the supervisor cannot work here: {error}")
        sys.exit(1)
