"""Bringing submitted results before the gate: the tree to judge is made, what the gate needs is gathered, then it
judges."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from contracts.canonical import sha256_digest
from contracts.errors import StoreUnavailable
from contracts.ports import CancelSignal, Clock
from contracts.results import Decision, Manifest, ProcessRecord, WorkspaceRecord
from coordinator import crash_points
from coordinator.gate import Case, JudgedTree, bound_of, judge
from coordinator.gate.case import CannotJudge
from coordinator.home import Home
from coordinator.projection import contract_of
from coordinator.redaction import Redactor
from coordinator.runtimes import load_agents
from coordinator.sources import Sources
from coordinator.store import Damaged, TaskStore
from coordinator.store.database import from_micros
from coordinator.store.judging import past_of
from coordinator.store.records import Claim, RepairHistory, Verdict
from coordinator.text import shown
from coordinator.workplaces import deciding_above
from workspaces import checkout_tree, merge_onto
from workspaces.trash import delete_folder

__all__ = ["GateEnvironment", "is_quick", "judge_claims"]


@dataclass(frozen=True, slots=True)
class GateEnvironment:
    """What judging needs of one worker. ``lock_path``: held by the supervisors of the programs that checks run."""

    store: TaskStore
    sources: Sources
    home: Home
    clock: Clock
    redactor: Redactor
    lock_path: Path


def is_quick(claim: Claim) -> bool:
    """Whether judging it only looks at data: no program to run, no tree to merge."""
    return claim.terms.workspace == "none" and not any(check.command for check in claim.terms.acceptance)


def judge_claims(environment: GateEnvironment, claims: Sequence[Claim], cancel: CancelSignal) -> list[Verdict]:
    """One verdict for each claim; what keeps the gate from judging is *not judged*, with its cause.

    Raises ``StoreUnavailable``: then nothing was judged.
    """
    verdicts: list[Verdict] = []
    try:
        past = environment.store.read_with(lambda tx: past_of(tx, claims))
    except StoreUnavailable:
        raise  # says nothing of the results, and is no try
    except Exception as error:
        cause = _cause(error)
        return [_not_judged(claim, cause, now=environment.clock()) for claim in claims]
    for claim in claims:
        try:
            manifest, history = past[claim.token]
            away: list[StoreUnavailable] = []
            case = _case(environment, claim, manifest, history, cancel, away)
            verdict = judge(case, now=environment.clock())
            if away and verdict.decision.decision == "not_judged":
                raise away[0]
            verdicts.append(verdict)
        except StoreUnavailable:
            raise
        except Exception as error:
            verdicts.append(_not_judged(claim, _cause(error), now=environment.clock()))
        finally:
            environment.sources.give_back(claim)
    return verdicts


def _cause(error: Exception) -> str:
    return shown(f"{type(error).__name__}: {error}", 300)


def _not_judged(claim: Claim, cause: str, *, now: datetime) -> Verdict:
    decision = Decision(
        decision="not_judged",
        reason=cause,
        checks=[],
        evidence=[],
        bound=bound_of(claim, None),
        unenforced="",
        decided_at=now.isoformat(),
    )
    return Verdict(claim, decision)


def _case(
    environment: GateEnvironment,
    claim: Claim,
    manifest_bytes: bytes,
    history: RepairHistory,
    cancel: CancelSignal,
    away: list[StoreUnavailable],
) -> Case:
    """``away`` gets what kept the store from being read: the gate makes the same of every error."""
    if sha256_digest(manifest_bytes) != claim.manifest_digest:
        raise Damaged(f"stored bytes of manifest {claim.manifest_digest} were changed")
    manifest = Manifest.model_validate_json(manifest_bytes)

    def read_artifact(digest: str) -> bytes:
        try:
            return environment.store.bytes_of(digest)
        except Damaged as error:
            raise ValueError(str(error)) from error
        except StoreUnavailable as error:
            away.append(error)
            raise

    def read_file(name: str) -> bytes:
        try:
            return environment.sources.pinned_bytes(claim, name)
        except StoreUnavailable as error:
            away.append(error)
            raise

    return Case(
        claim=claim,
        manifest=manifest,
        read_artifact=read_artifact,
        read_file=read_file,
        judged=_judged_tree(environment, claim, manifest.workspace, cancel),
        history=history,
        contract=lambda: contract_of(claim),
    )


def _judged_tree(
    environment: GateEnvironment, claim: Claim, made: WorkspaceRecord | None, cancel: CancelSignal
) -> JudgedTree | None:
    """The candidate merged onto the head; without one, the head itself."""
    if claim.head is None:
        return None
    sources = environment.sources
    git_dir = sources.git_dir(claim)

    def run_command(tree: str) -> _CleanRun:
        return _CleanRun(environment, git_dir, tree, cancel)

    if made is None or made.candidate_tree == made.base_tree:
        reader = sources.reader_at(claim, claim.head)
        unchanged = made is not None and made.base_commit == claim.head
        return JudgedTree(
            tree=made.base_tree if unchanged and made is not None else claim.head,
            reader=reader,
            run_command=run_command(claim.head),
            base_commit=None if made is None else made.base_commit,
            candidate_tree=None if made is None else made.candidate_tree,
        )
    merge = merge_onto(
        git_dir,
        claim.head,
        made.candidate_commit,
        message=f"{claim.address} attempt {claim.attempt} on {claim.head}",
        keep_ref=f"merges/{claim.child_run_id}-{claim.generation}",
        at=from_micros(claim.claimed_at),
    )
    crash_points.reached("merged", claim.task_id, claim.attempt)
    tree = merge.tree or made.candidate_tree
    return JudgedTree(
        tree=tree,
        reader=sources.reader_at(claim, merge.commit or made.candidate_commit),
        run_command=run_command(tree),
        changes=made.changes,
        outside_scope=made.outside_scope,
        conflicts=merge.conflicts if merge.tree is None else (),
        base_commit=made.base_commit,
        candidate_tree=made.candidate_tree,
        new_head=merge.commit,
    )


@dataclass(frozen=True, slots=True)
class _CleanRun:
    """Runs one program in a fresh checkout of exactly one tree, outside every repository, with nothing inherited."""

    environment: GateEnvironment
    git_dir: Path
    tree: str
    cancel: CancelSignal

    def __call__(self, argv: Sequence[str], timeout_s: float, env: Mapping[str, str]) -> ProcessRecord:
        load_agents()
        from agents.processes import ProcessSpec, child_environment, run_process
        from agents.runtimes.command import process_record, with_interpreter

        place = self.environment.home.outside / "checks" / secrets.token_hex(8)
        place.mkdir(parents=True)
        above = deciding_above(place)
        if above is not None:
            delete_folder(place)
            raise CannotJudge(
                f"{above} lies above the place where checks run, and could decide them: take it away, or give a "
                "--home that has nothing above it"
            )
        try:
            for name in ("home", "tmp"):
                (place / name).mkdir()
            checkout_tree(self.git_dir, self.tree, place / "tree")
            crash_points.reached("checkout_made")
            spec = ProcessSpec(
                argv=with_interpreter(argv),
                cwd=place / "tree",
                env=child_environment(home=place / "home", tmp=place / "tmp", passed=env, extra={}),
                timeout_s=timeout_s,
                lock_path=self.environment.lock_path,
            )
            record = process_record(list(argv), asyncio.run(run_process(spec, self.cancel)))
            crash_points.reached("check_ran")
            clean, _ = self.environment.redactor.value(record.model_dump(mode="json"))
            return ProcessRecord.model_validate(clean)
        finally:
            delete_folder(place)
