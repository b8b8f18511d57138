"""From an authored orchestration to a run: pins resolved, defaults written out, everything linted at once."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from contracts.base import JSON
from contracts.canonical import canonical_bytes, canonical_object, sha256_digest
from contracts.documents import pydantic_faults
from contracts.errors import BadInput, Fault, Refused
from contracts.lint import lint_orchestration, overlapping_tasks
from contracts.orchestration import Orchestration, Source, Task
from contracts.states import FINAL_STATES
from contracts.terms import Terms
from coordinator import crash_points
from coordinator.home import Home
from coordinator.models import PricedModel, price_model, refuse_missing_keys, resolve_agent, used_terms
from coordinator.pinning import Siblings, lint_here, snapshot_of, unpinned_siblings
from coordinator.store import TaskStore
from coordinator.store.database import Blob
from coordinator.store.records import NewRun, NewTask
from coordinator.workplaces import refuse_unfit_place
from workspaces import SourcePin, fetch_source, pin_source

__all__ = [
    "UNENFORCED",
    "Launched",
    "Plan",
    "launch",
    "open_program",
    "plan_delegation",
    "plan_launch",
    "refuse_other_terms",
]

UNENFORCED = (
    "isolation: none. Nothing keeps a child from the network, from files outside its tools and workspace, or from this "
    "user's other processes; run only code that you trust, or run the coordinator itself in a container"
)


@dataclass
class Plan:
    """All that launching would do. ``faults`` refuse it; ``warnings`` are said."""

    orchestration: Orchestration
    pin: SourcePin | None
    files: dict[str, bytes]
    terms: dict[str, Terms]
    faults: list[Fault] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)
    priced: dict[str, PricedModel] = field(default_factory=dict)
    """task id -> what its model costs; as the store of prices says now, and not pinned where the contract is silent"""

    @cached_property
    def authored(self) -> bytes:
        """The authored content in its canonical form."""
        return self.orchestration.canonical()

    @cached_property
    def authored_digest(self) -> str:
        """What *the same file* means: its content, the files it names, its inputs and the place of its source."""
        names = {name: sha256_digest(data) for name, data in self.files.items()}
        origin = self.pin.origin if self.pin else None
        return sha256_digest(b"[" + b",".join([self.authored, canonical_bytes(names), canonical_bytes(origin)]) + b"]")

    @property
    def unenforced(self) -> dict[str, str]:
        """task id -> what nothing will enforce for it here."""
        return {task_id: UNENFORCED for task_id, terms in self.terms.items() if terms.isolation == "none"}

    def refuse(self) -> None:
        """Raise ``BadInput`` with every fault, if there is one."""
        if self.faults:
            raise BadInput(self.faults)


@dataclass(frozen=True, slots=True)
class Launched:
    """``how``: created, continued, or amended. ``pin``: what is in force. ``moved`` names a commit that the source's
    ref has moved on to."""

    run_id: str
    row: int
    how: str
    pin: SourcePin | None = None
    moved: str | None = None


def plan_launch(
    orchestration: Orchestration,
    *,
    inputs: Mapping[str, JSON] | None = None,
    source: Path | None = None,
    pin: SourcePin | None = None,
    exclude: Collection[Path] = (),
    known_tasks: Collection[str] = (),
) -> Plan:
    """Resolve pins, read the named files, issue terms and lint. Reads only; faults are collected, not raised.

    ``inputs`` override the file's; ``source`` takes the place of the file's repository; ``pin`` keeps an earlier pin;
    ``exclude``
    names the store's own files, which are no part of a plain folder; ``known_tasks`` may be needed though they are
    not here.
    """
    unknown = sorted(set(inputs or {}) - set(orchestration.inputs))
    faults = [
        Fault(
            f"inputs.{name}",
            "the orchestration has no such input",
            f"known: {', '.join(orchestration.inputs) or 'none'}",
        )
        for name in unknown
    ]
    folder = orchestration.folder
    merged = orchestration.model_copy(update={"inputs": {**orchestration.inputs, **(inputs or {})}})
    merged._folder = folder
    files: dict[str, bytes] = {}
    resolved = {
        task_id: resolve_agent(task, folder, f"tasks.{task_id}", files) for task_id, task in merged.tasks.items()
    }
    whole = merged.model_copy(update={"tasks": {task_id: found.task for task_id, found in resolved.items()}})
    report = lint_orchestration(whole, known_tasks=known_tasks)
    faults += report.errors
    if pin is None:
        try:
            pin = _pin(merged, source, exclude)
        except BadInput as error:
            faults += [
                Fault("source", fault.message, fault.hint) if not fault.path else fault for fault in error.faults
            ]
    terms: dict[str, Terms] = {}
    priced: dict[str, PricedModel] = {}
    beside = Siblings(files, folder)
    for task_id, (task, agent_pins, agent_faults, agent_notes) in resolved.items():
        snapshot, own_faults = snapshot_of(task, folder, f"tasks.{task_id}", files)
        snapshot.update(agent_pins)
        faults += agent_faults + own_faults
        report.warnings += agent_notes
        price = price_model(task, f"tasks.{task_id}")
        if isinstance(price, Fault):
            faults.append(price)
        elif price is not None:
            priced[task_id] = price
        faults += lint_here(task, f"tasks.{task_id}", has_source=merged.source is not None or source is not None)
        if pin is not None:
            snapshot["repo_ref"] = pin.repo_ref()
        terms[task_id] = issue_task(task, task_id, 1, snapshot, merged.inputs)
        report.warnings += unpinned_siblings(snapshot, beside, f"tasks.{task_id}.agent")
    return Plan(merged, pin, files, terms, faults, report.warnings, priced)


def issue_task(
    task: Task, task_id: str, contract_version: int, snapshot: Mapping[str, str], inputs: Mapping[str, JSON]
) -> Terms:
    """Authored becomes issued: every default written out, every name pinned."""
    return Terms(
        task_id=task_id,
        contract_version=contract_version,
        objective=task.objective,
        input_snapshot=dict(sorted(snapshot.items())),
        inputs=dict(inputs),
        agent=task.agent,
        needs=task.needs,
        workspace=task.workspace,
        isolation=task.isolation,
        resources=task.resources,
        budget=task.budget,
        limits=task.limits,
        on_takeover=task.on_takeover,
        required_evidence=task.required_evidence,
        acceptance=task.acceptance,
        **used_terms(task),
    )


def _pin(orchestration: Orchestration, source: Path | None, exclude: Collection[Path]) -> SourcePin | None:
    if source is not None:
        return pin_source(
            source.absolute(), orchestration.source.ref if orchestration.source else "HEAD", exclude=exclude
        )
    if orchestration.source is None:
        return None
    return pin_source(orchestration.folder / orchestration.source.repo, orchestration.source.ref, exclude=exclude)


def run_document(plan: Plan, git_dir: str | None) -> Blob:
    """What is stored of a run besides its tasks."""
    orchestration = plan.orchestration
    said = {
        "schema": "coordinator/run/v1",
        "name": orchestration.name,
        "objective": orchestration.objective,
        "folder": str(orchestration.folder),
        "source": plan.pin.to_json() if plan.pin else None,
        "git_dir": git_dir,
        "files": {name: sha256_digest(data) for name, data in sorted(plan.files.items())},
    }
    members = {key: canonical_bytes(value) for key, value in said.items()}
    data = canonical_object({**members, "authored": plan.authored})
    return Blob(sha256_digest(data), len(data), data)


def launch(
    store: TaskStore, home: Home, plan: Plan, *, new: bool = False, as_new_version: bool = False, closed: bool = True
) -> Launched:
    """Create a run, or continue the open one of the same name and content.

    Raises ``BadInput`` for faults, ``Refused`` when an open run of this name has other content and neither ``new`` nor
    ``as_new_version`` is given.
    """
    plan.refuse()
    refuse_unfit_place(home, plan.terms.values())
    for _ in range(10):
        existing = None if new else _open_run(store, plan)
        if existing is not None:
            run = store.run(existing)
            if run.authored_digest == plan.authored_digest:
                open_tasks = [task for task in run.tasks if task.state not in FINAL_STATES]
                refuse_missing_keys(task.terms for task in open_tasks if not task.damage)
                return Launched(run.run_id, run.row, "continued", *_in_force(run.document["source"], plan.pin))
            if as_new_version:
                refuse_missing_keys(plan.terms.values())
                return amend(store, home, plan, existing)
            raise Refused(
                f"run {run.run_id} is open and was launched from other content:\n{difference(store, existing, plan)}\n"
                "Give --as-new-version to replace what changed in it, or --new to start another run beside it"
            )
        refuse_missing_keys(plan.terms.values())
        git_dir = None
        if plan.pin is not None:
            git_dir = f"{plan.orchestration.name}-{secrets.token_hex(4)}.git"
            fetch_source(plan.pin, home.git_dir(git_dir), exclude=home.own_files())
            crash_points.reached("source_fetched")
        tasks = [NewTask(terms, task_id) for task_id, terms in plan.terms.items()]
        record = NewRun(
            name=plan.orchestration.name,
            document=run_document(plan, git_dir),
            authored_digest=plan.authored_digest,
            head=plan.pin.commit if plan.pin else None,
            closed=closed,
            tasks=tasks,
            overlaps=overlapping_tasks(plan.orchestration.tasks),
            files=[store.files.make_durable(data) for data in plan.files.values()],
            budget=plan.orchestration.budget,
        )
        run_id = store.create_run(record, beside_open=new)
        if run_id is not None:
            return Launched(run_id, store.find_run(run_id), "created", plan.pin)
        if git_dir is not None:  # another program was first
            shutil.rmtree(home.git_dir(git_dir), ignore_errors=True)
    raise Refused(f"runs named {plan.orchestration.name} are launched faster than this one can be; try again")


def open_program(
    store: TaskStore,
    home: Home,
    name: str,
    *,
    objective: str,
    source: str | Source | None,
    inputs: dict[str, JSON],
) -> Launched:
    """The open run of a program that delegates as it goes; made when there is none. Raises ``BadInput``,
    ``Refused``."""
    authored = {"name": name, "objective": objective, "inputs": inputs, "source": source, "tasks": {}}
    orchestration = _validated(authored)
    pin = _pin(orchestration, None, home.own_files())
    return launch(store, home, Plan(orchestration, pin, {}, {}), closed=False)


def _validated(authored: dict[str, Any]) -> Orchestration:
    try:
        return Orchestration.model_validate(authored)
    except ValidationError as error:
        raise BadInput(pydantic_faults(error, None)) from None


def plan_delegation(store: TaskStore, row: int, terms: Task | Mapping[str, Any], delegation_id: str) -> Plan:
    """Issue the terms of one child of a program, against the run's pins."""
    document = store.run_document(row)
    task = terms.model_dump(mode="json", by_alias=True, exclude_unset=True) if isinstance(terms, Task) else dict(terms)
    orchestration = _validated({**document["authored"], "tasks": {delegation_id: task}})
    pin = SourcePin.from_json(document["source"]) if document["source"] else None
    known_tasks = store.task_ids(row) if orchestration.tasks[delegation_id].needs else ()  # they may be many
    return plan_launch(orchestration, pin=pin, known_tasks=known_tasks)


