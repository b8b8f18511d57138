"""Citations, looked up again in the judged tree: the file, the line, its text or digest, and the symbol around it."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from contracts.canonical import sha256_digest
from contracts.checks import Check
from contracts.results import Finding, ManifestItem
from contracts.scopes import in_scope
from coordinator.gate.case import CannotJudge, Case, Unfit, bare_hex, one_line
from coordinator.gate.symbols import LINE_END, MODULE, symbols_by_line
from coordinator.gate.tree import JudgedTree

__all__ = ["Citations", "Looked", "place_of"]

MAX_FINDINGS: Final = 20
PYTHON: Final = (".py", ".pyi", ".pyw")


@dataclass(frozen=True, slots=True)
class Looked:
    """What looking up one citation gave. ``fault``: why it does not resolve. ``note``: what was not compared."""

    item: ManifestItem
    fault: str = ""
    note: str = ""


class Citations:
    """Looks up the citations of one result, each name once, file by file."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._looked: dict[str, dict[int, Looked]] = {}

    def findings(self, check: Check) -> list[Finding]:
        """What does not resolve. Raises ``CannotJudge``."""
        assert check.citations_resolve is not None
        label, name = one_line(check.label()), check.citations_resolve
        looked = list(self._by_item(name).values())
        if not looked:
            return [Finding(check=label, message=one_line(f"no citation was handed in as evidence {name!r}"))]
        wrong = list(dict.fromkeys((one_line(item.fault, 500), place_of(item.item)) for item in looked if item.fault))
        findings = [Finding(check=label, message=message, place=place) for message, place in wrong[:MAX_FINDINGS]]
        if len(wrong) > MAX_FINDINGS:
            more = f"{len(wrong) - MAX_FINDINGS} more citations do not resolve, of {len(looked)} in all"
            findings.append(Finding(check=label, message=more))
        return findings

    def look(self, item: ManifestItem) -> Looked:
        """What one citation of this result gave. Raises ``CannotJudge``."""
        return self._by_item(item.name)[id(item)]

    def _by_item(self, name: str) -> dict[int, Looked]:
        if name not in self._looked:
            items = [item for item in self._case.manifest.evidence if item.name == name and item.kind == "citation"]
            if items and self._case.judged is None:
                raise CannotJudge("there is no source in which to look up citations")
            by_path: dict[str | None, list[ManifestItem]] = {}
            for item in items:
                by_path.setdefault(item.path, []).append(item)
            looked = [found for path, cited in by_path.items() for found in self._look_up(path, cited)]
            self._looked[name] = {id(found.item): found for found in looked}
        return self._looked[name]

    def _look_up(self, path: str | None, items: list[ManifestItem]) -> Iterator[Looked]:
        judged = self._case.judged
        assert judged is not None
        try:
            file = self._file(path, judged)
        except Unfit as error:
            yield from (Looked(item, str(error)) for item in items)
            return
        for item in items:
            try:
                yield Looked(item, note=file.resolve(item))
            except Unfit as error:
                yield Looked(item, str(error))

    def _file(self, path: str | None, judged: JudgedTree) -> _File:
        if not path:
            raise Unfit("it names no path")
        # Whoever may not read a file must not learn by asking whether a line of it reads so.
        if not in_scope(self._case.claim.terms.resources.read_scope, path) and path not in judged.written:
            raise Unfit(f"{path!r} is outside the read scope")
        return _File(path, judged.content(path).removeprefix(codecs.BOM_UTF8))


class _File:
    """One cited file."""

    def __init__(self, path: str, data: bytes) -> None:
        self._path = path
        self._text = data.decode("utf-8", "replace")
        self._data = data

    @cached_property
    def _lines(self) -> list[bytes]:
        # The same ends as in text: no other byte of UTF-8 is 10 or 13.
        lines = [line.encode("latin-1") for line in LINE_END.split(self._data.decode("latin-1"))]
        return lines[:-1] if lines[-1] == b"" else lines

    @cached_property
    def _symbols(self) -> list[tuple[str, ...]] | str:
        """By line; or why it cannot be told."""
        try:
            return symbols_by_line(self._text)
        except ValueError as error:
            return str(error)

    def resolve(self, item: ManifestItem) -> str:
        """What was not compared although it was given. Raises ``Unfit`` where it does not resolve."""
        if item.line is None:
            raise Unfit("it names no line")
        if item.line > len(self._lines):
            raise Unfit(f"there is no line {item.line}: {self._path!r} has {len(self._lines)} lines")
        if not item.text and item.digest is None:
            raise Unfit("there is nothing to compare: hand in the text of the line, or its digest")
        line = self._lines[item.line - 1]
        there = line.decode("utf-8", "replace")
        if item.text and _without_end(item.text) != there:
            if item.text.split() == there.split():
                raise Unfit(f"line {item.line} has other white space: hand it in as it stands, indentation included")
            raise Unfit(f"line {item.line} reads {_shown(there)}, not {_shown(_without_end(item.text))}")
        if item.digest is not None and bare_hex(item.digest) != bare_hex(sha256_digest(line)):
            raise Unfit(f"its digest is not that of line {item.line} without its end, which reads {_shown(there)}")
        return self._check_symbol(item.line, item.symbol) if item.symbol else ""

    def _check_symbol(self, line: int, symbol: str) -> str:
        if not self._path.endswith(PYTHON):
            raise Unfit(f"symbol {symbol!r} cannot be checked: only Python is read that closely; cite it without one")
        if isinstance(self._symbols, str):
            raise Unfit(f"symbol {symbol!r} cannot be checked in {self._path!r}: {self._symbols}; cite it without one")
        around = self._symbols[line - 1]
        if symbol.replace(".<locals>", "") not in around:
            inside = "at the top of the file" if around == (MODULE,) else f"in {' or '.join(around)}"
            raise Unfit(f"line {line} stands {inside}, not in {symbol}")
        return ""


def place_of(item: ManifestItem) -> str:
    line = f":{item.line}" if item.line else ""
    return one_line(f"{item.path or ''}{line}")


def _without_end(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 120 else text[:117] + "...")
