"""Many processes on one store. A program: ``racer.py URL FOLDER PROCESSES WHAT`` prints one JSON list a process.

The store's modules are imported once; the processes are forked before any of them opens it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from coordinator.store import TaskStore
from coordinator.store.records import Ending


def claim_one(store: TaskStore, name: str) -> list[Any]:
    """Every process tries to take the same work once."""
    return [[claim.task_id, claim.generation, claim.token] for claim in store.claim(name, work=100)]


def hold_and_release(store: TaskStore, name: str) -> list[Any]:
    """Take one task at a time, hold it a moment, end it; say when, by the monotonic clock that all processes share."""
    held = []
    idle = 0
    while idle < 100:
        claims = store.claim(name, work=1)
        idle = 0 if claims else idle + 1
        for claim in claims:
            since = time.monotonic()
            time.sleep(0.005)
            until = time.monotonic()
            store.end([Ending(claim, "failed", "enough")])
            held.append([claim.task_id, claim.generation, since, until])
        if not claims:
            time.sleep(0.005)
            if not store.due():
                break
    return held


def main(url: str, folder: str, processes: int, what: str) -> None:
    work = {"claim_one": claim_one, "hold_and_release": hold_and_release}[what]
    go_reader, go_writer = os.pipe()
    children = []
    for number in range(processes):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.close(go_writer)
            store = TaskStore(url, Path(folder))
            store.due()
            os.read(go_reader, 1)  # until the parent lets all of them go at once
            found = work(store, f"worker-{number}")
            os.write(writer, json.dumps(found).encode())
            os._exit(0)
        os.close(writer)
        children.append(reader)
    time.sleep(0.3)
    os.close(go_writer)
    for reader in children:
        with os.fdopen(reader, "rb") as pipe:
            sys.stdout.write((pipe.read().decode() or "null") + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