def refuse_other_terms(store: TaskStore, row: int, asked: Terms, delegation_id: str) -> None:
    """Raise ``Refused``, naming what differs, when the id was used with other terms."""
    known = store.task(row, delegation_id=delegation_id)
    if known is not None and not known.damage and known.terms_digest != asked.digest:
        lines: list[str] = []
        _compare("", known.terms.canonical(), asked.canonical(), lines)
        raise Refused(
            f"delegation {delegation_id!r} of {known.run_id} was issued with other terms:\n"
            + "\n".join(lines[:30])
            + "\nUse a new delegation_id for other work, or put the terms back"
        )


def _open_run(store: TaskStore, plan: Plan) -> int | None:
    """The open run of this name: one of the same content if there is one, else the newest."""
    rows = store.open_runs_named(plan.orchestration.name)
    same = [row for row in rows if store.run(row).authored_digest == plan.authored_digest]
    return next(iter([*same, *rows]), None)


def _in_force(kept: Mapping[str, Any] | None, asked: SourcePin | None) -> tuple[SourcePin | None, str | None]:
    """The pin that a run keeps, and the commit that its source's ref has moved on to."""
    pin = SourcePin.from_json(kept) if kept else None
    return pin, asked.commit if asked and pin and asked.commit != pin.commit else None


