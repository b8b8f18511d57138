"""The verdict on one result: where it wrote, evidence, checks, then people, whose yes overrides no failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import metadata, resources
from typing import Final

from contracts.canonical import digest_of, sha256_digest
from contracts.checks import Check
from contracts.evidence import EvidenceRequirement
from contracts.results import Bound, CheckOutcome, Decision, DecisionWord, EvidenceVerdict, Finding
from contracts.states import ClaimKind, Outcome
from coordinator.gate.case import CannotJudge, Case, names, one_line
from coordinator.gate.checks import run_check
from coordinator.gate.citations import Citations
from coordinator.gate.commands import Commands
from coordinator.gate.evidence import EvidenceWeigher
from coordinator.store.records import Claim, Question, Verdict

__all__ = ["approval_key", "bound_of", "judge", "policy_version"]

ISOLATION: Final = "none"
"""What checks run under: a program of a ``command`` check has a clean checkout, and nothing that holds it there."""

MAX_PATHS: Final = 50


@cache
def policy_version() -> str:
    """Digest of the rules that judge: the code of this package, its release, and the isolation in force."""
    package = resources.files("coordinator.gate")
    code = {file.name: sha256_digest(file.read_bytes()) for file in package.iterdir() if file.name.endswith(".py")}
    return digest_of({"release": metadata.version("delegation-coordinator"), "code": code, "isolation": ISOLATION})


def approval_key(bound: Bound, check_digest: str) -> str:
    """What an approval is good for: this check on this content."""
    return f"{bound.content_digest()}:{check_digest}"


def bound_of(claim: Claim, candidate_tree: str | None) -> Bound:
    """Everything that a decision made under this claim is bound to."""
    assert claim.kind is ClaimKind.GATE, claim.address
    assert claim.manifest_digest is not None, claim.address
    assert claim.generation_submitted is not None, claim.address
    return Bound(
        terms_digest=claim.terms_digest,
        manifest_digest=claim.manifest_digest,
        candidate_tree=candidate_tree,
        policy_version=policy_version(),
        head=claim.head,
        generation_submitted=claim.generation_submitted,
        generation_gated=claim.generation,
    )


def judge(case: Case, *, now: datetime) -> Verdict:
    """Judge one result. Whatever the result holds, this gives a verdict; what could not be judged is never accepted."""
    bound = bound_of(case.claim, case.judged.candidate_tree if case.judged is not None else None)
    judged = _Judgement(case, bound)
    judged.run()
    return judged.verdict(now)


class _Judgement:
    """Collects what is found while one result is judged."""

    def __init__(self, case: Case, bound: Bound) -> None:
        self._case = case
        self._bound = bound
        self._citations = Citations(case)
        self._commands = Commands(case)
        self._saw_tree = False
        self._evidence: list[EvidenceVerdict] = []
        self._checks: list[CheckOutcome] = []
        self._questions: list[Question] = []
        self._failed: list[Finding] = []
        self._causes: list[str] = []
        self._refusals: list[str] = []

    def run(self) -> None:
        for judge_first in (self._judge_origin, self._judge_write_scope, self._judge_merge):
            judge_first()
            if self._failed or self._causes or self._refusals:
                return
        self._saw_tree = True
        weigher = EvidenceWeigher(self._case, self._citations, self._commands)
        for owed in self._case.claim.terms.required_evidence:
            self._judge_evidence(weigher, owed)
        acceptance = self._case.claim.terms.acceptance
        outcomes = [None if check.kind == "approval" else self._judge_check(check) for check in acceptance]
        # People are asked only about what nothing else stands against.
        sound = not self._failed and not self._causes
        for check, outcome in zip(acceptance, outcomes, strict=True):
            self._checks.append(outcome or self._judge_approval(check, sound))
        if self._refusals:  # nobody need be asked any more
            self._questions.clear()
            self._checks = [_not_waiting(outcome) for outcome in self._checks]

    def verdict(self, now: datetime) -> Verdict:
        manifest, history = self._case.manifest, self._case.history
        word, reasons = self._word()
        judged = self._case.judged
        has_candidate = judged is not None and judged.candidate_tree is not None
        decision = Decision(
            decision=word,
            partial=word == "accepted" and manifest.outcome is Outcome.PARTIAL,
            reason=one_line("; ".join(dict.fromkeys(reasons))),
            checks=self._checks,
            evidence=self._evidence,
            feedback=self._failed,
            bound=self._bound,
            judged_tree=judged.tree if judged is not None and has_candidate and self._saw_tree else None,
            new_head=judged.new_head if judged is not None and word == "accepted" and judged.changes else None,
            processes=self._commands.records,
            unenforced=manifest.unenforced,
            decided_at=now.astimezone(UTC).isoformat(),
        )
        same = manifest.content_digest == history.last_content_digest and self._failed == list(history.last_findings)
        return Verdict(self._case.claim, decision, self._questions, no_progress=word == "repair_required" and same)

    def _word(self) -> tuple[DecisionWord, Sequence[str]]:
        if self._failed:
            return "repair_required", [finding.message for finding in self._failed]
        if self._causes:
            return "not_judged", self._causes
        if self._refusals:
            return "rejected", self._refusals
        if self._questions:
            return "waiting", [f"waits for a person: {question.text}" for question in self._questions]
        return "accepted", []

    def _judge_origin(self) -> None:
        """Whether this is the result that was submitted, made under this claim."""
        label = "result"
        findings, cause = self._guarded(label, self._foreign)
        self._note_builtin(label, findings, cause)

    def _foreign(self) -> list[Finding]:
        claim, manifest = self._case.claim, self._case.manifest
        if manifest.digest != claim.manifest_digest:
            raise CannotJudge(f"the manifest read back is not the one submitted, {claim.manifest_digest}")
        pairs = {
            "terms": (manifest.terms_digest, claim.terms_digest),
            "run": (manifest.run_id, claim.run_id),
            "task": (manifest.task_id, claim.task_id),
            "contract version": (manifest.contract_version, claim.terms.contract_version),
            "child run": (manifest.child_run_id, claim.child_run_id),
            "claim generation": (manifest.claim_generation, claim.generation_submitted),
        }
        findings = [
            Finding(check="result", message=one_line(f"foreign result: it was made for {what} {found}, not {due}"))
            for what, (found, due) in pairs.items()
            if found != due
        ]
        if manifest.outcome not in (Outcome.COMPLETED, Outcome.PARTIAL):
            message = f"the child says {manifest.outcome.value}: only completed and partial results can be accepted"
            findings.append(Finding(check="result", message=message))
        return findings

    def _judge_write_scope(self) -> None:
        """Whether the candidate is the one handed in, and changes only what it may. Nothing else is run if not."""
        label = "write_scope"
        findings, cause = self._guarded(label, self._other_candidate)
        self._note_builtin(label, findings, cause)
        outside = self._case.judged.outside_scope if self._case.judged is not None and not cause else ()
        if not outside:
            return
        scope = names(self._case.claim.terms.resources.write_scope)
        self._refusals.append(f"changed outside the write scope: {names(outside)} (write scope: {scope})")
        found = [Finding(check=label, message=f"{one_line(path, 200)} is outside the write scope", place=one_line(path))
                 for path in outside[:MAX_PATHS]]  # fmt: skip
        if len(outside) > MAX_PATHS:
            found.append(Finding(check=label, message=f"and {len(outside) - MAX_PATHS} more paths"))
        outcome = self._outcome(label, digest_of({"builtin": label}))
        self._checks.append(outcome.model_copy(update={"outcome": "refused", "findings": found}))

    def _other_candidate(self) -> list[Finding]:
        record, judged = self._case.manifest.workspace, self._case.judged
        handed_in = record.candidate_tree if record is not None else None
        found = judged.candidate_tree if judged is not None else None
        if found != handed_in:
            raise CannotJudge(f"the candidate is {found or 'none'}, and the manifest names {handed_in or 'none'}")
        if found is None and self._case.claim.terms.workspace != "none":
            raise CannotJudge("the contract gives a workspace, and no candidate was handed in from there")
        return []

    def _judge_merge(self) -> None:
        """Whether the candidate goes together with what was accepted since its base. Nothing else is run if not."""
        label, judged = "merge", self._case.judged
        if judged is None or not judged.conflicts:
            return
        since = f" since its base {judged.base_commit}" if judged.base_commit else ""
        findings = [
            Finding(
                check=label,
                message=one_line(f"{path} was also changed by what was accepted{since}, in another way", 500),
                place=one_line(path),
            )
            for path in judged.conflicts[:MAX_PATHS]
        ]
        if len(judged.conflicts) > MAX_PATHS:
            findings.append(Finding(check=label, message=f"and {len(judged.conflicts) - MAX_PATHS} more paths"))
        paths = names(judged.conflicts)
        message = f"conflicts with what was accepted{since}: {paths}; the next attempt starts from the new base"
        self._note_builtin(label, [Finding(check=label, message=one_line(message, 700)), *findings], "")

    def _note_builtin(self, label: str, findings: Sequence[Finding], cause: str) -> None:
        """A check that every result has is told only when something stands against it."""
        if findings or cause:
            self._checks.append(self._outcome(label, digest_of({"builtin": label}), findings, cause))

    def _judge_evidence(self, weigher: EvidenceWeigher, owed: EvidenceRequirement) -> None:
        verdicts: list[EvidenceVerdict] = []

        def weigh() -> list[Finding]:
            verdicts.append(verdict := weigher.weigh(owed))
            return [] if verdict.ok else [Finding(check="required_evidence", message=verdict.message, place=owed.name)]

        findings, cause = self._guarded(f"evidence {owed.name!r}", weigh)
        self._failed += findings
        if cause:
            self._causes.append(cause)
            verdicts.append(
                EvidenceVerdict(
                    name=owed.name, kind=owed.kind, min_origin=owed.min_origin, found_origin=None, ok=False,
                    message=f"could not be judged: {cause}",
                )
            )  # fmt: skip
        self._evidence += verdicts

    def _judge_check(self, check: Check) -> CheckOutcome:
        if self._only_at_end(check):
            return self._outcome(check.label(), self._digest(check), skipped=True)
        findings, cause = self._guarded(check.label(), lambda: self._run_check(check))
        return self._outcome(check.label(), self._digest(check), findings, cause)

    def _run_check(self, check: Check) -> list[Finding]:
        return run_check(self._case, check, self._citations, self._commands)

    def _judge_approval(self, check: Check, sound: bool) -> CheckOutcome:
        assert check.approval is not None
        digest = self._digest(check)
        outcome = self._outcome(check.label(), digest, skipped=True)
        if not sound or self._only_at_end(check):
            return outcome
        key = approval_key(self._bound, digest)
        answer = self._case.history.answers.get(key)
        if answer is None:
            asked_once = f"approval:{self._case.claim.task_row}:{key}"
            self._questions.append(Question("approval", check.approval, bound_digest=key, dedupe_key=asked_once))
            return outcome.model_copy(update={"outcome": "waiting"})
        approved, message = answer
        if approved:
            return outcome.model_copy(update={"outcome": "passed"})
        reason = one_line(message) or one_line(f"a person answered no: {check.approval}")
        self._refusals.append(reason)
        finding = Finding(check=outcome.check, message=reason)
        return outcome.model_copy(update={"outcome": "refused", "findings": [finding]})

    def _only_at_end(self, check: Check) -> bool:
        return check.when == "end" and self._case.manifest.outcome is Outcome.PARTIAL

    def _digest(self, check: Check) -> str:
        rule = check.document()
        if check.json_schema is not None:
            rule["file_digest"] = self._case.pin_of(check.json_schema)
        return digest_of(rule)

    def _outcome(
        self, label: str, digest: str, findings: Sequence[Finding] = (), cause: str = "", *, skipped: bool = False
    ) -> CheckOutcome:
        """One check's outcome; what it found goes into the decision."""
        self._failed += findings
        if cause:
            self._causes.append(cause)
        label = one_line(label)
        return CheckOutcome(
            check=label,
            check_digest=digest,
            subject_digest=self._bound.manifest_digest,
            outcome="skipped" if skipped else "errored" if cause else "failed" if findings else "passed",
            findings=[Finding(check=label, message=cause)] if cause else list(findings),
        )

    def _guarded(self, label: str, work: Callable[[], list[Finding]]) -> tuple[list[Finding], str]:
        """(findings, "") or ([], why it could not be judged). No result may bring the gate down."""
        try:
            return work(), ""
        except CannotJudge as error:
            return [], one_line(f"{label}: {error}")
        except Exception as error:
            return [], one_line(f"{label}: the check broke down: {type(error).__name__}: {error}")


def _not_waiting(outcome: CheckOutcome) -> CheckOutcome:
    return outcome.model_copy(update={"outcome": "skipped"}) if outcome.outcome == "waiting" else outcome
