"""One seed, played through: production workers, store and gate on a real file, and everything that can go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from sqlalchemy import Update

import coordinator.children
import coordinator.gating
import coordinator.launch
import coordinator.leases
import coordinator.model_ports
import coordinator.outages
import coordinator.sources
import coordinator.worker
import coordinator.workplaces
from contracts.assignment import Assignment
from contracts.errors import Refused
from coordinator import crash_points
from coordinator.home import Home
from coordinator.locks import OwnerLock
from coordinator.runtimes import load_agents
from coordinator.store import TaskStore, claiming, transitions
from coordinator.store.database import Tx, to_micros
from coordinator.store.records import Claim, NewTask
from coordinator.worker import Worker
from tests.simulation import people, threads
from tests.simulation.acceptance import Acceptance
from tests.simulation.effects import Outside, Spender
from tests.simulation.elapsed import Elapsed, WatchedKeeper
from tests.simulation.ending import check_the_end, is_active, is_over
from tests.simulation.invariants import Observer
from tests.simulation.loop import Crash, Process, StuckError, VirtualLoop, current, dispose
from tests.simulation.lost import LostCalls
from tests.simulation.outside import Git, SimulatedRuntime, choose_behaviour
from tests.simulation.plan import Plan, child_terms, orchestration
from tests.simulation.snapshot import Reader, Violation
from tests.simulation.spending import Spending
from tests.simulation.stores import AnnouncingStore, History, Said, forged

__all__ = ["Simulation", "play"]

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
OFTEN = ("model_", "operation_", "reserve.", "settle.", "prepare_operation.", "send_operation.", "settle_operation.")
"""Points that are reached seldom."""
PATIENCE_S = 900.0
"""How long after the last fault the work may take to end."""


def play(seed: int, folder: Path, *, trace: Callable[[str], None] | None = None, **focus: Any) -> Simulation:
    """Play one seed in an empty folder. ``focus``: what its plan shall say. Raises ``Violation``, which names the
    seed."""
    simulation = Simulation(seed, folder, trace, **focus)
    try:
        simulation.play()
    except Violation as error:
        raise Violation(f"seed {seed}: {error}\nagain: python -m tests.simulation --seed {seed} --trace") from error
    return simulation


class Simulation:
    def __init__(self, seed: int, folder: Path, trace: Callable[[str], None] | None = None, **focus: Any) -> None:
        self.chance = random.Random(seed)
        self.extra = random.Random(f"{seed} extra")
        """For what came later, so that seeds that were kept for what they found still say the same without it."""
        lost = random.Random(f"{seed} lost")
        self.plan = dataclasses.replace(Plan.of(self.chance, self.extra, lost), **focus)
        self.folder = folder
        self.loop = VirtualLoop(self.chance, job_delay_s=self.plan.job_delay_s)
        self.file = folder / "store.db"
        self.home = Home(f"sqlite:///{self.file}", folder / "files", folder / "outside")
        self.history = History()
        self.elapsed = Elapsed(self.loop.time, self.fail, self.plan.poll, self.plan.job_delay_s)
        self.processes: dict[str, Process] = {}
        self.violation: Violation | None = None
        self.steps: list[str] = []
        self.calm = False
        self.fallbacks = 0
        """How many statements for many rows were undone, and run one by one."""
        self.lost = LostCalls(lost, self.plan.lost_calls, self.loop.time, lambda: self.calm, self.say)
        self._trace = trace
        self._offset_s = 0.0
        self._crashes_left = self.plan.crashes
        self._mixes_left, self._lost_left = self.plan.mixes, self.plan.lost_answers
        self._begun: set[str] = set()
        self._ids = random.Random(seed + 1)
        self._deaths: dict[Process, asyncio.Future[None]] = {}
        self._locks: dict[Process, OwnerLock] = {}
        self._stores: dict[Process, TaskStore] = {}
        self._released: set[Process] = set()
        self._commands: tuple[Process, AnnouncingStore] | None = None

    # -- time, names and what happened ---------------------------------------------------------------------------

    def wall(self) -> datetime:
        return NOON + timedelta(seconds=self.loop.now + self._offset_s)

    def step_clock(self, seconds: float) -> None:
        self._offset_s += seconds
        self.say(f"the clock steps by {seconds:g} s")

    def new_id(self, size: int = 16) -> str:
        return f"{self._ids.getrandbits(8 * size):0{2 * size}x}"

    def say(self, text: str) -> None:
        process = current.get()
        line = f"{self.loop.now:10.3f} {process.name if process else '-':8} {text}"
        self.steps.append(line)
        if self._trace is not None:
            self._trace(line)

    # -- processes -----------------------------------------------------------------------------------------------

    def process(self, name: str, *, commands: bool = False) -> Process:
        """``commands``: it stands for many short ones, which would each open the store for themselves."""
        process = Process(name, commands=commands)
        self._deaths[process] = self.loop.create_future()
        return process

    def command(self, name: str) -> tuple[Process, AnnouncingStore]:
        """The process in which people's commands run, until one of them dies."""
        if not self._commands or not self._commands[0].alive:
            process = self.process("command", commands=True)
            self._commands = (process, self.open_store(process))
        self.say(name)
        return self._commands

    def open_store(self, process: Process) -> AnnouncingStore:
        store = self._stores[process] = AnnouncingStore(
            self.home.url, self.home.folder, clock=self.wall, new_id=self.new_id, observer=self.observer,
            observe=self.observe, history=self.history, mixed=self._mixed, loses_answer=self._loses_answer,
            fail=self.fail, elapsed=self.elapsed, lost=self.lost,
        )  # fmt: skip
        return store

    async def live(self, process: Process, life: Callable[[], Any]) -> bool:
        """Run something as a process, to its end or its death. False: it died."""
        context = copy_context()
        context.run(current.set, process)
        task = self.loop.create_task(life(), context=context)
        await asyncio.wait({task, self._deaths[process]}, return_when=asyncio.FIRST_COMPLETED)
        if not process.alive:
            return False
        if not process.commands:
            self._stores.pop(process).close()
        if not task.cancelled() and task.exception() is not None:
            self.fail(task.exception())
        return True

    def _die(self, process: Process, point: str) -> None:
        self.say(f"dies at {point}")
        process.alive = False
        self._crashes_left -= 1
        # Supervisors of its children hold its lock, too, and may live on for a while.
        lingers = 0.0 if self.chance.random() < 0.7 else self.chance.uniform(0.1, 6)
        context = copy_context()
        context.run(current.set, None)
        self.loop.call_later(lingers, self._release, process, context=context)
        self.loop.call_soon(self._buried, process, context=context)

    def _buried(self, process: Process) -> None:
        self._stores.pop(process).close()
        if not self._deaths[process].done():
            self._deaths[process].set_result(None)

    def _release(self, process: Process) -> None:
        if process in self._locks:
            os.close(self._locks.pop(process)._handle)
        self._released.add(process)

    def is_gone(self, owner: str) -> bool:
        process = self.processes.get(owner)
        return process is not None and not process.alive and process in self._released

    # -- watching ------------------------------------------------------------------------------------------------

    def fail(self, problem: BaseException | str | None) -> NoReturn:
        """The first problem ends the simulation."""
        if self.violation is None:
            text = problem if isinstance(problem, str) else f"{type(problem).__name__}: {problem}"
            self.violation = problem if isinstance(problem, Violation) else Violation(text)
            self.violation.__cause__ = problem if isinstance(problem, Exception) else None
            self.say(f"WRONG: {problem}")
            self.loop.stop()
        raise Crash

    def observe(self) -> None:
        try:
            self.observer.look()
        except Violation as problem:
            self.fail(problem)

    def reached(self, point: str, task_id: str | None, attempt: int | None) -> None:
        if self.violation is not None:
            raise Crash
        self.observe()
        process = current.get()
        if process is None:
            return
        self.say(f"{point} {task_id or ''}{f' {attempt}' if attempt else ''}")
        often = 6 if point.startswith(OFTEN) else 1
        if self._crashes_left > 0 and not self.calm and self.chance.random() < often * self.plan.crash_chance:
            self._die(process, point)
            raise Crash

    # -- what is late, or lost -----------------------------------------------------------------------------------

    def _mixed(self, verbs: Sequence[str]) -> dict[str, list[Said]]:
        """Late calls that come together with new ones of these verbs: said before, or with a token made up."""
        found: dict[str, list[Said]] = {}
        for verb in verbs:
            old = [said for said in self.history.said[-40:] if said.verb == verb and said.outcome is not None]
            if old and self._mixes_left > 0 and not self.calm and self.extra.random() < 0.6:
                self._mixes_left -= 1
                several = self.extra.choices(old, k=self.extra.randint(1, 2))
                found[verb] = [self.perhaps_forged(said) for said in several]
                self.say(f"{len(found[verb])} late: {verb}")
        return found

    def perhaps_forged(self, said: Said) -> Said:
        return said if self.extra.random() < 0.5 else forged(said)

    def _loses_answer(self) -> bool:
        loses = self._lost_left > 0 and not self.calm and self.extra.random() < 0.15
        if loses:
            self._lost_left -= 1
            self.say("the answer is lost")
        return loses

    # -- the play ------------------------------------------------------------------------------------------------

    def play(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_template(), self.file)
        reader = Reader(self.file)
        self.git = Git(self.fail)
        self.outside = Outside(reader, self.fail)
        self.observer = Observer(
            reader, now=lambda: to_micros(self.wall()), is_gone=self.is_gone,
            acceptance=Acceptance(reader, self.git), spending=Spending(self.outside.ends), unheard=self.history.unheard,
        )  # fmt: skip
        self.loop.set_exception_handler(self._unhandled)
        try:
            with pytest.MonkeyPatch.context() as patch, crash_points.armed(self.reached):
                self._put_outside(patch)
                self._run()
                if self.violation is None:
                    self._end(reader)
                dispose(self.loop)
        finally:
            reader.close()
            for store in [*self._stores.values()]:
                store.close()
            for process in list(self._locks):
                self._release(process)
        if self.violation is not None:
            raise self.violation

    def _run(self) -> None:
        try:
            self.loop.run_until_complete(self._main())
        except (StuckError, TimeoutError) as error:
            self.violation = self.violation or Violation(f"[3] the work does not end: {type(error).__name__} {error}")
        except (RuntimeError, Crash):  # the loop was stopped at a problem
            if self.violation is None:
                raise

    def _end(self, reader: Reader) -> None:
        try:
            self.observer.look()
            check_the_end(self.observer.before, reader, self.outside, quiet=self.plan.quiet)
        except Violation as problem:
            self.violation = problem

    def _unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self.violation is None and error is not None and not isinstance(error, Crash):
            with contextlib.suppress(Crash):
                self.fail(error)

    def _put_outside(self, patch: pytest.MonkeyPatch) -> None:
        """Everything outside of the store, the scheduler and the gate is the simulation's: time, threads, git,
        children."""
        clock = SimpleNamespace(monotonic=self.loop.time, time=lambda: self.wall().timestamp())
        for module in (coordinator.worker, coordinator.children, coordinator.outages, coordinator.model_ports):
            patch.setattr(module, "time", clock)
        patch.setattr(coordinator.model_ports, "RETRY_S", 0.0)
        patch.setattr(coordinator.outages.LOGGER, "disabled", True)
        counted = partial(self._run_guarded, transitions.run_guarded)
        for verbs in (transitions, claiming):
            patch.setattr(verbs, "run_guarded", counted)
        patch.setattr(coordinator.leases, "threading", threads.of(self.loop))
        patch.setattr(coordinator.children, "in_own_thread", lambda function, name: asyncio.to_thread(function))
        patch.setattr(coordinator.worker, "LeaseKeeper", partial(WatchedKeeper, elapsed=self.elapsed))
        patch.setattr(coordinator.worker, "OwnerLock", self._lock)
        patch.setattr(coordinator.workplaces, "make_workspace", self.git.make_workspace)
        patch.setattr(coordinator.workplaces, "snapshot", self.git.snapshot)
        patch.setattr(coordinator.workplaces, "remove_workspace", self.git.remove_workspace)
        patch.setattr(coordinator.workplaces, "still_inside", lambda folder: [])
        patch.setattr(coordinator.gating, "merge_onto", self.git.merge_onto)
        patch.setattr(coordinator.sources, "TreeReader", _NoReader)
        patch.setattr(coordinator.launch, "fetch_source", lambda *args, **more: None)
        patch.setattr(coordinator.launch, "refuse_unfit_place", lambda *args: None)
        patch.setattr(load_agents(), "build_runtime", self._runtime)

    def _run_guarded(self, real: Any, tx: Tx, statement: Update, rows: Sequence[Mapping[str, Any]]) -> list[bool]:
        made: list[bool] = real(tx, statement, rows)
        self.fallbacks += len(rows) > 1 and not all(made)
        return made

    def _lock(self, folder: Path, owner: str) -> OwnerLock:
        process = current.get()
        assert process is not None
        lock = self._locks[process] = OwnerLock(folder, owner)
        self.processes[owner] = process
        release = lock.release

        def released() -> None:
            release()
            self._locks.pop(process, None)

        lock.release = released  # type: ignore[method-assign]
        return lock

    def _runtime(self, *_: Any, place: Any, **__: Any) -> SimulatedRuntime:
        claim = self.history.claims[place.scratch.name]
        limits = claim.terms.limits
        trouble = 0.0 if self.calm else self.plan.trouble
        behaviour = choose_behaviour(
            self.chance, trouble=trouble, lease_s=limits.lease_s, deadline_s=limits.deadline_s,
            delegates=not self.plan.quiet,
        )  # fmt: skip
        process = current.get()
        assert process is not None
        self._begins(claim)
        store = self._stores[process]
        cost_usd = round(self.extra.uniform(0, 0.04), 6) if self.extra.random() < 0.7 else None
        return SimulatedRuntime(
            behaviour, self.git, partial(self._delegate, store), partial(self._spend, store, claim, trouble),
            cost_usd if claim.terms.budget.max_cost_usd is not None else None, partial(self.elapsed.works, claim),
        )  # fmt: skip

    def _begins(self, claim: Claim) -> None:
        if claim.token in self.history.unheard:
            self.fail(f"[1] work on {claim.task_id} began under a claim of which nobody was told")
        if claim.child_run_id in self._begun:
            self.fail(f"[1] attempt {claim.attempt} at {claim.task_id} began twice")
        self._begun.add(claim.child_run_id)

    async def _spend(self, store: TaskStore, claim: Claim, trouble: float, assignment: Assignment) -> None:
        if assignment.meter is not None:
            await Spender(self.outside, store, claim, self.extra, trouble).work(assignment)

    def _delegate(self, store: TaskStore, assignment: Assignment, number: int) -> None:
        claim = self.history.claims[assignment.child_run_id]
        if "-c" in claim.task_id:
            return
        terms = child_terms(claim.terms, number)
        with contextlib.suppress(Refused):
            store.delegate(claim.orchestration_row, [NewTask(terms, terms.task_id)], parent=claim)

    async def _main(self) -> None:
        await people.launch(self)
        everybody = [self._keep_worker(number) for number in range(self.plan.workers)]
        everybody += [people.answers(self), people.storm(self), people.program(self)]
        tasks = [asyncio.ensure_future(one) for one in everybody]
        async with asyncio.timeout(self.plan.fault_s + PATIENCE_S):
            await asyncio.gather(*tasks)

    async def _keep_worker(self, number: int) -> None:
        lives = 0
        while not self.over():
            if not is_active(self.observer.before):  # a worker would open the store, and leave
                await asyncio.sleep(self.chance.uniform(0.3, 2))
                continue
            process = self.process(f"w{number}.{lives}")
            store = self.open_store(process)
            name = process.name

            def work(store: AnnouncingStore = store, name: str = name) -> Any:
                worker = Worker(
                    store, self.home, slots=self.plan.slots, name=name, clock=self.wall, new_id=self.new_id,
                    jitter=lambda low, high: self.chance.uniform(low, high) * self.plan.poll,
                )  # fmt: skip
                return worker.run()

            await self.live(process, work)
            lives += 1
            await asyncio.sleep(self.chance.uniform(0.1, 3))

    def over(self) -> bool:
        return self.calm and is_over(self.observer.before)

    def workflow(self, version: int) -> Any:
        """(the work as authored, its pin)"""
        return orchestration(self.chance, self.extra, self.plan, version), self.git.base() if self.plan.source else None


class _NoReader:
    def __init__(self, *_: object) -> None: ...

    def close(self) -> None: ...


_made: list[Path] = []


def _template() -> Path:
    """An empty store, made once for all seeds of this process: making its tables takes longer than most seeds."""
    if not _made:
        import atexit
        import tempfile

        folder = Path(tempfile.mkdtemp(prefix="simulation-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        TaskStore(f"sqlite:///{folder / 'empty.db'}", folder).close()
        _made.append(folder / "empty.db")
    return _made[0]


@contextlib.contextmanager
def real_threads_forbidden() -> Iterator[None]:
    """Whatever starts a thread is outside of the seed's control."""
    before = threading.active_count()
    yield
    assert threading.active_count() == before, threading.enumerate()
