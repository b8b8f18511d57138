"""What a kill in the middle of a fan-out costs: time from the restart, and children that run twice."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.delegating import OURS, Runner
from bench.plan import Plan, Step
from bench.programs import Failed, run_subject
from bench.records import Record

SLOTS = 4
"""As many as a coordinator has when nobody says otherwise."""

SUBJECTS = {
    "sqlite": {OURS: "ours_killed", "LangGraph, a thread per child": "langgraph_killed", "DBOS, queue": "dbos_killed"},
    "postgresql": {OURS: "ours_killed", "DBOS, queue": "dbos_killed"},
}


def recovery_steps(plan: Plan, runner: Runner) -> Iterator[Step]:
    for number, database, medium in itertools.product(range(plan.repeats), plan.databases, plan.media):
        for name, script in SUBJECTS[database].items():
            interpreter = Path(sys.executable) if name == OURS else plan.peers
            if interpreter is None:
                continue

            def run(
                number: int = number, database: str = database, medium: str = medium, name: str = name,
                script: str = script, interpreter: Path = interpreter,
            ) -> Record:  # fmt: skip
                arguments = {**runner.place(database, medium), "count": plan.killed, "slots": SLOTS}
                facts = _killed_and_restarted(interpreter, script, arguments, runner.new_folder(medium))
                return Record("recovery", name, plan.killed, number, facts, database, medium)

            yield Step(f"recovery round {number + 1}: {name}, {database} on {medium}", run)


def _killed_and_restarted(interpreter: Path, script: str, shared: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Seconds count from before the new process is started."""
    folder.mkdir()
    try:
        arguments = {**shared, "home": str(folder), "first_run": True, "began_at": time.time()}
        killed = run_subject(interpreter, script, arguments, folder)
        if killed.returncode != -signal.SIGKILL:
            raise Failed(f"was to be killed, but ended with {killed.returncode}:\n{killed.stderr[-4000:]}")
        restarted_at = time.time()
        arguments = {**arguments, "first_run": False, "began_at": restarted_at}
        done = run_subject(interpreter, script, arguments, folder)
        if done.returncode != 0:
            raise Failed(f"did not recover, but ended with {done.returncode}:\n{done.stderr[-4000:]}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    facts: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    if facts["accepted"] != shared["count"] or facts["first_accepted_at"] is None:
        raise Failed(f"{facts['accepted']} of {shared['count']} children were accepted after the restart")
    facts["to_first_s"] = facts["first_accepted_at"] - restarted_at
    facts["to_end_s"] = facts["ended_at"] - restarted_at
    return facts
