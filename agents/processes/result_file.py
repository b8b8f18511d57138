"""The result that a program writes, and the files that it names: hostile input, opened so that nothing else can be."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import Field

from contracts.base import JSON, Name, StrictModel
from contracts.documents import parse_document, validate
from contracts.errors import BadInput, Fault
from contracts.evidence import EvidenceItem
from contracts.json_positions import short
from contracts.prices import USD
from contracts.results import ArtifactEntry, OutcomeWord, Result

__all__ = ["NamedFile", "ResultFile", "read_artifact_file", "read_result_file"]

MAX_RESULT_BYTES: Final = 1024 * 1024
MAX_ARTIFACTS: Final = 1000


class NamedFile(StrictModel):
    """An artifact that lies in the artifacts folder: ``path`` is relative to it."""

    name: Name
    path: str = Field(min_length=1, max_length=4096)
    media_type: str = Field(default="application/octet-stream", pattern=r"^[\x20-\x7e]{1,200}$")


class ResultFile(StrictModel):
    """What a program hands in. As ``Result``, but its artifacts are files yet to be read."""

    outcome: OutcomeWord
    output: JSON = None
    message: str = ""
    evidence: list[EvidenceItem] = []
    artifacts: list[NamedFile] = Field(default=[], max_length=MAX_ARTIFACTS)
    gaps: list[str] = []
    assumptions: list[str] = []
    next_action: str = ""
    question: str = ""
    cost_usd: USD | None = None

    def result(self, stored: Sequence[ArtifactEntry]) -> Result:
        """The result, with its artifacts as they were stored."""
        fields = {name: getattr(self, name) for name in ResultFile.model_fields if name != "artifacts"}
        return Result(**fields, artifacts=list(stored))


def read_result_file(path: Path, *, max_bytes: int = MAX_RESULT_BYTES) -> ResultFile:
    """Read what a program handed in. Raises ``BadInput`` with every fault: it is whole and valid, or there is none.

    ``max_bytes`` above 1 MiB changes nothing: no document may be larger.
    """
    data = _read_regular(None, str(path), path.name, max_bytes)
    document = parse_document(data, file=path.name, format="json")
    if not isinstance(document.value, dict):
        raise BadInput([Fault("", "the result is no JSON object", 'write {"outcome": …}', path.name, 1, 1)])
    handed_in = validate(ResultFile, document)
    names = [artifact.name for artifact in handed_in.artifacts]
    faults = [
        document.locate(Fault(f"artifacts[{at}].name", f"artifact {short(name)} is named twice", "keep one of the two"))
        for at, name in enumerate(names)
        if name in names[:at]
    ]
    if handed_in.outcome == "blocked" and not handed_in.question.strip():
        asks_nothing = Fault("question", "a blocked result asks nothing", "say what a person has to answer")
        faults.append(asks_nothing.at(path.name, *document.place(("outcome",))))
    if faults:
        raise BadInput(faults)
    return handed_in


def read_artifact_file(folder: Path, path: str, *, max_bytes: int) -> bytes:
    """The bytes of a file below ``folder``, reached through no link. Raises ``BadInput`` saying what it is instead."""
    parts = path.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise _fault(path, "is no plain path below the artifacts folder", "name it like reports/junit.xml")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        at = os.open(folder, flags)
    except OSError as error:
        raise _fault(path, f"cannot be read: the artifacts folder: {error.strerror}") from None
    try:
        for part in parts[:-1]:
            try:
                below = os.open(part, flags, dir_fd=at)
            except OSError as error:
                raise _fault(path, f"cannot be read: {short(part)} is no folder: {error.strerror}") from None
            os.close(at)
            at = below
        return _read_regular(at, parts[-1], path, max_bytes)
    finally:
        os.close(at)


def _read_regular(dir_fd: int | None, name: str, shown: str, max_bytes: int) -> bytes:
    """At most ``max_bytes`` of a regular file that is no link. Never waits: a pipe is opened without a writer."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=dir_fd)
    except FileNotFoundError:
        raise _fault(shown, "was not written") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise _fault(shown, f"cannot be read: {why}", "write a regular file, no link") from None
    data = b""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _fault(shown, "is not a regular file", "write a regular file, no link")
        while len(data) <= max_bytes and (more := os.read(fd, max_bytes + 1 - len(data))):
            data += more
    except OSError as error:
        raise _fault(shown, f"cannot be read: {error.strerror}") from None
    finally:
        os.close(fd)
    if len(data) > max_bytes:
        raise _fault(shown, f"holds more than {max_bytes} bytes", "hand over large data as an artifact, or in parts")
    return data


def _fault(shown: str, message: str, hint: str = "") -> BadInput:
    return BadInput([Fault("", f"{short(shown, 200)} {message}", hint)])
