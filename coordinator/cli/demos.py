"""The two demonstrations: real worker processes, some of them killed, and what the store says of it afterwards."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from contracts.canonical import sha256_digest
from contracts.errors import BadInput
from contracts.orchestration import Orchestration
from contracts.results import Decision
from coordinator.cli.fitting import fitted
from coordinator.cli.output import console, print_json
from coordinator.cli.running import parse_inputs
from coordinator.cli.stage import KILLED, TOLD, Stage, worker_name
from coordinator.cli.tree import how_it_stands, run_tree
from coordinator.home import open_home
from coordinator.results import run_result
from coordinator.store import TaskStore
from coordinator.store.views import EventView, RunView
from coordinator.text import shown
from workspaces import TreeReader

__all__ = ["audit", "claims_beside_entries", "example", "report"]

Facts = dict[str, Any]
"""What ``--json`` prints of something."""
GATE_ENTRIES = ("accepted", "accepted_partial", "repair_required", "repairs_exhausted", "rejected", "not_judged")


def example(name: str) -> Path:
    """An example's orchestration: a wheel has the examples inside the package, a checkout beside it."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package, package.parent):
        file = folder / "examples" / name / "orchestration.yaml"
        if file.is_file():
            return file
    raise BadInput(f"the example {name!r} is not installed: looked for examples/ in {package} and beside it")


# -- audit -------------------------------------------------------------------------------------------------------------


def audit(source: Path | None, inputs: Sequence[str], json: bool) -> int:
    """Audit a repository. 0 only if all was accepted and what is told really happened; 4 if a question is open."""
    root = _git_root((source or Path()).resolve()) or source
    if root is None:
        raise BadInput(
            "this folder is in no git repository, so there is nothing to audit here: "
            "give one with `coordinator demo audit --source PATH`"
        )
    orchestration, given = fitted(example("audit"), root, parse_inputs(inputs))
    first = next(iter(orchestration.tasks))
    with Stage.of(orchestration, inputs=given, source=root, quiet=json) as stage:
        stage.say(f"Auditing {stage.pinned}; the repository itself is only read.", "")
        stage.say(f"Worker alice takes {first} and is killed (SIGKILL) while it reads:")
        alice = stage.work("alice", "--workers", "1", "--fault", f"tool_call:{first}:1", told=("claimed",))
        stage.say("Worker bob starts; the kernel's lock proves to him that alice is gone:")
        bob = stage.work("bob", told=("claimed", "lost", "ended", "exhausted", *GATE_ENTRIES))
        run = stage.run()
        exported = stage.folder / "report.md"
        if run.ok:
            stage.command("export", "audit/report", "report.md", "-o", str(exported))
        attempts, decisions = _attempts(run), _decisions(stage.store, run)
        evidence = _evidence(stage.store, run)
        happened = {
            "worker alice was killed by SIGKILL": alice == KILLED,
            **_taken_over(attempts, first),
            **(_sent_back(attempts, decisions) if "callers" in orchestration.tasks else {}),
            "every task was accepted": run.ok,
            "report.md was exported as it was accepted": exported.is_file()
            and sha256_digest(exported.read_bytes()) == _artifact_digest(stage.store, run, "report", "report.md"),
            "the accepted tree holds the same report.md": exported.is_file()
            and exported.read_bytes() == _accepted_file(stage, run, "report.md"),
        }
        if json:
            workers = [{"name": "alice", "exit_status": alice}, {"name": "bob", "exit_status": bob}]
            print_json(
                {
                    **_facts(stage, run), "workers": workers, "attempts": attempts, "decisions": decisions,
                    "evidence": evidence, "report": str(exported) if exported.is_file() else None,
                    "left_out": given["left_out"], "happened": happened,
                }
            )  # fmt: skip
        else:
            _tell_audit(stage, run, attempts, decisions, evidence, exported)
        return stage.end(run, happened)


