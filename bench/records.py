"""What a run of the bench found, as a JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Record:
    """One measured thing in one round. ``facts`` are what ``meter`` and the program report, or an ``error``.

    ``section`` is the part of the bench, ``medium`` is ``tmpfs`` or ``disk``, ``count`` how many children or files.
    """

    section: str
    subject: str
    count: int
    round: int
    facts: Mapping[str, Any]
    database: str = ""
    medium: str = ""


@dataclass(slots=True)
class Report:
    """``machine``: what was measured on, and with what."""

    machine: Mapping[str, str]
    records: list[Record] = field(default_factory=list)

    def select(self, section: str, **wanted: str | int) -> list[Record]:
        """Records without error of a section whose fields are as wanted, by rounds."""
        found = [
            record
            for record in self.records
            if record.section == section
            and "error" not in record.facts
            and all(getattr(record, name) == value for name, value in wanted.items())
        ]
        return sorted(found, key=lambda record: record.round)

    def errors(self) -> Sequence[Record]:
        return [record for record in self.records if "error" in record.facts]

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {"machine": self.machine, "records": [asdict(record) for record in self.records]}
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Report:
        document = json.loads(path.read_text(encoding="utf-8"))
        return cls(document["machine"], [Record(**record) for record in document["records"]])
