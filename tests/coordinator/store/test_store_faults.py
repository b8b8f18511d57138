from __future__ import annotations

import errno
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Boolean, create_engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from contracts.canonical import digest_of, sha256_digest
from contracts.errors import BadInput, StoreUnavailable
from contracts.states import State
from coordinator.store import Damaged, TaskStore
from coordinator.store import tables as t
from coordinator.store.artifacts import INLINE_BYTES_MAX
from coordinator.store.database import Blob, parse_url
from coordinator.store.records import Done

BIG = bytes(range(256)) * (INLINE_BYTES_MAX // 256) + b"!"


# -- what is in force --------------------------------------------------------------------------------------------------


def test_every_sqlite_connection_is_durable_and_checks_references(sqlite_store: TaskStore) -> None:
    for _ in range(3):
        found = sqlite_store.read_with(
            lambda tx: [
                tx.conn.exec_driver_sql(f"PRAGMA {name}").scalar()
                for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
            ]
        )
        assert found == ["wal", 2, 1, 30_000]


def test_tables_are_strict_on_sqlite(sqlite_store: TaskStore, sqlite_url: str, sql: Any) -> None:
    strict = dict(sql("SELECT name, strict FROM pragma_table_list WHERE schema = 'main' AND name NOT LIKE 'sqlite%'"))
    assert {name for name in strict if not strict[name]} == {"alembic_version"}
    assert set(strict) == {*t.metadata.tables, "alembic_version"}


def test_only_files_and_postgres_are_stores(tmp_path: Path) -> None:
    for url in ("sqlite://", "sqlite:///:memory:", "mysql://x/y", "nonsense://", "://"):
        with pytest.raises(BadInput, match="--store"):
            parse_url(url)
    assert parse_url("a/b.db").database == str(Path("a/b.db").absolute())
    assert parse_url("postgresql://h/d").drivername == "postgresql+psycopg"


# -- bad values --------------------------------------------------------------------------------------------------------

BAD = [
    ("text in an integer column", "UPDATE task SET generation = 'many'"),
    ("text in a time", "UPDATE attempt SET deadline_at = 'noon'"),
    ("a state that is none",
     "UPDATE task SET state = 'done', owner = NULL, token = NULL, claim_kind = NULL, lease_until = NULL"),
    ("no state", "UPDATE task SET state = NULL"),
    ("a claim without a token", "UPDATE task SET token = NULL"),
    ("a claim without an end", "UPDATE task SET lease_until = NULL"),
    ("a claim without an owner", "UPDATE task SET owner = NULL"),
    ("a claim of another kind", "UPDATE task SET claim_kind = 'look'"),
    ("a running task that is judged", "UPDATE task SET claim_kind = 'gate'"),
    ("a running task that nobody holds",
     "UPDATE task SET owner = NULL, token = NULL, claim_kind = NULL, lease_until = NULL"),
    ("a pending task that is held", "UPDATE task SET state = 'pending'"),
    ("a pending task that is judged", "UPDATE task SET state = 'pending', claim_kind = 'gate'"),
    ("a final task that is held", "UPDATE task SET state = 'accepted', claim_kind = 'gate'"),
    ("a final task that is ready",
     "UPDATE task SET state = 'accepted', owner = NULL, token = NULL, claim_kind = NULL, lease_until = NULL"),
    ("a generation below nought", "UPDATE task SET generation = -1"),
    ("contract version nought", "UPDATE task SET contract_version = 0"),
    ("no key", "UPDATE task SET key = NULL"),
    ("terms that are not there", "UPDATE task SET terms_id = 4711"),
    ("a manifest that is not there", "UPDATE attempt SET manifest_id = 4711"),
    ("a document that is named and goes", "DELETE FROM document"),
    ("an attempt of no task", "UPDATE attempt SET task_id = 4711"),
    ("an end that is none", "UPDATE attempt SET ended = 'vanished'"),
    ("an answer to an open request", "UPDATE request SET state = 'open'"),
    ("no answer to an answered request", "UPDATE request SET approved = NULL"),
    ("a request in no state", "UPDATE request SET state = 'later'"),
    ("a second submission of one generation",
     "INSERT INTO attempt"
     " (task_id, number, generation, child_run_id, owner, parent_state_version, started_at, deadline_at)"
     " SELECT task_id, number + 1, generation, 'x', owner, 0, 0, 0 FROM attempt WHERE task_id = 1"),
    ("a second current row of one task",
     "INSERT INTO task (orchestration_id, key, contract_version, is_current, delegation_id, terms_id, state, ready,"
     " row_version, generation, gate_tries) SELECT orchestration_id, key, contract_version + 1, is_current, 'other',"
     " terms_id, 'pending', ready, 0, 0, 0 FROM task WHERE id = 1"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "statement"), BAD, ids=[what.replace(" ", "-") for what, _ in BAD])
def test_the_database_itself_refuses(what: str, statement: str, store: TaskStore, build: Any, sql: Any) -> None:
    store.create_run(build.run("one", "two"))
    store.end([build.ending(store.claim("w", work=1)[0], "blocked", question=build.question())])
    store.answer("run-q1", approved=True)
    store.claim("w", work=1)
    if " task " in statement and "INSERT" not in statement:
        statement += " WHERE id = 1"
    before = [sql(f"SELECT * FROM {table} ORDER BY 1") for table in t.metadata.tables]

    with pytest.raises(DBAPIError):
        sql(statement)

    assert [sql(f"SELECT * FROM {table} ORDER BY 1") for table in t.metadata.tables] == before


def test_a_bad_value_by_way_of_a_table_model_is_refused_too(store: TaskStore) -> None:
    values = {"task_id": 4711, "needed_key": "x", "orchestration_id": 1, "partial_ok": False}
    with pytest.raises(IntegrityError):
        store._db.write(lambda tx: tx.conn.execute(t.need.insert().values(values)))
    boolean = [c for table in t.metadata.tables.values() for c in table.columns if isinstance(c.type, Boolean)]
    assert {c.name for c in boolean} == {"is_current", "ready", "partial_ok", "approved", "late"}


# -- values ------------------------------------------------------------------------------------------------------------


def test_values_have_the_same_digest_on_both_databases(
    sqlite_store: TaskStore, postgres_store: TaskStore, build: Any
) -> None:
    output = {"b": 1.10, "a": ["nul \x00 here", "line \u2028", "\U0001f600"], "\x00": None, "z": 2**53 - 1, "n": -0.0}
    same = {"z": 2**53 - 1, "n": 0, "\x00": None, "a": ["nul \x00 here", "line \u2028", "\U0001f600"], "b": 1.1}
    assert digest_of(output) == digest_of(same)
    found = []
    for store in (sqlite_store, postgres_store):
        store.create_run(build.run(build.task("one", inputs={"value": output})))
        (claim,) = store.claim("w", work=1)
        fixed = {"child_run_id": "child-1", "output": output}
        submission = build.submission(claim, **fixed)
        store.submit([submission])
        stored = store.run(1).tasks[0].attempts[0].manifest_digest or ""
        assert stored == submission.manifest.digest == sha256_digest(store.bytes_of(stored))
        found.append((store.run(1).tasks[0].terms_digest, stored, store.bytes_of(stored)))

    assert found[0] == found[1]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 12345678901234567890, -(2**53)])
