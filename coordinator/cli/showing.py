"""``status``, ``inspect`` and ``history``, and the end of ``run``: what the store says, for people and for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.errors import BadInput
from coordinator.cli.addresses import find, find_task
from coordinator.cli.inspecting import print_run, print_task, run_details, task_details
from coordinator.cli.logs import last_words
from coordinator.cli.output import DIFFERS, INTERRUPTED, console, opened, print_json
from coordinator.cli.progress import event_line
from coordinator.cli.transcript import (
    Unanswered,
    is_model,
    print_turn,
    print_unanswered,
    read_turn,
    spent_of,
    turn_value,
    turns_of,
    unanswered_in,
    unanswered_value,
)
from coordinator.cli.tree import (
    Doing,
    answer_commands,
    follow_up,
    how_it_stands,
    next_command,
    open_requests,
    run_tree,
)
from coordinator.cli.values import event_value, request_value, run_value
from coordinator.launch import UNENFORCED
from coordinator.store import Damaged, TaskStore
from coordinator.store.views import RunView, TaskView, TurnView
from coordinator.text import shown

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["damage_code", "history", "inspect", "print_summary", "run_json", "status"]

LOOK_EVERY_S = 0.5


def status(run: str | None, *, watch: bool, store: str | None, home: Path | None, json: bool) -> int:
    """Show how a run stands. With ``watch`` until it has ended; the exit code is then 0 only if all was accepted."""
    with opened(store, home) as (task_store, place):
        row = find_run(task_store, run, "status")
        doing = partial(last_words, task_store, place)
        if watch:
            return follow(task_store, row, doing, json=json)
        if json:
            print_json(run_json(task_store, row))
        else:
            print_summary(task_store, row, doing)
        return damage_code(task_store.run(row))


def damage_code(run: RunView) -> int:
    """0, unless the stored terms of a task are damaged: that is said."""
    damaged = [task for task in run.tasks if task.damage]
    for task in damaged:
        print(f"{task.run_id}/{task.task_id}: its contract is damaged: {shown(task.damage, 400)}", file=sys.stderr)
    if damaged:
        print(DIFFERS, file=sys.stderr)
    return Damaged.exit_code if damaged else 0


def history(run: str | None, *, store: str | None, home: Path | None, json: bool) -> int:
    with opened(store, home) as (task_store, _):
        row = find_run(task_store, run, "history")
        events = task_store.events(row)
        if json:
            print_json([event_value(event) for event in events])
            return 0
        out = console()
        for event in events:
            out.print(f"{event.at:%Y-%m-%d %H:%M:%S}Z  {event_line(event)}", soft_wrap=True)
    return 0


def inspect(address: str | None, *, transcript: bool, store: str | None, home: Path | None, json: bool) -> int:
    with opened(store, home) as (task_store, _):
        if transcript:
            return show_transcript(task_store, address, json=json)
        found = find(task_store, address)
        whole = task_store.run(found.run.row, superseded=True)
        older = [task for task in whole.tasks if not task.is_current]
        if found.task is None:
            if json:
                print_json(run_details(task_store, found.run, older))
            else:
                print_run(task_store, console(), found.run, older)
                _print_next(task_store, console(), found.run)
            return 0
        own = [task for task in older if task.task_id == found.task.task_id]
        only = found.attempt if "@" in (address or "") else None
        if json:
            print_json(task_details(task_store, found.run, found.task, own, only))
        else:
            print_task(task_store, console(), found.task, own, only)
            if is_model(found.task) and found.task.attempts:
                address = f"{found.run.run_id}/{found.task.task_id}"
                console().print(f"\nnext: {follow_up(task_store, 'inspect', address, '--transcript')}", soft_wrap=True)
    return 0


def show_transcript(store: TaskStore, address: str | None, *, json: bool) -> int:
    """The turns of a model: of all attempts at a task, or of the conversation that one attempt stands on."""
    run, task, attempt = find_task(store, address)
    only = attempt if "@" in (address or "") else None
    turns = turns_of(store, task, only)
    unanswered = unanswered_in(store, task, turns, only)
    if json:
        values = [turn_value(turn, read_turn(store, turn)) for turn in turns]
        in_vain = [unanswered_value(turn) for turn in unanswered]
        print_json({"address": f"{run.run_id}/{task.task_id}", "turns": values, "unanswered": in_vain})
        return 0
    out = console()
    told: list[TurnView | Unanswered] = [*turns, *unanswered]
    for turn in sorted(told, key=lambda turn: turn.first_at if isinstance(turn, Unanswered) else turn.answered_at):
        if isinstance(turn, Unanswered):
            print_unanswered(out, turn)
        else:
            print_turn(out, turn, read_turn(store, turn))
        out.print()
    many = "1 turn" if len(turns) == 1 else f"{len(turns)} turns"
    out.print(f"{run.run_id}/{task.task_id}: {many}, {spent_of(turns)}")
    return 0


def find_run(store: TaskStore, name: str | None, command: str) -> int:
    """Row of a run. The address of a task is bad input: it belongs to ``inspect``."""
    if name is not None and "/" in name:
        run = name.partition("/")[0]
        what = f"`{command}` shows a run, not a task"
        raise BadInput(f"{what}: `coordinator {command} {run}`, or `coordinator inspect {name}`")
    return store.find_run(name)


def run_json(store: TaskStore, row: int) -> dict[str, Any]:
    """How a run stands, for programs."""
    run = store.run(row)
    return {
        **run_value(run),
        "requests": [request_value(request) for request in open_requests(run)],
        "unenforced": unenforced(run),
        "next": next_command(store, run),
    }


def print_summary(store: TaskStore, row: int, doing: Doing) -> None:
    """The tree, how it stands, what waits for a person, and what would be done next."""
    run = store.run(row)
    out = console()
    out.print(run_tree(run, doing=doing))
    out.print(how_it_stands(run))
    for request in open_requests(run):
        out.print(f"{request.request_id} asks about {request.task_id}: {shown(request.question, 500)}")
        for command in answer_commands(store, request):
            out.print(f"  {command}", soft_wrap=True)
    if line := unenforced(run):
        out.print(f"unenforced: {line}")
    _print_next(store, out, run)


def unenforced(run: RunView) -> str:
    """What nothing enforced for the tasks that were worked on; empty when everything was."""
    return UNENFORCED if any(_unenforced(task) for task in run.tasks) else ""


def _unenforced(task: TaskView) -> bool:
    return bool(task.attempts) and not task.damage and task.terms.isolation == "none"


def _print_next(store: TaskStore, out: Console, run: RunView) -> None:
    command = next_command(store, run)
    if command:
        out.print(f"next: {command}", soft_wrap=True)
    elif run.state != "ended":
        out.print("next: run its program again; it delegates the tasks of this run as it goes")


def follow(store: TaskStore, row: int, doing: Doing, *, json: bool) -> int:
    """Show a run each time it changes, until it has ended. 0 when all was accepted, else 1; 130 when left before."""
    try:
        if json:
            for _ in _changes(store, row):
                print_json(run_json(store, row), one_line=True)
        elif sys.stdout.isatty():
            _follow_live(store, row, doing)
        else:
            out = console()
            for number, run in enumerate(_changes(store, row)):
                if number:
                    out.print()
                out.print(run_tree(run, doing=doing))
                out.print(how_it_stands(run))
                sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    run = store.run(row)
    if not json:
        _print_next(store, console(), run)
    return 0 if run.ok else 1


def _changes(store: TaskStore, row: int) -> Iterator[RunView]:
    """The run now, and again whenever something that a person can see has changed; the last time when it has ended."""
    before: object = None
    while True:
        run = store.run(row)
        now = [
            (task.row, task.word, task.why, task.owner, len(task.attempts), task.charged_micro_usd, task.charged_tokens)
            for task in run.tasks
        ]
        if (run.state, now) != before:
            before = (run.state, now)
            yield run
        if run.state == "ended":
            return
        time.sleep(LOOK_EVERY_S)


def _follow_live(store: TaskStore, row: int, doing: Doing) -> None:
    from rich.console import Group
    from rich.live import Live

    out = console()
    with Live(console=out, auto_refresh=False) as live:
        while True:
            run = store.run(row)
            rows_max = max((out.height - 6) // 2, 5)  # a task takes two lines
            lines: list[Any] = [run_tree(run, rows_max=rows_max, doing=doing), how_it_stands(run)]
            if run.state == "waiting":
                lines.append(f"from another terminal: {next_command(store, run)}")
            elif run.state == "open" and not any(task.owner for task in run.tasks):
                lines.append(f"from another terminal: {follow_up(store, 'worker')}")
            live.update(Group(*lines), refresh=True)
            if run.state == "ended":
                return
            time.sleep(LOOK_EVERY_S)
