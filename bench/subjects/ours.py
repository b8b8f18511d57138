"""This project, through its public Python API: a fan-out, or one child at a time."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from meter import Meter, postgres_bytes, sqlite_bytes

from coordinator import Assignment, Coordinator, Orchestration, Result, Task


def nothing(a: Assignment) -> Result:
    return a.completed({"n": 1})


TASK = Task(objective="Nothing.", agent=nothing, isolation="none", acceptance=[{"cel": "output.n == 1"}])


def fan_out(coordinator: Coordinator, count: int) -> int:
    """How many were accepted."""
    tasks = {f"t{number}": TASK for number in range(count)}
    result = coordinator.run(Orchestration(name="fan-out", objective="Fan out.", tasks=tasks))
    return sum(task.outcome == "accepted" for task in result.tasks.values())


def singly(coordinator: Coordinator, count: int) -> int:
    """Each child is delegated when the one before it is decided. How many were accepted."""
    accepted = 0
    with coordinator.start("singly", objective="One at a time.") as run:
        for number in range(count):
            child = run.delegate(TASK, delegation_id=f"t{number}")
            accepted += child.decided().outcome == "accepted"
    return accepted


def stored(arguments: dict[str, Any]) -> tuple[int, int]:
    """Bytes of the database, and those of the documents in it: terms, manifests, decisions, and the run's own."""
    query = "SELECT coalesce(sum(length(data)), 0) FROM document"
    if "url" in arguments:
        import psycopg

        with psycopg.connect(arguments["url"]) as server:
            row = server.execute(query).fetchone()
        assert row is not None
        return postgres_bytes(arguments["url"]), int(row[0])
    path = Path(arguments["folder"]) / "store.db"
    connection = sqlite3.connect(path)
    try:
        payload = int(connection.execute(query).fetchone()[0])
    finally:
        connection.close()
    return sqlite_bytes(path), payload


def main() -> None:
    meter = Meter()
    folder = Path(meter.arguments["folder"])
    store = meter.arguments.get("url", f"sqlite:///{folder / 'store.db'}")
    with Coordinator(store, home=folder / "home", workers=meter.arguments["slots"]) as coordinator:
        # Loads what is loaded on first use.
        coordinator.run(Orchestration(name="warm-up", objective="Warm up.", tasks={"one": TASK}))
        bytes_before, payload_before = stored(meter.arguments)
        meter.start()
        how = singly if meter.arguments["singly"] else fan_out
        accepted = how(coordinator, meter.arguments["count"])
        meter.stop()
    bytes_after, payload_after = stored(meter.arguments)
    meter.report(
        accepted=accepted,
        database_bytes=bytes_after - bytes_before,
        payload_bytes=payload_after - payload_before,
    )


if __name__ == "__main__":
    main()
