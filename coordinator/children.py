"""One child from claim to hand-in: its assignment is built, its runtime run, its deadline and its claim watched."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.assignment import Assignment
from contracts.errors import BudgetExhausted, CoordinatorError, StaleClaim, StoreUnavailable
from contracts.ports import Clock, SourceReader, ToolCall
from contracts.results import Result, WorkspaceRecord
from contracts.states import Outcome
from contracts.tools import SOURCE_TOOLS
from coordinator import crash_points
from coordinator.attempt_ports import AttemptPorts, secret_names, set_here
from coordinator.home import Home
from coordinator.logs import WorkerLog, bind_context
from coordinator.manifests import ChildArtifacts, build_manifest
from coordinator.projection import build_assignment
from coordinator.redaction import Redactor
from coordinator.runtimes import load_agents
from coordinator.store import TaskStore
from coordinator.store.records import Claim, Ending, EndingWord, Question, Submission
from coordinator.taking_over import start_of
from coordinator.text import plain
from coordinator.threads import in_own_thread
from coordinator.workplaces import Workplace, Workplaces

if TYPE_CHECKING:
    from agents.broker import Broker
    from agents.runtimes import Runtime

__all__ = ["Child", "Environment", "StopSignal"]

KILL_LIMIT_S = 15.0
"""How long ending a program with all its descendants may take."""

MAY_PASS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What the system refuses for a while."""

STOP_GRACE_S = 5.0
"""How long a child that was told to stop may take before the worker goes on without it."""

SAID: dict[Outcome, EndingWord] = {
    Outcome.FAILED: "failed",
    Outcome.CANCELLED: "cancelled",
    Outcome.UNKNOWN: "unknown",
}


class NotStarted(CoordinatorError):
    """The coordinator could not get as far as starting the child."""


def _passing_cause(error: BaseException) -> BaseException | None:
    """What it comes of, if that is a store that is away or something that the system refuses for a while."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, StoreUnavailable) or (isinstance(cause, OSError) and cause.errno in MAY_PASS):
            return cause
        cause = cause.__cause__
    return None


class StopSignal:
    """Implements ``contracts.ports.CancelSignal``."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._reason = ""

    @property
    def reason(self) -> str:
        return self._reason

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._event.wait(timeout_s)

    def set(self, reason: str) -> None:
        if not self._event.is_set():
            self._reason = reason
            self._event.set()


@dataclass(frozen=True, slots=True)
class Environment:
    """What children of one worker share."""

    store: TaskStore
    clock: Clock
    redactor: Redactor
    log: WorkerLog
    reader_of: Callable[[Claim], SourceReader | None]
    read_no_more: Callable[[Claim], None]
    pinned_file: Callable[[Claim, str], Path]
    workplaces: Workplaces
    output_path: Callable[[Claim], Path]
    lock_path: Path
    home: Home
    folder_of: Callable[[Claim], Path | None]


