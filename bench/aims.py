"""What this project wants of itself, each as a number that the bench measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from bench.delegating import FLOORS, OURS, SUBJECTS, main_size
from bench.measures import bytes_above_documents, fact, flushes, milliseconds, peak_mib, times
from bench.records import Record, Report
from bench.recovery import SLOTS


@dataclass(frozen=True, slots=True)
class Aim:
    """``measure`` gives a value for each round; none when the report does not hold what it needs."""

    what: str
    sign: Literal["≤", "<", "≥"]
    limit: float
    unit: str
    measure: Callable[[Report], Sequence[float]]

    def verdict(self, values: Sequence[float]) -> str:
        middle = median(values)
        fine = {"≤": middle <= self.limit, "<": middle < self.limit, "≥": middle >= self.limit}
        return "yes" if fine[self.sign] else "**no**"


def _size(report: Report) -> int:
    """The fan-out that is looked at; 0 when none was large enough to fill the worker's slots."""
    sizes = sorted({record.count for record in report.select("fan-out") if record.count >= 100})
    return main_size(sizes) if sizes else 0


def _fan_out(report: Report, subject: str, database: str, medium: str) -> list[Record]:
    return report.select("fan-out", subject=subject, database=database, medium=medium, count=_size(report))


def _over_floor(database: str, medium: str) -> Callable[[Report], list[float]]:
    return lambda report: times(
        _fan_out(report, OURS, database, medium), _fan_out(report, FLOORS[database], database, medium)
    )


def _singly_over_floor(report: Report) -> list[float]:
    wanted = {"database": "sqlite", "medium": "tmpfs"}
    ours = report.select("singly", subject=OURS, **wanted)
    return times(ours, report.select("singly", subject=FLOORS["sqlite"], **wanted))


def _best_peer_over_ours(report: Report) -> list[float]:
    """Of the peers on SQLite, the one with the best median; memory-backed, where the disk has no say."""
    peers = [_fan_out(report, subject.name, "sqlite", "tmpfs") for subject in SUBJECTS["sqlite"] if subject.is_peer]
    measured = [records for records in peers if records]
    if not measured:
        return []
    best = min(measured, key=lambda records: median(map(milliseconds, records)))
    return times(best, _fan_out(report, OURS, "sqlite", "tmpfs"))


def _flushes(section: str) -> Callable[[Report], list[float]]:
    return lambda report: [
        flushes(record)
        for record in report.select(f"{section} traced", subject=OURS, database="sqlite")
        if section == "singly" or record.count == _size(report)
    ]


def _growth(report: Report) -> list[float]:
    by_size = [
        report.select("fan-out", subject=OURS, database="sqlite", medium="tmpfs", count=count)
        for count in (1000, 10_000)
    ]
    return times(by_size[1], by_size[0])


def _peak(report: Report) -> list[float]:
    found = report.select("fan-out", subject=OURS, database="sqlite", medium="tmpfs", count=10_000)
    return [peak_mib(record) for record in found]


def _bytes(report: Report) -> list[float]:
    return [bytes_above_documents(record) for record in _fan_out(report, OURS, "sqlite", "tmpfs")]


def _recovery(name: str, databases: Iterable[str] = FLOORS) -> Callable[[Report], list[float]]:
    return lambda report: [
        fact(name)(record)
        for database in databases
        for record in report.select("recovery", subject=OURS, database=database)
    ]


def _workspace_over_git(report: Report) -> list[float]:
    ours = report.select("workspaces", subject="directory", medium="disk")
    return times(ours, report.select("workspaces", subject="git worktree add", medium="disk"))


AIMS = [
    Aim("fan-out in memory, SQLite, over the floor", "≤", 5, " times", _over_floor("sqlite", "tmpfs")),
    Aim("fan-out on disk, SQLite, over the floor", "<", 1, " times", _over_floor("sqlite", "disk")),
    Aim("fan-out in memory, PostgreSQL, over the floor", "≤", 1.6, " times", _over_floor("postgresql", "tmpfs")),
    Aim("one at a time in memory, SQLite, over the floor", "≤", 8, " times", _singly_over_floor),
    Aim("the fastest peer on SQLite, in memory, over this project", "≥", 10, " times", _best_peer_over_ours),
    Aim("flushes a child in a fan-out", "≤", 0.5, "", _flushes("fan-out")),
    Aim("flushes a child, one at a time", "≤", 4, "", _flushes("singly")),
    Aim("growth of the time a child from 1,000 to 10,000 children", "≤", 1.25, " times", _growth),
    Aim("memory above imports at 10,000 children", "≤", 15, " MiB", _peak),
    Aim("database a child, documents left out", "≤", 1024, " bytes", _bytes),
    Aim("first acceptance after a kill, SQLite", "≤", 1.2, " s", _recovery("to_first_s", ["sqlite"])),
    Aim("children run twice after a kill", "≤", SLOTS, "", _recovery("run_twice")),
    Aim("children accepted twice after a kill", "≤", 0, "", _recovery("accepted_twice")),
    Aim("preparing a workspace on disk, over `git worktree add`", "≤", 1, " times", _workspace_over_git),
]
