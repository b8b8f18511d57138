"""When a simulated run is over, and how it must then look."""

from __future__ import annotations

import hashlib

from tests.simulation.effects import Outside
from tests.simulation.snapshot import FINAL, Reader, Row, Snapshot, Violation

__all__ = ["check_the_end", "is_active", "is_over"]


def is_active(seen: Snapshot) -> bool:
    """Something is eligible or held."""
    return any(row["ready"] or row["owner"] is not None for row in seen.tasks.values())


def is_over(seen: Snapshot) -> bool:
    """Nothing is eligible, held, or waiting for a person."""
    return not is_active(seen) and all(row["state"] != "open" for row in seen.requests.values())


def check_the_end(seen: Snapshot, reader: Reader, outside: Outside, *, quiet: bool) -> None:
    """Every task has ended, or can never start. ``quiet``: nothing went wrong, so all is accepted, each at its first
    attempt."""
    if not seen.runs:
        raise Violation("[3] nothing was launched")
    for task, row in seen.tasks.items():
        if row["state"] not in FINAL and not _blocked(seen, row):
            raise Violation(f"[3] task {task} is {row['state']} at the end, and nothing keeps it from going on")
        if quiet and row["state"] != "accepted":
            raise Violation(f"[3] task {task} is {row['state']}, though nothing went wrong")
        if quiet and len(seen.attempts_of(task)) != 1:
            raise Violation(f"[1] task {task} took several attempts, though nothing went wrong")
    for number, spent in outside.spent.items():
        row = seen.charges[number]
        if spent.micro_usd > row["micro_usd"] or spent.tokens > row["tokens"]:
            raise Violation(f"[7] more was spent than charge {number} says")
    if reader.rows("PRAGMA foreign_key_check"):
        raise Violation("[4] a row names what is not there")
    for document in reader.rows("SELECT digest, data FROM document"):
        if "sha256:" + hashlib.sha256(document["data"]).hexdigest() != document["digest"]:
            raise Violation(f"[4] the bytes of {document['digest']} were changed")


def _blocked(seen: Snapshot, task: Row) -> bool:
    """Whether a need has ended otherwise, is not there, or is itself blocked so."""
    if task["state"] != "pending":
        return False
    for need in seen.needs.get(task["id"], []):
        needed = [
            row for row in seen.tasks.values()
            if row["orchestration_id"] == task["orchestration_id"] and row["key"] == need["needed_key"]
            and row["is_current"]
        ]  # fmt: skip
        enough = ("accepted", "partial") if need["partial_ok"] else ("accepted",)
        if not needed:
            return True
        state = needed[0]["state"]
        if state not in enough and (state in FINAL or _blocked(seen, needed[0])):
            return True
    return False
