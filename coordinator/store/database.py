"""The database behind the store: one way to open it, one way to change it.

A change is a function of a ``Tx`` that ``Database.write`` runs in one short transaction. It may run more than once
(after a deadlock it is rolled back and repeated), so it has no other effect.
"""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, bindparam, create_engine, insert, inspect, select, text, update
from sqlalchemy import event as engine_event
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from contracts.canonical import canonical_bytes, sha256_digest
from contracts.errors import BadInput, Refused, StoreUnavailable, VersionRefused
from contracts.ports import Clock
from coordinator.crash_points import at_commit
from coordinator.store import tables as t
from coordinator.store.database_faults import BUSY_TIMEOUT_S, explained, may_be_repeated, passing_fault
from coordinator.store.filesystem import check_store_folder

__all__ = ["SCHEMA_VERSION", "Blob", "Damaged", "Database", "StoreBroken", "Tx", "from_micros", "intact", "to_micros"]

SCHEMA_VERSION = "0001"
"""Newest revision in ``migrations/versions``; a test compares them."""

KNOWN_VERSIONS = ("0001",)
IDLE_IN_TRANSACTION_S = 15
"""After that PostgreSQL ends a session that stands still while it writes: no transaction of ours waits for anything,
so its process was stopped, and its locks would hold up all others."""

MAX_RETRIES = 20
ANSWER_S = 2 * BUSY_TIMEOUT_S
"""A PostgreSQL that has not answered for so long is taken for away: waiting for a lock ends before."""
TRANSACTION_S = 120
"""After that PostgreSQL (17 and later) ends any transaction that writes."""

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


class StoreBroken(StoreUnavailable):
    """The store will not come back by waiting: damaged, not a store, or it cannot take what it was given."""


class Damaged(Refused):
    """Stored bytes that are missing, or no longer have their digest."""


def intact(digest: str, data: bytes) -> bytes:
    """``data``, if it still has its digest. Raises ``Damaged``."""
    found = sha256_digest(data)
    if found != digest:
        raise Damaged(f"stored bytes of {digest} were changed: they now have digest {found}")
    return data


_FIND_DOCUMENTS = select(t.document.c.id, t.document.c.digest, t.document.c.data.is_(None).label("in_file")).where(
    t.document.c.digest.in_(bindparam("wanted", expanding=True))
)
_INSERT_DOCUMENT = {
    "sqlite": sqlite_insert(t.document).on_conflict_do_nothing(),
    "postgresql": postgres_insert(t.document).on_conflict_do_nothing(),
}
_INLINE_DOCUMENT = (
    update(t.document).where(t.document.c.id == bindparam("of_document")).values(data=bindparam("v_data"))
)
AT_ONCE_MAX = 500
"""Values in one list of a statement: databases have limits."""


def in_parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """In order, each as long as may be at once."""
    return (items[first : first + AT_ONCE_MAX] for first in range(0, len(items), AT_ONCE_MAX))


