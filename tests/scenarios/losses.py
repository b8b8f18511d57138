"""The loss table of the README: what the tests of crash points found, kept in losses.json.

``FIND_LOSSES=1 pytest tests/scenarios/test_crash_points.py`` finds anew; then
``PYTHONPATH=. python tests/scenarios/losses.py`` writes the table.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coordinator.crash_points import POINTS

FOUND = Path(__file__).with_name("losses.json")
README = Path(__file__).parents[2] / "README.md"
BEGIN = "<!-- the loss table: made by tests/scenarios/losses.py from what the tests found -->"
END = "<!-- end of the loss table -->"
COLUMNS = {"lost": "lost", "repeated": "repeated", "unknown": "unknown", "left": "left lying"}
DATABASES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


def known() -> dict[str, dict[str, dict[str, list[str]]]]:
    """label -> database -> column -> words"""
    found: dict[str, dict[str, dict[str, list[str]]]] = json.loads(FOUND.read_text(encoding="utf-8"))
    return found


def compare(database: str, label: str, loss: Any) -> None:
    """Raise ``AssertionError`` when this is not what is known; with FIND_LOSSES it is what is known from now on."""
    found = {column: list(words) for column, words in asdict(loss).items()}
    if not os.environ.get("FIND_LOSSES"):
        due = known().get(label, {}).get(database)
        assert found == due, f"{label} on {database} cost {found}, and not {due}"
        return
    with open(FOUND, "r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        everything = known()
        everything.setdefault(label, {})[database] = found
        file.write(json.dumps(everything, indent=1, sort_keys=True) + "\n")
        file.truncate()


def table() -> str:
    """Markdown: deaths that cost the same share a row, in the order of the points."""
    rows: dict[tuple[str, ...], list[str]] = {}
    points = list(POINTS)
    for label in sorted(known(), key=lambda label: (points.index(label.partition(" ")[0]), label)):
        rows.setdefault(tuple(_cell(label, column) for column in COLUMNS), []).append(_shown(label))
    lines = ["| killed at | " + " | ".join(COLUMNS.values()) + " |", "|" + " --- |" * (len(COLUMNS) + 1)]
    lines += ["| " + " | ".join([", ".join(names), *cells]) + " |" for cells, names in rows.items()]
    return "\n".join(lines)


def _cell(label: str, column: str) -> str:
    words = {name: ", ".join(known()[label][key][column]) or "nothing" for key, name in DATABASES.items()}
    if len(set(words.values())) == 1:
        return next(iter(words.values()))
    return "; ".join(f"{name}: {said}" for name, said in words.items())


def _shown(label: str) -> str:
    point, of, rest = label.partition(" ")
    return f"`{point}`{of}{rest}"


def in_readme() -> str:
    return README.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()


def write() -> None:
    text = README.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{README} has no line {BEGIN}"
    assert end, f"{README} has no line {END}"
    README.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write()
