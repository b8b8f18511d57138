"""Makes processes that work on a store and die where they are told to: forks of this one, which imported it all.

Takes one JSON object a line, ``{"do": NAME, "plans": […], …}`` to start a process or ``{"wait": true}`` for the end of
any (``false``: if one has ended), and answers each in one line.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib.util
import json
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import coordinator.cli.app
import coordinator.cli.deciding  # noqa: F401
from contracts import steps
from contracts.orchestration import Orchestration
from coordinator import AsyncCoordinator, Task
from coordinator.cli import main as command_line
from coordinator.crash_points import POINTS
from coordinator.home import open_home
from coordinator.launch import launch, plan_launch
from coordinator.runtimes import load_agents
from coordinator.store import TaskStore
from coordinator.worker import Worker

HERE = Path(__file__).parent
WATCHDOG_S = 180.0


class Deaths:
    """Dies by SIGKILL at each planned point, once among all processes that share the folder ``fired``.

    A plan counts from its ``after`` on. Each pair of its ``hold`` is where it waits, and until what was reached by
    another thread (or, if that is no point, until a child or a check left it as a mark): so it is known what else has
    happened.
    """

    def __init__(self, plans: list[dict[str, Any]], fired: Path, marks: Path) -> None:
        self._plans = plans
        self._fired = fired
        self._marks = marks
        self._seen: set[str] = set()
        self._changed = threading.Condition()

    def __call__(self, point: str, _task: str | None, _attempt: int | None) -> None:
        with self._changed:
            self._seen.add(point)
            self._changed.notify_all()
            due = [plan for plan in self._plans if plan["after"] is None or plan["after"] in self._seen]
            for plan in due:
                for at, until in plan["hold"]:
                    if point == at:
                        self._wait(until)
            for plan in due:
                # Under the lock: no other thread gets past its next point meanwhile.
                if point == plan["point"] and self._first(plan["label"]):
                    os.kill(os.getpid(), signal.SIGKILL)

    def _wait(self, until: str) -> None:
        if until in POINTS:
            assert self._changed.wait_for(lambda: until in self._seen, WATCHDOG_S / 2), until
        while until not in POINTS and not (self._marks.exists() and until in self._marks.read_text().split()):
            self._changed.wait(0.01)

    def _first(self, label: str) -> bool:
        try:
            os.close(os.open(self._fired / label.replace(" ", "-"), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True


# -- what a process does: each is given the message that started it


def work(told: dict[str, Any]) -> int:
    home = open_home(told["store"], told["home"])
    store = TaskStore(home.url, home.folder)
    worker = Worker(store, home, slots=told["slots"])
    asyncio.run(worker.run())
    runs = [store.run(store.find_run())]
    store.close()
    return 4 if any(run.state != "ended" for run in runs) else 0 if all(run.ok for run in runs) else 1


def begin(told: dict[str, Any]) -> int:
    """Launch, or amend, the orchestration in a file."""
    home = open_home(told["store"], told["home"])
    store = TaskStore(home.url, home.folder)
    plan = plan_launch(Orchestration.from_file(Path(told["file"])), exclude=home.own_files())
    print(launch(store, home, plan, as_new_version=told["amend"]).how)
    return 0


def command(told: dict[str, Any]) -> int:
    sys.argv = ["coordinator", *told["words"], "--store", told["store"], "--home", told["home"]]
    return command_line() or 0


def delegate(told: dict[str, Any]) -> int:
    """A program that delegates one child as it goes, and waits for it."""
    checks: Any = [{"cel": "true"}]
    agent: Any = f"{HERE / 'children.py'}:quick"
    task = Task(objective="One step.", agent={"function": agent}, isolation="none", acceptance=checks)  # type: ignore[arg-type]

    async def program() -> None:
        async with (
            AsyncCoordinator(told["store"], home=told["home"]) as coordinator,
            coordinator.start("program", objective="One step.", inputs={"marks": told["marks"]}) as run,
        ):
            await (await run.delegate(task, delegation_id="one")).decided()

    asyncio.run(program())
    return 0


def single_calls(told: dict[str, Any]) -> int:
    """Two tasks by the calls that take one step each; claims are kept in a file, as a caller that tries again would."""
    spec = importlib.util.spec_from_file_location("shared_values", HERE.parent / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    shared = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shared)
    build = shared.Build()
    store = TaskStore(told["store"], Path(told["home"]))
    kept = Path(told["marks"]) / "claims.pickle"

    def claimed(name: str, **room: int) -> Any:
        claims = pickle.loads(kept.read_bytes()) if kept.exists() else {}
        if name not in claims:
            claims[name] = store.claim("caller", **room)
            kept.write_bytes(pickle.dumps(claims))
        return claims[name]

    if store.newest_run() is None:
        store.create_run(build.run("one", "two", closed=False))
    one, two = claimed("work", work=2)
    print(store.delegate(one.orchestration_row, [build.task("three")]))
    print(store.submit([build.submission(one)]))
    print(store.end([build.ending(two, "cancelled", stopped=False)]))
    store.confirm_stopped([two])
    (gate,) = claimed("gate", work=0, gate=1)
    print(store.decide([build.verdict(gate)]))
    return 0


DOES: dict[str, Callable[[dict[str, Any]], int]] = {
    function.__name__: function for function in (work, begin, command, delegate, single_calls)
}


def start(told: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        log = os.open(told["log"], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        for number in (1, 2):
            os.dup2(log, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
        if told["plans"]:
            steps.watch(Deaths(told["plans"], Path(told["fired"]), Path(told["marks"]) / "marks.txt"))
        code = DOES[told["do"]](told)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    load_agents()
    from agents.llm.openai_responses_adapter import ResponsesAdapter  # noqa: F401 - the SDK takes long to import

    for line in sys.stdin:
        told = json.loads(line)
        if "wait" in told:
            pid, status = os.waitpid(-1, 0 if told["wait"] else os.WNOHANG)
            answer = {"pid": pid, "code": os.waitstatus_to_exitcode(status)}
        else:
            answer = {"pid": start(told)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
