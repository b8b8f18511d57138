"""The Python API: launch an orchestration, or delegate as one goes; synchronous, and the same with ``await``."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from contracts.attenuation import Grant, attenuation_faults
from contracts.base import JSON
from contracts.errors import BadInput, Refused, StoreUnavailable
from contracts.orchestration import Orchestration, Source, Task
from contracts.states import FINAL_STATES, State
from coordinator.home import Home, open_home
from coordinator.launch import Launched, launch, open_program, plan_delegation, plan_launch, refuse_other_terms
from coordinator.models import refuse_missing_keys
from coordinator.results import RunResult, TaskResult, run_result, task_result
from coordinator.store import TaskStore
from coordinator.store.database import StoreBroken
from coordinator.store.records import NewChild, NewTask
from coordinator.store.views import RequestView, TaskView
from coordinator.worker import DEFAULT_SLOTS, POLL_S, Worker
from coordinator.workplaces import refuse_unfit_place

__all__ = ["AsyncCoordinator", "AsyncRun", "Child", "Coordinator", "Run", "SyncChild"]

T = TypeVar("T")


class AsyncCoordinator:
    """Launches orchestrations and works on them in this process; other workers of the same store may join.

    ``store``: ``sqlite:///PATH``, a path, or ``postgresql://…``; None means ``$COORDINATOR_STORE``, else
    ``.coordinator/store.db`` at the git root. ``workers``: how many children run side by side here.
    """

    def __init__(
        self, store: str | None = None, *, home: str | Path | None = None, workers: int = DEFAULT_SLOTS
    ) -> None:
        if workers < 1:
            raise BadInput(f"workers={workers}: at least one child must be able to run")
        self.home: Home = open_home(store, home)
        self.store = TaskStore(self.home.url, self.home.folder)
        self._workers = workers

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await asyncio.to_thread(self.store.close)

    async def run(
        self,
        orchestration: Orchestration,
        *,
        inputs: Mapping[str, JSON] | None = None,
        new: bool = False,
        as_new_version: bool = False,
    ) -> RunResult:
        """Launch, or continue the open run of the same name and content, and work until it ends or waits for a person.

        Raises ``BadInput`` with every fault, ``Refused`` when an open run of this name has other content.
        """
        plan = await asyncio.to_thread(plan_launch, orchestration, inputs=inputs, exclude=self.home.own_files())
        launched = await asyncio.to_thread(launch, self.store, self.home, plan, new=new, as_new_version=as_new_version)
        del plan  # large
        await Worker(self.store, self.home, slots=self._workers, runs=[launched.row]).run()
        return await asyncio.to_thread(run_result, self.store, launched.row)

    @contextlib.asynccontextmanager
    async def start(
        self,
        name: str,
        *,
        objective: str,
        source: str | Source | None = None,
        inputs: Mapping[str, JSON] | None = None,
        grant: Grant | None = None,
    ) -> AsyncIterator[AsyncRun]:
        """A run whose children are delegated as the program goes.

        Running the program again after a crash goes on with the same run: a child is found by its ``delegation_id``.
        Leaving the block normally closes the run; leaving it by an exception does not.
        """
        launched = await asyncio.to_thread(
            open_program, self.store, self.home, name, objective=objective, source=source, inputs=dict(inputs or {})
        )
        working = True
        worker = Worker(self.store, self.home, slots=self._workers, runs=[launched.row], keep_going=lambda: working)
        task = asyncio.ensure_future(worker.run())
        run = AsyncRun(self.store, self.home, launched, worker, task, grant)
        try:
            yield run
            await asyncio.to_thread(self.store.close_run, launched.row)
        except BaseException:
            worker.stop()
            raise
        finally:
            working = False
            worker.wake()
            await task

    async def result(self, run: str | None = None) -> RunResult:
        """How a run stands; None means the latest."""
        row = await asyncio.to_thread(self.store.find_run, run)
        return await asyncio.to_thread(run_result, self.store, row)

    async def requests(self, run: str | None = None) -> list[RequestView]:
        """What the run has asked of people, in order."""
        row = await asyncio.to_thread(self.store.find_run, run)
        return await asyncio.to_thread(self.store.requests, row)

    async def answer(self, request_id: str, *, approve: bool, message: str = "") -> None:
        """Reply to a request. Raises ``NotFound``, ``WrongState``."""
        await asyncio.to_thread(self.store.answer, request_id, approved=approve, message=message)

    async def cancel(self, run: str, task_id: str | None = None, *, reason: str = "") -> int:
        """Cancel a run or one task with all below it; how many tasks that ended. Raises ``WrongState`` when it is too
        late."""
        row = await asyncio.to_thread(self.store.find_run, run)
        task = None
        if task_id is not None:
            found = [t.row for t in (await asyncio.to_thread(self.store.run, row)).tasks if t.task_id == task_id]
            if not found:
                raise BadInput(f"{run} has no task {task_id!r}")
            task = found[0]
        return await asyncio.to_thread(self.store.cancel, row, task, reason=reason)


class AsyncRun:
    """A run of a program that delegates as it goes."""

    def __init__(
        self,
        store: TaskStore,
        home: Home,
        launched: Launched,
        worker: Worker,
        task: asyncio.Task[None],
        grant: Grant | None,
    ) -> None:
        self.run_id = launched.run_id
        self._store = store
        self._home = home
        self._row = launched.row
        self._worker = worker
        self._task = task
        self._grant = grant

    async def delegate(self, terms: Task | Mapping[str, Any], *, delegation_id: str) -> Child:
        """Delegate a task: idempotent by ``delegation_id``, which is also its task id.

        Raises ``BadInput`` for faulty terms or a grant beyond the run's, ``Refused`` when the id was used with other
        terms.
        """
        asked = await asyncio.to_thread(self._checked, terms, delegation_id)
        try:
            await self._worker.delegate(asked)
        except Refused:
            await asyncio.to_thread(refuse_other_terms, self._store, self._row, asked.task.terms, delegation_id)
            raise
        return Child(self, delegation_id)

    def _checked(self, terms: Task | Mapping[str, Any], delegation_id: str) -> NewChild:
        plan = plan_delegation(self._store, self._row, terms, delegation_id)
        if self._grant is not None and delegation_id in plan.terms:
            plan.faults += attenuation_faults(self._grant, Grant.of(plan.terms[delegation_id]))
        plan.refuse()
        asked = plan.terms[delegation_id]
        refuse_missing_keys([asked])
        refuse_unfit_place(self._home, [asked])
        files = [self._store.files.make_durable(data) for data in plan.files.values()]
        return NewChild(self._row, NewTask(asked, delegation_id), files)

    async def _result_in_time(self, task_id: str) -> TaskResult | None:
        """The same, while the worker waits for a store that is away."""
        try:
            return await self._task_result(task_id)
        except StoreUnavailable as error:
            if self._task.done() or isinstance(error, StoreBroken):
                raise
            return None

    async def _task_result(self, task_id: str) -> TaskResult | None:
        """The result once the task is final, waits for a person, or can never start; None while it is open."""
        if self._task.done():
            self._task.result()
        return await asyncio.to_thread(self._settled, task_id)

    def _settled(self, task_id: str) -> TaskResult | None:
        view = self._store.settled_task(self._row, task_id)
        if view is None:
            return None
        if view.word == "blocked":
            tasks = {task.task_id: task for task in self._store.run(self._row).tasks}
            if not _blocked_for_good(tasks, tasks[task_id]):
                return None
        elif view.state not in FINAL_STATES and view.word != "waiting":
            return None
        return task_result(self._store, view)


def _blocked_for_good(tasks: Mapping[str, TaskView], task: TaskView) -> bool:
    """Whether something that the task needs has ended otherwise, or can itself never start."""
    if task.word != "blocked":
        return False
    for need in task.terms.needs:
        needed = tasks.get(need.task)
        met = needed is not None and (
            needed.state is State.ACCEPTED or (needed.state is State.PARTIAL and need.partial_ok)
        )
        if not met and (needed is None or needed.state in FINAL_STATES or _blocked_for_good(tasks, needed)):
            return True
    return False


class Child:
    """A delegated child."""

    def __init__(self, run: AsyncRun, task_id: str) -> None:
        self._run = run
        self.task_id = task_id

    async def decided(self, timeout_s: float | None = None) -> TaskResult:
        """Wait until the task has ended, waits for a person (``outcome`` is then ``waiting``), or can never start,
        since what it needs ended otherwise (``blocked``).

        ``TimeoutError`` ends only this wait.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                result = await self._run._result_in_time(self.task_id)
                if result is not None:
                    return result
                await self._run._worker.news(POLL_S / 5)


