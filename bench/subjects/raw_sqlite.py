"""The floor: four short transactions a child with nothing but ``sqlite3``."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from meter import Meter, sqlite_bytes

TABLES = """
CREATE TABLE task (id INTEGER PRIMARY KEY, terms BLOB NOT NULL, state TEXT NOT NULL, generation INTEGER NOT NULL,
                   owner TEXT, lease_until INTEGER) STRICT;
CREATE TABLE result (task_id INTEGER PRIMARY KEY, manifest BLOB NOT NULL) STRICT;
CREATE TABLE decision (task_id INTEGER PRIMARY KEY, document BLOB NOT NULL) STRICT;
"""


def child(connection: sqlite3.Connection, number: int) -> int:
    """Issue, claim, hand in, decide. Bytes of the documents that were stored."""
    terms = b'{"task_id": "t%d", "objective": "Nothing.", "acceptance": ["output.n == 1"]}' % number
    manifest = b'{"task_id": "t%d", "outcome": "completed", "output": {"n": 1}}' % number
    decision = b'{"task_id": "t%d", "decision": "accepted"}' % number
    with connection:
        connection.execute("INSERT INTO task VALUES (?, ?, 'pending', 0, NULL, NULL)", (number, terms))
    with connection:
        connection.execute(
            "UPDATE task SET state = 'running', generation = generation + 1, owner = 'worker', lease_until = 1"
            " WHERE id = ? AND state = 'pending'",
            (number,),
        )
    with connection:
        connection.execute("INSERT INTO result VALUES (?, ?)", (number, manifest))
        connection.execute("UPDATE task SET state = 'submitted', owner = NULL WHERE id = ?", (number,))
    with connection:
        connection.execute("INSERT INTO decision VALUES (?, ?)", (number, decision))
        connection.execute("UPDATE task SET state = 'accepted' WHERE id = ?", (number,))
    return len(terms) + len(manifest) + len(decision)


def main() -> None:
    meter = Meter()
    count: int = meter.arguments["count"]
    path = Path(meter.arguments["folder"]) / "floor.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.executescript(TABLES)
    child(connection, count)
    before = sqlite_bytes(path)
    meter.start()
    payload = sum(child(connection, number) for number in range(count))
    meter.stop()
    accepted = connection.execute("SELECT count(*) FROM task WHERE state = 'accepted'").fetchone()[0] - 1
    connection.close()
    meter.report(accepted=accepted, database_bytes=sqlite_bytes(path) - before, payload_bytes=payload)


if __name__ == "__main__":
    main()
