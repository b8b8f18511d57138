"""What an error of a database means: whether it may pass by itself, and what people can do about it."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError, OperationalError

__all__ = ["BUSY_TIMEOUT_S", "explained", "may_be_repeated", "passing_fault"]

BUSY_TIMEOUT_S = 30
"""How long to wait for a lock that another session holds."""


def may_be_repeated(error: DBAPIError) -> bool:
    """Deadlocks and serialisation failures: the database rolled back, and asks to try again."""
    return _sqlstate(error) in ("40001", "40P01")


def _sqlstate(error: DBAPIError) -> str | None:
    state = getattr(error.orig, "sqlstate", None)
    return state if isinstance(state, str) else None


_SQLITE_FAULTS = {
    sqlite3.SQLITE_FULL: "its disk is full: free some space",
    sqlite3.SQLITE_READONLY: "it is read-only: make the file and its folder writable, or use another --store",
    sqlite3.SQLITE_BUSY: f"another process held its write lock for over {BUSY_TIMEOUT_S} s: find out what it does",
    sqlite3.SQLITE_LOCKED: "another connection of this process holds it",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: check the path and its permissions",
    sqlite3.SQLITE_IOERR: "reading or writing it failed: check the disk (full, failing?)",
    sqlite3.SQLITE_NOMEM: "there was not enough memory",
    sqlite3.SQLITE_PROTOCOL: "its locks were in too much demand",
}
"""What may pass, and what to do about it."""

_SQLITE_DAMAGE = {
    sqlite3.SQLITE_CORRUPT: "its file is damaged: restore a backup",
    sqlite3.SQLITE_NOTADB: "it is not a database",
}

_POSTGRES_FAULTS = {
    "08": "the connection was lost: check the server and the network",
    "25006": "it is read-only: make the server take writes again, or use another --store",
    "25P03": "this process stood still for too long in the middle of a transaction",
    "25P04": "this process stood still for too long in the middle of a transaction",
    "40": "other sessions were in the way at every try",
    "53": "the server is short of something: see its own words",
    "53100": "the disk of the server is full: free some space there",
    "53300": "the server has no connection left: end some, or raise its max_connections",
    "55P03": f"another session held a lock for over {BUSY_TIMEOUT_S} s: find out what it does",
    "57": "the server ended the session, or is starting or stopping: check that it runs",
    "58": "the server could not read or write its files: check its disk",
}
"""The same, by the state or its class."""


def passing_fault(error: DBAPIError) -> str | None:
    """What it is and what to do about it, for a fault that may pass by itself; None for one that does not."""
    if isinstance(error.orig, sqlite3.Error):
        return _SQLITE_FAULTS.get(getattr(error.orig, "sqlite_errorcode", 0) & 0xFF)
    state = _sqlstate(error)
    known = state and (_POSTGRES_FAULTS.get(state) or _POSTGRES_FAULTS.get(state[:2]))
    if known:
        return known
    if error.connection_invalidated:  # whatever the server's last word was
        return _POSTGRES_FAULTS["08"]
    if state is None and isinstance(error, OperationalError):
        return "the server cannot be reached: check that it runs, and the address"
    return None


def explained(error: DBAPIError, where: str) -> str:
    """For people: what was found, and whether anything was changed."""
    plain = str(error.orig).strip().split("\n", 1)[0]
    code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
    reason = passing_fault(error) or _SQLITE_DAMAGE.get(code) or plain
    # A connection that is lost while it commits says nothing of the commit; every call may be repeated.
    lost = error.connection_invalidated
    after = "Whether this step was stored is not known" if lost else "Nothing of this step was changed"
    return f"the store {where} did not take this: {reason} ({plain}). {after}"
