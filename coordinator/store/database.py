"""The database behind the store: one way to open it, one way to change it.

A change is a function of a ``Tx`` that ``Database.write`` runs in one short transaction. It may run more than once
(after a deadlock it is rolled back and repeated), so it has no other effect.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, bindparam, create_engine, insert, inspect, select, text, update
from sqlalchemy import event as engine_event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from contracts.canonical import canonical_bytes, sha256_digest
from contracts.errors import BadInput, Refused, StoreUnavailable, VersionRefused
from contracts.ports import Clock
from coordinator.store import tables as t
from coordinator.store.filesystem import check_store_folder

__all__ = ["SCHEMA_VERSION", "Blob", "Damaged", "Database", "Tx", "from_micros", "intact", "to_micros"]

SCHEMA_VERSION = "0001"
"""Newest revision in ``migrations/versions``; a test compares them."""

KNOWN_VERSIONS = ("0001",)
BUSY_TIMEOUT_S = 30
MAX_RETRIES = 20
T = TypeVar("T")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_micros(moment: datetime) -> int:
    """Whole microseconds since 1970 of an aware time."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def from_micros(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes on their way into the store. ``data`` is None when they are durable as a file already."""

    digest: str
    size_bytes: int
    data: bytes | None

    @classmethod
    def of(cls, value: Any) -> Blob:
        """Canonical JSON of a value, inline."""
        data = canonical_bytes(value)
        return cls(sha256_digest(data), len(data), data)


class Damaged(Refused):
    """Stored bytes that are missing, or no longer have their digest."""


def intact(digest: str, data: bytes) -> bytes:
    """``data``, if it still has its digest. Raises ``Damaged``."""
    found = sha256_digest(data)
    if found != digest:
        raise Damaged(f"stored bytes of {digest} were changed: they now have digest {found}")
    return data


_FIND_DOCUMENT = select(t.document.c.id, t.document.c.data.is_(None).label("in_file")).where(
    t.document.c.digest == bindparam("wanted")
)