def amend(store: TaskStore, home: Home, plan: Plan, row: int) -> Launched:
    """Make a new orchestration version: what changed, and all that needs it, is issued anew; the rest stays."""
    run = store.run(row)
    before, asked = run.document["source"], plan.pin
    same_source = run.document["authored"]["source"] == plan.orchestration.document()["source"]
    keeps_source = same_source and before is not None and asked is not None and before["origin"] == asked.origin
    git_dir = run.document["git_dir"]
    if keeps_source:
        plan = plan_launch(plan.orchestration, pin=SourcePin.from_json(run.document["source"]))
        plan.refuse()
    elif plan.pin is not None:
        git_dir = f"{plan.orchestration.name}-{secrets.token_hex(4)}.git"
        fetch_source(plan.pin, home.git_dir(git_dir), exclude=home.own_files())
        crash_points.reached("source_fetched")
    current = {task.task_id: task for task in run.tasks if task.parent_task_id is None}
    changed = {task_id for task_id, terms in plan.terms.items() if not _same_terms(current.get(task_id), terms)}
    dependents = {task_id: [need.task for need in terms.needs] for task_id, terms in plan.terms.items()}
    growing = True
    while growing:
        below = {task_id for task_id, needs in dependents.items() if task_id not in changed and changed & set(needs)}
        changed |= below
        growing = bool(below)
    replaced = []
    for task_id, terms in plan.terms.items():
        if task_id in changed:
            version = store.newest_contract_version(row, task_id) + 1
            replaced.append(NewTask(terms.model_copy(update={"contract_version": version}), task_id))
    store.amend(
        row,
        expected_version=run.orchestration_version,
        document=run_document(plan, git_dir),
        authored_digest=plan.authored_digest,
        replaced=replaced,
        removed=sorted(set(current) - set(plan.terms)),
        overlaps=overlapping_tasks(plan.orchestration.tasks),
        files=[store.files.make_durable(data) for data in plan.files.values()],
        head=plan.pin.commit if plan.pin else None,
        keeps_head=keeps_source,
        budget=plan.orchestration.budget,
    )
    return Launched(run.run_id, row, "amended", *_in_force(plan.pin.to_json() if plan.pin else None, asked))


