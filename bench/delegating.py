"""Fan-outs and one child at a time: this project, the floor, and the peers, side by side in each round."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.plan import Plan, Step
from bench.programs import Failed, measure
from bench.records import Record
from bench.server import Server, running_server

OURS = "this project"
FLOORS = {"sqlite": "raw sqlite3", "postgresql": "raw psycopg"}


@dataclass(frozen=True, slots=True)
class Subject:
    name: str
    script: str
    is_peer: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)


SUBJECTS = {
    "sqlite": [
        Subject(FLOORS["sqlite"], "raw_sqlite"),
        Subject(OURS, "ours"),
        Subject("LangGraph, a thread per child", "langgraph_peer", True),
        Subject("DBOS, direct", "dbos_peer", True, {"queue": False}),
        Subject("DBOS, queue", "dbos_peer", True, {"queue": True}),
    ],
    "postgresql": [
        Subject(FLOORS["postgresql"], "raw_postgres"),
        Subject(OURS, "ours"),
        Subject("DBOS, direct", "dbos_peer", True, {"queue": False}),
        Subject("DBOS, queue", "dbos_peer", True, {"queue": True}),
        Subject("procrastinate", "procrastinate_peer", True),
    ],
}


class Runner:
    """Runs subjects on each database and medium; PostgreSQL servers live as long as the stack."""

    def __init__(self, plan: Plan, stack: ExitStack) -> None:
        self._plan = plan
        self._stack = stack
        self._servers: dict[str, Server] = {}
        self._numbers = itertools.count(1)

    def place(self, database: str, medium: str) -> dict[str, Any]:
        """Arguments that name the database to use."""
        if database == "sqlite":
            return {}
        if medium not in self._servers:
            self._servers[medium] = self._stack.enter_context(running_server(self._plan.media[medium]))
        server = self._servers[medium]
        return {"url": server.new_database(), "server_pid": server.pid}

    def new_folder(self, medium: str) -> Path:
        return self._plan.media[medium] / f"work{next(self._numbers)}"

    def run(self, subject: Subject, database: str, medium: str, count: int, *, singly: bool, trace: bool) -> Any:
        interpreter = self._plan.peers if subject.is_peer else Path(sys.executable)
        assert interpreter is not None
        arguments = {
            "count": count, "slots": self._plan.slots, "singly": singly, **subject.arguments,
            **self.place(database, medium),
        }  # fmt: skip
        facts = measure(interpreter, subject.script, arguments, self.new_folder(medium), trace=trace)
        if facts["accepted"] != count:
            raise Failed(f"{subject.name}: {facts['accepted']} of {count} children were accepted")
        return facts


def delegating_steps(plan: Plan, runner: Runner, section: str) -> Iterator[Step]:
    """Steps of ``fan-out`` or ``singly``: rounds on the outside, so that what is compared runs side by side."""
    singly = section == "singly"
    sizes = [plan.one_by_one] if singly else list(plan.sizes)
    rounds = range(-1 if plan.trace else 0, plan.repeats)
    for number, database, size in itertools.product(rounds, plan.databases, sizes):
        traced = number == -1
        if traced and size != main_size(sizes):
            continue
        for medium, subject in itertools.product(plan.media, SUBJECTS[database]):
            skipped = subject.is_peer and (plan.peers is None or size > plan.peers_max or singly)
            # Storage that is slow makes fuller batches: what counts is how often the disk is waited for.
            if skipped or (traced and medium != list(plan.media)[-1]):
                continue

            def run(
                subject: Subject = subject, database: str = database, medium: str = medium, size: int = size,
                number: int = number, traced: bool = traced,
            ) -> Record:  # fmt: skip
                facts = runner.run(subject, database, medium, size, singly=singly, trace=traced)
                name = f"{section} traced" if traced else section
                return Record(name, subject.name, size, number, facts, database, medium)

            word = "traced" if traced else f"round {number + 1}"
            yield Step(f"{section} {size:,} {word}: {subject.name}, {database} on {medium}", run)


def main_size(sizes: list[int]) -> int:
    """The size that the table of peers shows: 1,000 children, or the nearest that was asked for."""
    return min(sizes, key=lambda size: abs(size - 1000))
