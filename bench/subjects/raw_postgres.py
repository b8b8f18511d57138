"""The floor: four short transactions a child with nothing but ``psycopg``."""

from __future__ import annotations

import psycopg
from meter import Meter, postgres_bytes

TABLES = """
CREATE TABLE task (id integer PRIMARY KEY, terms bytea NOT NULL, state text NOT NULL, generation integer NOT NULL,
                   owner text, lease_until bigint);
CREATE TABLE result (task_id integer PRIMARY KEY, manifest bytea NOT NULL);
CREATE TABLE decision (task_id integer PRIMARY KEY, document bytea NOT NULL);
"""


def child(connection: psycopg.Connection[tuple[object, ...]], number: int) -> int:
    """Issue, claim, hand in, decide. Bytes of the documents that were stored."""
    terms = b'{"task_id": "t%d", "objective": "Nothing.", "acceptance": ["output.n == 1"]}' % number
    manifest = b'{"task_id": "t%d", "outcome": "completed", "output": {"n": 1}}' % number
    decision = b'{"task_id": "t%d", "decision": "accepted"}' % number
    with connection.transaction():
        connection.execute("INSERT INTO task VALUES (%s, %s, 'pending', 0, NULL, NULL)", (number, terms))
    with connection.transaction():
        connection.execute(
            "UPDATE task SET state = 'running', generation = generation + 1, owner = 'worker', lease_until = 1"
            " WHERE id = %s AND state = 'pending'",
            (number,),
        )
    with connection.transaction():
        connection.execute("INSERT INTO result VALUES (%s, %s)", (number, manifest))
        connection.execute("UPDATE task SET state = 'submitted', owner = NULL WHERE id = %s", (number,))
    with connection.transaction():
        connection.execute("INSERT INTO decision VALUES (%s, %s)", (number, decision))
        connection.execute("UPDATE task SET state = 'accepted' WHERE id = %s", (number,))
    return len(terms) + len(manifest) + len(decision)


def main() -> None:
    meter = Meter()
    count: int = meter.arguments["count"]
    url: str = meter.arguments["url"]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLES)
        child(connection, count)
        before = postgres_bytes(url)
        meter.start()
        payload = sum(child(connection, number) for number in range(count))
        meter.stop()
        row = connection.execute("SELECT count(*) FROM task WHERE state = 'accepted'").fetchone()
    assert row is not None
    meter.report(accepted=int(row[0]) - 1, database_bytes=postgres_bytes(url) - before, payload_bytes=payload)


if __name__ == "__main__":
    main()