def _taken_over(attempts: Sequence[Facts], task: str) -> dict[str, bool]:
    first, second = (_attempt(attempts, task, number) for number in (1, 2))
    return {
        f"{task} was lost under generation 1": first.get("ended") == "lost" and first.get("generation") == 1,
        "another worker took it over under generation 2": second.get("generation") == 2
        and second.get("worker") == "bob"
        and second.get("ended") == "submitted",
    }


def _sent_back(attempts: Sequence[Facts], decisions: Sequence[Facts]) -> dict[str, bool]:
    back = [item for item in decisions if item["task"] == "callers" and item["decision"] == "repair_required"]
    last = [item for item in attempts if item["task"] == "callers"][-1]
    return {
        "a citation of a line that does not exist was sent back with that finding": any(
            finding.startswith("citations_resolve") and "there is no line" in finding
            for item in back
            for finding in item["findings"]
        ),
        "the repaired inventory was accepted": last["decision"] == "accepted",
    }


def _accepted_file(stage: Stage, run: RunView, path: str) -> bytes:
    """A file of the accepted tree, out of the run's own git directory."""
    git_dir = open_home(str(stage.file)).git_dir(run.document["git_dir"])
    with contextlib.closing(TreeReader(git_dir, run.head or "")) as reader:
        return reader.read_bytes(path)


def _evidence(store: TaskStore, run: RunView) -> list[Facts]:
    """For each piece of evidence that was owed: the items claimed, those of them observed, and what was found."""
    found = []
    for task_id, result in run_result(store, run.row).tasks.items():
        items = result.manifest.evidence if result.manifest is not None else []
        for verdict in result.decision.evidence if result.decision is not None else []:
            fitting = [i for i in items if i.name == verdict.name and verdict.kind in ("note", i.kind)]
            found.append(
                {
                    "task": task_id, "evidence": verdict.name, "kind": verdict.kind, "claimed": len(fitting),
                    "observed": sum(item.origin != "claimed" for item in fitting), "found": verdict.found_origin,
                    "owed": verdict.min_origin, "ok": verdict.ok,
                }
            )  # fmt: skip
    return found


def _tell_audit(
    stage: Stage,
    run: RunView,
    attempts: Sequence[Facts],
    decisions: Sequence[Facts],
    evidence: Sequence[Facts],
    exported: Path,
) -> None:
    console().print(run_tree(run))
    stage.say("", "Decisions")
    for item in decisions:
        what = f"{item['decision'].replace('_', ' ')}, {item['checks']} checks"
        stage.say(f"  {item['task']:<13} attempt {item['attempt']}  {what}")
        for finding in item["findings"]:
            stage.say(f"      {finding}")
    stage.say("", "Claims beside accepted results", "  task          attempt  worker  generation  ended      result")
    for item in attempts:
        result = "accepted" if item["decision"] == "accepted" else "-"
        stage.say(
            f"  {item['task']:<13} {item['attempt']:<8} {item['worker']:<7} {item['generation']:<11} "
            f"{item['ended'] or 'open':<10} {result}"
        )
    stage.say(
        "", "Claimed beside observed and verified", "  task          evidence          claimed  observed  verified"
    )
    for item in evidence:
        proved = "yes, by the gate" if item["found"] == "verified" else f"no; {item['found']} is enough"
        stage.say(
            f"  {item['task']:<13} {item['evidence']:<17} {item['claimed']:<8} {item['observed']:<9} "
            f"{proved if item['ok'] else 'no'}"
        )
    if exported.is_file():
        stage.say("", f"The accepted report was exported to {exported}")
    stage.say("", how_it_stands(run))
    stage.look_further(*(words for words in LOOK if words[1].partition("/")[2] in {task.task_id for task in run.tasks}))


LOOK = (("inspect", "audit/callers"), ("evidence", "audit/callers"), ("logs", "audit/tests"))


# -- report ------------------------------------------------------------------------------------------------------------