class Child:
    """A running attempt. What it did goes into the store by ``run``, which never raises for what that was."""

    def __init__(self, claim: Claim, environment: Environment) -> None:
        self.claim = claim
        self._env = environment
        self.signal = StopSignal()
        self.unfit = ""
        """Why nothing of this run can be worked on here; empty while nothing is known against it."""
        self.hindered = False
        """Whether something that may pass (a full disk) kept it from starting."""
        self._loop = asyncio.get_running_loop()
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._returned = False
        """Whether it has ended: what it did is put together, which has no limit of time."""
        self._why: str | None = None
        self.deadline_left_s = (claim.deadline_at - claim.claimed_at) / 1e6
        self._started_monotonic = time.monotonic()
        self._broker: Broker | None = None
        self._runtime: Runtime | None = None
        self._place: Workplace | None = None
        self._ports: AttemptPorts | None = None
        self._rests: Callable[[bool], None] = lambda rests: None
        secrets = secret_names(claim.terms)
        self._redactor = Redactor(os.environ, secrets) if secrets else environment.redactor
        self._artifacts = ChildArtifacts(environment.store, self._redactor)
        self._started_at = environment.clock()
        self._log = environment.log.of(claim)

    def stop(self, why: str) -> None:
        """Tell the child to stop; from any thread. ``lost``: the claim is gone. ``interrupted``: the worker is
        leaving."""
        self.signal.set(why)

        def wake() -> None:
            self._why = self._why or why
            if not self._stopped.done():
                self._stopped.set_result(None)

        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits any more
            self._loop.call_soon_threadsafe(wake)

    async def run(
        self,
        hand_in: Callable[[Submission | Ending | Claim], None],
        free: Callable[[], None],
        rests: Callable[[bool], None],
    ) -> None:
        """Run the child, and hand in what comes of it: a submission or an ending, or its claim once it has stopped.

        ``free`` is called when the child holds no slot any more, though a function that cannot be killed may run on;
        ``rests``, from any thread, when it holds none while it waits for children of its own, and when it is back.
        """
        self._rests = rests
        self._log.info("child_started")
        work = asyncio.ensure_future(self._work())
        left_s = self.deadline_left_s - (time.monotonic() - self._started_monotonic)
        either: set[asyncio.Future[Any]] = {work, self._stopped}
        await asyncio.wait(either, timeout=max(left_s, 0), return_when=asyncio.FIRST_COMPLETED)
        if work.done() or self._returned:
            pass
        elif self._stopped.done():
            await asyncio.wait({work}, timeout=STOP_GRACE_S)  # to reach a safe point
        else:
            self._why = "deadline"
            self.signal.set("deadline")
            if self._runtime is not None and self._runtime.kills:
                await asyncio.wait({work}, timeout=KILL_LIMIT_S)
        if self._returned:
            await asyncio.wait({work})
        if work.done() and self._why != "deadline":
            hand_in(work.result())
            if self._place is None or self._place.workspace is not None or self._place.scratch.exists():
                await asyncio.to_thread(self._leave)
            else:
                self._env.read_no_more(self.claim)
            return
        stoppable = await self._try_to_stop(work) and self._all_gone
        if self._why == "deadline":
            limit = self.claim.terms.limits.deadline_s
            still = (
                "" if stoppable else "; its function cannot be killed and may still be running, its result is barred"
            )
            hand_in(
                Ending(self.claim, "deadline", f"not done within its deadline of {limit:g} s{still}", stopped=stoppable)
            )
        elif self._why == "interrupted":
            hand_in(Ending(self.claim, "released", "the worker was told to stop", stopped=stoppable))
        if not stoppable:
            free()
            with contextlib.suppress(BaseException):
                await asyncio.wait({work})
        if work.done() and not work.cancelled() and work.exception() is None:
            late = work.result()
            hand_in(late if isinstance(late, Submission) else self.claim)
        else:
            hand_in(self.claim)
        if work.done():
            await asyncio.to_thread(self._leave)

    @property
    def _all_gone(self) -> bool:
        """Whether nothing of the child can be running any more, once its work has ended."""
        own = self._runtime is None or self._runtime.all_gone
        return own and (self._ports is None or self._ports.all_gone)

    async def _try_to_stop(self, work: asyncio.Future[Submission | Ending]) -> bool:
        """Cancel an async child; a thread cannot be. Whether it has ended."""
        if not work.done() and self._runtime is not None and self._runtime.stoppable:
            work.cancel()
            await asyncio.wait({work}, timeout=STOP_GRACE_S)
        return work.done()

    async def _work(self) -> Submission | Ending:
        bind_context(self.claim)
        begun = await in_own_thread(self._begin, f"child-{self.claim.task_id}")
        if not isinstance(begun, Awaitable):
            return begun
        came: Result | BaseException
        try:
            came = await begun
        except (Exception, asyncio.CancelledError) as error:
            came = error
        return await asyncio.to_thread(self._conclude, came)

    def _begin(self) -> Submission | Ending | Awaitable[Result]:
        """All that the child does, unless it has to run on the loop; in a thread of its own."""
        came: Result | BaseException | Awaitable[Result]
        try:
            self._runtime, assignment = self._ready()
            came = self._runtime.run(assignment)
        except Exception as error:
            came = error
        return came if isinstance(came, Awaitable) else self._conclude(came)

    def _ready(self) -> tuple[Runtime, Assignment]:
        try:
            return self._prepare()
        except (BudgetExhausted, StaleClaim):
            raise
        except (CoordinatorError, OSError) as error:
            # None of the child's code has run: what is missing here says nothing of the task, and is no try.
            if _passing_cause(error) is not None:
                raise NotStarted(f"it could not be started yet: {error}") from error
            self.unfit = self._clean(str(error), 500)
            raise NotStarted(f"this worker cannot work on {self.claim.run_id}: {self.unfit}") from error

    def _prepare(self) -> tuple[Runtime, Assignment]:
        claim, env = self.claim, self._env
        agents = load_agents()
        from agents.broker import Broker
        from agents.runtimes import Place

        def on_call(call: ToolCall) -> None:
            crash_points.reached("tool_call", claim.task_id, claim.attempt)
            self._log.info("tool_call", tool=call.tool, ok=call.ok, path=call.arguments.get("path"))

        start = start_of(env.store, claim)
        self._place = place = env.workplaces.make(claim, start.tree)
        if start.tree is not None and place.tree != start.tree:
            start = start.without_files(claim.attempt)
        workspace = place.workspace.folder if place.workspace is not None else None
        needs_source = bool(SOURCE_TOOLS & set(claim.terms.resources.tools)) or workspace is not None
        reader = env.reader_of(claim) if needs_source else None
        output_path = env.output_path(claim)
        self._ports = ports = AttemptPorts(
            claim, env.store, env.home, env.workplaces, place, start, loop=self._loop, signal=self.signal,
            redactor=self._redactor, clean=self._asked, rests=self._rests, pinned_file=env.pinned_file,
            output_path=output_path, lock_path=env.lock_path,
        )  # fmt: skip
        broker = Broker(
            claim.terms.resources, reader, clock=env.clock, on_call=on_call, workspace=workspace, runner=ports.runner,
            operations=ports.operations, inbox=ports.inbox, delegator=ports.delegator, servers=ports.servers,
        )  # fmt: skip
        self._broker = broker
        assignment = build_assignment(
            env.store, claim, tools=broker, cancel=self.signal, artifacts=self._artifacts,
            files_missing=start.files_missing,
        )  # fmt: skip
        if assignment.feedback is not None:
            broker.start_calls_anew(assignment.feedback.attempt)
        assignment.workspace = workspace
        assignment.journal, assignment.meter = ports.journal, ports.meter
        assignment.files_of = None if start.turns else start.tree_of
        pins = {name: pin.rpartition("@")[2] for name, pin in claim.terms.input_snapshot.items()}
        assert claim.terms.agent is not None, claim.address
        folder = env.folder_of(claim)
        if folder is not None:
            from coordinator.modules import add_folder

            add_folder(folder)
        runtime: Runtime = agents.build_runtime(
            claim.terms.agent,
            pins=pins,
            pinned_file=lambda name: env.pinned_file(claim, name),
            place=Place(
                scratch=place.scratch,
                workspace=place.working_folder,
                output_path=output_path,
                lock_path=env.lock_path,
                credentials=set_here(claim.terms.resources.credentials),
            ),
        )
        ports.charge_program()
        crash_points.reached("prepared", claim.task_id, claim.attempt)
        return runtime, assignment

    def _conclude(self, came: Result | BaseException) -> Submission | Ending:
        """From what the child did to what goes into the store."""
        if self._ports is not None:
            self._ports.close()
        self._returned = True
        crash_points.reached("child_returned", self.claim.task_id, self.claim.attempt)
        if isinstance(came, BaseException):
            error = came
            word: EndingWord = "no_result" if isinstance(error, CoordinatorError) else "failed"
            if isinstance(error, BudgetExhausted):
                return Ending(self.claim, "failed", self._clean(str(error), 1000))
            reason = str(error) if isinstance(error, CoordinatorError) else f"{type(error).__name__}: {error}"
            clean = self._clean(reason, 1000)
            trace = self._clean("".join(traceback.format_exception(error)), 20_000) if word == "failed" else None
            self._log.warning("child_failed", reason=clean, trace=trace)
            if self.signal.reason == "interrupted":
                return Ending(self.claim, "released", f"the worker was told to stop ({clean})")
            cause = _passing_cause(error) if isinstance(error, CoordinatorError) else None
            self.hindered = cause is not None and not isinstance(cause, StoreUnavailable)  # that the worker waits for
            if cause is not None or isinstance(error, NotStarted):
                return Ending(self.claim, "released", clean)
            return Ending(self.claim, word, clean)
        result = came
        broker, runtime, place = self._broker, self._runtime, self._place
        assert broker is not None, self.claim.address
        assert runtime is not None, self.claim.address
        assert place is not None, self.claim.address
        if self._ports is not None:
            self._ports.settle_program(result.cost_usd)
        try:
            # Not before every process of the child is gone: what the gate reads cannot be written by it any more.
            workspace = self._snapshot(place, result.outcome) if self._all_gone else None
            manifest = build_manifest(
                self.claim, result, calls=broker.calls(), read_set=broker.read_set(), shown_by=broker.shown_by(),
                artifacts=self._artifacts, redactor=self._redactor, started_at=self._started_at,
                finished_at=self._env.clock(), processes=[*runtime.processes, *broker.processes()],
                workspace=workspace,
            )  # fmt: skip
        except CoordinatorError as problem:
            return Ending(self.claim, "no_result", f"the workspace cannot be judged: {self._clean(str(problem), 1000)}")
        except Exception as problem:
            self._log.error("manifest_failed", trace=self._clean("".join(traceback.format_exception(problem)), 20_000))
            return Ending(self.claim, "no_result", f"the result could not be stored: {self._clean(str(problem), 500)}")
        blobs = self._artifacts.blobs()
        self._log.info("child_ended", outcome=str(result.outcome))
        if result.outcome in (Outcome.COMPLETED, Outcome.PARTIAL):
            place.handed_in = True
            return Submission(self.claim, manifest, blobs)
        if result.outcome is Outcome.BLOCKED:
            about_call = self._ports.operations.unanswered.get(result.question) if self._ports is not None else None
            text = self._asked(result.question) or "the child is blocked and did not say why"
            question = about_call or Question("input", text, None, f"input:{self.claim.attempt_row}")
            return Ending(
                self.claim, "blocked", f"blocked: {text[:300]}", manifest=manifest, artifacts=blobs, question=question
            )
        if self.signal.reason == "interrupted" and result.outcome is Outcome.CANCELLED:
            return Ending(self.claim, "released", "stopped at a safe point", manifest=manifest, artifacts=blobs)
        said = self._clean(result.message, 1000)
        ended = SAID[result.outcome]
        return Ending(self.claim, ended, f"the child said: {said or ended}", manifest=manifest, artifacts=blobs)

    def _snapshot(self, place: Workplace, outcome: Outcome) -> WorkspaceRecord | None:
        """Raises ``Refused`` for a result to be judged; what else an attempt says stands without its files."""
        try:
            return self._env.workplaces.snapshot(self.claim, place, self._redactor)
        except CoordinatorError as problem:
            if outcome in (Outcome.COMPLETED, Outcome.PARTIAL):
                raise
            self._log.warning("workspace_not_taken", reason=self._clean(str(problem), 1000))
            return None

    def _leave(self) -> None:
        """Tidy up, unless something of the child may still be there."""
        self._env.read_no_more(self.claim)
        if self._place is not None and self._all_gone:
            self._redact_output()
            self._env.workplaces.leave(self.claim, self._place)

    def _redact_output(self) -> None:
        """What a program printed could be followed as it came; what is kept of it holds no secret."""
        kept = self._env.output_path(self.claim)
        if kept.is_file():
            clean, found = self._redactor.data(kept.read_bytes())
            if found:
                kept.write_bytes(clean)

    def _asked(self, question: str) -> str:
        """A question as people see it."""
        return self._clean(question, 4000)

    def _clean(self, text: str, limit: int) -> str:
        """Redacted before it is cut: the half of a secret would not be found."""
        return self._redactor.text(plain(text))[0][:limit]
