"""``contract check``, ``contract schema`` and ``contract show``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from contracts.delegation import DelegationContract
from contracts.documents import Document, load_document, validate
from contracts.errors import BadInput, Fault
from contracts.json_positions import printable
from contracts.lint import lint_contract
from contracts.orchestration import Orchestration
from contracts.schemas import SCHEMAS, json_schema
from coordinator.cli.addresses import find_task
from coordinator.cli.inspecting import contract_document
from coordinator.cli.output import USAGE, console, opened, print_json
from coordinator.home import default_store
from coordinator.launch import plan_launch

__all__ = ["check", "check_file", "schema", "show"]


@dataclass(slots=True)
class Checked:
    """What was found in one file. ``kind`` is what it was taken for, empty when it could not be read."""

    file: str
    kind: str = ""
    what: str = ""
    faults: list[Fault] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)


def check(files: Sequence[Path], json: bool) -> int:
    """Check every file; 2 when one has a fault that launching it would refuse."""
    checked = [check_file(file) for file in files]
    failed = any(item.faults for item in checked)
    if json:
        print_json(
            [
                {
                    "file": item.file, "kind": item.kind, "ok": not item.faults,
                    "faults": [asdict(fault) for fault in item.faults],
                    "warnings": [asdict(fault) for fault in item.warnings],
                }
                for item in checked
            ]
        )  # fmt: skip
        return USAGE if failed else 0
    out, err = console(), console(stderr=True)
    for item in checked:
        for fault in item.faults:
            err.print(str(fault), soft_wrap=True)
        for fault in item.warnings:
            err.print(f"{fault} (warning)", soft_wrap=True)
        if not item.faults:
            count = len(item.warnings)
            warnings = f", {count} warning{'s' if count > 1 else ''}" if count else ""
            out.print(f"{item.file}: ok ({item.what}{warnings})", soft_wrap=True)
    return USAGE if failed else 0


def check_file(file: Path) -> Checked:
    """Form, and for an orchestration all that launching it here would refuse. Never raises ``BadInput``."""
    checked = Checked(printable(str(file)))
    try:
        document = load_document(file)
        if isinstance(document.value, dict) and "tasks" in document.value:
            checked.kind = "orchestration"
            _check_orchestration(file, document, checked)
        else:
            checked.kind = "delegation"
            _check_delegation(document, checked)
    except BadInput as error:
        checked.faults += error.faults
    for faults in (checked.faults, checked.warnings):
        faults.sort(key=lambda fault: (fault.line or 0, fault.column or 0))
    return checked


def _check_orchestration(file: Path, document: Document, checked: Checked) -> None:
    orchestration = Orchestration.from_document(document, file.resolve().parent)
    plan = plan_launch(orchestration, exclude=(default_store(Path.cwd()).parent,))
    checked.faults += [_located(document, fault) for fault in plan.faults]
    checked.warnings += [_located(document, fault) for fault in plan.warnings]
    count = len(orchestration.tasks)
    checked.what = f"orchestration {orchestration.name}, {count} task{'s' if count != 1 else ''}"


def _check_delegation(document: Document, checked: Checked) -> None:
    terms, _ = validate(DelegationContract, document).split()
    checked.warnings += [document.locate(fault) for fault in lint_contract(terms)]
    checked.what = f"delegation contract {terms.task_id}"


def _located(document: Document, fault: Fault) -> Fault:
    return fault if fault.file else document.locate(fault)


def schema(name: str) -> int:
    if name not in SCHEMAS:
        raise BadInput(f"no document is called {name!r}; there are schemas of: {', '.join(SCHEMAS)}")
    print_json(json_schema(name))
    return 0


def show(address: str | None, *, store: str | None, home: Path | None) -> int:
    """Print the contract of an attempt; before the first, the same document without ``child_run_id``."""
    with opened(store, home) as (task_store, _):
        run, task, attempt = find_task(task_store, address)
        if attempt is None:
            what = f"{run.run_id}/{task.task_id} is not claimed yet: its child_run_id comes with the claim"
            console(stderr=True).print(what, soft_wrap=True)
        print_json(contract_document(run, task, attempt))
    return 0
