"""The checks that are no person's: what each finds wrong with a result.

A check returns its findings (none: it holds) and raises ``CannotJudge`` for what is not the result's fault.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from contracts.checks import Check, CheckKind
from contracts.documents import parse_document
from contracts.errors import BadInput, Fault
from contracts.expressions import ExpressionError, evaluate, expression_fault
from contracts.json_positions import path_part, short
from contracts.results import ArtifactEntry, Finding
from coordinator.gate.case import CannotJudge, Case, Unfit, names, one_line
from coordinator.gate.citations import Citations
from coordinator.gate.commands import Commands
from coordinator.gate.sections import section_messages

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

__all__ = ["data_faults", "load_schema", "pinned_schema", "run_check"]

MAX_FINDINGS: Final = 20
DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"


def run_check(case: Case, check: Check, citations: Citations, commands: Commands) -> list[Finding]:
    """What one check, which is no person's, finds wrong; none: it holds. Raises ``CannotJudge``."""
    if check.command is not None:
        return commands.findings(check)
    if check.citations_resolve is not None:
        return citations.findings(check)
    try:
        return _CHECKS[check.kind](case, check)
    except Unfit as error:
        return [Finding(check=one_line(check.label()), message=one_line(str(error), 500))]


def load_schema(name: str, data: bytes) -> Draft202012Validator:
    """The validator of a JSON Schema file (draft 2020-12) that never fetches what it refers to. Raises ``BadInput``."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from referencing import Registry

    document = parse_document(data, file=name, format="json")
    schema = document.value
    if isinstance(schema, dict) and str(schema.get("$schema", DRAFT)).removesuffix("#") != DRAFT:
        fault = Fault("$schema", f"{short(schema['$schema'])} is another draft of JSON Schema", f"write {DRAFT!r}")
        raise BadInput([document.locate(fault)])
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        fault = Fault(error.json_path.removeprefix("$").removeprefix("."), f"no JSON Schema: {_message(error)}")
        raise BadInput([document.locate(fault)]) from None
    return Draft202012Validator(schema, registry=Registry())


def pinned_schema(case: Case, name: str) -> Draft202012Validator:
    """The validator of a file that the contract pins. Raises ``CannotJudge``."""
    try:
        return load_schema(name, case.pinned_bytes(name))
    except BadInput as error:
        raise CannotJudge(f"the schema cannot be used: {error.faults[0]}") from error


def data_faults(validator: Draft202012Validator, value: Any, root: str = "$") -> list[tuple[str, str]]:
    """(place, message) of what a schema refuses, the first twenty. Raises ``CannotJudge``."""
    from referencing.exceptions import Unresolvable

    try:
        errors = list(islice(validator.iter_errors(value), MAX_FINDINGS))
    except Unresolvable as error:
        raise CannotJudge(f"the schema refers to {error.ref!r}, which is not in it; nothing is fetched") from error
    return [(one_line(root + error.json_path[1:], 200), _message(error)) for error in errors]


def _message(error: ValidationError | Any) -> str:
    """The library's message with the value cut; of alternatives, the one that went deepest is told too."""
    text = str(error.message).replace(repr(error.instance), short(error.instance))
    if error.context:
        nearest = max(error.context, key=lambda inner: len(inner.path))
        where = f" at {nearest.json_path}" if nearest.json_path != error.json_path else ""
        text += f" (nearest{where}: {nearest.message.replace(repr(nearest.instance), short(nearest.instance))})"
    return one_line(text)


def _json_schema(case: Case, check: Check) -> list[Finding]:
    assert check.json_schema is not None
    label = one_line(check.label())
    validator = pinned_schema(case, check.json_schema)
    value, root = case.manifest.output, "$"
    if check.of is not None:
        subject = _subject(case, check.of)
        if subject.data is None:
            value, root = subject.value, "$" + path_part(check.of)
        else:
            root = f"{subject.shown}: $"
            try:
                value = parse_document(subject.data, file=check.of, format="json").value
            except BadInput as error:
                return [
                    Finding(check=label, message=one_line(f"not strict JSON: {fault}"), place=one_line(subject.shown))
                    for fault in error.faults[:MAX_FINDINGS]
                ]
    return [
        Finding(check=label, message=message, place=place) for place, message in data_faults(validator, value, root)
    ]


