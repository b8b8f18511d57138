"""What stands in the database, read past the store; and the call of the store that is under way."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["FINAL", "Call", "Reader", "Snapshot", "Violation"]

FINAL = frozenset({"accepted", "partial", "failed", "cancelled", "superseded"})
Row = sqlite3.Row


class Violation(AssertionError):
    """A promise of the design was broken."""


@dataclass(slots=True)
class Call:
    """One call of the store. ``tokens``: task row -> tokens shown for it. ``gone``: owners said to be dead. ``held``:
    tokens that the owner of a tick knows of, where it was asked. ``charge`` and ``amount`` (micro-USD, tokens): what is
    charged or settled. ``delegates``: whether it brings what a program delegates."""

    verb: str
    owner: str = ""
    tokens: Mapping[int, set[str]] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()
    held: frozenset[str] | None = None
    charge: int | None = None
    amount: tuple[int, int] | None = None
    delegates: bool = False


@dataclass(slots=True)
class Snapshot:
    """Every row that may change, by its id; ``events`` and ``documents`` are those since the snapshot before."""

    runs: dict[int, Row] = field(default_factory=dict)
    tasks: dict[int, Row] = field(default_factory=dict)
    attempts: dict[int, Row] = field(default_factory=dict)
    requests: dict[int, Row] = field(default_factory=dict)
    needs: dict[int, list[Row]] = field(default_factory=dict)
    workspaces: dict[int, Row] = field(default_factory=dict)
    charges: dict[int, Row] = field(default_factory=dict)
    operations: dict[int, Row] = field(default_factory=dict)
    events: list[Row] = field(default_factory=list)
    documents: list[Row] = field(default_factory=list)
    documents_count: int = 0

    def attempts_of(self, task: int) -> list[Row]:
        return [row for row in self.attempts.values() if row["task_id"] == task]

    def ancestors(self, task: int) -> list[int]:
        found = []
        parent = self.tasks[task]["parent_id"]
        while parent is not None:
            found.append(parent)
            parent = self.tasks[parent]["parent_id"]
        return found


class Reader:
    """Reads a store's file through a connection of its own."""

    def __init__(self, file: Path) -> None:
        self._conn = sqlite3.connect(file, isolation_level=None)
        self._conn.row_factory = Row
        self._version = -1
        self._event = self._document = 0
        self.bytes: dict[int, bytes | None] = {}
        self.digests: dict[int, str] = {}

    def close(self) -> None:
        self._conn.close()

    def changed(self) -> bool:
        """Whether anybody has committed since the last time."""
        before = self._version
        self._version = self._conn.execute("PRAGMA data_version").fetchone()[0]
        return self._version != before

    def rows(self, query: str, *values: object) -> list[Row]:
        return self._conn.execute(query, values).fetchall()

    def snapshot(self) -> Snapshot:
        def by_id(table: str, key: str = "id") -> dict[int, Row]:
            return {row[key]: row for row in self.rows(f"SELECT * FROM {table} ORDER BY {key}")}

        needs: dict[int, list[Row]] = defaultdict(list)
        for row in self.rows("SELECT * FROM need"):
            needs[row["task_id"]].append(row)
        found = Snapshot(
            runs=by_id("orchestration"),
            tasks=by_id("task"),
            attempts=by_id("attempt"),
            requests=by_id("request"),
            needs=needs,
            workspaces=by_id("workspace", "attempt_id"),
            charges=by_id("charge"),
            operations=by_id("operation"),
            events=self.rows("SELECT * FROM event WHERE id > ? ORDER BY id", self._event),
            documents=self.rows("SELECT * FROM document WHERE id > ? ORDER BY id", self._document),
            documents_count=self.rows("SELECT count(*) FROM document")[0][0],
        )
        for document in found.documents:
            self.bytes[document["id"]], self.digests[document["id"]] = document["data"], document["digest"]
        if found.events:
            self._event = found.events[-1]["id"]
        if found.documents:
            self._document = found.documents[-1]["id"]
        return found
