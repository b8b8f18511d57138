"""Required evidence: which items meet it, and how far each can be trusted.

A manifest says who saw what. The gate takes *observed* only with a recorded call or process that can show it, or a
change in the candidate, and *verified* from nobody: it is what the gate itself read, looked up or ran again. A message
names the fact that is missing; it accuses nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from contracts.canonical import sha256_digest
from contracts.evidence import EVIDENCE_TABLE, EvidenceRequirement, Origin, OriginName
from contracts.results import EvidenceVerdict, ManifestItem
from contracts.scopes import in_scope
from contracts.states import Outcome
from coordinator.gate.case import CannotJudge, Case, bare_hex, names, one_line
from coordinator.gate.checks import data_faults, pinned_schema
from coordinator.gate.citations import Citations
from coordinator.gate.commands import Commands, same_command

__all__ = ["EvidenceWeigher"]

MAX_SHOWN: Final = 5
MAX_MESSAGE: Final = 600


@dataclass(frozen=True, slots=True)
class _Found:
    """One item: its origin, why it is no higher, and what was not compared."""

    item: ManifestItem
    origin: OriginName
    why: str = ""
    note: str = ""


class EvidenceWeigher:
    """Weighs the evidence of one result; each file and artifact is read once, however many items name it."""

    def __init__(self, case: Case, citations: Citations, commands: Commands) -> None:
        self._case = case
        self._citations = citations
        self._commands = commands
        # What holds only at the end is not run for a partial result.
        checks = [
            c for c in case.claim.terms.acceptance if c.when == "each" or case.manifest.outcome != Outcome.PARTIAL
        ]
        self._run_checks = [check for check in checks if check.command is not None]
        self._resolved_names = {check.citations_resolve for check in case.claim.terms.acceptance}
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
        notes = list(dict.fromkeys(item.note for item in found if item.note))
        return self._verdict(owed, lowest, self._off_schema(owed, fitting), _listed(notes))

    def _verdict(
        self, owed: EvidenceRequirement, lowest: OriginName | None, message: str, note: str = ""
    ) -> EvidenceVerdict:
        return EvidenceVerdict(
            name=owed.name,
            kind=owed.kind,
            min_origin=owed.min_origin,
            found_origin=lowest,
            ok=not message,
            message=one_line(message or note, MAX_MESSAGE),
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
        if item.kind == "command":
            return self._command(item, least)
        if item.kind == "citation" and item.name in self._resolved_names:
            looked = self._citations.look(item)
            return (
                replace(self._stated(item), why=looked.fault)
                if looked.fault
                else _Found(item, "verified", note=looked.note)
            )
        return self._stated(item)

    def _command(self, item: ManifestItem, least: OriginName) -> _Found:
        """Verified by the gate's own run of it, observed by the record of the runtime's."""
        argv = item.data.get("argv") if isinstance(item.data, dict) else None
        if argv is not None and not (isinstance(argv, list) and argv and all(isinstance(word, str) for word in argv)):
            return _Found(item, "claimed", "its data.argv is no list of arguments")
        cause: CannotJudge | None = None
        run_again = False
        one_program = len({tuple(check.command or []) for check in self._run_checks}) == 1
        for check in self._run_checks:
            if (argv is None and one_program) or same_command(argv or [], check.command or []):
                run_again = True
                try:
                    if not self._commands.findings(check):
                        return _Found(item, "verified")
                except CannotJudge as error:
                    cause = error
        if cause is not None and least == "verified":
            raise cause
        why = "the check that runs it did not pass" if run_again else "no check of this contract runs it again"
        if argv is None:
            unsaid = "its data.argv does not say which program is meant"
            return _Found(item, "claimed", f"{why}, and {unsaid}" if run_again else unsaid)
        said = item.data.get("exit_status") if isinstance(item.data, dict) else None
        for ran in self._case.manifest.processes:
            if same_command(argv, ran.argv):
                if said in (None, ran.exit_status):
                    return _Found(item, "observed", why)
                return _Found(item, "claimed", f"it says exit status {said}, seen was {ran.exit_status}")
        return _Found(item, "claimed", f"the runtime saw no such program run, and {why}")

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
        written = self._case.judged is not None and item.path in self._case.judged.written
        if not written and not in_scope(self._case.claim.terms.resources.read_scope, item.path):
            return _Found(item, "claimed", "its path is outside the read scope")
        if self._case.judged is None:
            if least == "verified":
                raise CannotJudge(f"there is no source in which to read {item.path!r} again")
            return self._stated(item)
        there = self._file_digest(item.path)
        if there is None:
            return _Found(item, "claimed", "the judged tree has no such file")
        # What the child read before it changed the file is another content, and rightly so.
        observed = None if written else self._case.manifest.read_set.get(item.path)
        if item.digest is not None and bare_hex(item.digest) != bare_hex(there):
            return _Found(item, "claimed", f"its digest is not that of the file in the judged tree, {there}")
        if observed is not None and bare_hex(observed) != bare_hex(there):
            return _Found(item, "claimed", f"what was read is not what the judged tree holds, {there}")
        if item.digest is None and observed is None and not written:
            why = "it was neither read nor written in this attempt, and no digest of it was handed in"
            return _Found(item, "claimed", why)
        return _Found(item, "verified")

    def _file_digest(self, path: str) -> str | None:
        """Of the file as the judged tree has it; None when it has none."""
        assert self._case.judged is not None
        if path not in self._file_digests:
            file = self._case.judged.file(path)
            self._file_digests[path] = None if file is None else sha256_digest(self._case.judged.blob(file))
        return self._file_digests[path]


def _label(item: ManifestItem) -> str:
    """Which item is meant, by what a reader can find it by."""
    what = item.path or item.artifact or item.symbol or item.text or item.name
    line = f":{item.line}" if item.path and item.line else ""
    return f"{item.kind} {one_line(what, 80)}{line}"


def _listed(lines: list[str]) -> str:
    more = f"; and {len(lines) - MAX_SHOWN} more" if len(lines) > MAX_SHOWN else ""
    return "; ".join(lines[:MAX_SHOWN]) + more
