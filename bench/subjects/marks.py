"""Marks that children leave when they start; the one that brings them to half of all kills the process."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

MARK_BYTES = 16


def prepare(arguments: dict[str, Any]) -> None:
    """Where marks go, and at which start the process dies: at half of ``count`` in the first run, later never."""
    os.environ["BENCH_MARKS"] = str(Path(arguments["home"]) / "marks")
    os.environ["BENCH_KILL_AT"] = str(arguments["count"] // 2) if arguments["first_run"] else "-1"


def start(name: str) -> None:
    """Called by a child when it starts."""
    handle = os.open(os.environ["BENCH_MARKS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, name.ljust(MARK_BYTES - 1).encode() + b"\n")
        started = os.lseek(handle, 0, os.SEEK_CUR) // MARK_BYTES
    finally:
        os.close(handle)
    if started == int(os.environ["BENCH_KILL_AT"]):
        os.kill(os.getpid(), signal.SIGKILL)


def run_twice() -> int:
    """How many children started more than once."""
    starts = Counter(Path(os.environ["BENCH_MARKS"]).read_text(encoding="ascii").split())
    return sum(times > 1 for times in starts.values())
