"""One worker as a process: launches the orchestration in --file if there is one, else joins the open runs.

Ends with 0 when every run it saw is wholly accepted, 1 when one ended otherwise, 4 when one is still open.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from contracts.orchestration import Orchestration
from coordinator import crash_points
from coordinator.home import open_home
from coordinator.launch import launch, plan_launch
from coordinator.store import TaskStore
from coordinator.worker import Worker


def die_in_snapshot(when: str) -> None:
    """By SIGKILL: when the first file is taken, or when all is taken and nothing is handed in yet."""
    import coordinator.workplaces as workplaces
    import workspaces.candidate as candidate

    def die(*_: Any) -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("still here")

    if when == "half":
        candidate.put_file = die  # type: ignore[attr-defined]
    else:
        whole = workplaces.snapshot

        def taken(*values: Any, **options: Any) -> NoReturn:
            whole(*values, **options)
            die()

        workplaces.snapshot = taken  # type: ignore[attr-defined]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--home", required=True)
    parser.add_argument("--file")
    parser.add_argument("--name", default="worker")
    parser.add_argument("--fault")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--claims", type=int)
    parser.add_argument("--launch-only", action="store_true")
    parser.add_argument("--die-in-snapshot", choices=["half", "taken"])
    args = parser.parse_args()
    home = open_home(args.store, args.home)
    store = TaskStore(home.url, home.folder)
    crash_points.arm(crash_points.Fault.parse(args.fault) if args.fault else None)
    rows = None
    if args.file:
        plan = plan_launch(Orchestration.from_file(Path(args.file)), exclude=home.own_files())
        launched = launch(store, home, plan)
        print(launched.run_id, launched.how, flush=True)
        rows = [launched.row]
        if args.launch_only:
            return 0
    if args.die_in_snapshot:
        die_in_snapshot(args.die_in_snapshot)
    seen = rows or store.open_runs()
    worker = Worker(store, home, slots=args.slots, runs=rows, name=args.name, claims_max=args.claims)
    print("ready", flush=True)
    asyncio.run(worker.run())
    # Not `getrusage`: that begins with what the process was before its program was loaded.
    print("peak", re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1], flush=True)  # type: ignore[index]
    runs = [store.run(row) for row in seen]
    store.close()
    if any(run.state != "ended" for run in runs):
        return 4
    return 0 if all(run.ok for run in runs) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception:
        traceback.print_exc()
        sys.exit(70)