@dataclass(slots=True)
class Tx:
    """One transaction. ``now`` (microseconds) is its one time: the database's own on PostgreSQL."""

    conn: Connection
    now: int
    postgres: bool
    _events: list[dict[str, Any]] = field(default_factory=list)
    _documents: dict[str, int] = field(default_factory=dict)
    _inline: set[str] = field(default_factory=set)

    def document(self, blob: Blob) -> int:
        """Row id of these bytes; stored once."""
        return self.documents([blob])[blob.digest]

    def documents(self, blobs: Iterable[Blob]) -> Mapping[str, int]:
        """digest -> row id of these bytes, among others; each stored once."""
        new = {
            blob.digest: blob for blob in blobs if blob.digest not in (self._inline if blob.data else self._documents)
        }
        digests = sorted(new)  # in one order, so that two transactions cannot wait for each other
        for some in in_parts(digests):
            self._store(new, some)
        return self._documents

    def _has(self, blob: Blob) -> bool:
        return blob.digest in (self._documents if blob.data is None else self._inline)

    def _store(self, new: Mapping[str, Blob], digests: Sequence[str]) -> None:
        self.conn.execute(
            _INSERT_DOCUMENT[self.conn.dialect.name],
            [{"digest": digest, "size_bytes": new[digest].size_bytes, "data": new[digest].data} for digest in digests],
        )
        inline: list[dict[str, Any]] = []
        for row in self.conn.execute(_FIND_DOCUMENTS, {"wanted": digests}):
            self._documents[row.digest] = row.id
            if row.in_file and new[row.digest].data is not None:
                # A child may hand in as an artifact the very bytes of a document that must be readable here.
                inline.append({"of_document": row.id, "v_data": new[row.digest].data})
            if not row.in_file or new[row.digest].data is not None:
                self._inline.add(row.digest)
        if inline:
            self.conn.execute(_INLINE_DOCUMENT, inline)

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
                "data": json.dumps(data, separators=(",", ":"), sort_keys=True) if data else None,
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
            self.engine = _postgres_engine(self.url)
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
                        at_commit(change, "commit")
                    at_commit(change, "committed")
                    return result
                except DBAPIError as error:
                    if attempt == MAX_RETRIES - 1 or not may_be_repeated(error):
                        raise
                    time.sleep(random.uniform(0, 0.01 * (attempt + 1)))  # noqa: S311
        raise AssertionError("unreachable")

    def read(self, query: Callable[[Tx], T]) -> T:
        """Run queries on one consistent view."""
        with self._typed_errors(), self._transaction(write=False) as tx:
            return query(tx)

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[Tx]:
        with self.engine.connect() as conn:
            if self.postgres and not write:
                conn = conn.execution_options(isolation_level="REPEATABLE READ")
            with conn.begin():
                if self.postgres:
                    now = _begun_writing(conn) if write else _database_now(conn)
                else:
                    conn.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
                    now = to_micros(self._clock())
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
            kind = StoreBroken if passing_fault(error) is None else StoreUnavailable
            raise kind(explained(error, self.shown_url)) from error
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
    # Not by events of the engine: while there are any, each statement looks for those that might be meant for it.
    return create_engine(url, creator=_SqliteFile(path).connect, pool_size=8, max_overflow=8)


class _SqliteFile:
    """How connections to the file of a store are made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._was_there = False

    def connect(self) -> sqlite3.Connection:
        """A store that is gone for a while (its disk was taken away) must not be replaced by an empty file."""
        connection = sqlite3.connect(
            f"{self._path.as_uri()}?mode={'rw' if self._was_there else 'rwc'}", uri=True, timeout=BUSY_TIMEOUT_S,
            isolation_level=None, check_same_thread=False,
        )  # fmt: skip
        try:
            connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_S * 1000}")
            _set_wal(connection)
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA foreign_keys=ON")
        except BaseException:
            connection.close()
            raise
        self._was_there = True
        return connection


def _postgres_engine(url: URL) -> Engine:
    # A network that swallows packets must look like a lost connection, not like a slow answer for hours.
    patience = {
        "connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
        "tcp_user_timeout": BUSY_TIMEOUT_S * 1000,
    }  # fmt: skip
    own = {name: value for name, value in patience.items() if name not in url.query}
    engine = create_engine(url, pool_size=4, max_overflow=8, pool_pre_ping=True, connect_args=own)

    @engine_event.listens_for(engine, "do_connect")
    def _bounded(_dialect: object, _record: object, arguments: list[Any], options: dict[str, Any]) -> Any:
        from coordinator.store.postgres import bounded  # psycopg takes its time to be imported

        return bounded(ANSWER_S).connect(*arguments, **options)

    @engine_event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = '{BUSY_TIMEOUT_S}s'")
        connection.commit()

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


_BEGIN_WRITING_BEFORE_17 = text(
    "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, "
    "set_config('idle_in_transaction_session_timeout', :idle, true)"
)
_BEGIN_WRITING = text(
    "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, "
    "set_config('idle_in_transaction_session_timeout', :idle, true), "
    # The other does not see a client that stands still between the messages of one batch.
    "set_config('transaction_timeout', :whole, true)"
)


def _begun_writing(conn: Connection) -> int:
    """The database's time; and the server gives up on this transaction when it stands still."""
    values = {"idle": f"{IDLE_IN_TRANSACTION_S}s", "whole": f"{TRANSACTION_S}s"}
    if (conn.dialect.server_version_info or (0,)) >= (17,):
        return int(conn.execute(_BEGIN_WRITING, values).scalar_one())
    return int(conn.execute(_BEGIN_WRITING_BEFORE_17, {"idle": values["idle"]}).scalar_one())
