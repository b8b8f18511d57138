"""A store on a disk with faults: said clearly, nothing lost, and what waits goes on by itself when the fault ends."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import StoreUnavailable
from coordinator.store import TaskStore
from coordinator.store.database import StoreBroken

ONE_ATTEMPT = {"limits": {"lease_s": 60}}


@contextlib.contextmanager
def write_lock(place: Any) -> Iterator[None]:
    """Another program writes, and does not come to an end."""
    other = sqlite3.connect(place.url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("PRAGMA busy_timeout=30000")
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def test_a_writer_that_holds_the_lock_for_long_is_waited_for(place: Any, until: Any) -> None:
    run = place.listened("run", str(place.write({"one": place.task("waits", **ONE_ATTEMPT)})))
    until(lambda: place.marks("start"))
    with write_lock(place):
        place.go()
        until(lambda: run.waits() and "it keeps 1 finished for then" in run.said)
        assert "another process held its write lock" in run.said
        place.listened("status").ended()  # reading needs no lock
        assert "another process held its write lock" in place.listened("cancel", "play").ended(3)
        until(lambda: place.one("one").state == "running")
    assert "goes on: the store is back after" in run.ended()
    assert place.run().ok
    assert [attempt.ended for attempt in place.one("one").attempts] == ["submitted"]
    assert len(place.marks("start")) == 1


def test_a_lease_that_runs_out_while_the_store_is_away_is_lost_and_the_work_done_again(
    place: Any, until: Any, overlaps: Any
) -> None:
    run = place.listened("run", str(place.write({"one": place.task("deaf", limits={"lease_s": 2})})))
    until(lambda: place.marks("start"))
    with write_lock(place):
        until(lambda: place.one("one").lease_until <= datetime.now(UTC))
        place.go()
        until(lambda: run.waits() and "it keeps 1 finished for then" in run.said)
    run.ended()
    assert place.run().ok
    assert [(attempt.ended, attempt.late) for attempt in place.one("one").attempts] == [
        ("lost", True),
        ("submitted", False),
    ]
    assert place.verbs("one").count("accepted") == 1
    assert overlaps(place.events()) == []


def test_a_worker_that_is_told_to_stop_does_not_wait_for_ever(place: Any, until: Any) -> None:
    run = place.listened("run", str(place.write({"one": place.task("waits", **ONE_ATTEMPT)})))
    until(lambda: place.marks("start"))
    with write_lock(place):
        place.go()
        until(run.waits)
        run.process.send_signal(signal.SIGTERM)
        assert "another process held its write lock" in run.ended(3)
    place.listened("run", str(place.folder / "orchestration.yaml")).ended()
    assert place.run().ok


@pytest.fixture(scope="session")
def disk_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("a disk with faults needs a C compiler")
    library = tmp_path_factory.mktemp("disk") / "faulty_disk.so"
    source = Path(__file__).with_name("faulty_disk.c")
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"a disk with faults cannot be compiled here: {made.stderr[:300]}")
    return library


class Disk:
    """Switches the faults of the disk on which the store of the commands lies."""

    def __init__(self, folder: Path, library: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self.env = {"LD_PRELOAD": str(library), "FAULTS": str(folder)}

    def has(self, name: str) -> bool:
        return (self._folder / name).exists()

    def begin(self, fault: str) -> None:
        (self._folder / fault).touch()

    def end(self, fault: str) -> None:
        (self._folder / fault).unlink()


@pytest.fixture
def disk(place: Any, disk_library: Path) -> Disk:
    return Disk(place.folder / "faults", disk_library)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("full", "its disk is full: free some space"),
        # A file that was open when its disk became read-only.
        ("readonly", "reading or writing it failed: check the disk"),
        pytest.param("failing", "reading or writing it failed: check the disk", marks=pytest.mark.slow),
    ],
)
def test_a_disk_that_takes_no_writes_is_waited_for_with_all_that_is_finished(
    place: Any, disk: Disk, until: Any, fault: str, said: str
) -> None:
    tasks = {name: place.task("waits", **ONE_ATTEMPT) for name in ("one", "two")}
    tasks["last"] = place.task("reads_needed", needs=["one", "two"])
    run = place.listened("run", str(place.write(tasks)), **disk.env)
    until(lambda: len(place.marks("start")) == 2)
    disk.begin(fault)
    place.go()
    until(lambda: run.waits() and "finished for then" in run.said)
    assert said in run.said
    assert "Nothing of this step was changed" in run.said
    refused = place.listened("cancel", "play", **disk.env).ended(3)
    assert said in refused
    assert {place.one(name).state for name in ("one", "two")} == {"running"}
    disk.end(fault)
    run.ended()
    assert place.run().ok
    assert [len(task.attempts) for task in place.run().tasks] == [1, 1, 1]
    assert place.store.read_with(lambda tx: tx.conn.exec_driver_sql("PRAGMA integrity_check").scalar()) == "ok"


def test_a_slow_disk_makes_a_run_slow_and_nothing_else(place: Any, disk: Disk, overlaps: Any) -> None:
    disk.begin("slow")
    tasks = {f"t{number}": place.task("quick", limits={"lease_s": 10}) for number in range(8)}
    run = place.listened("run", str(place.write(tasks)), **disk.env)
    run.ended()
    assert place.run().ok
    assert [len(task.attempts) for task in place.run().tasks] == [1] * 8
    assert overlaps(place.events()) == []


@pytest.mark.parametrize("lease_s", [pytest.param(1, marks=pytest.mark.slow), 60])
def test_a_flush_that_hangs_keeps_others_reading_and_is_waited_for(
    place: Any, disk: Disk, until: Any, overlaps: Any, lease_s: float
) -> None:
    run = place.listened("run", str(place.write({"one": place.task("deaf", limits={"lease_s": lease_s})})), **disk.env)
    until(lambda: place.marks("start"))
    disk.begin("stall")
    place.go()
    until(lambda: disk.has("stalled"))
    assert "another process held its write lock" in place.listened("cancel", "play").ended(3)
    place.listened("status").ended()
    disk.end("stall")
    run.ended()
    assert place.run().ok
    assert place.verbs("one").count("accepted") == 1
    assert overlaps(place.events()) == []
    if lease_s == 60:
        assert len(place.one("one").attempts) == 1


def test_a_store_that_is_gone_for_a_while_is_not_replaced_by_an_empty_one(
    tmp_path: Path, build: Any, open_store: Callable[..., TaskStore]
) -> None:
    file = tmp_path / "store.db"
    store = open_store(f"sqlite:///{file}")
    store.create_run(build.run("one"))
    store._db.engine.dispose()  # as after an outage: connections are made anew
    file.rename(tmp_path / "away")
    with pytest.raises(StoreUnavailable, match="it cannot be opened: check the path") as refused:
        store.claim("w", work=1)
    assert not isinstance(refused.value, StoreBroken)
    assert not file.exists()
    (tmp_path / "away").rename(file)
    assert len(store.claim("w", work=1)) == 1


def test_a_store_that_was_damaged_is_not_waited_for(
    tmp_path: Path, build: Any, open_store: Callable[..., TaskStore]
) -> None:
    file = tmp_path / "store.db"
    store = open_store(f"sqlite:///{file}")
    store.create_run(build.run("one"))
    store._db.engine.dispose()
    file.write_bytes(b"not a database " * 1000)
    with pytest.raises(StoreBroken, match="it is not a database"):
        store.claim("w", work=1)
