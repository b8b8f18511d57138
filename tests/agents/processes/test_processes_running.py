"""Programs run to their end, within limits, and their output is kept within limits."""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from agents.processes import ProcessEnd, run_process
from tests.agents.processes.conftest import DAEMON, MakeSpec, Run, Signal, alive, python, wait_for


def test_a_program_that_ends_well_is_reported_with_its_output(run: Run) -> None:
    end = run("sh", "-c", "echo out; echo err >&2; pwd")

    assert (end.how, end.exit_status, end.signal, end.all_gone) == ("exited", 0, None, True)
    assert end.stdout.startswith(b"out\n/")
    assert end.stdout.endswith(b"/work\n")
    assert end.stderr == b"err\n"
    assert end.stdout_digest == "sha256:" + hashlib.sha256(end.stdout).hexdigest()
    assert (end.dropped_bytes, end.killed_left_behind, end.message) == (0, 0, "")
    assert end.started_at.tzinfo is not None
    assert 0 < end.elapsed_s < 30
    assert end.started_at <= end.ended_at


def test_exit_status_and_signal_are_told_apart(run: Run) -> None:
    assert run("sh", "-c", "exit 3").exit_status == 3
    end = run("sh", "-c", "kill -USR1 $$")
    assert (end.how, end.exit_status, end.signal) == ("exited", None, signal.SIGUSR1)


@pytest.mark.parametrize(
    ("prepare", "argv", "said"),
    [
        ("", ["no-such-program"], "No such file"),
        ("", ["./no-such-script"], "No such file"),
        ("printf x > plain", ["./plain"], "Permission denied"),
        ("printf x > text; chmod +x text", ["./text"], "first line"),
        ("printf '#!/no/such\\n' > lost; chmod +x lost", ["./lost"], "interpreter"),
        ("", ["a\0b"], "null"),
    ],
)
def test_a_program_that_cannot_be_started_is_named(
    run: Run, tmp_path: Path, prepare: str, argv: list[str], said: str
) -> None:
    subprocess.run(prepare, shell=True, cwd=tmp_path / "work", check=True)

    end = run(*argv)

    assert (end.how, end.exit_status, end.all_gone) == ("start_failed", None, True)
    assert said in end.message
    assert repr(argv[0]) in end.message
    assert str(tmp_path / "work") in end.message


def test_a_working_folder_that_is_gone_is_named_and_no_other_is_taken(run: Run, tmp_path: Path) -> None:
    end = run("touch", "here", cwd=tmp_path / "gone")

    assert end.how == "start_failed"
    assert "working folder cannot be entered" in end.message


def test_arguments_and_environment_arrive_byte_for_byte(run: Run, env: dict[str, str]) -> None:
    odd = os.fsdecode(b"\xff'\"$(x)\n ")
    big = "x" * 100_000  # more than a pipe holds

    end = run("sh", "-c", 'printf %s "$1$ODD"; printf %s "${#BIG}"', "sh", odd, env={**env, "ODD": odd, "BIG": big})

    assert end.stdout == os.fsencode(odd) * 2 + b"100000"


@pytest.mark.parametrize("instead", ["false", "ls"])  # ends without a word; prints what is no report
def test_a_supervisor_that_does_not_start_is_no_unknown_end(
    run: Run, monkeypatch: pytest.MonkeyPatch, instead: str
) -> None:
    monkeypatch.setattr("sys.executable", shutil.which(instead))

    end = run("touch", "started")

    assert (end.how, end.all_gone) == ("start_failed", True)
    assert "did not start" in end.message


def test_an_empty_command_is_a_mistake_of_the_caller(spec: MakeSpec) -> None:
    with pytest.raises(ValueError, match="argv"):
        spec()


def test_the_deadline_ends_a_program_that_stops_politely(run: Run, tag: str) -> None:
    end = run("sh", "-c", "trap 'echo bye; exit 7' TERM; while :; do sleep 0.02; done", tag, timeout_s=0.5)

    assert (end.how, end.exit_status, end.stdout, end.all_gone) == ("timeout", 7, b"bye\n", True)


