"""``logs``: the output of a program child, live or kept; of other children what the worker logged about them."""

from __future__ import annotations

import codecs
import io
import json as json_module
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from contracts.errors import NotFound
from coordinator.cli.addresses import find_task
from coordinator.cli.inspecting import ended_words
from coordinator.cli.output import INTERRUPTED, console, opened, print_json
from coordinator.cli.transcript import is_model, print_turn, read_turn, turn_line, turn_value, turns_of
from coordinator.home import Home
from coordinator.store import TaskStore
from coordinator.store.views import AttemptView, RunView, TaskView, TurnView
from coordinator.text import plain, shown

__all__ = ["last_words", "logs"]

LOOK_S = 0.2
TAIL_BYTES = 32_768
NO_NEWS = frozenset(("run", "task", "attempt", "generation", "level", "owner", "timestamp", "event"))
"""What every logged line has, or what stands before the rest."""


def logs(address: str | None, *, follow: bool, store: str | None, home: Path | None, json: bool) -> int:
    """Print the log of an attempt; with ``follow`` until the attempt has ended. 130 when left before."""
    with opened(store, home) as (task_store, place):
        run, task, attempt = find_task(task_store, address)
        if task.attempts and "@" not in (address or ""):
            attempt = task.attempts[-1]  # what works now is what people want to see
        try:
            return _show(task_store, place, run, task, attempt, follow, json)
        except KeyboardInterrupt:
            return INTERRUPTED


def last_words(store: TaskStore, home: Home, task: TaskView) -> str:
    """What a running child wrote last, its last turn, or its last tool call; empty when it is not known, or nothing
    runs."""
    attempt = task.attempts[-1] if task.attempts else None
    if attempt is None or attempt.ended is not None or task.owner is None:
        return ""
    if _is_program(task):
        lines = _tail(home.output_of(attempt.child_run_id)).decode("utf-8", "replace").splitlines()
        return next((f"wrote: {shown(line)}" for line in reversed(lines) if line.strip()), "")
    if is_model(task):
        turns = turns_of(store, task, attempt)
        return turn_line(store, task, turns) if turns else "turn 1: nothing was answered yet"
    for entry in reversed(list(_entries(_tail(_worker_log(home, attempt)), task, attempt))):
        if entry.get("event") == "tool_call":
            where = f" {entry['path']}" if entry.get("path") else ""
            return shown(f"last call: {entry.get('tool')}{where}{'' if entry.get('ok') else ' (refused or failed)'}")
    return ""


def _show(
    store: TaskStore, home: Home, run: RunView, task: TaskView, attempt: AttemptView | None, follow: bool, json: bool
) -> int:
    while attempt is None:
        if not follow or run.state == "ended":
            waits = "" if follow else "; -f waits for one"
            raise NotFound(f"{run.run_id}/{task.task_id} has no attempt{' yet' if not follow else ''}{waits}")
        time.sleep(LOOK_S)
        run, task, _ = find_task(store, f"{run.run_id}/{task.task_id}")
        attempt = next(iter(task.attempts), None)
    where = f"{run.run_id}/{task.task_id}@{attempt.number}"
    output = home.output_of(attempt.child_run_id)
    if json and not follow:
        text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else None
        logged = list(_entries(_whole(_worker_log(home, attempt)), task, attempt))
        turns = turns_of(store, task, attempt) if is_model(task) else []
        told = [turn_value(turn, read_turn(store, turn)) for turn in turns]
        print_json({"attempt": where, "output": text, "log": logged, **({"turns": told} if is_model(task) else {})})
        return 0

    def over() -> bool:
        return not follow or _now(store, run.row, attempt).ended is not None

    if is_model(task):
        for turn in _turns_told(store, task, attempt, over):
            if json:
                value = turn_value(turn, read_turn(store, turn))
                print_json({"attempt": where, "turn": value}, one_line=True)
            else:
                print_turn(console(), turn, read_turn(store, turn))
                sys.stdout.flush()
    elif _is_program(task):
        wrote = False
        for text in _followed(output, over):
            wrote = True
            if json:
                print_json({"attempt": where, "output": text}, one_line=True)
            else:
                sys.stdout.write(plain(text))
                sys.stdout.flush()
        if not wrote and not json:
            print("it wrote nothing" if output.exists() else "there is no output of it", file=sys.stderr)
    else:
        for text in _lines(_followed(_worker_log(home, attempt), over)):
            for entry in _entries(text.encode(), task, attempt):
                if json:
                    print_json({"attempt": where, "log": entry}, one_line=True)
                else:
                    print(_entry_line(entry), flush=True)
    if follow and not json:
        print(f"{where}: {ended_words(_now(store, run.row, attempt))}", file=sys.stderr)
    return 0