def _sections(case: Case, check: Check) -> list[Finding]:
    assert check.sections is not None
    text, place = _text(case, check.of)
    return [
        Finding(check=one_line(check.label()), message=message, place=one_line(place))
        for message in section_messages(text, check.sections)
    ]


def _cel(case: Case, check: Check) -> list[Finding]:
    assert check.cel is not None
    wrong = expression_fault(check.cel)
    if wrong:
        raise CannotJudge(f"the expression {check.cel!r:.200} cannot be used: {wrong}")
    try:
        if evaluate(check.cel, case.seen_by(check.cel)) is True:
            return []
        message = f"not true: {check.cel}"
    except ExpressionError as error:
        message = f"no answer on this result: {error}; the expression is {check.cel}"
    return [Finding(check=one_line(check.label()), message=one_line(message, 500))]


def _paths_unchanged(case: Case, check: Check) -> list[Finding]:
    assert check.paths_unchanged is not None
    label = one_line(check.label())
    if case.judged is None or case.judged.candidate_tree is None:
        raise CannotJudge("there is no candidate whose changes could be looked at")
    touched = case.judged.touched(check.paths_unchanged)
    findings = [
        Finding(
            check=label,
            message=one_line(f"{change.path} was {_DONE[change.status]}, and must stay as it was", 500),
            place=one_line(change.path),
        )
        for change in touched[:MAX_FINDINGS]
    ]
    if len(touched) > MAX_FINDINGS:
        findings.append(Finding(check=label, message=f"{len(touched) - MAX_FINDINGS} more paths were changed"))
    return findings


_DONE: Final = {"added": "added", "modified": "changed", "deleted": "deleted", "type": "made another kind of entry"}

_CHECKS: Final[dict[CheckKind, Callable[[Case, Check], list[Finding]]]] = {
    "json_schema": _json_schema,
    "sections": _sections,
    "cel": _cel,
    "paths_unchanged": _paths_unchanged,
}
"""Every kind that reads what is there; ``approval`` is a person's."""


@dataclass(frozen=True, slots=True)
class _Subject:
    """What ``of`` names: an artifact, or else a file of the judged tree, or else a key of the output."""

    shown: str
    data: bytes | None = None
    value: Any = None


def _subject(case: Case, name: str) -> _Subject:
    entry, output = case.artifact_named(name), case.manifest.output
    if entry is not None:
        return _Subject(f"artifact {name}", case.artifact_bytes(entry))
    if case.judged is not None and case.judged.file(name) is not None:
        return _Subject(f"file {name}", case.judged.content(name))
    if isinstance(output, dict) and name in output:
        return _Subject(f"output key {name}", value=output[name])
    artifacts = names(item.name for item in case.manifest.artifacts)
    keys = names(output) if isinstance(output, dict) else "none"
    raise Unfit(f"{name!r} was not handed in: no artifact, no file of the judged tree and no key of the output has "
                f"that name (artifacts: {artifacts}; keys: {keys})")  # fmt: skip


def _text(case: Case, name: str | None) -> tuple[str, str]:
    """(text, which it is) that ``sections`` judges."""
    output = case.manifest.output
    if name is not None:
        subject = _subject(case, name)
        if subject.data is not None:
            return _decoded(subject.data, subject.shown), subject.shown
        if not isinstance(subject.value, str):
            raise Unfit(f"{subject.shown} is not text but {short(subject.value)}")
        return subject.value, subject.shown
    if isinstance(output, str) and output.strip():
        return output, ""
    texts = [entry for entry in case.manifest.artifacts if _is_text(entry)]
    if len(texts) != 1:
        raise Unfit("no single text to judge: hand in the text as the output, or as the only text artifact "
                    f"(text artifacts handed in: {names(entry.name for entry in texts)})")  # fmt: skip
    shown = f"artifact {texts[0].name}"
    return _decoded(case.artifact_bytes(texts[0]), shown), shown


def _is_text(entry: ArtifactEntry) -> bool:
    return entry.media_type.lower().startswith("text/") or entry.name.lower().endswith((".md", ".markdown", ".txt"))


def _decoded(data: bytes, shown: str) -> str:
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unfit(f"{shown} is not UTF-8 text (byte {error.start})") from None
