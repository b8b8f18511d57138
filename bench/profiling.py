"""Where the store spends the time of a fan-out: ``python -m bench.profiling [N]``."""

from __future__ import annotations

import cProfile
import pstats
import sys
import tempfile
import time
from pathlib import Path

from bench.plan import MEMORY
from coordinator import Assignment, Coordinator, Orchestration, Result, Task


def nothing(a: Assignment) -> Result:
    return a.completed({"n": 1})


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    task = Task(objective="Nothing.", agent=nothing, isolation="none", acceptance=[{"cel": "output.n == 1"}])
    work = Orchestration(name="fan", objective="Fan out.", tasks={f"t{number}": task for number in range(count)})
    profile = cProfile.Profile()
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        folder = Path(name)
        with Coordinator(f"{folder}/store.db", home=folder / "home", workers=50) as coordinator:
            # The store is where the time of a fan-out goes, and it runs in threads of its own, one at a time.
            tick = coordinator.store.tick
            coordinator.store.tick = lambda *args, **more: profile.runcall(tick, *args, **more)  # type: ignore[method-assign]
            began = time.perf_counter()
            coordinator.run(work).raise_if_not_accepted()
            seconds = time.perf_counter() - began
    print(f"{count:,} children, with the profiler in the way: {seconds:.2f} s, {1000 * seconds / count:.2f} ms each")
    pstats.Stats(profile).sort_stats("tottime").print_stats(35)


if __name__ == "__main__":
    main()
