"""A place in which whole runs are played: a folder, a store, an orchestration, and real processes that work on it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from coordinator.store import TaskStore
from coordinator.store.views import EventView, RunView, TaskView

HERE = Path(__file__).parent
TOP = HERE.parent.parent
WATCHDOG_S = 90.0


def _by_path(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"scenarios_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bench_module = _by_path("bench")
faults_module = _by_path("faults")


class Place:
    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.home = folder / "home"
        self.marks_file = folder / "marks.txt"
        self.env: dict[str, str] = {}
        self._processes: list[subprocess.Popen[str]] = []
        self._store: TaskStore | None = None

    # -- what is to be done

    def child(self, name: str) -> dict[str, str]:
        return {"function": f"{HERE / 'children.py'}:{name}"}

    def task(self, function: str, **fields: Any) -> dict[str, Any]:
        """A task for one of the functions in children.py, checkable by a check that always holds."""
        limits = {"lease_s": 20, "deadline_s": 60, **fields.pop("limits", {})}
        return {
            "objective": f"Do {function}.", "agent": self.child(function), "isolation": "none", "limits": limits,
            "acceptance": [{"cel": "true"}], **fields,
        }  # fmt: skip

    def document(self, tasks: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
        return {
            "schema": "coordinator/v1", "name": "play", "objective": "Play it through.",
            "inputs": {"marks": str(self.folder)}, "tasks": dict(tasks), **fields,
        }  # fmt: skip

    def write(self, tasks: Mapping[str, Any], **fields: Any) -> Path:
        file = self.folder / "orchestration.yaml"
        file.write_text(json.dumps(self.document(tasks, **fields), indent=1))
        return file

    # -- who does it

    def process(self, *command: str, cwd: Path | None = None, **env: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(TOP), "NO_COLOR": "1", **self.env, **env}
        started = subprocess.Popen(
            command, cwd=cwd or self.folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        self._processes.append(started)
        return started

    def worker(self, *options: str, file: Path | None = None, **env: str) -> subprocess.Popen[str]:
        named = ["--file", str(file)] if file else []
        script = str(HERE / "worker_process.py")
        return self.process(
            sys.executable, script, "--store", self.url, "--home", str(self.home), *named, *options, **env
        )

    def cli(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        return self.process(
            sys.executable, "-m", "coordinator", *arguments, "--store", self.url, "--home", str(self.home), **env
        )

    def listened(self, *arguments: str, **options: str) -> Any:
        """A command that is short of patience with locks, and whose words can be read while it runs."""
        return faults_module.Listened(self, *arguments, **options)

    def ended(self, process: subprocess.Popen[str], code: int | None = 0) -> tuple[str, str]:
        """Wait for the end of a process; its stdout and stderr."""
        try:
            out, err = process.communicate(timeout=WATCHDOG_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGABRT)
            out, err = process.communicate()
            raise AssertionError(f"still running after {WATCHDOG_S} s\n{out}\n{err}") from None
        if code is not None:
            assert process.returncode == code, f"ended with {process.returncode}\n{out}\n{err}"
        return out, err

    def clean_up(self) -> None:
        for process in self._processes:
            for number in (signal.SIGCONT, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            process.communicate()
        if self._store is not None:
            self._store.close()

    # -- what came of it

    @property
    def store(self) -> TaskStore:
        if self._store is None:
            self._store = TaskStore(self.url, self.home)
        return self._store

    def run(self, name: str | None = None) -> RunView:
        return self.store.run(self.store.find_run(name))

    def one(self, task_id: str) -> TaskView:
        return next(task for task in self.run().tasks if task.task_id == task_id)

    def events(self, task_id: str | None = None) -> list[EventView]:
        found = self.store.events(self.store.find_run())
        return [event for event in found if task_id is None or event.task_id == task_id]

    def verbs(self, task_id: str) -> list[str]:
        return [event.verb for event in self.events(task_id)]

    def marks(self, word: str | None = None, task_id: str | None = None) -> list[list[str]]:
        """[task, attempt, generation, process, word] of every line the children left."""
        if not self.marks_file.exists():
            return []
        lines = [line.split() for line in self.marks_file.read_text().splitlines()]
        return [line for line in lines if word in (None, line[4]) and task_id in (None, line[0])]

    def go(self, name: str = "go") -> None:
        (self.folder / name).touch()


def wait_until(condition: Callable[[], Any], what: str = "", timeout_s: float = WATCHDOG_S) -> Any:
    """The first true value of a condition; a watchdog, not a delay."""
    until = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < until, f"did not come about in {timeout_s} s: {what or condition}"
        time.sleep(0.02)


def overlapping_claims(events: list[EventView]) -> list[str]:
    """Places where a task was claimed while another claim of it was live, or where a generation did not grow."""
    live: dict[str, int] = {}
    newest: dict[str, int] = {}
    wrong = []
    for event in events:
        if event.task_id is None or event.generation is None:
            continue
        if event.verb in ("claimed", "gate_claimed"):
            if event.task_id in live:
                wrong.append(f"{event.number}: {event.task_id} was held under {live[event.task_id]}")
            if event.generation <= newest.get(event.task_id, 0):
                wrong.append(f"{event.number}: generation {event.generation} of {event.task_id} is not new")
            live[event.task_id] = newest[event.task_id] = event.generation
        elif event.verb not in ("stopped", "late_result") and live.pop(event.task_id, None) != event.generation:
            wrong.append(f"{event.number}: {event.verb} of {event.task_id} by generation {event.generation}")
    return wrong


@pytest.fixture
def place(tmp_path: Path, sqlite_url: str) -> Iterator[Place]:
    made = Place(tmp_path, sqlite_url)
    yield made
    made.clean_up()


@pytest.fixture
def any_place(tmp_path: Path, database_url: str) -> Iterator[Place]:
    """A place on each kind of database."""
    made = Place(tmp_path, database_url)
    yield made
    made.clean_up()


@pytest.fixture
def until() -> Callable[..., Any]:
    return wait_until


@pytest.fixture
def overlaps() -> Callable[[list[EventView]], list[str]]:
    return overlapping_claims


@pytest.fixture
def bench(place: Place) -> Any:
    """A repository of a user's, with program children beside it."""
    return bench_module.Bench(place)


@pytest.fixture
def is_alive() -> Callable[[int], bool]:
    return bench_module.is_alive


@pytest.fixture
def tree_of() -> Callable[[Path], dict[str, Any]]:
    return bench_module.tree_of


@pytest.fixture
def cutter() -> Iterator[Callable[..., Any]]:
    """Makes loopback connections to a server's Unix socket that can be cut."""
    made: list[Any] = []

    def make(*arguments: Any) -> Any:
        made.append(faults_module.Cutter(*arguments))
        return made[-1]

    yield make
    for one in made:
        one.close()
