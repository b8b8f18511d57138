"""A program that delegates as it goes: run again after a crash, it goes on instead of starting over.

delegating.py STORE HOME MARKS [DIE_AT]
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from coordinator import Assignment, AsyncCoordinator, Result, Task

DIE_AT = sys.argv[4] if len(sys.argv) > 4 else ""


def step(a: Assignment) -> Result:
    line = f"{a.task_id} {a.attempt} {a.generation} {os.getpid()} start\n"
    with open(Path(a.inputs["marks"]) / "marks.txt", "a", encoding="utf-8") as file:
        file.write(line)
    die(f"in {a.task_id}")
    return a.completed({"task": a.task_id, "after": sorted(a.needs)})


def die(point: str) -> None:
    if point == DIE_AT:
        os.kill(os.getpid(), signal.SIGKILL)


def task(needs: list[str]) -> Task:
    checks: Any = [{"cel": "output.task != ''"}]
    return Task(objective="One step.", agent=step, isolation="none", needs=needs, acceptance=checks)


async def main() -> None:
    store, home, marks = sys.argv[1:4]
    async with AsyncCoordinator(store, home=home) as coordinator:
        async with coordinator.start("program", objective="Three steps.", inputs={"marks": marks}) as run:
            die("started")
            first = await run.delegate(task([]), delegation_id="first")
            die("first delegated")
            print(run.run_id, "first", (await first.decided()).outcome, flush=True)
            die("first decided")
            second = await run.delegate(task(["first"]), delegation_id="second")
            third = await run.delegate(task(["second"]), delegation_id="third")
            die("all delegated")
            result = await third.decided()
            print(run.run_id, "third", result.outcome, result.output, (await second.decided()).outcome, flush=True)
            die("all decided")
        print("closed", (await coordinator.result(run.run_id)).ok, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