def test_a_program_that_ignores_sigterm_is_killed_after_the_grace(run: Run, tag: str) -> None:
    end = run("sh", "-c", "trap '' TERM; while :; do sleep 0.02; done", tag, timeout_s=0.3, grace_s=0.3)

    assert (end.how, end.signal, end.all_gone) == ("timeout", signal.SIGKILL, True)
    assert 0.6 <= end.elapsed_s < 10


def test_a_program_that_stops_itself_is_killed_at_the_deadline(run: Run, tag: str) -> None:
    end = run("sh", "-c", "kill -STOP $$; sleep 60", tag, timeout_s=0.3)

    assert (end.how, end.signal, end.all_gone) == ("timeout", signal.SIGKILL, True)


def test_silence_has_a_limit_of_its_own(run: Run, tag: str) -> None:
    end = run("sh", "-c", "echo one; sleep 60", tag, no_output_timeout_s=0.4)

    assert (end.how, end.stdout, end.all_gone) == ("no_output", b"one\n", True)


@pytest.mark.slow
def test_a_slow_drip_is_no_silence_but_meets_the_deadline(run: Run, tag: str) -> None:
    drip = "while :; do printf x; sleep 0.1; done"

    end = run("sh", "-c", drip, tag, no_output_timeout_s=1.0, timeout_s=2.0)

    assert end.how == "timeout"
    assert len(end.stdout) >= 5


def test_cancel_reaches_everything(spec: MakeSpec, tmp_path: Path, tag: str) -> None:
    cancel = Signal()

    async def scene() -> ProcessEnd:
        work = asyncio.create_task(run_process(spec(*python(DAEMON + "time.sleep(60)", tag)), cancel))
        await asyncio.to_thread(wait_for, (tmp_path / "work" / "beats").exists)
        cancel.set()
        return await work

    end = asyncio.run(scene())

    assert (end.how, end.all_gone) == ("cancelled", True)
    assert alive(tag) == []


def test_a_cancel_before_the_start_starts_nothing(spec: MakeSpec, tmp_path: Path) -> None:
    cancel = Signal()
    cancel.set()

    end = asyncio.run(run_process(spec("touch", "started"), cancel))

    assert (end.how, end.exit_status, end.all_gone) == ("cancelled", None, True)
    assert not (tmp_path / "work" / "started").exists()


def test_nothing_is_left_when_the_awaiting_task_is_cancelled(spec: MakeSpec, tmp_path: Path, tag: str) -> None:
    async def scene() -> None:
        work = asyncio.create_task(run_process(spec(*python(DAEMON + "time.sleep(60)", tag)), Signal()))
        await asyncio.to_thread(wait_for, (tmp_path / "work" / "beats").exists)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert alive(tag) == []

    asyncio.run(scene())


@pytest.mark.slow
def test_the_deadline_holds_while_the_event_loop_is_blocked(spec: MakeSpec, tag: str) -> None:
    async def scene() -> ProcessEnd:
        work = asyncio.create_task(run_process(spec("sleep", "60", timeout_s=0.3), Signal()))
        await asyncio.sleep(0.25)
        time.sleep(1.5)  # noqa: ASYNC251 (what is tested)
        return await work

    end = asyncio.run(scene())

    assert end.how == "timeout"
    assert end.elapsed_s < 1.5


def test_many_programs_run_at_once_without_disturbing_each_other(spec: MakeSpec) -> None:
    async def scene() -> list[ProcessEnd]:
        return await asyncio.gather(
            *(run_process(spec("sh", "-c", f"echo {n}; exit {n}"), Signal()) for n in range(16))
        )

    ends = asyncio.run(scene())

    assert [(end.exit_status, end.stdout) for end in ends] == [(n, b"%d\n" % n) for n in range(16)]


