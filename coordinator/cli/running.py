"""``run`` and ``worker``: launching, working in this process, live progress, and a clean way out on Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import json as json_module
import signal
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from contracts.errors import BadInput, Fault
from contracts.orchestration import Orchestration
from coordinator import crash_points
from coordinator.cli.inspecting import pairs, terms_pairs
from coordinator.cli.logs import last_words
from coordinator.cli.made import some
from coordinator.cli.output import INTERRUPTED, console, opened, print_json
from coordinator.cli.progress import Progress
from coordinator.cli.showing import damage_code, print_summary, run_json
from coordinator.home import Home, open_home
from coordinator.launch import Launched, Plan, launch, plan_launch
from coordinator.models import missing_keys
from coordinator.store import TaskStore
from coordinator.text import shown
from coordinator.worker import Worker

__all__ = ["exit_code_for", "run", "worker"]


def run(
    file: Path,
    *,
    dry_run: bool,
    workers: int,
    inputs: Sequence[str],
    source: Path | None,
    new: bool,
    as_new_version: bool,
    store: str | None,
    home: Path | None,
    json: bool,
    name: str,
    fault: str | None,
) -> int:
    if new and as_new_version:
        raise BadInput("--new and --as-new-version exclude each other: start beside the open run, or change it")
    orchestration = load(file)
    if dry_run:
        place = open_home(store, home, create=False)
        plan = plan_launch(orchestration, inputs=parse_inputs(inputs), source=source, exclude=place.own_files())
        located = locate_faults(file, plan)
        show_plan(plan, json)
        if located:
            raise BadInput(located)
        return 0
    with opened(store, home, create=True) as (task_store, place):
        plan = plan_launch(orchestration, inputs=parse_inputs(inputs), source=source, exclude=place.own_files())
        located = locate_faults(file, plan)
        if located:
            raise BadInput(located)
        launched = launch(task_store, place, plan, new=new, as_new_version=as_new_version)
        if not json:
            announce(plan, launched)
        return work(task_store, place, [launched.row], workers=workers, json=json, name=name, fault=fault, claims=None)


def worker(
    *, workers: int, store: str | None, home: Path | None, json: bool, name: str, fault: str | None, claims: int | None
) -> int:
    with opened(store, home) as (task_store, place):
        rows = task_store.open_runs()
        if not rows and not json:
            console(stderr=True).print("no open run has work; `coordinator run` starts one")
        return work(task_store, place, None, workers=workers, json=json, name=name, fault=fault, claims=claims)


def load(file: Path) -> Orchestration:
    """The orchestration in a file. A lone delegation contract, or no file, is bad input."""
    from contracts.documents import load_document

    if not file.exists():
        raise BadInput(f"there is no {file}; `coordinator init` writes one, or name another file")
    document = load_document(file)
    if isinstance(document.value, dict) and "tasks" not in document.value and "task_id" in document.value:
        raise BadInput(
            [
                Fault(
                    "", "this is a lone delegation contract, which has no agent and no source to run with",
                    "put it as a task into an orchestration; `coordinator contract check` checks it", str(file), 1, 1,
                )
            ]
        )  # fmt: skip
    return Orchestration.from_document(document, file.resolve().parent)


def parse_inputs(pairs: Sequence[str]) -> dict[str, Any]:
    """``K=V``: V is JSON if it parses as JSON, else text. Raises ``BadInput``."""
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise BadInput(f"--input {pair!r}: write NAME=VALUE")
        try:
            values[key] = json_module.loads(text)
        except json_module.JSONDecodeError:
            values[key] = text
    return values


def locate_faults(file: Path, plan: Plan) -> list[Fault]:
    """The plan's faults with their places in the file."""
    from contracts.documents import load_document

    if not plan.faults:
        return []
    document = load_document(file)
    return [fault if fault.file else document.locate(fault) for fault in plan.faults]


