"""Workspaces of many files: preparing them beside ``git worktree add``, snapshots beside ``git commit``."""

from __future__ import annotations

import functools
import itertools
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.delegating import Runner
from bench.plan import Plan, Step
from bench.programs import environment, measure
from bench.records import Record

PREPARE = ("git worktree add", "directory", "clone", "checkout_tree")
TAKE = ("git add, git commit", "snapshot")


def preparing_steps(plan: Plan, runner: Runner) -> Iterator[Step]:
    """``count`` of a record is the number of files, or for what takes changes, of changed files."""
    repository = functools.cache(lambda medium: _repository(runner.new_folder(medium), plan.files))
    for medium in plan.media:
        jobs = [(what, 0) for what in PREPARE] + [(what, changed) for changed in plan.changed for what in TAKE]
        for number, (what, changed) in itertools.product(range(plan.repeats), jobs):

            def run(number: int = number, what: str = what, changed: int = changed, medium: str = medium) -> Record:
                about = {"what": what, "changed": changed, "keep_ref": f"bench/{changed}-{number}"}
                arguments = {**repository(medium), **about}
                facts = measure(Path(sys.executable), "ours_workspaces", arguments, runner.new_folder(medium))
                return Record("workspaces", what, changed or plan.files, number, facts, medium=medium)

            yield Step(f"workspaces round {number + 1}: {what} {changed or ''} on {medium}", run)


def _repository(folder: Path, files: int) -> dict[str, str]:
    """A repository with that many files of about two KiB, and what a run keeps of it."""
    from workspaces import fetch_source, pin_source

    repository = folder / "repository"
    words = random.Random(1)  # noqa: S311
    for number in range(files):
        path = repository / f"folder{number // 100:03}" / f"file{number:05}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(f"{words.getrandbits(256):064x}" for _ in range(32)) + "\n", encoding="ascii")
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "files"], ["repack", "-adq"]):
        identity = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"]
        subprocess.run(["git", *identity, *arguments], cwd=repository, env=environment(), check=True)
    pin = pin_source(repository)
    git_dir = folder / "git" / "run.git"
    fetch_source(pin, git_dir)
    return {"repository": str(repository), "git_dir": str(git_dir), "commit": pin.commit}
