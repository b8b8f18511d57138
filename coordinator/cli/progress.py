"""Live progress: a tree that redraws itself on a terminal, one line an event elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
from types import TracebackType
from typing import Self

from contracts.errors import CoordinatorError
from contracts.states import TRANSITIONS
from coordinator.cli.output import console
from coordinator.cli.transcript import event_of_turn
from coordinator.cli.tree import Doing
from coordinator.store import TaskStore
from coordinator.store.views import EventView
from coordinator.text import shown

__all__ = ["Progress", "event_line"]

SHOWN = frozenset(
    {transition.verb for transition in TRANSITIONS} - {"gate_claimed", "gate_released", "gate_lost"}
    | {"asked", "answered", "voided", "late_result"}
)
REFRESH_S = 0.3


def event_line(event: EventView) -> str:
    """One event as people read it."""
    words = event.verb.replace("_", " ")
    who = f" by {event.owner}" if event.owner else ""
    generation = f", generation {event.generation}" if event.generation is not None else ""
    detail = event.data.get("reason") or "; ".join(event.data.get("findings", [])) or event.data.get("request", "")
    return f"{event.task_id or 'run'}: {words}{who}{generation}" + (f": {shown(str(detail), 300)}" if detail else "")


class Progress:
    """Follows runs from a thread of its own while the block lasts. ``quiet`` shows nothing."""

    def __init__(self, store: TaskStore, rows: list[int], *, quiet: bool, doing: Doing) -> None:
        self._store = store
        self._doing = doing
        self._rows = rows
        self._quiet = quiet or not rows
        self._done = threading.Event()
        self._after = {row: _last_event(store, row) for row in rows} if not self._quiet else {}
        self._turns_after = {row: _last_turn(store, row) for row in self._after}
        self._thread = threading.Thread(target=self._follow, name="progress", daemon=True)

    def __enter__(self) -> Self:
        if not self._quiet:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if not self._quiet:
            self._thread.join()

    def _follow(self) -> None:
        # Progress must never be what ends a run: a store that is away for a moment is simply looked at later.
        if sys.stderr.isatty():
            self._follow_live()
            return
        while not self._done.wait(REFRESH_S):
            with contextlib.suppress(CoordinatorError):
                self._print_new()
        with contextlib.suppress(CoordinatorError):
            self._print_new()

    def _print_new(self) -> None:
        for row in self._rows:
            for event in self._store.events(row, after=self._after[row]):
                self._after[row] = event.number
                if event.verb in SHOWN:
                    print(event_line(event), file=sys.stderr, flush=True)
            for turn in self._store.turns(row, after=self._turns_after[row]):
                self._turns_after[row] = turn.row
                print(event_of_turn(self._store, turn), file=sys.stderr, flush=True)

    def _follow_live(self) -> None:
        from rich.console import Group
        from rich.live import Live

        from coordinator.cli.tree import run_tree

        out = console(stderr=True)
        with Live(console=out, refresh_per_second=4, transient=True) as live:
            while True:
                over = self._done.wait(REFRESH_S)
                with contextlib.suppress(CoordinatorError):
                    rows_max = max((out.height - 4) // (2 * len(self._rows)), 3)  # a task takes two lines
                    runs = [self._store.run(row) for row in self._rows]
                    live.update(Group(*(run_tree(run, rows_max=rows_max, doing=self._doing) for run in runs)))
                if over:
                    return


def _last_turn(store: TaskStore, row: int) -> int:
    return max((turn.row for turn in store.turns(row)), default=0)


def _last_event(store: TaskStore, row: int) -> int:
    events = store.events(row)
    return events[-1].number if events else 0