@dataclass(slots=True)
class Tx:
    """One transaction. ``now`` (microseconds) is its one time: the database's own on PostgreSQL."""

    conn: Connection
    now: int
    postgres: bool
    _events: list[dict[str, Any]] = field(default_factory=list)
    _documents: dict[str, int] = field(default_factory=dict)

    def document(self, blob: Blob) -> int:
        """Row id of these bytes; stored once."""
        known = self._documents.get(blob.digest)
        if known is not None:
            return known
        row = self.conn.execute(_FIND_DOCUMENT, {"wanted": blob.digest}).first()
        found = None if row is None else row.id
        if row is not None and row.in_file and blob.data is not None:
            # A child may hand in as an artifact the very bytes of a document that must be readable here.
            self.conn.execute(update(t.document).where(t.document.c.id == found).values(data=blob.data))
        if found is None:
            if self.postgres:
                from sqlalchemy.dialects.postgresql import insert as pg_insert

                values = {"digest": blob.digest, "size_bytes": blob.size_bytes, "data": blob.data}
                self.conn.execute(pg_insert(t.document).values(values).on_conflict_do_nothing())
                query = select(t.document.c.id).where(t.document.c.digest == blob.digest)
                found = self.conn.execute(query).scalar_one()
            else:
                result = self.conn.execute(
                    insert(t.document).values(digest=blob.digest, size_bytes=blob.size_bytes, data=blob.data)
                )
                found = result.inserted_primary_key[0]  # type: ignore[index]
        row_id = int(found)
        self._documents[blob.digest] = row_id
        return row_id

    def event(
        self,
        orchestration_id: int,
        task_id: int | None,
        verb: str,
        *,
        generation: int | None = None,
        owner: str | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Record what happened; written with the transaction."""
        self._events.append(
            {
                "orchestration_id": orchestration_id,
                "task_id": task_id,
                "at": self.now,
                "verb": verb,
                "generation": generation,
                "owner": owner,
                "data": canonical_bytes(dict(data)).decode() if data else None,
            }
        )

    def look_at_clock(self) -> None:
        """After a wait for a lock: a lease may have ended meanwhile. (SQLite waits before ``now`` is taken.)"""
        if self.postgres:
            self.now = _database_now(self.conn)

    def flush(self) -> None:
        if self._events:
            self.conn.execute(insert(t.event), self._events)
            self._events = []


class Database:
    """An open database. ``write`` and ``read`` are the only ways in."""

    def __init__(self, url: str, *, clock: Clock) -> None:
        self.url = parse_url(url)
        self.postgres = self.url.get_backend_name() == "postgresql"
        self._clock = clock
        if self.postgres:
            self.engine = create_engine(self.url, pool_size=4, max_overflow=8, pool_pre_ping=True)
        else:
            self.engine = _sqlite_engine(self.url)
        try:
            with self._typed_errors():
                self._prepare()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.engine.dispose()

    def write(self, change: Callable[[Tx], T]) -> T:
        """Run one change in one transaction; repeat it after a deadlock. Raises ``StoreUnavailable``."""
        with self._typed_errors():
            for attempt in range(MAX_RETRIES):
                try:
                    with self._transaction(write=True) as tx:
                        result = change(tx)
                        tx.flush()
                    return result
                except DBAPIError as error:
                    if attempt == MAX_RETRIES - 1 or not _may_be_repeated(error):
                        raise
                    time.sleep(random.uniform(0, 0.01 * (attempt + 1)))  # noqa: S311
        raise AssertionError("unreachable")

    def read(self, query: Callable[[Tx], T]) -> T:
        """Run queries on one consistent view."""
        with self._typed_errors(), self._transaction(write=False) as tx:
            return query(tx)

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[Tx]:
        options: dict[str, Any] = {"coordinator_write": write}
        if self.postgres and not write:
            options["isolation_level"] = "REPEATABLE READ"
        with self.engine.connect().execution_options(**options) as conn, conn.begin():
            now = _database_now(conn) if self.postgres else to_micros(self._clock())
            yield Tx(conn, now, self.postgres)

    def _prepare(self) -> None:
        """Make the tables of a new database; refuse a schema that this program does not know."""

        def look(tx: Tx) -> str | None:
            if self.postgres:
                tx.conn.execute(text("SELECT pg_advisory_xact_lock(4207110326)"))
            names = set(inspect(tx.conn).get_table_names())
            if "alembic_version" in names:
                return str(tx.conn.execute(text("SELECT version_num FROM alembic_version")).scalar() or "none")
            foreign = sorted(names & set(t.metadata.tables))
            if foreign:
                raise VersionRefused(
                    f"{self.shown_url} has tables named {', '.join(foreign)} but no schema version: "
                    "it is not a coordinator store, and was left as it is"
                )
            t.metadata.create_all(tx.conn)
            tx.conn.execute(
                text(
                    "CREATE TABLE alembic_version "
                    "(version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
                )
            )
            tx.conn.execute(text("INSERT INTO alembic_version VALUES (:version)"), {"version": SCHEMA_VERSION})
            return None

        with self._transaction(write=False) as tx:
            names = set(inspect(tx.conn).get_table_names())
            versioned = "alembic_version" in names
            found = tx.conn.execute(text("SELECT version_num FROM alembic_version")).scalar() if versioned else None
        if found is None:
            found = self.write(look)
            names = set(t.metadata.tables)
        if found in (None, SCHEMA_VERSION) and names >= set(t.metadata.tables):
            return
        if found == SCHEMA_VERSION:
            raise VersionRefused(
                f"{self.shown_url} has schema version {found!r} of another program: it is not a coordinator store, "
                "and was left as it is"
            )
        if found not in KNOWN_VERSIONS:
            raise VersionRefused(
                f"{self.shown_url} has schema version {found!r}; this program knows {', '.join(KNOWN_VERSIONS)}. "
                "Use the version of the program that wrote it; nothing was changed"
            )
        from coordinator.store.migrations import upgrade

        upgrade(self.engine)

    @property
    def shown_url(self) -> str:
        return self.url.set(drivername=self.url.get_backend_name()).render_as_string(hide_password=True)

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError:
            raise
        except DBAPIError as error:
            raise StoreUnavailable(_explain(error, self.shown_url)) from error
        except PoolTimeout as error:
            raise StoreUnavailable(f"the store {self.shown_url} is too busy: every connection was in use") from error


def parse_url(url: str) -> URL:
    """A database address; a bare path means SQLite. Raises ``BadInput``."""
    if "://" not in url:
        url = f"sqlite:///{url}"
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, NoSuchModuleError) as error:
        raise BadInput(f"--store {url!r} is not a database address: {error}") from None
    if backend in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    if backend != "sqlite" or not parsed.database or parsed.database == ":memory:":
        raise BadInput(f"--store {url!r}: use sqlite:///PATH (a file) or postgresql://…")
    return parsed.set(drivername="sqlite+pysqlite", database=str(Path(parsed.database).absolute()))


def _sqlite_engine(url: URL) -> Engine:
    path = Path(str(url.database))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"cannot make {path.parent}: {error.strerror}") from error
    check_store_folder(path.parent)
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S}, pool_size=8, max_overflow=8)

    @engine_event.listens_for(engine, "connect")
    def _connect(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_S * 1000}")
        _set_wal(connection)
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")

    @engine_event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("coordinator_write", True)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _set_wal(connection: sqlite3.Connection) -> None:
    """Make a new database a WAL one; the mode stays in the file. The file of another program is not touched."""
    for attempt in range(MAX_RETRIES):
        try:
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
                connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:  # SQLite does not wait for a lock when it changes the journal mode
            if attempt == MAX_RETRIES - 1 or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            time.sleep(0.05)


def _database_now(conn: Connection) -> int:
    return int(conn.execute(text("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")).scalar_one())


def _may_be_repeated(error: DBAPIError) -> bool:
    """Deadlocks and serialisation failures: the database rolled back, and asks to try again."""
    return getattr(error.orig, "sqlstate", None) in ("40001", "40P01")


def _explain(error: DBAPIError, where: str) -> str:
    code = getattr(error.orig, "sqlite_errorcode", None)
    plain = str(error.orig).strip().split("\n", 1)[0]
    primary = code & 0xFF if isinstance(code, int) else None
    reasons = {
        sqlite3.SQLITE_FULL: "its disk is full: free some space and run the same command again",
        sqlite3.SQLITE_READONLY: "it is read-only: make the file and its folder writable, or use another --store",
        sqlite3.SQLITE_BUSY: f"another process held its write lock for over {BUSY_TIMEOUT_S} s: run the command again",
        sqlite3.SQLITE_CANTOPEN: "it cannot be opened: check the path and its permissions",
        sqlite3.SQLITE_IOERR: "reading or writing it failed: check the disk (full, failing?) and run the command again",
        sqlite3.SQLITE_CORRUPT: "its file is damaged: restore a backup",
        sqlite3.SQLITE_NOTADB: "it is not a database",
    }
    reason = reasons.get(primary) if primary is not None else None
    return f"the store {where} did not take this: {reason or plain} ({plain}). Nothing of this step was changed"
