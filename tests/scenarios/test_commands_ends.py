"""How program children end in a whole run: nothing of them is left, whatever they do, and whoever dies."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

DEAF = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if ATTEMPT == 1:
    mark("deaf")
    while True:
        time.sleep(1)
hand_in(output=ATTEMPT)
"""

DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for number in (0, 1, 2):
        os.close(number)
    mark("daemon")
    count = 0
    while True:
        count += 1
        (HERE / "by-daemon.txt").write_text(str(count))
wait_for("marks.txt")
(HERE / "mine.txt").write_text("mine")
hand_in(output="done")
"""


def pid_of(place: Any, word: str) -> int:
    return int(place.marks(word)[0][3])


def test_a_daemon_that_writes_into_the_workspace_is_gone_before_the_snapshot(bench: Any, is_alive: Any) -> None:
    bench.commit({"a.txt": "a"})
    one = bench.one(bench.program("child", DAEMON))
    assert one.accepted, one.reason
    assert not is_alive(pid_of(bench.place, "daemon"))
    (record,) = one.manifest.processes
    assert record.left_behind >= 1
    assert record.all_gone
    assert bench.head_files()["mine.txt"] == b"mine"


def test_a_program_that_ignores_sigterm_at_its_deadline_is_really_gone(bench: Any, is_alive: Any) -> None:
    bench.commit({"a.txt": "a"})
    one = bench.one(bench.program("child", DEAF, limits={"deadline_s": 1.5, "max_claims": 2}))
    assert one.accepted
    assert one.output == 2
    assert not is_alive(pid_of(bench.place, "deaf"))
    first, second = bench.attempts()
    assert first.ended == "deadline"
    assert first.ended_at is not None
    assert second.started_at >= first.ended_at
    ended = next(event for event in bench.place.events("one") if event.verb == "ended")
    assert "may still be running" not in ended.data["reason"]


def test_a_program_that_ignores_sigterm_at_a_cancel_is_really_gone(bench: Any, until: Any, is_alive: Any) -> None:
    bench.commit({"a.txt": "a"})
    worker = bench.start({"one": bench.program("child", DEAF, limits={"lease_s": 3})})
    until(lambda: bench.place.marks("deaf"))
    bench.place.ended(bench.place.cli("cancel", "play", "-m", "no longer needed"))
    bench.place.ended(worker, 1)
    assert not is_alive(pid_of(bench.place, "deaf"))
    (attempt,) = bench.attempts()
    assert bench.place.one("one").state == "cancelled"
    assert attempt.ended_at is not None


def test_a_program_is_ended_and_given_back_when_its_worker_is_told_to_stop(
    bench: Any, until: Any, is_alive: Any
) -> None:
    body = "(HERE / 'half.txt').write_text('half')\n" + DEAF.replace("hand_in(", "(HERE / 'b.txt').touch(); hand_in(")
    bench.commit({"a.txt": "a"})
    file = bench.file({"one": bench.program("child", body)})
    worker = bench.place.cli("run", str(file))
    until(lambda: bench.place.marks("deaf"))
    worker.send_signal(signal.SIGINT)
    bench.place.ended(worker, 130)
    assert not is_alive(pid_of(bench.place, "deaf"))
    assert [attempt.ended for attempt in bench.attempts()] == ["released"]
    assert bench.attempts()[0].ended_at is not None
    bench.place.ended(bench.place.cli("run", str(file)))
    assert bench.place.one("one").state == "accepted"


def test_a_killed_worker_takes_its_program_along_and_another_works_in_a_folder_of_its_own(
    bench: Any, until: Any, is_alive: Any
) -> None:
    body = """
(HERE / "unsaved.txt").write_text(f"by attempt {ATTEMPT}")
if ATTEMPT == 1:
    child = subprocess.Popen([sys.executable, "-c", "import time\\nwhile True: time.sleep(1)"], start_new_session=True)
    (MARKS / "grandchild").write_text(str(child.pid))
    mark("first")
    signal.pause()
hand_in(output={"here": str(HERE), "there": sorted(os.listdir(HERE))})
"""
    bench.commit({"a.txt": "a"})
    killed = bench.start({"one": bench.program("child", body, limits={"max_claims": 2})})
    until(lambda: bench.place.marks("first"))
    (before,) = bench.workspaces
    killed.kill()
    killed.wait()
    bench.place.ended(bench.place.worker())
    assert not is_alive(pid_of(bench.place, "first"))
    assert not is_alive(int((bench.folder / "grandchild").read_text()))
    first, second = bench.attempts()
    assert (first.ended, second.ended, second.generation > first.generation) == ("lost", "submitted", True)
    output = bench.one_output()
    assert Path(output["here"]) != before
    assert output["there"] == [".git", "a.txt", "unsaved.txt"]
    # What the predecessor left is nowhere else: it is kept as it was, and named in the store.
    assert bench.workspaces == [before]
    assert (before / "unsaved.txt").read_text() == "by attempt 1"
    assert first.workspace == str(before)
    assert second.workspace is None


def test_a_flood_of_output_is_cut_with_a_mark_and_fills_no_memory(bench: Any) -> None:
    body = """
block = b"x" * 65536
for _ in range(9600):  # 600 MiB
    os.write(1, block)