def report(json: bool) -> int:
    """A report whose first two workers are killed. 0 only if what is told really happened."""
    with Stage.of(Orchestration.from_file(example("report")), quiet=json) as stage:
        every = tuple(TOLD)
        stage.say("Worker alice drafts without Risks, commits, and is killed (SIGKILL):")
        alice = stage.work("alice", "--claims", "1", "--fault", "submitted:draft:1", told=every)
        stage.say("Worker bob computes the verdict, and is killed before he decides:")
        bob = stage.work("bob", "--claims", "1", "--fault", "judged:draft", told=every)
        stage.say("Worker carol finds bob's lock free and judges again:")
        carol = stage.work("carol", told=every)
        run = stage.run()
        claims = claims_beside_entries(stage.store.events(run.row))
        unmatched = [claim for claim in claims if claim.entry is None]
        decisions = _decisions(stage.store, run)
        happened = {
            "workers alice and bob were killed by SIGKILL": (alice, bob) == (KILLED, KILLED),
            "exactly one claim has no committed entry, and it is bob's": [
                (claim.worker, claim.kind, claim.task) for claim in unmatched
            ] == [("bob", "judge", "draft")],
            "the first draft was sent back for its missing section": any(
                item["decision"] == "repair_required" and any("sections: Risks" in text for text in item["findings"])
                for item in decisions
            ),
            "every task was accepted": run.ok,
        }  # fmt: skip
        final = stage.folder / "final.md"
        trials: dict[str, Any] = {}
        if run.ok:
            trials = _trials(stage, run, final)
            happened |= trials.pop("happened")
        if json:
            workers = [{"name": n, "exit_status": s} for n, s in (("alice", alice), ("bob", bob), ("carol", carol))]
            print_json(
                {
                    **_facts(stage, run), "workers": workers, "claims": [asdict(claim) for claim in claims],
                    "committed_entries": len(claims) - len(unmatched), "decisions": decisions, **trials,
                    "report": str(final) if final.is_file() else None, "happened": happened,
                }
            )  # fmt: skip
        else:
            _tell_report(stage, run, claims, trials, final)
        return stage.end(run, happened)


def _trials(stage: Stage, run: RunView, final: Path) -> Facts:
    """Export once; try to export again; and try to export a draft that was changed after its review, in a copy."""
    first = stage.command("export", "report/final", "final.md", "-o", str(final))
    again = stage.command("export", "report/final", "final.md", "-o", str(final))
    digest = _artifact_digest(stage.store, run, "draft", "draft.md")
    copy = stage.folder / "altered-copy"
    shutil.copytree(stage.file.parent, copy / stage.file.parent.name)
    altered = copy / stage.file.parent.name / stage.file.name
    alter_one_byte(altered, digest)
    taken = copy / "draft.md"
    refused = stage.command("export", "report/draft", "draft.md", "-o", str(taken), store=altered)
    verified = stage.command("evidence", "report/draft", "--verify", store=altered)
    untouched = stage.command("evidence", "--verify")
    return {
        "second_export": {"exit_status": again.returncode, "said": again.stderr.strip()},
        "altered_export": {"exit_status": refused.returncode, "said": refused.stderr.strip()},
        "altered_verify": {"exit_status": verified.returncode, "said": verified.stdout.strip()},
        "happened": {
            "final.md was exported as it was accepted": first.returncode == 0
            and sha256_digest(final.read_bytes()) == _artifact_digest(stage.store, run, "final", "final.md"),
            "a second export refused to overwrite it": again.returncode == 3,
            "a draft changed after its review was not exported": refused.returncode == 3 and not taken.exists(),
            "evidence --verify named the changed bytes": verified.returncode == 1 and digest in verified.stdout,
            "evidence --verify found nothing wrong in the store itself": untouched.returncode == 0,
        },
    }


def alter_one_byte(store_file: Path, digest: str) -> None:
    """Change the last stored byte of a small document, past the store."""
    with contextlib.closing(sqlite3.connect(store_file)) as database, database:
        (data,) = database.execute("SELECT data FROM document WHERE digest = ?", (digest,)).fetchone()
        changed = data[:-1] + bytes([data[-1] ^ 1])
        database.execute("UPDATE document SET data = ? WHERE digest = ?", (changed, digest))