def test_a_thread_with_a_loop_of_its_own_can_run_programs(run: Run) -> None:
    ends: list[ProcessEnd] = []
    thread = threading.Thread(target=lambda: ends.append(run("echo", "hi")))
    thread.start()
    thread.join()

    assert [end.stdout for end in ends] == [b"hi\n"]


def test_a_flood_of_output_is_cut_counted_and_hashed_whole(run: Run) -> None:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code = (
        "import sys\nchunk = b'x' * 65536\nfor _ in range(1600): sys.stdout.buffer.write(chunk)\nsys.stderr.write('ok')"
    )

    end = run(*python(code), max_output_bytes=1000)

    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    whole = 1600 * 65536
    assert end.exit_status == 0
    assert end.stdout[:1000] == b"x" * 1000
    assert end.stdout[1000:] == b"\n[stdout cut after 1000 bytes; %d more were dropped]\n" % (whole - 1000)
    assert end.dropped_bytes == whole - 1000
    assert end.stdout_digest == "sha256:" + hashlib.sha256(b"x" * whole).hexdigest()
    assert end.stderr == b"ok"
    assert grown_kib < 20 * 1024


def test_nothing_is_lost_of_what_a_large_pipe_holds_at_the_end(run: Run) -> None:
    end = run(*python("import fcntl, os; fcntl.fcntl(1, 1031, 1 << 20); os.write(1, b'x' * (1 << 20))"))

    assert end.stdout == b"x" * (1 << 20)


def test_output_of_exactly_the_limit_has_no_mark(run: Run) -> None:
    end = run("printf", "12345", max_output_bytes=5)

    assert (end.stdout, end.dropped_bytes) == (b"12345", 0)


def test_endless_output_ends_at_the_deadline_and_the_loop_stays_free(spec: MakeSpec) -> None:
    async def scene() -> tuple[ProcessEnd, int]:
        ticks = 0
        work = asyncio.create_task(run_process(spec("yes", timeout_s=1), Signal()))
        while not work.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return await work, ticks

    end, ticks = asyncio.run(scene())

    assert end.how == "timeout"
    assert end.dropped_bytes > 0
    assert ticks > 20


def test_output_can_be_followed_while_the_program_runs(spec: MakeSpec, tmp_path: Path) -> None:
    live = tmp_path / "live.log"
    program = "echo first; echo second >&2; while [ ! -e go ]; do sleep 0.02; done; printf '%05000d' 0"

    async def scene() -> ProcessEnd:
        argv = ("sh", "-c", program)
        work = asyncio.create_task(run_process(spec(*argv, output_path=live, max_output_bytes=100), Signal()))
        await asyncio.to_thread(wait_for, lambda: live.exists() and live.read_bytes().count(b"\n") == 2)
        assert not work.done()
        (tmp_path / "work" / "go").touch()
        return await work

    asyncio.run(scene())

    assert sorted(live.read_bytes().split(b"\n")[:2]) == [b"first", b"second"]
    assert live.read_bytes().endswith(b"\n[stdout cut after 100 bytes; 4906 more were dropped]\n")
    assert live.stat().st_mode & 0o777 == 0o600


def test_a_live_file_that_is_a_link_is_refused_before_anything_starts(run: Run, tmp_path: Path) -> None:
    (tmp_path / "live.log").symlink_to("elsewhere")

    with pytest.raises(OSError, match="symbolic links"):
        run("touch", "started", output_path=tmp_path / "live.log")
    assert not (tmp_path / "work" / "started").exists()


def test_a_full_disk_under_the_live_file_does_not_harm_the_program(run: Run, tmp_path: Path) -> None:
    end = run("echo", "hi", output_path=Path("/dev/full"))

    assert (end.exit_status, end.stdout) == (0, b"hi\n")


def test_no_descriptor_is_left_in_the_worker(run: Run) -> None:
    run("true")
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        run("true")
        run("no-such-program")
    assert sorted(os.listdir("/proc/self/fd")) == before