hand_in(output=1)
"""
    bench.commit({"a.txt": "a"})
    tasks = {"one": bench.program("child", body)}
    bench.place.ended(bench.place.worker("--launch-only", file=bench.file(tasks)))
    worker = bench.place.worker()
    assert worker.stdout is not None
    out, _ = bench.place.ended(worker)
    (record,) = bench.last("one").manifest.processes
    assert record.output_tail.rstrip().endswith("more were dropped]")
    (log,) = (bench.place.home / "output").iterdir()
    assert log.stat().st_size < 3 * 1024 * 1024
    peak_kib = int(next(line for line in out.splitlines() if line.startswith("peak ")).split()[1])
    assert peak_kib < 450 * 1024  # what is imported is most of it


@pytest.mark.parametrize(
    ("asks", "shown"),
    [
        ("answer = sys.stdin.read(); hand_in(output=answer)", ""),
        (
            "try: open('/dev/tty')\nexcept OSError as error: hand_in(output=error.strerror)",
            "No such device or address",
        ),
        ("hand_in(output=subprocess.run(['git', 'commit', '--allow-empty', '-q'], cwd=HERE).returncode)", 1),
        ("hand_in(output=subprocess.run(['git', 'log'], cwd=HERE, stdout=subprocess.DEVNULL).returncode)", 0),
    ],
    ids=["stdin", "terminal", "editor", "pager"],
)
def test_nothing_waits_for_a_person(bench: Any, asks: str, shown: Any) -> None:
    bench.commit({"a.txt": "a"})
    one = bench.one(bench.program("child", asks + "\n"))
    assert one.accepted, one.reason
    assert one.output == shown


def test_only_granted_credentials_reach_a_program_and_none_reaches_what_is_kept(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted, other = "cnry-granted-1177", "cnry-other-2288"
    monkeypatch.setenv("GRANTED_TOKEN", granted)
    monkeypatch.setenv("OTHER_TOKEN", other)
    body = """
seen = subprocess.run("env; cat /proc/self/environ /proc/$PPID/environ", shell=True, capture_output=True).stdout
hand_in(output={
    "granted": os.environ.get("GRANTED_TOKEN"),
    "length": len(os.environ.get("GRANTED_TOKEN", "")),
    "other": "OTHER_TOKEN" in seen.decode(errors="replace"),
    "known": sorted(name for name in os.environ if "TOKEN" in name or name.startswith(("GIT_DIR", "PYTHONPATH"))),
})
"""
    monkeypatch.setenv("GIT_DIR", str(bench.folder / "elsewhere"))
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    bench.commit({"a.txt": "a"})
    one = bench.one(bench.program("child", body, resources={"credentials": ["GRANTED_TOKEN"]}))
    assert one.accepted, one.reason
    assert one.output == {
        "granted": "[redacted:GRANTED_TOKEN]", "length": len(granted), "other": False, "known": ["GRANTED_TOKEN"],
    }  # fmt: skip
    for file in bench.place.home.rglob("*"):
        if file.is_file():
            assert granted.encode() not in file.read_bytes(), file
            assert other.encode() not in file.read_bytes(), file


def test_a_script_edited_after_the_launch_runs_as_it_was_pinned(bench: Any) -> None:
    bench.commit({"a.txt": "a"})
    file = bench.file({"one": bench.program("child", "hand_in(output='pinned')\n")})
    bench.place.ended(bench.place.worker("--launch-only", file=file))
    (bench.folder / "child.py").write_text("raise SystemExit('edited')\n")
    bench.place.ended(bench.place.worker())
    assert bench.one_output() == "pinned"


def test_a_pinned_script_can_be_the_program_itself(bench: Any) -> None:
    bench.commit({"a.txt": "a"})
    script = bench.folder / "child.sh"
    script.write_text("""#!/bin/sh\nprintf '{"outcome": "completed", "output": 7}' > "$COORDINATOR_RESULT"\n""")
    script.chmod(0o755)
    one = bench.one(bench.task({"command": ["child.sh"]}))
    assert one.accepted, one.reason
    assert one.output == 7


@pytest.mark.parametrize("name", ["no-such-program-here", "/usr/bin/no-such-program-here", "./none.sh"])
def test_a_missing_program_is_refused_by_name_before_anything_starts(bench: Any, name: str) -> None:
    bench.commit({"a.txt": "a"})
    file = bench.file({"one": bench.task({"command": [name]})})
    _, err = bench.place.ended(bench.place.cli("run", str(file), COLUMNS="300"), 2)
    assert f"no program is called '{name}' on this machine" in err
    assert "tasks.one.agent.command[0]" in err
    assert bench.place.store.newest_run() is None


def test_private_folders_are_deleted_after_an_attempt_however_they_were_left(bench: Any) -> None:
    body = """
home = pathlib.Path(os.environ["HOME"])
(home / "locked").mkdir()
(home / "locked" / "file").write_text("x")
(home / "locked").chmod(0)
(home / "link").symlink_to(MARKS)
hand_in()
"""
    bench.commit({"a.txt": "a"})
    assert bench.one(bench.program("child", body)).accepted
    assert bench.private_folders == []
    assert (bench.folder / "repo" / "a.txt").exists()