def _turns_told(store: TaskStore, task: TaskView, attempt: AttemptView, over: Callable[[], bool]) -> Iterator[TurnView]:
    """The turns that an attempt stands on, each once its calls are answered, until ``over``; then the rest too."""
    told = 0
    while True:
        last = over()  # asked before reading: what comes last is not missed
        turns = turns_of(store, task, attempt)[told:]
        for turn in turns:
            if turn.answers_digest is None and not last:
                break
            told += 1
            yield turn
        if last:
            return
        time.sleep(LOOK_S)


def _is_program(task: TaskView) -> bool:
    return task.terms.agent is not None and task.terms.agent.kind == "command"


def _now(store: TaskStore, row: int, attempt: AttemptView) -> AttemptView:
    """The same attempt as the store has it now, also when its contract has been replaced meanwhile."""
    tasks = store.run(row, superseded=True).tasks
    return next((other for task in tasks for other in task.attempts if other.row == attempt.row), attempt)


def _followed(path: Path, over: Callable[[], bool]) -> Iterator[str]:
    """The text of a file, and what is added to it until ``over``: characters and line ends are never cut in two."""
    # ``\r`` becomes a line end too: progress bars would otherwise be one endless line.
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
    at = 0
    while True:
        last = over()  # asked before reading: what comes last is not missed
        data = _whole(path, at)
        at += len(data)
        text = decoder.decode(data, final=last)
        if text:
            yield text
        if last:
            return
        time.sleep(LOOK_S)


def _lines(chunks: Iterator[str]) -> Iterator[str]:
    """Whole lines; the one that a dying worker did not finish is dropped."""
    begun = ""
    for chunk in chunks:
        *lines, begun = (begun + chunk).split("\n")
        yield from lines


def _whole(path: Path, start: int = 0) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read()
    except FileNotFoundError:
        return b""


def _tail(path: Path) -> bytes:
    try:
        return _whole(path, max(path.stat().st_size - TAIL_BYTES, 0))
    except FileNotFoundError:
        return b""


def _worker_log(home: Home, attempt: AttemptView) -> Path:
    return home.logs / f"{os.path.basename(attempt.owner)}.jsonl"


def _entries(data: bytes, task: TaskView, attempt: AttemptView) -> Iterator[dict[str, Any]]:
    """Lines of a worker's log that are about one attempt."""
    for line in data.splitlines():
        try:
            entry = json_module.loads(line)
        except ValueError:
            continue  # cut off, by us or by the death of the worker
        wanted = {"run": task.run_id, "task": task.task_id, "attempt": attempt.number, "owner": attempt.owner}
        if isinstance(entry, dict) and all(entry.get(key) == value for key, value in wanted.items()):
            yield entry


def _entry_line(entry: dict[str, Any]) -> str:
    said = " ".join(f"{key}={value}" for key, value in entry.items() if key not in NO_NEWS and value not in (None, ""))
    return shown(f"{entry.get('timestamp', '')} {entry.get('event', '')} {said}", 2000)