def test_what_has_no_canonical_form_is_refused_with_its_place(
    value: Any, store: TaskStore, build: Any, sql: Any
) -> None:
    store.create_run(build.run("one"))
    (claim,) = store.claim("w", work=1)
    submission = build.submission(claim)
    bad = submission.manifest.model_copy(update={"output": {"deep": [1, value]}})
    before = sql("SELECT * FROM task")

    with pytest.raises(BadInput, match=re.escape("$.output.deep[1]")):
        store.submit([type(submission)(claim, bad)])

    assert sql("SELECT * FROM task") == before
    assert store.submit([submission]) == [Done(State.SUBMITTED)]


# -- artifacts ---------------------------------------------------------------------------------------------------------


def submit_artifact(store: TaskStore, build: Any, data: bytes) -> Blob:
    store.create_run(build.run("one"))
    (claim,) = store.claim("w", work=1)
    blob = store.files.make_durable(data)
    store.submit([build.submission(claim, artifacts=[blob])])
    return blob


def test_a_small_artifact_is_inline_and_a_larger_one_a_durable_file(store: TaskStore, build: Any) -> None:
    small, large = store.files.make_durable(BIG[:-1]), store.files.make_durable(BIG)

    assert small.data == BIG[:-1]
    assert not store.files.path(small.digest).exists()
    assert large.data is None
    assert store.files.path(large.digest).read_bytes() == BIG
    assert [path.name for path in store.files.folder.rglob(".new-*")] == []
    submit_artifact(store, build, BIG)
    assert store.bytes_of(large.digest) == BIG
    assert store.files.make_durable(BIG) == large


def test_an_altered_byte_is_found(store: TaskStore, build: Any, sql: Any) -> None:
    blob = submit_artifact(store, build, BIG)
    path = store.files.path(blob.digest)
    path.write_bytes(b"?" + BIG[1:])
    with pytest.raises(Damaged, match=f"{blob.digest} were changed"):
        store.bytes_of(blob.digest)
    # Handing the right bytes in again mends the file.
    store.files.make_durable(BIG)
    assert store.bytes_of(blob.digest) == BIG
    path.unlink()
    with pytest.raises(Damaged, match="is missing"):
        store.bytes_of(blob.digest)
    with pytest.raises(Damaged, match="has no document"):
        store.bytes_of(sha256_digest(b"never seen"))
    manifest = store.run(1).tasks[0].attempts[0].manifest_digest or ""
    sql("UPDATE document SET data = :data WHERE digest = :digest", data=b"{}", digest=manifest)
    with pytest.raises(Damaged, match="were changed"):
        store.bytes_of(manifest)


