"""One worker as a process: launches the orchestration in --file if there is one, else joins the open runs.

Ends with 0 when every run it saw is wholly accepted, 1 when one ended otherwise, 4 when one is still open.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import traceback
from pathlib import Path

from contracts.orchestration import Orchestration
from coordinator import crash_points
from coordinator.home import open_home
from coordinator.launch import launch, plan_launch
from coordinator.store import TaskStore
from coordinator.worker import Worker


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
    seen = rows or store.open_runs()
    worker = Worker(store, home, slots=args.slots, runs=rows, name=args.name, claims_max=args.claims)
    print("ready", flush=True)
    asyncio.run(worker.run())
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
