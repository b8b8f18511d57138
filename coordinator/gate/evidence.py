"""Required evidence: which items meet it, and how far each can be trusted.

A manifest says who saw what. The gate takes *observed* only with a recorded call of a tool that can show it, and
*verified* from nobody: it is what the gate itself read and hashed again. A message names the fact that is missing; it
accuses nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from contracts.canonical import sha256_digest
from contracts.evidence import EVIDENCE_TABLE, EvidenceRequirement, Origin, OriginName
from contracts.results import EvidenceVerdict, ManifestItem
from contracts.scopes import in_scope
from coordinator.gate.case import CannotJudge, Case, bare_hex, names, one_line
from coordinator.gate.checks import data_faults, pinned_schema

__all__ = ["EvidenceWeigher"]

MAX_SHOWN: Final = 5
MAX_MESSAGE: Final = 600


@dataclass(frozen=True, slots=True)
class _Found:
    """One item: its origin, and why it is no higher."""

    item: ManifestItem
    origin: OriginName
    why: str = ""


class EvidenceWeigher:
    """Weighs the evidence of one result; each file and artifact is read once, however many items name it."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._calls = {call.number: call for call in case.manifest.observed_calls}
        self._items: dict[str, list[ManifestItem]] = {}
        for item in case.manifest.evidence:
            self._items.setdefault(item.name, []).append(item)
        self._artifact_sizes: dict[str, int] = {}
        self._file_digests: dict[str, str | None] = {}

    def weigh(self, owed: EvidenceRequirement) -> EvidenceVerdict:
        """Whether one requirement is met, by every item of its name and kind. Raises ``CannotJudge``."""
        named = self._items.get(owed.name, [])
        fitting = [item for item in named if owed.kind in ("note", item.kind)]
        if not fitting:
            return self._verdict(owed, None, self._missing(owed, named))
        found = [self._origin(item, owed.min_origin) for item in fitting]
        lowest = min((item.origin for item in found), key=lambda name: Origin[name])
        if short := [item for item in found if Origin[item.origin] < Origin[owed.min_origin]]:
            why = _listed([f"{_label(item.item)}: {item.why}" for item in short])
            of = f" for {len(short)} of {len(found)} items" if len(found) > 1 else ""
            return self._verdict(owed, lowest, f"evidence {owed.name!r} is not {owed.min_origin}{of}: {why}")
        return self._verdict(owed, lowest, self._off_schema(owed, fitting))

    def _verdict(self, owed: EvidenceRequirement, lowest: OriginName | None, message: str) -> EvidenceVerdict:
        return EvidenceVerdict(
            name=owed.name,
            kind=owed.kind,
            min_origin=owed.min_origin,
            found_origin=lowest,
            ok=not message,
            message=one_line(message, MAX_MESSAGE),
        )

    def _missing(self, owed: EvidenceRequirement, named: list[ManifestItem]) -> str:
        if named:
            why, there = (
                f"no item of kind {owed.kind} has that name (of that name:",
                sorted({item.kind for item in named}),
            )
            return f"evidence {owed.name!r} is missing: {why} {names(there)})"
        return f"evidence {owed.name!r} is missing: no item has that name (handed in: {names(self._items)})"

    def _off_schema(self, owed: EvidenceRequirement, items: list[ManifestItem]) -> str:
        if owed.schema_file is None:
            return ""
        validator = pinned_schema(self._case, owed.schema_file)
        wrong: list[str] = []
        for item in items:
            faults = data_faults(validator, item.data, "data")
            wrong += [f"{_label(item)} {place}: {message}" for place, message in faults]
            if len(wrong) > MAX_SHOWN:
                break
        if not wrong:
            return ""
        return f"the data of evidence {owed.name!r} is not as {owed.schema_file} asks: {_listed(wrong)}"

    def _origin(self, item: ManifestItem, least: OriginName) -> _Found:
        if item.kind == "artifact":
            return self._artifact(item)
        if item.kind == "file":
            return self._file(item, least)
        return self._stated(item)

    def _stated(self, item: ManifestItem) -> _Found:
        """What the manifest says, as far as the record of calls bears it out."""
        makers = EVIDENCE_TABLE[item.kind].get("observed")
        if makers is None:
            return _Found(item, "claimed", f"{item.kind} evidence is the child's own word")
        if item.origin == "claimed":
            return _Found(item, "claimed", "no tool call of this attempt shows it")
        seen = [self._calls[number] for number in item.seen_in_calls if number in self._calls]
        if makers.anyone or any(call.ok and call.tool in makers.tools for call in seen):
            return _Found(item, "observed", f"nothing verifies {item.kind} evidence")
        tools = " or ".join(sorted(makers.tools))
        return _Found(item, "claimed", f"no served call of {tools} in this attempt shows it")

    def _artifact(self, item: ManifestItem) -> _Found:
        wanted = item.artifact or item.digest
        handed_in = self._case.manifest.artifacts
        entry = next((entry for entry in handed_in if wanted in (entry.name, entry.digest)), None)
        if entry is None:
            what = f"no artifact {wanted!r} was handed in" if wanted else "it names no artifact"
            return _Found(item, "claimed", f"{what} (handed in: {names(entry.name for entry in handed_in)})")
        if item.digest is not None and bare_hex(item.digest) != bare_hex(entry.digest):
            return _Found(item, "claimed", f"its digest is not that of artifact {entry.name!r}, {entry.digest}")
        if entry.digest not in self._artifact_sizes:
            self._artifact_sizes[entry.digest] = len(self._case.artifact_bytes(entry))
        if not self._artifact_sizes[entry.digest]:
            return _Found(item, "claimed", f"artifact {entry.name!r} is empty, so it shows nothing")
        return _Found(item, "verified")

    def _file(self, item: ManifestItem, least: OriginName) -> _Found:
        if not item.path:
            return _Found(item, "claimed", "it names no path")
        if not in_scope(self._case.claim.terms.resources.read_scope, item.path):
            return _Found(item, "claimed", "its path is outside the read scope")
        if self._case.reader is None:
            if least == "verified":
                raise CannotJudge(f"there is no source in which to read {item.path!r} again")
            return self._stated(item)
        there = self._file_digest(item.path)
        if there is None:
            return _Found(item, "claimed", "the source has no such file")
        observed = self._case.manifest.read_set.get(item.path)
        if item.digest is not None and bare_hex(item.digest) != bare_hex(there):
            return _Found(item, "claimed", f"its digest is not that of the file in the source, {there}")
        if observed is not None and bare_hex(observed) != bare_hex(there):
            return _Found(item, "claimed", f"what was read is not what the source holds, {there}")
        if item.digest is None and observed is None:
            return _Found(item, "claimed", "it was not read in this attempt, and no digest of it was handed in")
        return _Found(item, "verified")

    def _file_digest(self, path: str) -> str | None:
        """Of the file as the source has it now; None when it has none."""
        assert self._case.reader is not None
        if path not in self._file_digests:
            try:
                self._file_digests[path] = sha256_digest(self._case.reader.read_bytes(path))
            except FileNotFoundError:
                self._file_digests[path] = None
            except Exception as error:
                raise CannotJudge(f"{path!r} cannot be read again: {type(error).__name__}: {error}") from error
        return self._file_digests[path]


def _label(item: ManifestItem) -> str:
    """Which item is meant, by what a reader can find it by."""
    what = item.path or item.artifact or item.symbol or item.text or item.name
    line = f":{item.line}" if item.path and item.line else ""
    return f"{item.kind} {one_line(what, 80)}{line}"


def _listed(lines: list[str]) -> str:
    more = f"; and {len(lines) - MAX_SHOWN} more" if len(lines) > MAX_SHOWN else ""
    return "; ".join(lines[:MAX_SHOWN]) + more