def test_a_crash_between_file_and_row_leaves_only_an_orphan(
    sqlite_url: str, tmp_path: Path, open_store: Any, build: Any
) -> None:
    program = (
        "import os, sys; from pathlib import Path; from coordinator.store import TaskStore\n"
        "store = TaskStore(sys.argv[1], Path(sys.argv[2]))\n"
        "store.files.make_durable(b'x' * 100_000)\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program, sqlite_url, str(tmp_path / "store")], check=False)
    store = open_store(sqlite_url)

    assert done.returncode == -9
    digest = sha256_digest(b"x" * 100_000)
    assert store.files.path(digest).exists()
    with pytest.raises(Damaged, match="has no document"):
        store.bytes_of(digest)
    assert submit_artifact(store, build, b"x" * 100_000).digest == digest
    assert store.bytes_of(digest) == b"x" * 100_000


def test_an_artifact_with_the_bytes_of_a_document_does_not_hide_it(store: TaskStore, build: Any) -> None:
    terms = build.terms("kid", inputs={"long": "x" * INLINE_BYTES_MAX})
    data = Blob.of(terms.canonical()).data
    assert data is not None
    store.create_run(build.run("one", closed=False))
    (claim,) = store.claim("w", work=1)
    store.submit([build.submission(claim, artifacts=[store.files.make_durable(data)])])
    store.delegate(1, [build.task("kid", inputs={"long": "x" * INLINE_BYTES_MAX})])

    assert store.run(1).tasks[1].terms == terms
    assert [claim.terms for claim in store.claim("w", work=1)] == [terms]


# -- disks -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 3 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017


def test_a_full_disk_loses_nothing_and_the_store_goes_on_when_there_is_space(small_disk: Path, build: Any) -> None:
    store = TaskStore(f"sqlite:///{small_disk / 'store.db'}", small_disk)
    store.create_run(build.run(build.task("one", limits={"max_claims": 10_000})))
    (claim,) = store.claim("w", work=1)
    submission = build.submission(claim, output="x" * 20_000)
    ballast = small_disk / "ballast"
    fill(ballast)

    def go_on() -> None:
        for number in range(10_000):  # what was set aside before is used up first
            store.submit([submission])
            store.create_run(build.run(name=f"more-{number}"))

    with pytest.raises(StoreUnavailable, match="disk is full.*Nothing of this step was changed"):
        go_on()
    with pytest.raises(StoreUnavailable, match="did not take"):
        store.files.make_durable(b"y" * 500_000)
    state = store.state_of(claim.task_row)
    assert state in (State.RUNNING, State.SUBMITTED)

    ballast.unlink()
    assert store.submit([submission])[0].state is State.SUBMITTED  # type: ignore[union-attr]
    blob = store.files.make_durable(b"y" * 500_000)
    assert store.files.read(blob.digest) == b"y" * 500_000
    (gate,) = store.claim("g", work=0, gate=1)
    assert store.decide([build.verdict(gate)]) == [Done(State.ACCEPTED)]
    assert store.read_with(lambda tx: tx.conn.exec_driver_sql("PRAGMA integrity_check").scalar()) == "ok"
    assert list(small_disk.rglob(".new-*")) == []
    store.close()


def test_a_store_that_became_read_only_says_so_and_goes_on_after(small_disk: Path, build: Any) -> None:
    url = f"sqlite:///{small_disk / 'store.db'}"
    store = TaskStore(url, small_disk)
    store.create_run(build.run("one"))
    store.close()
    store = TaskStore(url, small_disk)
    assert store.due()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], capture_output=True)
    readonly = subprocess.run(["touch", str(small_disk / "probe")], capture_output=True).returncode != 0
    if not readonly:  # files that are open for writing keep the mount writable
        store.close()
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    else:
        with pytest.raises(StoreUnavailable, match="read-only|failed"):
            store.claim("w", work=1)
        store.close()
    with pytest.raises(StoreUnavailable, match="writable folder"):
        TaskStore(url, small_disk)

    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    store = TaskStore(url, small_disk)
    assert [claim.generation for claim in store.claim("w", work=1)] == [1]
    store.close()


def test_a_database_file_that_may_not_be_written_is_named(
    tmp_path: Path, open_store: Callable[..., TaskStore], build: Any
) -> None:
    path = tmp_path / "store.db"
    open_store(f"sqlite:///{path}").close()
    bind = subprocess.run(["mount", "--bind", str(path), str(path)], capture_output=True, text=True)
    if bind.returncode != 0:
        pytest.skip(f"mounting is not permitted here: {bind.stderr.strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(path)], check=True)
        store = open_store(f"sqlite:///{path}")
        with pytest.raises(StoreUnavailable, match="it is read-only: make the file and its folder writable"):
            store.create_run(build.run())
        store.close()
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_postgres_that_is_not_there_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable) as refused:
        TaskStore("postgresql://me:hunter2@127.0.0.1:1/none", tmp_path)

    assert "127.0.0.1" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_store_goes_on_after_postgres_dropped_its_connections(
    postgres_store: TaskStore, build: Any, postgres_url: str
) -> None:
    postgres_store.create_run(build.run("one"))
    engine = create_engine(parse_url(postgres_url))
    with engine.begin() as conn:
        conn.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
    engine.dispose()

    assert [claim.task_id for claim in postgres_store.claim("w", work=1)] == ["one"]
