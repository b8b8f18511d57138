"""Bringing submitted results before the gate: what it needs is gathered, then it judges without waiting for
anything."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from contracts.canonical import sha256_digest
from contracts.ports import Clock
from contracts.results import Bound, Decision, Manifest
from coordinator.gate import Case, judge, policy_version
from coordinator.projection import contract_of
from coordinator.sources import Sources
from coordinator.store import Damaged, TaskStore
from coordinator.store.judging import past_of
from coordinator.store.records import Claim, RepairHistory, Verdict
from coordinator.text import shown

__all__ = ["judge_claims"]


def judge_claims(store: TaskStore, sources: Sources, claims: Sequence[Claim], clock: Clock) -> list[Verdict]:
    """One verdict for each claim; what keeps the gate from judging is *not judged*, with its cause."""
    past = store.read_with(lambda tx: past_of(tx, claims))
    verdicts = []
    for claim in claims:
        try:
            verdicts.append(judge(_case(store, sources, claim, *past[claim.token]), now=clock()))
        except Exception as error:
            verdicts.append(_not_judged(claim, shown(f"{type(error).__name__}: {error}", 300), now=clock()))
    return verdicts


def _not_judged(claim: Claim, cause: str, *, now: datetime) -> Verdict:
    assert claim.manifest_digest is not None, claim.address
    assert claim.generation_submitted is not None, claim.address
    bound = Bound(
        terms_digest=claim.terms_digest,
        manifest_digest=claim.manifest_digest,
        candidate_tree=None,
        policy_version=policy_version(),
        head=claim.head,
        generation_submitted=claim.generation_submitted,
        generation_gated=claim.generation,
    )
    decision = Decision(
        decision="not_judged",
        reason=cause,
        checks=[],
        evidence=[],
        bound=bound,
        unenforced="",
        decided_at=now.isoformat(),
    )
    return Verdict(claim, decision)


def _case(store: TaskStore, sources: Sources, claim: Claim, manifest: bytes, history: RepairHistory) -> Case:
    if sha256_digest(manifest) != claim.manifest_digest:
        raise Damaged(f"stored bytes of manifest {claim.manifest_digest} were changed")

    def read_artifact(digest: str) -> bytes:
        try:
            return store.bytes_of(digest)
        except Damaged as error:
            raise ValueError(str(error)) from error

    return Case(
        claim=claim,
        manifest=Manifest.model_validate_json(manifest),
        read_artifact=read_artifact,
        read_file=lambda name: sources.pinned_bytes(claim, name),
        reader=sources.reader(claim),
        history=history,
        contract=contract_of(claim),
    )
