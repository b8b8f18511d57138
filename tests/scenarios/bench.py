"""A user's repository with program children beside it: what the scenarios of real repositories are played on.

Loaded by path (see ``bench`` in conftest.py), since test folders are no packages.
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator import Coordinator, Orchestration
from coordinator.home import open_home
from coordinator.launch import launch, plan_launch
from coordinator.results import RunResult, TaskResult, run_result
from coordinator.store.views import AttemptView

GIT_ENV = {
    "PATH": os.defpath, "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "user", "GIT_AUTHOR_EMAIL": "user@localhost", "GIT_AUTHOR_DATE": "2026-03-01T12:00:00Z",
    "GIT_COMMITTER_NAME": "user", "GIT_COMMITTER_EMAIL": "user@localhost",
    "GIT_COMMITTER_DATE": "2026-03-01T12:00:00Z",
}  # fmt: skip

PRELUDE = r"""
import json, os, pathlib, shutil, signal, subprocess, sys, time
P = json.load(open(os.environ["COORDINATOR_PROJECTION"], encoding="utf-8"))
ATTEMPT = P["attempt"]
MARKS = pathlib.Path(P["inputs"]["marks"])
HERE = pathlib.Path(os.environ["COORDINATOR_WORKSPACE"])

def mark(word):
    with open(MARKS / "marks.txt", "a") as file:
        file.write(f"{P['task_id']} {ATTEMPT} {P['generation']} {os.getpid()} {word}\n")

def may_go(name="go"):
    return (MARKS / name).exists()

def wait_for(name):
    until = time.monotonic() + 60
    while not may_go(name) and time.monotonic() < until:
        time.sleep(0.01)

def hand_in(outcome="completed", **fields):
    target = pathlib.Path(os.environ["COORDINATOR_RESULT"])
    part = target.with_name("part")
    part.write_text(json.dumps({"outcome": outcome, **fields}), encoding="utf-8")
    part.replace(target)

def git(*words):
    done = subprocess.run(["git", *words], capture_output=True, check=True)
    return done.stdout.decode("utf-8", "surrogateescape").strip()
