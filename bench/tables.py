"""The Markdown of a report: medians of the rounds, with least and greatest, and ratios within a round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from bench.aims import AIMS
from bench.delegating import FLOORS, OURS, SUBJECTS, main_size
from bench.measures import (
    Value,
    bytes_above_documents,
    cpu_milliseconds,
    database_bytes,
    fact,
    flushes,
    milliseconds,
    peak_mib,
    times,
)
from bench.records import Record, Report
from bench.recovery import SLOTS

BEGIN = "<!-- the bench writes from here -->"
END = "<!-- to here -->"
NONE = ""
NAMES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}


def shown(value: float) -> str:
    if value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def spread(values: Sequence[float]) -> str:
    """Median (least to greatest)."""
    if not values:
        return NONE
    middle = shown(median(values))
    return middle if min(values) == max(values) else f"{middle} ({shown(min(values))} to {shown(max(values))})"


def column(records: Sequence[Record], value: Value) -> str:
    return spread([value(record) for record in records])


def ratios(records: Sequence[Record], base: Sequence[Record], value: Value = milliseconds) -> str:
    return spread(times(records, base, value))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


def _media(report: Report) -> list[str]:
    found = {record.medium for record in report.records}
    return [medium for medium in ("tmpfs", "disk") if medium in found]


def _databases(report: Report, section: str) -> list[str]:
    found = {record.database for record in report.select(section)}
    return [database for database in NAMES if database in found]


def fan_out(report: Report) -> Iterator[str]:
    """Everybody at one size, and this project by size."""
    for database in _databases(report, "fan-out"):
        sizes = sorted({record.count for record in report.select("fan-out", database=database)})
        yield from _side_by_side(report, database, main_size(sizes))
        yield from _by_size(report, database, sizes)


def _side_by_side(report: Report, database: str, size: int) -> Iterator[str]:
    media = _media(report)
    yield f"### Fan-out of {size:,} on {NAMES[database]}"
    yield ""
    head = ["", *[word for medium in media for word in (f"ms a child, {medium}", f"times the floor, {medium}")]]
    head += ["CPU ms a child", "flushes a child (traced)", "MiB above imports", "bytes a child", "of that, no document"]
    rows = []
    for subject in SUBJECTS[database]:
        wanted: dict[str, str | int] = {"database": database, "subject": subject.name, "count": size}
        row = [subject.name]
        for medium in media:
            records = report.select("fan-out", medium=medium, **wanted)
            floor = report.select("fan-out", database=database, subject=FLOORS[database], count=size, medium=medium)
            row += [column(records, milliseconds), ratios(records, floor)]
        first = report.select("fan-out", medium=media[0], **wanted)
        if not first:
            continue
        with_documents = [record for record in first if "payload_bytes" in record.facts]
        row += [
            column(first, cpu_milliseconds),
            column(report.select("fan-out traced", **wanted), flushes),
            column(first, peak_mib),
            column(first, database_bytes),
            column(with_documents, bytes_above_documents),
        ]
        rows.append(row)
    yield from table(head, rows)


def _by_size(report: Report, database: str, sizes: Sequence[int]) -> Iterator[str]:
    media = _media(report)
    if len(sizes) < 2:
        return
    yield f"By size on {NAMES[database]} (growth: time a child, over that at the size before):"
    yield ""
    head = [
        "",
        "children",
        *[f"{word}, {medium}" for medium in media for word in ("ms a child", "times the floor", "growth")],
    ]
    rows = []
    for subject in SUBJECTS[database]:
        for before, size in zip([0, *sizes], sizes, strict=False):
            wanted: dict[str, str | int] = {"database": database, "subject": subject.name, "count": size}
            if not report.select("fan-out", **wanted):
                continue
            row = [subject.name, f"{size:,}"]
            for medium in media:
                found = report.select("fan-out", medium=medium, **wanted)
                floor = report.select("fan-out", medium=medium, **{**wanted, "subject": FLOORS[database]})
                smaller = report.select("fan-out", medium=medium, **{**wanted, "count": before})
                values = (ratios(found, floor), ratios(found, smaller))
                row += [column(found, milliseconds), *values]
            first = report.select("fan-out", medium=media[0], **wanted)
            rows.append([*row, column(first, peak_mib), column(first, database_bytes)])
    yield from table([*head, "MiB above imports", "bytes a child"], rows)


def singly(report: Report) -> Iterator[str]:
    databases = _databases(report, "singly")
    if not databases:
        return
    yield "### One child at a time"
    yield ""
    head = ["", "children", "ms a child", "times the floor", "CPU ms a child", "flushes a child (traced)"]
    rows = []
    for database in databases:
        for medium in _media(report):
            for subject in (FLOORS[database], OURS):
                wanted = {"database": database, "medium": medium, "subject": subject}
                records = report.select("singly", **wanted)
                floor = report.select("singly", database=database, medium=medium, subject=FLOORS[database])
                rows.append(
                    [
                        f"{subject}, {NAMES[database]}, {medium}",
                        f"{records[0].count:,}" if records else NONE,
                        column(records, milliseconds),
                        ratios(records, floor),
                        column(records, cpu_milliseconds),
                        column(report.select("singly traced", **wanted), flushes),
                    ]
                )
    yield from table(head, rows)


def recovery(report: Report) -> Iterator[str]:
    records = report.select("recovery")
    if not records:
        return
    yield f"### Killed at half of {records[0].count:,} children"
    yield ""
    yield f"{SLOTS} worker slots; seconds from the start of the new process to its first acceptance, and to the end."
    yield ""
    head = ["", "to the first, s", "to the end, s", "accepted before", "run twice", "accepted twice"]
    names = ("to_first_s", "to_end_s", "accepted_before", "run_twice", "accepted_twice")
    rows = []
    for database in _databases(report, "recovery"):
        for subject in dict.fromkeys(record.subject for record in report.select("recovery", database=database)):
            for medium in _media(report):
                found = report.select("recovery", database=database, medium=medium, subject=subject)
                values = [column([record for record in found if name in record.facts], fact(name)) for name in names]
                rows.append([f"{subject}, {NAMES[database]}, {medium}", *values])
    yield from table(head, rows)


def workspaces(report: Report) -> Iterator[str]:
    records = report.select("workspaces")
    if not records:
        return
    media = _media(report)
    jobs = dict.fromkeys((record.subject, record.count) for record in records)
    yield "### Workspaces"
    yield ""
    head = ["", "files", *[word for medium in media for word in (f"ms, {medium}", f"times git, {medium}")]]
    rows = []
    for subject, count in jobs:
        taken = subject in ("snapshot", "git add, git commit")
        row = [subject, f"{count:,} changed" if taken else f"{count:,}"]
        base = "git add, git commit" if taken else "git worktree add"
        for medium in media:
            found = report.select("workspaces", subject=subject, count=count, medium=medium)
            git = report.select("workspaces", subject=base, count=count, medium=medium)
            row += [column(found, lambda record: 1000 * record.facts["seconds"]), ratios(found, git, fact("seconds"))]
        rows.append(row)
    yield from table(head, rows)


def startup(report: Report) -> Iterator[str]:
    records = report.select("startup")
    if not records:
        return
    yield "### Starting"
    yield ""
    rows = [
        [f"`{name}`", column(report.select("startup", subject=name), lambda record: 1000 * record.facts["seconds"])]
        for name in dict.fromkeys(record.subject for record in records)
    ]
    yield from table(["", "ms"], rows)


def aims(report: Report) -> Iterator[str]:
    """What this project aims at, and whether this report shows it; what was not measured is left out."""
    found = [(aim, aim.measure(report)) for aim in AIMS]
    rows = [
        [aim.what, f"{aim.sign} {shown(aim.limit)}{aim.unit}", f"{spread(values)}{aim.unit}", aim.verdict(values)]
        for aim, values in found
        if values
    ]
    if rows:
        yield "### Aims"
        yield ""
        yield from table(["", "aim", "measured", "reached"], rows)


def markdown(report: Report) -> str:
    """Every table of which there is something to say, after what it was measured on."""
    lines = [f"- {name}: {value}" for name, value in report.machine.items()]
    lines.append("")
    for part in (aims, fan_out, singly, recovery, workspaces, startup):
        lines += part(report)
    for record in report.errors():
        lines += [f"**Failed**: {record.subject}", ""]
    return "\n".join(lines).rstrip() + "\n"


def write_into(page: Path, report: Report) -> None:
    """Put the tables between the markers of a page. Raises ``ValueError`` when it has none."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no line {BEGIN!r} with a line {END!r} below it")
    page.write_text(f"{before}{BEGIN}\n\n{markdown(report)}\n{END}{after}", encoding="utf-8")
