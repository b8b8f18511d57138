"""What a demonstration stands on: a fresh store, one run launched in it, and real worker processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.base import JSON
from contracts.errors import CoordinatorError
from contracts.orchestration import Orchestration
from coordinator.cli.output import console
from coordinator.cli.tree import answer_commands, follow_up, open_requests
from coordinator.home import open_home
from coordinator.launch import launch, plan_launch
from coordinator.store import TaskStore
from coordinator.store.views import RunView
from coordinator.text import plain, shown

__all__ = ["KILLED", "TOLD", "Stage", "worker_name"]

WATCHDOG_S = 900
"""When a worker process is taken to hang; every demonstration is over long before."""
LOOK_EVERY_S = 0.1
KILLED = -signal.SIGKILL
"""Exit status of a process that SIGKILL ended."""
WIDTH = 80
TOLD = {
    "claimed": "taken by {who}, generation {generation}",
    "gate_claimed": "judged by {who}, generation {generation}",
    "submitted": "handed in by {who}",
    "lost": "taken back: {detail}",
    "gate_lost": "taken back: {detail}",
    "ended": "ended: {detail}",
    "exhausted": "failed: {detail}",
    "repair_required": "sent back: {detail}",
    "repairs_exhausted": "failed: {detail}",
    "rejected": "rejected: {detail}",
    "not_judged": "not judged: {detail}",
    "accepted": "accepted",
    "accepted_partial": "accepted in part",
}


class DemoFailed(CoordinatorError):
    """A process of the demonstration did what nobody asked of it."""


@dataclass
class Stage:
    """A fresh store that is kept, one run launched in it, and the worker processes that are set to work on it."""

    folder: Path
    file: Path
    store: TaskStore
    row: int
    run_id: str
    pinned: str
    quiet: bool
    seen: int = 0
    width: int = 0

    @classmethod
    @contextlib.contextmanager
    def of(
        cls,
        orchestration: Orchestration,
        *,
        quiet: bool,
        inputs: Mapping[str, JSON] | None = None,
        source: Path | None = None,
    ) -> Iterator[Stage]:
        """Launch without working. Raises ``BadInput`` before anything is made."""
        plan = plan_launch(orchestration, inputs=inputs, source=source)
        plan.refuse()
        folder = Path(tempfile.mkdtemp(prefix=f"coordinator-demo-{orchestration.name}-"))
        home = open_home(str(folder / ".coordinator" / "store.db"))
        store = TaskStore(home.url, home.folder)
        try:
            launched = launch(store, home, plan)
            pinned = plan.pin.repo_ref() if plan.pin else ""
            stage = cls(folder, home.folder / "store.db", store, launched.row, launched.run_id, pinned, quiet)
            stage.width = max(len(task_id) for task_id in orchestration.tasks)
            stage.say(f"The store of this demonstration is kept: {stage.file}")
            yield stage
        finally:
            store.close()

    def run(self) -> RunView:
        return self.store.run(self.row)

    def say(self, *lines: str) -> None:
        """Lines for people, none wider than a narrow terminal unless a single word is."""
        for line in () if self.quiet else lines:
            indent = line[: len(line) - len(line.lstrip())] + "  "
            pieces = textwrap.wrap(
                plain(line), WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            )
            for piece in pieces or [""]:
                console().print(piece, soft_wrap=True)

    def look_further(self, *commands: tuple[str, ...]) -> None:
        """The commands with which a person can go on, ready to be copied."""
        self.say("", "To look further:")
        for words in (
            ("status", self.run_id),
            *commands,
            ("evidence", self.run_id, "--verify"),
            ("history", self.run_id),
        ):
            console().print(f"  {follow_up(self.store, *words)}", soft_wrap=True)

    def work(self, name: str, *flags: str, told: Sequence[str]) -> int:
        """Run one worker process to its end and tell what it does. Its exit status; negative: the signal it died of."""
        log = self.folder / "workers.log"
        # Workspaces are kept with the rest of the demonstration, not in the user's own state folder.
        environment = {**os.environ, "XDG_STATE_HOME": str(self.folder / "state")}
        words = self._words("worker", "--name", name, *flags, store=self.file)
        with log.open("ab") as output:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
        try:
            for _ in range(int(WATCHDOG_S / LOOK_EVERY_S)):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_EVERY_S)
                self._tell(told)
                if process.returncode is not None:
                    break
            else:
                raise DemoFailed(f"worker {name} was still busy after {WATCHDOG_S} s; see {log}")
        finally:
            if process.returncode is None:
                process.kill()
                process.wait()
        died = process.returncode < 0
        self.say(
            f"  {name} {'was ended by ' + signal.Signals(-process.returncode).name if died else 'has finished'}", ""
        )
        if process.returncode not in (0, 1, 4, KILLED):
            raise DemoFailed(f"worker {name} ended with status {process.returncode}; see {log}")
        return process.returncode

    def _tell(self, told: Sequence[str]) -> None:
        for event in self.store.events(self.row, after=self.seen):
            self.seen = event.number
            if event.verb in told:
                detail = "; ".join(event.data.get("findings", [])) or event.data.get("reason", "")
                who = worker_name(event.owner)
                text = TOLD[event.verb].format(who=who, generation=event.generation, detail=shown(detail, 200))
                self.say(f"  {event.task_id or 'run':<{self.width}}  {text}")

    def command(self, *words: str, store: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run the command line as a person would; its output is kept for the one who asked."""
        command = self._words(*words, store=store or self.file)
        return subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG_S, check=False)

    def _words(self, *words: str, store: Path) -> list[str]:
        # -P: a package of the working folder must not be taken for this one.
        return [sys.executable, "-P", "-m", "coordinator", *words, "--store", str(store)]

    def end(self, run: RunView, happened: Mapping[str, bool]) -> int:
        """Say whether it all came true; the exit code."""
        missing = [what for what, true in happened.items() if not true]
        for request in open_requests(run):
            self.say(
                "", f"{request.task_id} asks: {shown(request.question, 1000)}", "Answer it, and let a worker go on:"
            )
            if not self.quiet:
                for command in (answer_commands(self.store, request)[0], follow_up(self.store, "worker")):
                    console().print(f"  {command}", soft_wrap=True)
        if run.state == "waiting":
            return 4
        self.say(*(f"This did not happen: {what}" for what in missing))
        return 1 if missing else 0


def worker_name(owner: str | None) -> str:
    """A worker's name without the random part that makes it unique."""
    return (owner or "nobody").rpartition("-")[0] or str(owner)
