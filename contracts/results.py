"""What a child hands in, the manifest made of it, and what the gate decides."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from contracts.base import JSON, Identifier, Name, StrictModel
from contracts.canonical import digest_of
from contracts.evidence import EvidenceItem, EvidenceKind, OriginName
from contracts.prices import USD
from contracts.states import Outcome

__all__ = [
    "ArtifactEntry",
    "Bound",
    "CheckOutcome",
    "Decision",
    "DecisionWord",
    "EvidenceVerdict",
    "Finding",
    "Manifest",
    "ManifestItem",
    "ObservedCall",
    "PathChange",
    "ProcessRecord",
    "Result",
    "WorkspaceRecord",
]


OutcomeWord = Annotated[Outcome, Field(strict=False)]
"""An outcome, also by its word, as JSON has it."""


class ArtifactEntry(StrictModel):
    """An artifact as a manifest names it."""

    name: Name
    digest: str
    size_bytes: int = Field(ge=0)
    media_type: str
    redacted: bool = False


class Result(StrictModel):
    """What a child hands in: its own words, all of them *claimed*.

    ``output`` is any JSON value. ``question`` goes with ``blocked``: what a person has to answer. ``next_action`` is
    what the child proposes as the next safe step.
    """

    outcome: OutcomeWord
    output: JSON = None
    message: str = ""
    evidence: list[EvidenceItem] = []
    artifacts: list[ArtifactEntry] = []
    gaps: list[str] = []
    assumptions: list[str] = []
    next_action: str = ""
    question: str = ""
    cost_usd: USD | None = None
    """What a program with a budget says that it cost."""


class ObservedCall(StrictModel):
    """A tool call that the broker served or refused. Written by the runtime, never by the child."""

    number: int
    tool: str
    arguments: dict[str, Any]
    ok: bool
    at: str
    result_digest: str | None = None
    error: str | None = None


class ProcessRecord(StrictModel):
    """A program that the runtime or the gate ran and saw the end of. Digests are of whole outputs, tails are cut.

    ``all_gone``: none of its descendants was left when it was recorded.
    """

    argv: list[str]
    how: str
    exit_status: int | None
    signal: int | None
    all_gone: bool
    left_behind: int
    started_at: str
    elapsed_s: float
    stdout_digest: str
    stderr_digest: str
    output_tail: str


class PathChange(StrictModel):
    """One path in which the candidate differs from its base; ``path`` has lone bytes escaped."""

    path: str
    status: Literal["added", "modified", "deleted", "type"]
    old_mode: str
    new_mode: str


class WorkspaceRecord(StrictModel):
    """Where the child wrote, and the candidate snapshotted from there. ``left_out``: ignored files that are no part
    of it."""

    kind: Literal["directory", "clone"]
    base_commit: str
    base_tree: str
    candidate_commit: str
    candidate_tree: str
    changes: list[PathChange]
    outside_scope: list[str]
    left_out: list[str]


class ManifestItem(EvidenceItem):
    """An evidence item with its origin, and the numbers of the calls that show it."""

    origin: OriginName
    seen_in_calls: list[int] = []


class Manifest(StrictModel):
    """The evidence manifest of one attempt: what was claimed beside what was observed.

    ``unenforced`` says in one line which rules of the contract nothing enforced while it was made. ``content_digest``
    covers what the child produced (output, artifacts, evidence), so that a repair that changed nothing can be told.
    """

    schema_version: Literal["coordinator/manifest/v1"] = Field(default="coordinator/manifest/v1", alias="schema")
    run_id: str
    task_id: Identifier
    contract_version: int
    child_run_id: Identifier
    attempt: int
    claim_generation: int
    terms_digest: str
    outcome: OutcomeWord
    output: JSON
    message: str
    evidence: list[ManifestItem]
    artifacts: list[ArtifactEntry]
    gaps: list[str]
    assumptions: list[str]
    next_action: str
    observed_calls: list[ObservedCall]
    read_set: dict[str, str]
    processes: list[ProcessRecord] = []
    workspace: WorkspaceRecord | None = None
    content_digest: str
    isolation: str
    unenforced: str
    redactions: int
    started_at: str
    finished_at: str

    def canonical(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)

    @property
    def digest(self) -> str:
        return digest_of(self.canonical())


class Finding(StrictModel):
    """One thing to mend, in a form that a model can act on."""

    check: str
    message: str
    place: str = ""


class CheckOutcome(StrictModel):
    """One check on one subject. ``waiting``: a person has been asked. ``errored``: it could not be judged."""

    check: str
    check_digest: str
    subject_digest: str
    outcome: Literal["passed", "failed", "errored", "waiting", "refused", "skipped"]
    findings: list[Finding] = []


class EvidenceVerdict(StrictModel):
    """One required piece of evidence: what was owed, and the least origin of what was found."""

    name: Name
    kind: EvidenceKind
    min_origin: OriginName
    found_origin: OriginName | None
    ok: bool
    message: str = ""


class Bound(StrictModel):
    """Everything that was judged. Change any content, and an earlier approval is void."""

    terms_digest: str
    manifest_digest: str
    candidate_tree: str | None
    policy_version: str
    head: str | None
    generation_submitted: int
    generation_gated: int

    def content_digest(self) -> str:
        """What approvals bind to: the content, not who holds it now."""
        return digest_of([self.terms_digest, self.manifest_digest, self.candidate_tree, self.policy_version])


DecisionWord = Literal["accepted", "rejected", "repair_required", "not_judged", "waiting"]


class Decision(StrictModel):
    """What came out of the gate, bound to the digests of everything judged.

    ``judged_tree``: what the checks saw, the candidate merged onto the head. ``new_head``: the commit that becomes the
    head with an acceptance.
    """

    schema_version: Literal["coordinator/decision/v1"] = Field(default="coordinator/decision/v1", alias="schema")
    decision: DecisionWord
    partial: bool = False
    reason: str = ""
    checks: list[CheckOutcome]
    evidence: list[EvidenceVerdict]
    feedback: list[Finding] = []
    bound: Bound
    judged_tree: str | None = None
    new_head: str | None = None
    processes: list[ProcessRecord] = []
    unenforced: str
    decided_at: str

    def canonical(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)
