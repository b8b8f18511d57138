"""A worker: takes claims for free slots, runs children, judges results, and brings it all in, one transaction a
tick."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from contracts.errors import Refused, StaleClaim, StoreUnavailable
from contracts.ports import Clock
from contracts.states import ClaimKind
from coordinator import crash_points
from coordinator.children import Child, Environment, StopSignal
from coordinator.gating import GateEnvironment, is_quick, judge_claims
from coordinator.home import Home
from coordinator.inbox import Inbox
from coordinator.leases import LeaseKeeper
from coordinator.locks import OwnerLock, forget_owner, owner_is_gone
from coordinator.logs import WorkerLog
from coordinator.outages import Outage
from coordinator.redaction import Redactor
from coordinator.sources import Sources
from coordinator.store import TaskStore, Tick, TickOutcome
from coordinator.store.database import StoreBroken
from coordinator.store.records import Claim, Delegated, Done, Ending, NewChild, Submission, Verdict
from coordinator.store.task_store import utc_now
from coordinator.workplaces import Workplaces

__all__ = ["DEFAULT_SLOTS", "Worker"]

DEFAULT_SLOTS = 4
GATE_BATCH = 64
NOT_JUDGED_PAUSE_S = 1.0
"""After a check erred: three tries within a moment would make a request to a person of every short outage."""
HINDERED_PAUSE_S = 10.0
"""After something outside (a full disk) kept a child from starting: each try costs an attempt in the store."""
STOP_PATIENCE_S = 10.0
"""How long a worker that was told to stop waits for a store that is away, to hand in what is finished."""
POLL_S = 0.25
"""How often an idle worker looks for what other processes have made eligible."""


class Worker:
    """Works on the open runs of a store until they end, wait for people, or it is told to stop.

    ``runs``: rows of the runs to work on; None means all that are open. ``claims_max``: for tests and demonstrations,
    how many claims it takes at most.
    """

    def __init__(
        self,
        store: TaskStore,
        home: Home,
        *,
        slots: int = DEFAULT_SLOTS,
        runs: Sequence[int] | None = None,
        name: str = "worker",
        clock: Clock = utc_now,
        claims_max: int | None = None,
        keep_going: Callable[[], bool] = lambda: False,
        new_id: Callable[[int], str] = secrets.token_hex,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.owner = f"{name}-{new_id(4)}"
        self._jitter = jitter
        self._store = store
        self._home = home
        self._slots = slots
        self._runs = runs
        self._clock = clock
        self._claims_left = claims_max
        self._keep_going = keep_going
        self._inbox = Inbox()
        self._children: dict[str, tuple[Child, asyncio.Task[None]]] = {}
        self._resting: set[str] = set()
        """Tokens of the children that hold no slot, since they wait for children of their own."""
        self._to_judge: list[Claim] = []
        self._gate_next = True
        self._gate_pause_until = 0.0
        self._work_pause_until = 0.0
        self._outage = Outage(self.owner, jitter)
        self._unsure = False
        """Whether the answer to a claim may have been lost on its way here."""
        self._judging: set[asyncio.Task[None]] = set()
        self._gate_signals: set[StopSignal] = set()
        self._wake: asyncio.Event | None = None
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self._look_now = False
        self._over = False
        self._next_roll_call = 0.0
        self.unfit: dict[int, str] = {}
        """Rows of the runs on which this worker cannot work, and why."""
        self._sources = Sources(store, home)
        self._redactor = Redactor(os.environ)
        self._gate_threads = ThreadPoolExecutor(slots, thread_name_prefix="gate")

    def stop(self) -> None:
        """Stop taking work, let children reach a safe point, give claims back; from any thread."""
        self._stopping = True
        self.wake()

    def wake(self) -> None:
        """Look at the store now; from any thread."""
        self._look_now = True
        if self._loop is not None and self._wake is not None and not self._wake.is_set():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake.set)

    async def news(self, timeout_s: float) -> None:
        """Wait until this worker has brought something into the store that may settle a task, or for so long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), timeout_s)

    async def delegate(self, child: NewChild) -> Delegated:
        """Bring it in with the next tick, which may claim it at once. Raises what ``TaskStore.delegate`` raises."""
        if self._over:
            delegate = partial(self._store.delegate, child.orchestration_row, [child.task], files=child.files)
            return (await asyncio.to_thread(delegate))[0]
        told = self._inbox.delegate(child)
        self.wake()
        return await told

    async def run(self) -> None:
        """Work. A store that is away is waited for, as long as it takes; what is finished meanwhile is kept.

        Raises ``StoreBroken`` when waiting would not help, and ``StoreUnavailable`` when the worker was told to stop
        while the store was away; claims are then left to their leases.

        Cancelled, it stops like after ``stop``; cancelled again, it leaves at once.
        """
        try:
            await self._run()
        finally:
            self._over = True
            self._inbox.fail_delegations(StoreUnavailable("the worker has ended, and has not delegated this"))

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        lock = OwnerLock(self._home.locks, self.owner)
        self._keeper = LeaseKeeper(self._store.renew)
        self._log = WorkerLog(self._home.logs / f"{self.owner}.jsonl", redactor=self._redactor, owner=self.owner)
        self._environment = Environment(
            store=self._store,
            clock=self._clock,
            redactor=self._redactor,
            log=self._log,
            reader_of=self._sources.reader,
            read_no_more=self._sources.give_back,
            pinned_file=self._sources.pinned_file,
            folder_of=self._sources.folder,
            workplaces=Workplaces(self._store, self._home, self._sources),
            output_path=lambda claim: self._home.output_of(claim.child_run_id),
            lock_path=lock.path,
            home=self._home,
        )
        self._gate_environment = GateEnvironment(
            self._store, self._sources, self._home, self._clock, self._redactor, lock.path
        )
        work = asyncio.ensure_future(self._loop_until_done())
        try:
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:
                self.stop()
                await work
                raise
            finally:
                if work.done() and not work.cancelled() and work.exception() is None:
                    lock.release()
        finally:
            for child, _ in self._children.values():
                child.stop("lost: the worker has ended")
            self._keeper.close()
            self._gate_threads.shutdown(wait=False)
            self._sources.close()
            self._log.close()
        if self.unfit:
            raise Refused(
                f"this worker cannot work on {'; on '.join(self.unfit.values())}. Nothing of it was lost or used up: "
                "give the --home that it was launched with, or mend what is named"
            )

    async def _loop_until_done(self) -> None:
        assert self._wake is not None
        asked_to_stop = False
        patience_until = float("inf")
        next_look = 0.0
        while True:
            self._wake.clear()
            if self._look_now:
                self._look_now, next_look = False, 0.0
            if self._stopping and not asked_to_stop:
                asked_to_stop = True
                patience_until = time.monotonic() + STOP_PATIENCE_S
                for child, _ in self._children.values():
                    child.stop("interrupted")
                for signal in self._gate_signals:
                    signal.set("interrupted")
            looks = not self._stopping and time.monotonic() >= next_look
            try:
                if self._inbox or looks:
                    more = await self._tick(looks)
                    if more or self._inbox:
                        continue
                    if looks:
                        next_look = time.monotonic() + POLL_S * self._jitter(0.8, 1.2)
                idle = not self._children and not self._judging and not self._inbox
                if idle and (self._stopping or await self._is_over()):
                    return
            except StoreBroken:
                raise
            except StoreUnavailable as error:
                if time.monotonic() >= patience_until:
                    raise
                await asyncio.sleep(self._outage.failed(error, finished=len(self._inbox)))
                continue
            timeout = None if self._stopping else max(next_look - time.monotonic(), 0.001)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), timeout)

    async def _is_over(self) -> bool:
        if self._keep_going():
            return False
        if self._claims_left is not None and self._claims_left <= 0:
            return True
        if self._runs is None:
            open_runs = await asyncio.to_thread(self._store.open_runs)
            return not set(open_runs) - set(self.unfit)
        runs = [run for run in self._runs if run not in self.unfit]
        states = [await asyncio.to_thread(self._store.run_state, run) for run in runs]
        return "open" not in states

    def _fit_runs(self) -> Sequence[int] | None:
        """The runs to take work from; None means every run."""
        if not self.unfit:
            return self._runs
        runs = self._store.open_runs() if self._runs is None else self._runs
        return [run for run in runs if run not in self.unfit]

    async def _tick(self, looks: bool) -> bool:
        """One transaction: bring in what is finished, and take what there is room for. Whether there may be more."""
        inbox, self._inbox = self._inbox, Inbox()
        items: list[Submission | Ending | Verdict] = [*inbox.submissions, *inbox.endings, *inbox.verdicts]
        for item in items:
            self._keeper.remove(item.claim)
        for verdict in inbox.verdicts:
            crash_points.reached("judged", verdict.claim.task_id, verdict.claim.attempt)
        work, gate = self._room() if looks else (0, 0)
        held = self._known_tokens(inbox) if self._unsure else None
        try:
            gone, outcome = await asyncio.to_thread(self._exchange, inbox, looks, work, gate, held)
        except BaseException as error:
            inbox.fail_delegations(error)
            if isinstance(error, StoreUnavailable):
                self._inbox.put_back(inbox)
                self._unsure = True
            raise
        self._outage.over()
        self._unsure = False
        for owner in gone:
            forget_owner(self._home.locks, owner)
        if outcome is None:
            return False
        self._report(inbox, outcome)
        for claim in outcome.claims:
            self._start(claim)
        self._judge_claimed()
        return len(outcome.claims) == gate > 0 or (self._claims_left is not None and bool(outcome.claims))

    def _exchange(
        self, inbox: Inbox, looks: bool, work: int, gate: int, held: set[str] | None
    ) -> tuple[list[str], TickOutcome | None]:
        """Owners found to be gone, and what came of the tick; None if it was not worth a write transaction."""
        gone = self._gone_owners() if looks and time.monotonic() >= self._next_roll_call else []
        runs = self._fit_runs()
        if not (inbox or gone or held is not None or ((work or gate) and self._store.due(runs=runs))):
            return gone, None
        tick = Tick(
            inbox.submissions, inbox.endings, inbox.verdicts, inbox.stopped, inbox.delegations, gone, held, work, gate
        )
        return gone, self._store.tick(self.owner, tick, runs=runs)

    def _gone_owners(self) -> list[str]:
        """Those that hold claims and are proved to be dead."""
        self._next_roll_call = time.monotonic() + POLL_S / 2
        owners = self._store.claim_owners()
        return [owner for owner in owners if owner != self.owner and owner_is_gone(self._home.locks, owner)]

    def _known_tokens(self, inbox: Inbox) -> set[str]:
        """Of every claim that this worker knows of."""
        finished: list[Submission | Ending | Verdict] = [*inbox.submissions, *inbox.endings, *inbox.verdicts]
        return {*self._keeper.tokens(), *self._children, *(item.claim.token for item in finished)}

    def _room(self) -> tuple[int, int]:
        busy = sum(token not in self._resting for token in self._children)
        work = max(self._slots - busy, 0) if time.monotonic() >= self._work_pause_until else 0
        judges = len(self._judging) < self._slots and time.monotonic() >= self._gate_pause_until
        gate = GATE_BATCH if judges else 0
        if self._claims_left is not None:
            # Only one of the two at a time, by turns, so that the limit is kept exactly.
            self._gate_next = not self._gate_next
            gate, work = (min(gate, self._claims_left), 0) if self._gate_next else (0, min(work, self._claims_left))
        return work, gate

    def _report(self, inbox: Inbox, outcome: TickOutcome) -> None:
        if inbox.verdicts or inbox.endings:  # nothing else settles a task
            news, self._news = self._news, asyncio.Event()
            news.set()
        inbox.tell_delegations(outcome.delegations)
        for submission, done in zip(inbox.submissions, outcome.submissions, strict=True):
            claim = submission.claim
            self._log.of(claim).info("submitted" if isinstance(done, Done) else "late_result", detail=str(done))
            if isinstance(done, StaleClaim):
                # Refused for its deadline, the claim is still there and has to be ended; refused as stale, this is a
                # no-op.
                self._inbox.endings.append(Ending(claim, "deadline", str(done)))
            crash_points.reached("submitted", claim.task_id, claim.attempt)
        for ending, ended in zip(inbox.endings, outcome.endings, strict=True):
            self._log.of(ending.claim).info("ended", word=ending.word, detail=str(ended))
        for verdict, decided in zip(inbox.verdicts, outcome.verdicts, strict=True):
            self._log.of(verdict.claim).info("decided", decision=verdict.decision.decision, detail=str(decided))
            if verdict.decision.decision == "not_judged":
                self._gate_pause_until = time.monotonic() + NOT_JUDGED_PAUSE_S
            crash_points.reached("decided", verdict.claim.task_id, verdict.claim.attempt)

    def _start(self, claim: Claim) -> None:
        if self._claims_left is not None:
            self._claims_left -= 1
        crash_points.reached("claimed", claim.task_id, claim.attempt)
        if claim.kind is ClaimKind.WORK:
            child = Child(claim, self._environment)
            self._keeper.add(claim, lambda error: child.stop(f"lost: {error}"))
            rests = partial(self._rest, claim)
            task = asyncio.ensure_future(child.run(self._hand_in, lambda: self._free(claim), rests))
            self._children[claim.token] = (child, task)
            task.add_done_callback(lambda done: self._child_done(claim, done))
        else:
            self._to_judge.append(claim)

    def _judge_claimed(self) -> None:
        """Judge what was claimed: all that only needs a look in one go, what runs programs or merges one by one."""
        quick = [claim for claim in self._to_judge if is_quick(claim)]
        batches = [[claim] for claim in self._to_judge if not is_quick(claim)]
        self._to_judge = []
        for batch in [*([quick] if quick else []), *batches]:
            task = asyncio.ensure_future(self._judge(batch))
            self._judging.add(task)
            task.add_done_callback(self._judging.discard)
            task.add_done_callback(lambda _: self.wake())

    async def _judge(self, batch: list[Claim]) -> None:
        assert self._loop is not None
        signal = StopSignal()
        if self._stopping:
            signal.set("interrupted")
        for claim in batch:
            self._keeper.add(claim, lambda error: signal.set(f"lost: {error}"))
        self._gate_signals.add(signal)
        try:
            # In threads of its own: programs that run for long would leave none for the work of the store.
            judging = self._loop.run_in_executor(
                self._gate_threads, judge_claims, self._gate_environment, batch, signal
            )
            try:
                verdicts = await judging
            except Exception as error:
                self._log.of(batch[0]).error("judging_failed", reason=str(error))
                why = f"judging could not begin: {error}"[:500]
                self._inbox.endings += [Ending(claim, "released", why) for claim in batch]
                return
            for verdict in verdicts:
                if signal.is_set() and verdict.decision.decision == "not_judged":
                    # We ended its programs ourselves: that says nothing of the result, and is no try.
                    self._inbox.endings.append(Ending(verdict.claim, "released", f"judging was ended: {signal.reason}"))
                else:
                    self._inbox.verdicts.append(verdict)
        finally:
            self._gate_signals.discard(signal)

    def _hand_in(self, item: Submission | Ending | Claim) -> None:
        if isinstance(item, Ending) and item.claim.token in self._children:
            child = self._children[item.claim.token][0]
            if child.unfit:
                self.unfit[item.claim.orchestration_row] = child.unfit
            if child.hindered:
                self._work_pause_until = time.monotonic() + HINDERED_PAUSE_S
        if isinstance(item, Submission):
            self._inbox.submissions.append(item)
        elif isinstance(item, Ending):
            self._inbox.endings.append(item)
        else:
            self._inbox.stopped.append(item)
        self.wake()

    def _free(self, claim: Claim) -> None:
        """The slot is free, even if a function that cannot be killed runs on."""
        self._children.pop(claim.token, None)
        self._resting.discard(claim.token)
        self.wake()

    def _rest(self, claim: Claim, rests: bool) -> None:
        """A child waits for children of its own, or is back; from any thread."""
        if rests:
            self._resting.add(claim.token)
        else:
            self._resting.discard(claim.token)
        self.wake()

    def _child_done(self, claim: Claim, task: asyncio.Task[None]) -> None:
        self._free(claim)
        if not task.cancelled() and task.exception() is not None:
            self._log.of(claim).error("child_crashed", exc_info=task.exception())
            reason, _ = self._redactor.text(f"the coordinator failed: {task.exception()!r}")
            self._inbox.endings.append(Ending(claim, "unknown", reason[:500]))