def _same_terms(current: Any, terms: Terms) -> bool:
    if current is None:
        return False
    same: bool = terms.model_copy(update={"contract_version": current.contract_version}).digest == current.terms_digest
    return same


def difference(store: TaskStore, row: int, plan: Plan) -> str:
    """What differs between an open run and a plan, one line each, for people."""
    document = store.run(row).document
    lines: list[str] = []
    _compare("", document["authored"], plan.orchestration.document(), lines)
    files = {name: sha256_digest(data) for name, data in plan.files.items()}
    for name in sorted(set(files) | set(document["files"])):
        if files.get(name) != document["files"].get(name):
            word = "changed" if name in files and name in document["files"] else "added" if name in files else "removed"
            lines.append(f"  file {name}: {word}")
    origin = (document["source"] or {}).get("origin")
    now = plan.pin.origin if plan.pin else None
    if origin != now:
        lines.append(f"  source: {origin} -> {now}")
    return "\n".join(lines[:30] + ([f"  … and {len(lines) - 30} more"] if len(lines) > 30 else []))


def _compare(path: str, old: Any, new: Any, lines: list[str]) -> None:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(set(old) | set(new)):
            _compare(f"{path}.{key}" if path else str(key), old.get(key), new.get(key), lines)
    elif old != new:

        def short(value: Any) -> str:
            text = canonical_bytes(value).decode()
            return text if len(text) <= 80 else text[:77] + "…"

        lines.append(f"  {path}: {short(old)} -> {short(new)}")