def _tell_report(stage: Stage, run: RunView, claims: Sequence[ClaimTold], trials: Facts, final: Path) -> None:
    console().print(run_tree(run))
    stage.say("", "Claims beside committed entries", "  task   generation  worker  claimed to  committed entry")
    for claim in claims:
        entry = claim.entry.replace("_", " ") if claim.entry else "none: killed before it"
        stage.say(f"  {claim.task:<6} {claim.generation:<11} {claim.worker:<7} {claim.kind:<11} {entry}")
    unmatched = [claim for claim in claims if claim.entry is None]
    extra = ", ".join(f"{claim.worker}'s claim to {claim.kind} {claim.task}" for claim in unmatched)
    stage.say(f"{len(claims)} claims, {len(claims) - len(unmatched)} committed entries; without one: {extra or 'none'}")
    if trials:
        stage.say("", f"final.md was exported to {final}", "Exporting it again:")
        stage.say(f"  {trials['second_export']['said']}")
        stage.say("In a copy of the store, one byte of the accepted draft is changed; exporting it:")
        stage.say(f"  {trials['altered_export']['said'].partition(';')[0]}", "and `evidence --verify` of that copy:")
        stage.say(*(f"  {line}" for line in trials["altered_verify"]["said"].splitlines()))
    stage.say("", how_it_stands(run))
    stage.look_further(("inspect", "report/draft"), ("evidence", "report/draft"))


@dataclass(frozen=True)
class ClaimTold:
    """A claim, and what was committed under it; None: nothing was."""

    task: str
    generation: int
    worker: str
    kind: str
    entry: str | None


def claims_beside_entries(events: Sequence[EventView]) -> list[ClaimTold]:
    """Every claim of a run in order, each with the entry that was committed under its generation."""
    entries = {
        (event.task_id, event.generation): event.verb for event in events if event.verb in ("submitted", *GATE_ENTRIES)
    }
    kinds = {"claimed": "work", "gate_claimed": "judge"}
    return [
        ClaimTold(
            event.task_id or "", event.generation or 0, worker_name(event.owner), kinds[event.verb],
            entries.get((event.task_id, event.generation)),
        )
        for event in events
        if event.verb in kinds
    ]  # fmt: skip


def _facts(stage: Stage, run: RunView) -> Facts:
    return {
        "run": run.run_id, "state": run.state, "ok": run.ok, "store": str(stage.file), "source": stage.pinned,
        "tasks": {task.task_id: str(task.state) for task in run.tasks},
    }  # fmt: skip


def _attempts(run: RunView) -> list[Facts]:
    return [
        {
            "task": task.task_id, "attempt": attempt.number, "generation": attempt.generation,
            "worker": worker_name(attempt.owner), "ended": attempt.ended, "decision": attempt.decision,
            "manifest": attempt.manifest_digest,
        }
        for task in run.tasks
        for attempt in task.attempts
    ]  # fmt: skip


def _attempt(attempts: Sequence[Facts], task: str, number: int) -> Facts:
    return next((item for item in attempts if (item["task"], item["attempt"]) == (task, number)), {})


def _decisions(store: TaskStore, run: RunView) -> list[Facts]:
    found = []
    for task in run.tasks:
        for attempt in task.attempts:
            if attempt.decision_digest is not None:
                decision = Decision.model_validate_json(store.bytes_of(attempt.decision_digest))
                findings = [f"{finding.check}: {shown(finding.message)}" for finding in decision.feedback]
                found.append(
                    {
                        "task": task.task_id, "attempt": attempt.number, "decision": decision.decision,
                        "checks": len(decision.checks), "findings": findings, "digest": attempt.decision_digest,
                    }
                )  # fmt: skip
    return found


def _artifact_digest(store: TaskStore, run: RunView, task: str, name: str) -> str:
    manifest = run_result(store, run.row).tasks[task].manifest
    entries = manifest.artifacts if manifest is not None else []
    return next((entry.digest for entry in entries if entry.name == name), "")


def _git_root(folder: Path) -> Path | None:
    return next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)
