"""Fan-out of no-op function children: seconds, and where they go. ``python bench/fan_out.py [N] [--profile]``."""

from __future__ import annotations

import cProfile
import pstats
import sys
import tempfile
import time
from pathlib import Path

from coordinator import Assignment, Coordinator, Orchestration, Result, Task


def nothing(a: Assignment) -> Result:
    return a.completed({"n": 1})


def orchestration(count: int) -> Orchestration:
    task = Task(objective="Nothing.", agent=nothing, isolation="none", acceptance=[{"cel": "output.n == 1"}])
    return Orchestration(name="fan", objective="Fan out.", tasks={f"t{number}": task for number in range(count)})


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    profile = cProfile.Profile() if "--profile" in sys.argv else None
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        with Coordinator(f"{folder}/store.db", workers=50) as coordinator:
            work = orchestration(count)
            if profile is not None:
                # Only the store: it is where the time of a fan-out goes, and it runs in threads of its own.
                inner = coordinator.store.tick
                coordinator.store.tick = lambda *args, **more: profile.runcall(inner, *args, **more)  # type: ignore[method-assign]
            started, used = time.perf_counter(), time.process_time()
            result = coordinator.run(work)
            result.raise_if_not_accepted()
        seconds, cpu = time.perf_counter() - started, time.process_time() - used
    each = f"{1000 * seconds / count:.2f} ms each, {1000 * cpu / count:.2f} ms of CPU each"
    print(f"{count} children: {seconds:.2f} s, {each}")
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)


if __name__ == "__main__":
    main()