"""


def tree_of(top: Path) -> dict[str, tuple[Any, ...]]:
    """Every entry below a folder with its mode and its bytes; ``.coordinator`` apart."""
    found: dict[str, tuple[Any, ...]] = {}
    for folder, names, files in os.walk(os.fsencode(top)):
        if folder == os.fsencode(top) and b".coordinator" in names:
            names.remove(b".coordinator")
        for name in (*names, *files):
            path = os.path.join(folder, name)
            about = os.lstat(path)
            kind: Any = stat.S_IFMT(about.st_mode)
            if stat.S_ISREG(about.st_mode):
                with open(path, "rb") as file:
                    kind = hashlib.sha256(file.read()).hexdigest()
            elif stat.S_ISLNK(about.st_mode):
                kind = os.readlink(path)
            found[os.fsdecode(os.path.relpath(path, os.fsencode(top)))] = (oct(about.st_mode), kind)
    return found


class Bench:
    """``repo``: the user's repository. Orchestration, programs, store and home lie beside it."""

    def __init__(self, place: Any) -> None:
        self.place = place
        self.folder: Path = place.folder
        self.repo = self.folder / "repo"
        self.repo.mkdir()
        self.result: RunResult | None = None

    # -- the repository

    def git(self, *words: str, cwd: Path | None = None) -> str:
        done = subprocess.run(["git", *words], cwd=cwd or self.repo, env=GIT_ENV, capture_output=True)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout.decode("utf-8", "surrogateescape").strip()

    def write(self, files: Mapping[str, str | bytes], top: Path | None = None) -> None:
        for name, data in files.items():
            path = (top or self.repo) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data if isinstance(data, bytes) else data.encode())

    def commit(self, files: Mapping[str, str | bytes] | None = None) -> str:
        """A first or further commit of everything; its id."""
        if not (self.repo / ".git").exists():
            self.git("init", "-q", "-b", "main")
        self.write(files or {})
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "work")
        return self.git("rev-parse", "HEAD")

    # -- what is to be done

    def program(self, name: str, body: str, **fields: Any) -> dict[str, Any]:
        """A task for a Python program. It may write everywhere, unless ``write_scope`` says otherwise."""
        (self.folder / f"{name}.py").write_text(PRELUDE + body, encoding="utf-8")
        return self.task({"command": ["python", f"{name}.py"]}, **fields)

    def task(self, agent: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
        limits = {"lease_s": 20, "deadline_s": 60, "max_claims": 1, "max_repairs": 0, **fields.pop("limits", {})}
        resources = {"write_scope": fields.pop("write_scope", ["**"]), **fields.pop("resources", {})}
        return {
            "objective": "Do it.", "agent": dict(agent), "workspace": "clone", "isolation": "none", "limits": limits,
            "resources": resources, "acceptance": [{"cel": "true"}], **fields,
        }  # fmt: skip

    def file(self, tasks: Mapping[str, Any], source: str = "repo", **fields: Any) -> Path:
        return self.place.write(tasks, source=source, **fields)

    def run(self, tasks: Mapping[str, Any], *, source: str = "repo", workers: int = 4, **fields: Any) -> RunResult:
        """Play a run to its end, in this process."""
        work = Orchestration.from_file(self.file(tasks, source, **fields))
        with Coordinator(self.place.url, home=self.place.home, workers=workers) as coordinator:
            self.result = coordinator.run(work)
        return self.result

    def start(self, tasks: Mapping[str, Any], *options: str, **fields: Any) -> Any:
        """Launch a run; a worker process for it."""
        home = open_home(self.place.url, self.place.home)
        work = Orchestration.from_file(self.file(tasks, **fields))
        launch(self.place.store, home, plan_launch(work, exclude=home.own_files()))
        return self.place.worker(*options)

    def one(self, task: Mapping[str, Any], **fields: Any) -> TaskResult:
        return self.run({"one": task}, **fields).tasks["one"]

    def attempts(self, task_id: str = "one") -> list[AttemptView]:
        return list(self.place.one(task_id).attempts)

    # -- what came of it

    def last(self, task_id: str = "one") -> TaskResult:
        """How a task stands now, whoever worked on it."""
        return run_result(self.place.store, self.place.run().row).tasks[task_id]

    def one_output(self) -> Any:
        return self.last().output

    @property
    def git_dir(self) -> Path:
        """The run's own git directory."""
        (found,) = (self.place.home / "git").glob("*.git")
        return found

    def head_files(self) -> dict[str, bytes]:
        """The accepted tree: path -> bytes."""
        return self.files_of(self.place.run().head)

    def files_of(self, commit: str) -> dict[str, bytes]:
        def ask(*words: str) -> bytes:
            command = ["git", f"--git-dir={self.git_dir}", *words]
            return subprocess.run(command, env=GIT_ENV, capture_output=True, check=True).stdout

        paths = [os.fsdecode(path) for path in ask("ls-tree", "-r", "-z", "--name-only", commit).split(b"\0")[:-1]]
        return {path: ask("cat-file", "blob", f"{commit}:{path}") for path in paths}

    @property
    def workspaces(self) -> list[Path]:
        folder = self.place.home / "workspaces"
        return sorted(path for path in folder.iterdir() if path.name[0] != ".") if folder.is_dir() else []

    @property
    def private_folders(self) -> list[Path]:
        folder = self.place.home / "attempts"
        return sorted(folder.iterdir()) if folder.is_dir() else []

    def output_of(self, task_id: str = "one") -> str:
        """What the newest attempt's program wrote."""
        file = self.place.home / "output" / f"{self.attempts(task_id)[-1].child_run_id}.log"
        return file.read_text(errors="replace")


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