def show_plan(plan: Plan, json: bool) -> None:
    """What launching would do: pins, grants, what is enforced here."""
    if json:
        print_json(
            {
                "name": plan.orchestration.name,
                "source": plan.pin.to_json() if plan.pin else None,
                "terms": {task_id: {"digest": t.digest, "terms": t.canonical()} for task_id, t in plan.terms.items()},
                "prices": {task_id: priced.document() for task_id, priced in plan.priced.items()},
                "warnings": [str(warning) for warning in [*plan.warnings, *missing_keys(plan.terms.values())]],
                "faults": [str(fault) for fault in plan.faults],
                "unenforced": plan.unenforced,
            }
        )
        return
    from rich.padding import Padding

    out = console()
    out.print(f"{plan.orchestration.name}: {shown(plan.orchestration.objective, 2000)}")
    if plan.pin is not None:
        out.print(
            f"  source    {plan.pin.repo_ref()}"
            + ("  (uncommitted changes are not part of it)" if plan.pin.dirty else "")
        )
    for task_id, terms in plan.terms.items():
        out.print(f"  {task_id}")
        rows = [("objective", terms.objective), ("terms", terms.digest), *terms_pairs(terms)]
        if task_id in plan.priced:
            rows.append(("price", plan.priced[task_id].words()))
        out.print(Padding(pairs(rows), (0, 0, 0, 2)))
    for line in sorted(set(plan.unenforced.values())):
        out.print(f"  unenforced: {line}")
    for warning in [*plan.warnings, *missing_keys(plan.terms.values())]:
        out.print(f"  warning: {shown(str(warning), 1000)}")
    out.print("  nothing was started" if not plan.faults else "  this would be refused:")


def announce(plan: Plan, launched: Launched) -> None:
    out = console(stderr=True)
    pinned = f" at {launched.pin.repo_ref()}" if launched.pin else ""
    out.print(f"{launched.how} run {launched.run_id}{pinned}")
    if launched.moved:
        ref = plan.pin.ref if plan.pin else "the ref"
        out.print(f"  it stays pinned to that commit; {ref} is now {launched.moved[:12]}")
    if launched.how != "continued":
        if plan.files:
            out.print(f"  pinned beside it: {some(sorted(plan.files))}")
        if plan.pin is not None and plan.pin.dirty:
            out.print("  uncommitted changes in the source are not part of it")
        for line in sorted(set(plan.unenforced.values())):
            out.print(f"  unenforced: {line}")
        for warning in plan.warnings:
            out.print(f"  warning: {shown(str(warning), 1000)}")


def work(
    store: TaskStore,
    home: Home,
    rows: list[int] | None,
    *,
    workers: int,
    json: bool,
    name: str,
    fault: str | None,
    claims: int | None,
) -> int:
    """Work on runs until they end, wait or the person says stop; print how they stand; the exit code."""
    shown = rows if rows is not None else store.open_runs()
    planned = crash_points.Fault.parse(fault) if fault else None
    if planned is not None:
        refuse_costly(store, shown, planned)
    crash_points.arm(planned)
    agent = Worker(store, home, slots=workers, runs=rows, name=name, claims_max=claims)
    again = "coordinator worker" if rows is None else "the same command"
    doing = partial(last_words, store, home)
    with Progress(store, shown, quiet=json, doing=doing), stop_on_signals(agent) as interrupted:
        try:
            # What function children print must not get among the JSON.
            with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():
                asyncio.run(agent.run())
        except KeyboardInterrupt:  # typer would make an exit code of it without a word
            console(stderr=True).print(f"left at once; what was committed is kept, and {again} goes on")
            return INTERRUPTED
    if json:
        print_json([run_json(store, row) for row in shown] if rows is None else run_json(store, shown[0]))
    else:
        for row in shown:
            print_summary(store, row, doing)
    if interrupted:
        if not json:
            console(stderr=True).print(f"stopped: claims were given back and nothing is lost; {again} goes on")
        return INTERRUPTED
    return max((exit_code_for(store, row) for row in shown), default=0)


def refuse_costly(store: TaskStore, rows: Sequence[int], fault: crash_points.Fault) -> None:
    """A planned death repeats work; where work costs money, that is not for demonstrations. Raises ``BadInput``."""
    for row in rows:
        for task in store.run(row).tasks:
            is_meant = fault.task_id in (None, task.task_id) and not task.damage
            if is_meant and task.terms.budget.max_cost_usd is not None:
                raise BadInput(f"--fault is refused for {task.run_id}/{task.task_id}: it has a budget to spend")


def exit_code_for(store: TaskStore, row: int) -> int:
    """0 all accepted, 1 ended otherwise, 3 a contract is damaged, 4 waiting for an answer (or left open by a limited
    worker)."""
    run = store.run(row)
    if run.state != "ended":
        return 4
    return damage_code(run) or (0 if run.ok else 1)


@contextlib.contextmanager
def stop_on_signals(agent: Worker) -> Iterator[list[int]]:
    """The first Ctrl-C (or SIGTERM) stops in order; a second one ends at once. Yields the signals that came."""
    came: list[int] = []

    def handle(number: int, _frame: object) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)
        agent.stop()
        print("stopping: children may reach a safe point; press Ctrl-C again to leave at once", file=sys.stderr)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
