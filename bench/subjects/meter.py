"""What every measured program uses to measure itself. Standard library only: peers' interpreters run it too."""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")


class Meter:
    """Measures from ``start`` to ``stop`` and prints one line of JSON.

    Arguments come as one JSON object in ``sys.argv[1]``; ``server_pid`` names a database server whose CPU time counts.
    """

    def __init__(self) -> None:
        self.arguments: dict[str, Any] = json.loads(sys.argv[1])
        self._server_pid: int | None = self.arguments.get("server_pid")

    def start(self) -> None:
        # Sets the high-water mark back to what is resident now: what imports took for a moment does not count.
        Path("/proc/self/clear_refs").write_text("5")
        self._resident_kib = _status("VmRSS")
        self._cpu_s, self._at, self._began = self._cpu(), time.time(), time.perf_counter()

    def stop(self) -> None:
        self._seconds = time.perf_counter() - self._began
        self._ended_at = time.time()
        self._cpu_s = self._cpu() - self._cpu_s
        self._peak_kib = _status("VmHWM")

    def report(self, **facts: Any) -> None:
        """``began_at`` and ``ended_at`` are seconds since 1970; sizes are KiB where the name says so."""
        measured = {
            "seconds": self._seconds, "cpu_s": self._cpu_s, "began_at": self._at, "ended_at": self._ended_at,
            "resident_kib": self._resident_kib, "peak_kib": self._peak_kib,
        }  # fmt: skip
        print("\n" + json.dumps({**measured, **facts}), flush=True)

    def _cpu(self) -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = time.process_time() + children.ru_utime + children.ru_stime
        return own + (_family_cpu(self._server_pid) if self._server_pid else 0.0)


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1])
    raise KeyError(key)


def _family_cpu(pid: int) -> float:
    """Seconds of CPU of a server, of its processes, and of those of them that have ended."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(entry.name) == pid:
            ticks += sum(int(field) for field in fields[11:15])
        elif int(fields[1]) == pid:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


def sqlite_bytes(path: str | Path) -> int:
    """Bytes in use in a database file, after everything in its log was brought into it."""
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        pages, free, size = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)
    finally:
        connection.close()


def postgres_bytes(url: str) -> int:
    """Bytes of the database on the server's disk."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    assert row is not None
    return int(row[0])
