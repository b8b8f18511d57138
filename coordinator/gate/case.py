"""What is judged about one result, and the only ways in which the gate reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contracts.canonical import sha256_digest, well_formed
from contracts.json_positions import printable
from contracts.results import ArtifactEntry, Manifest
from coordinator.store.records import Claim, RepairHistory

if TYPE_CHECKING:
    from coordinator.gate.tree import JudgedTree

__all__ = ["CannotJudge", "Case", "Unfit", "bare_hex", "names", "one_line"]


class CannotJudge(Exception):
    """The gate itself could not do its work, whatever the result is worth; the text is the cause."""


class Unfit(Exception):
    """What should be judged is not there, or is not of the kind that is read here: a finding."""


@dataclass(frozen=True)
class Case:
    """One submitted result with everything that judging it needs.

    ``claim``: a live claim to gate. ``read_artifact``: digest -> bytes. ``read_file``: name -> bytes of a file that the
    terms pin in ``input_snapshot``. Both may raise anything; the gate hashes what they give. ``judged``: the tree that
    the checks see, None when the run has no source. ``contract``: renders the contract, as CEL expressions see it.
    """

    claim: Claim
    manifest: Manifest
    read_artifact: Callable[[str], bytes]
    read_file: Callable[[str], bytes]
    judged: JudgedTree | None
    history: RepairHistory
    contract: Callable[[], Mapping[str, Any]]

    def artifact_named(self, name: str) -> ArtifactEntry | None:
        return next((entry for entry in self.manifest.artifacts if entry.name == name), None)

    def artifact_bytes(self, entry: ArtifactEntry) -> bytes:
        """The bytes, hashed again. Raises ``CannotJudge``: what was stored before a row named it must be there."""
        try:
            data = self.read_artifact(entry.digest)
        except Exception as error:
            why = "is not in the store" if isinstance(error, KeyError) else f"cannot be read: {error}"
            raise CannotJudge(f"artifact {entry.name!r} ({entry.digest}) {why}") from error
        if sha256_digest(data) != entry.digest:
            raise CannotJudge(f"the stored bytes of artifact {entry.name!r} are no longer those of {entry.digest}")
        return data

    def pin_of(self, name: str) -> str | None:
        """The digest to which the terms pin a file."""
        _, at, digest = self.claim.terms.input_snapshot.get(name, "").rpartition("@")
        return digest if at and digest.startswith("sha256:") else None

    def pinned_bytes(self, name: str) -> bytes:
        """The file, hashed again. Raises ``CannotJudge``."""
        digest = self.pin_of(name)
        if digest is None:
            raise CannotJudge(f"the contract pins no file {name!r}")
        try:
            data = self.read_file(name)
        except Exception as error:
            raise CannotJudge(f"the pinned file {name!r} cannot be read: {type(error).__name__}: {error}") from error
        if sha256_digest(data) != digest:
            raise CannotJudge(f"the file {name!r} is no longer the one pinned as {digest}")
        return data

    def seen_by(self, expression: str) -> dict[str, Any]:
        """The values that a CEL expression can be about: those whose names stand in it."""
        values: dict[str, Callable[[], Any]] = {
            "output": lambda: self.manifest.output,
            "evidence": lambda: [item.model_dump(mode="json") for item in self.manifest.evidence],
            "contract": self.contract,
            "observed": lambda: [call.model_dump(mode="json") for call in self.manifest.observed_calls],
        }
        return {name: _whole_text(value()) for name, value in values.items() if name in expression}


def _whole_text(value: Any) -> Any:
    """The CEL library ends every text at its first NUL: without a stand-in, whatever follows would be judged unseen."""
    if isinstance(value, str):
        return well_formed(value).replace("\0", "\ufffd")
    if isinstance(value, Mapping):
        return {_whole_text(key): _whole_text(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_whole_text(item) for item in value]
    return value


def one_line(text: str, limit: int = 300) -> str:
    """Text that may stand in a terminal, a log and every store: one line, no control characters, cut at ``limit``."""
    line = printable(" ".join(text[: limit * 4].split()))
    return line if len(line) <= limit and len(text) <= limit * 4 else line[: limit - 3] + "..."


def names(found: Iterable[str], most: int = 8) -> str:
    """A short list for people: ``a, b``; ``none`` when it is empty."""
    different = list(dict.fromkeys(found))
    more = f" and {len(different) - most} more" if len(different) > most else ""
    return ", ".join(one_line(name, 60) for name in different[:most]) + more if different else "none"


def bare_hex(digest: str) -> str:
    """A SHA-256 with or without its ``sha256:`` before it."""
    return digest.removeprefix("sha256:").lower()
