"""The assignment: all that a child gets, and the ways in which it can hand in its result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from contracts.canonical import well_formed
from contracts.evidence import EvidenceItem, EvidenceKind
from contracts.ports import ArtifactRef, ArtifactStore, CancelSignal, Journal, Meter, Tools
from contracts.requests import Answer
from contracts.results import ArtifactEntry, Finding, Result
from contracts.states import Outcome

__all__ = ["Assignment", "EarlierOperation", "Feedback", "NeededResult"]


@dataclass(frozen=True, slots=True)
class NeededResult:
    """The accepted result of a needed task: data, not instructions."""

    task_id: str
    output: Any
    artifacts: Mapping[str, str]
    """name -> digest"""
    manifest_digest: str
    partial: bool
    gaps: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Feedback:
    """Why the last result was sent back, one finding for each thing to mend."""

    attempt: int
    reason: str
    findings: Sequence[Finding]
    manifest_digest: str

    def __str__(self) -> str:
        return "\n".join([self.reason, *(f"- {finding.check}: {finding.message}" for finding in self.findings)])


@dataclass(frozen=True, slots=True)
class EarlierOperation:
    """A side effect that an attempt before this one has had or tried, and what came of it: data."""

    tool: str
    arguments: str
    """As JSON; a long one is cut."""
    succeeded: bool
    outcome: str
    """What the tool answered, or a person said."""
    files_missing: bool = False
    """Whether what it may have written into the workspace is not in this attempt's."""


@dataclass(slots=True)
class Assignment:
    """One attempt at a task.

    ``contract`` is the JSON document; ``needs``, ``inputs``, ``answers`` and ``operations`` are data. A function child
    returns what ``completed``, ``partial``, ``failed``, ``blocked`` or ``cancelled`` makes; whatever else it returns is
    no result.
    """

    run_id: str
    task_id: str
    child_run_id: str
    attempt: int
    generation: int
    contract: Mapping[str, Any]
    objective: str
    inputs: Mapping[str, Any]
    needs: Mapping[str, NeededResult]
    feedback: Feedback | None
    answers: Sequence[tuple[str, Answer]]
    """(question, answer) of this task's earlier questions."""
    left_out: Sequence[str]
    """What of the parent's state this child does not see, by name."""
    deadline_at: datetime
    tools: Tools
    cancel: CancelSignal
    artifacts: ArtifactStore
    workspace: Path | None = None
    """Folder in which this child may write, within its write scope; None without a workspace."""
    journal: Journal | None = None
    """Where a model's turns are stored; None for a child that is no model."""
    meter: Meter | None = None
    """Where a model's calls are charged; None for a child that is no model."""
    files_of: int | None = None
    """The attempt whose files the workspace begins with; None: its base, or what this conversation has made."""
    operations: Sequence[EarlierOperation] = ()
    """What earlier attempts of this task have done outside, newest first."""
    _evidence: list[EvidenceItem] = field(default_factory=list)
    _artifacts: dict[str, ArtifactEntry] = field(default_factory=dict)
    _gaps: list[str] = field(default_factory=list)
    _assumptions: list[str] = field(default_factory=list)

    def evidence(self, name: str, kind: EvidenceKind = "note", **details: Any) -> None:
        """Add a piece of evidence; ``details`` are the fields of ``EvidenceItem`` (text, data, path, line, …)."""
        self._evidence.append(EvidenceItem(name=name, kind=kind, **details))

    def note(self, name: str, text: str) -> None:
        self.evidence(name, "note", text=text)

    def cite(self, name: str, path: str, line: int, *, symbol: str | None = None, text: str = "") -> None:
        """Cite a line of the source (from 1)."""
        self.evidence(name, "citation", path=path, line=line, symbol=symbol, text=text)

    def gap(self, text: str) -> None:
        """Say what was not covered."""
        self._gaps.append(text)

    def assume(self, text: str) -> None:
        self._assumptions.append(text)

    def artifact(self, name: str, content: str | bytes, media_type: str | None = None) -> ArtifactRef:
        """Hand over a file's bytes; they are durable when this returns. A second call with the name replaces it."""
        data = well_formed(content).encode() if isinstance(content, str) else content
        kind = media_type or ("text/plain; charset=utf-8" if isinstance(content, str) else "application/octet-stream")
        ref = self.artifacts.put(name, data, kind)
        self._artifacts[name] = ArtifactEntry(
            name=ref.name,
            digest=ref.digest,
            size_bytes=ref.size_bytes,
            media_type=ref.media_type,
            redacted=ref.redacted,
        )
        return ref

    def read_needed(self, task_id: str, artifact: str) -> bytes:
        """An artifact of a needed task's accepted result, digest checked."""
        return self.artifacts.get(self.needs[task_id].artifacts[artifact])

    def completed(self, output: Any = None, message: str = "", next_action: str = "") -> Result:
        return self._result(Outcome.COMPLETED, output, message, next_action=next_action)

    def partial(self, output: Any = None, message: str = "", next_action: str = "") -> Result:
        """Hand in what there is; say in ``next_action`` what would come next."""
        return self._result(Outcome.PARTIAL, output, message, next_action=next_action)

    def failed(self, message: str, output: Any = None) -> Result:
        return self._result(Outcome.FAILED, output, message)

    def cancelled(self, message: str = "stopped when told to") -> Result:
        return self._result(Outcome.CANCELLED, None, message)

    def blocked(self, question: str) -> Result:
        """Ask a person; the task goes on with the answer in ``answers``."""
        return self._result(Outcome.BLOCKED, None, "", question=question)

    def _result(
        self, outcome: Outcome, output: Any, message: str, *, next_action: str = "", question: str = ""
    ) -> Result:
        return Result(
            outcome=outcome,
            output=output,
            message=message,
            evidence=list(self._evidence),
            artifacts=list(self._artifacts.values()),
            gaps=list(self._gaps),
            assumptions=list(self._assumptions),
            next_action=next_action,
            question=question,
        )

    def __str__(self) -> str:
        return json.dumps(self.contract, indent=2, ensure_ascii=False)