class _LoopThread:
    """An event loop in a thread of its own, for callers that have none or must not block theirs."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="coordinator", daemon=True)
        self._thread.start()

    def call(self, work: Awaitable[T]) -> T:
        tasks: list[asyncio.Task[Any]] = []

        async def waited() -> T:
            tasks.extend(task for task in [asyncio.current_task()] if task is not None)
            return await work

        future: Future[T] = asyncio.run_coroutine_threadsafe(waited(), self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            # Stop in order, and wait for that; a second Ctrl-C ends the wait.
            self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            with contextlib.suppress(CancelledError):
                future.result()
            raise

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Coordinator:
    """``AsyncCoordinator`` without ``await``."""

    def __init__(
        self, store: str | None = None, *, home: str | Path | None = None, workers: int = DEFAULT_SLOTS
    ) -> None:
        self._inner = AsyncCoordinator(store, home=home, workers=workers)
        self._loop = _LoopThread()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._loop.call(self._inner.close())
        self._loop.close()

    @property
    def store(self) -> TaskStore:
        return self._inner.store

    def run(
        self,
        orchestration: Orchestration,
        *,
        inputs: Mapping[str, JSON] | None = None,
        new: bool = False,
        as_new_version: bool = False,
    ) -> RunResult:
        return self._loop.call(self._inner.run(orchestration, inputs=inputs, new=new, as_new_version=as_new_version))

    @contextlib.contextmanager
    def start(
        self,
        name: str,
        *,
        objective: str,
        source: str | Source | None = None,
        inputs: Mapping[str, JSON] | None = None,
        grant: Grant | None = None,
    ) -> Iterator[Run]:
        manager = self._inner.start(name, objective=objective, source=source, inputs=inputs, grant=grant)
        run = self._loop.call(manager.__aenter__())
        try:
            yield Run(run, self._loop.call)
        except BaseException:
            # Not the error itself: a KeyboardInterrupt would end the loop instead of the block.
            with contextlib.suppress(_Left):
                self._loop.call(manager.__aexit__(_Left, _Left(), None))
            raise
        else:
            self._loop.call(manager.__aexit__(None, None, None))

    def result(self, run: str | None = None) -> RunResult:
        return self._loop.call(self._inner.result(run))

    def requests(self, run: str | None = None) -> list[RequestView]:
        return self._loop.call(self._inner.requests(run))

    def answer(self, request_id: str, *, approve: bool, message: str = "") -> None:
        self._loop.call(self._inner.answer(request_id, approve=approve, message=message))

    def cancel(self, run: str, task_id: str | None = None, *, reason: str = "") -> int:
        return self._loop.call(self._inner.cancel(run, task_id, reason=reason))


class _Left(Exception):
    """The block of a synchronous ``start`` was left by an exception."""


class Run:
    """``AsyncRun`` without ``await``."""

    def __init__(self, inner: AsyncRun, call: Callable[[Awaitable[Any]], Any]) -> None:
        self._inner = inner
        self._call = call
        self.run_id = inner.run_id

    def delegate(self, terms: Task | Mapping[str, Any], *, delegation_id: str) -> SyncChild:
        child: Child = self._call(self._inner.delegate(terms, delegation_id=delegation_id))
        return SyncChild(child, self._call)


class SyncChild:
    """``Child`` without ``await``."""

    def __init__(self, inner: Child, call: Callable[[Awaitable[Any]], Any]) -> None:
        self._inner = inner
        self._call = call
        self.task_id = inner.task_id

    def decided(self, timeout_s: float | None = None) -> TaskResult:
        result: TaskResult = self._call(self._inner.decided(timeout_s))
        return result
