"""The task store: a plain synchronous class. One call is one short transaction; what changes state takes lists."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import func, insert, select, update

from contracts.errors import Refused, StaleClaim
from contracts.ports import Clock, Worst
from contracts.states import State
from coordinator.store import (
    asking,
    cancelling,
    charging,
    claiming,
    deciding,
    journaling,
    launching,
    operating,
    reading,
    submitting,
    task_reading,
)
from coordinator.store import tables as t
from coordinator.store.artifacts import ArtifactFiles
from coordinator.store.database import Blob, Damaged, Database, Tx, intact
from coordinator.store.journaling import Answered, Earlier
from coordinator.store.operating import Settled
from coordinator.store.records import (
    Claim,
    Delegated,
    Done,
    Ending,
    HeadMoved,
    NewChild,
    NewRun,
    NewTask,
    Submission,
    Verdict,
)
from coordinator.store.transitions import lock_orchestrations, lock_tasks
from coordinator.store.views import EventView, RequestView, RunState, RunView, TaskView, TryView, TurnView

__all__ = ["Damaged", "TaskStore", "Tick", "TickOutcome", "utc_now"]


def utc_now() -> datetime:
    return datetime.now(UTC)


def random_id() -> str:
    return secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class Tick:
    """What one tick of a scheduler brings, and how much it can take on.

    ``gone``: owners proved to be gone. ``held``: tokens of every claim that the owner knows of; its others, the answer
    to which was lost, are given back. None: nothing was lost.
    """

    submissions: Sequence[Submission] = ()
    endings: Sequence[Ending] = ()
    verdicts: Sequence[Verdict] = ()
    stopped: Sequence[Claim] = ()
    delegations: Sequence[NewChild] = ()
    gone: Sequence[str] = ()
    held: Collection[str] | None = None
    work: int = 0
    gate: int = 0


@dataclass(frozen=True, slots=True)
class TickOutcome:
    """One outcome for each item of the tick, in its order, and the claims won."""

    submissions: list[Done | StaleClaim] = field(default_factory=list)
    endings: list[Done | StaleClaim] = field(default_factory=list)
    verdicts: list[Done | HeadMoved | StaleClaim] = field(default_factory=list)
    delegations: list[Delegated | Refused] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)


class TaskStore:
    """The only authority on what was claimed, submitted and decided.

    ``url``: ``sqlite:///PATH`` or ``postgresql://…``; ``folder`` holds the larger artifacts. Clock and ids come in, so
    that a simulation can drive them; on PostgreSQL the fence uses the database's clock.
    """

    def __init__(
        self, url: str, folder: Path, *, clock: Clock = utc_now, new_id: Callable[[], str] = random_id
    ) -> None:
        self._db = Database(url, clock=clock)
        self._new_id = new_id
        self.files = ArtifactFiles(folder / "artifacts")
        self.url = self._db.shown_url

    def close(self) -> None:
        self._db.close()

    # -- a run comes into being ------------------------------------------------------------------------------------

    def create_run(self, new: NewRun, *, beside_open: bool = False) -> str | None:
        return self._db.write(lambda tx: launching.create_run(tx, new, beside_open=beside_open))

    def delegate(
        self, run: int, items: Sequence[NewTask], *, parent: Claim | None = None, files: Sequence[Blob] = ()
    ) -> list[Delegated]:
        return self._db.write(lambda tx: launching.delegate(tx, run, items, parent=parent, files=files))

    def amend(self, run: int, **change: Any) -> int:
        return self._db.write(lambda tx: launching.amend(tx, run, **change))

    def close_run(self, run: int) -> None:
        self._db.write(lambda tx: launching.close_run(tx, run))

    # -- the life of a task ----------------------------------------------------------------------------------------

    def claim(
        self, owner: str, *, work: int, gate: int = 0, runs: Sequence[int] | None = None, gone: Sequence[str] = ()
    ) -> list[Claim]:
        return self.tick(owner, Tick(work=work, gate=gate, gone=gone), runs=runs).claims

    def renew(self, claims: Sequence[Claim]) -> list[int | StaleClaim]:
        return self._db.write(lambda tx: claiming.renew(tx, claims))

    def submit(self, items: Sequence[Submission]) -> list[Done | StaleClaim]:
        return self._db.write(lambda tx: _bring_in(tx, Tick(submissions=items)).submissions)

    def end(self, items: Sequence[Ending]) -> list[Done | StaleClaim]:
        return self._db.write(lambda tx: _bring_in(tx, Tick(endings=items)).endings)

    def decide(self, items: Sequence[Verdict]) -> list[Done | HeadMoved | StaleClaim]:
        return self._db.write(lambda tx: _bring_in(tx, Tick(verdicts=items)).verdicts)

    def confirm_stopped(self, claims: Sequence[Claim]) -> None:
        self._db.write(lambda tx: submitting.confirm_stopped(tx, claims))

    def record_workspace(self, claim: Claim, *, folder: str, base_commit: str) -> None:
        """Name the folder of an attempt before it is made."""
        row = insert(t.workspace).values(
            attempt_id=claim.attempt_row, folder=folder, kind=claim.terms.workspace, base_commit=base_commit
        )
        self._db.write(lambda tx: tx.conn.execute(row.values(made_at=tx.now)))

    def workspace_removed(self, claims: Sequence[Claim]) -> None:
        rows = [claim.attempt_row for claim in claims]
        gone = update(t.workspace).where(t.workspace.c.attempt_id.in_(rows))
        self._db.write(lambda tx: tx.conn.execute(gone.values(removed_at=tx.now)))

    # -- what a child spends, says and does ------------------------------------------------------------------------

    def reserve(self, claim: Claim, worst: Worst, *, after: int | None = None) -> int:
        return self._db.write(lambda tx: charging.reserve(tx, claim, worst, after=after))

    def settle(self, charge: int, spent: Worst | None, *, failed: bytes | None = None) -> None:
        self._db.write(lambda tx: charging.settle(tx, charge, spent, failed))

    def left(self, claim: Claim) -> Worst:
        return self._db.read(lambda tx: charging.left(tx, claim))

    def left_of_own(self, claim: Claim) -> Worst:
        return self._db.read(lambda tx: charging.left_of_own(tx, claim))

    def answered(self, item: Answered) -> None:
        """Raises ``StaleClaim`` when the turn was stored, but late."""
        late = self._db.write(lambda tx: journaling.answered(tx, item))
        if late is not None:
            raise late

    def finished(
        self,
        claim: Claim,
        conversation: int,
        number: int,
        answers: Blob,
        tree: str | None,
        wholes: Sequence[Blob] = (),
    ) -> None:
        self._db.write(lambda tx: journaling.finished(tx, claim, conversation, number, answers, tree, wholes))

    def earlier_of(self, claim: Claim) -> Earlier | None:
        return self._db.read(lambda tx: journaling.earlier_of(tx, claim))

    def prepare_operation(self, claim: Claim, key: str, tool: str, arguments: Blob) -> Settled:
        return self._db.write(lambda tx: operating.prepare(tx, claim, key, tool, arguments))

    def send_operation(self, claim: Claim, row: int, action_digest: str | None = None) -> bool:
        return self._db.write(lambda tx: operating.send(tx, claim, row, action_digest))

    def settle_operation(self, claim: Claim, row: int, *, ok: bool, outcome: Blob) -> None:
        self._db.write(lambda tx: operating.settle(tx, claim, row, ok=ok, outcome=outcome))

    def tick(self, owner: str, tick: Tick, *, runs: Sequence[int] | None = None) -> TickOutcome:
        """Everything that one tick of a scheduler changes, in one transaction."""

        def change(tx: Tx) -> TickOutcome:
            outcome = _bring_in(tx, tick)
            if tick.work or tick.gate or tick.gone or tick.held is not None:
                claiming.reap(tx, gone=tick.gone, owner=owner, held=tick.held)
            if tick.work or tick.gate:
                outcome.claims.extend(
                    claiming.claim(tx, owner, work=tick.work, gate=tick.gate, runs=runs, new_id=self._new_id)
                )
            return outcome

        return self._db.write(change)

    def due(self, *, runs: Sequence[int] | None = None) -> bool:
        """Whether a claim would find anything; takes no lock."""
        return self._db.read(lambda tx: claiming.due(tx, runs=runs))

    def claim_owners(self) -> list[str]:
        """Owners of live claims."""
        return self._db.read(claiming.owners)

    # -- people ----------------------------------------------------------------------------------------------------

    def answer(self, request_id: str, *, approved: bool, message: str = "") -> Done:
        return self._db.write(lambda tx: asking.answer(tx, request_id, approved=approved, message=message))

    def cancel(self, run: int, task: int | None = None, *, reason: str = "") -> int:
        return self._db.write(lambda tx: cancelling.cancel(tx, run, task, reason))

    # -- reading ---------------------------------------------------------------------------------------------------

    def find_run(self, prefix: str | None = None) -> int:
        return self._db.read(lambda tx: reading.find_run(tx, prefix))

    def newest_run(self, name: str | None = None) -> int | None:
        return self._db.read(lambda tx: reading.newest_run(tx, name))

    def open_runs_named(self, name: str) -> list[int]:
        return self._db.read(lambda tx: launching.open_runs_named(tx, name))

    def open_runs(self) -> list[int]:
        return self._db.read(reading.open_runs)

    def newest_event(self, run: int) -> int:
        """Number of the newest event of a run; 0 before there is one."""
        query = select(func.max(t.event.c.id)).where(t.event.c.orchestration_id == run)
        return self._db.read(lambda tx: tx.conn.execute(query).scalar() or 0)

    def run(self, run: int, *, superseded: bool = False) -> RunView:
        return self._db.read(lambda tx: reading.run_view(tx, run, superseded=superseded))

    def settled_task(self, run: int, task_id: str) -> TaskView | None:
        """One current task, or None while it may still change by itself: cheap, for those who wait for it."""
        return self._db.read(
            lambda tx: (
                None if task_reading.is_moving(tx, run, task_id) else task_reading.task_view(tx, run, key=task_id)
            )
        )

    def task(self, run: int, *, task_id: str | None = None, delegation_id: str | None = None) -> TaskView | None:
        """One current task, without reading its run."""
        return self._db.read(lambda tx: task_reading.task_view(tx, run, key=task_id, delegation_id=delegation_id))

    def task_ids(self, run: int) -> list[str]:
        return self._db.read(lambda tx: task_reading.task_ids(tx, run))

    def run_document(self, run: int) -> dict[str, Any]:
        return self._db.read(lambda tx: reading.run_document(tx, run))

    def run_state(self, run: int) -> RunState:
        return self._db.read(lambda tx: reading.run_state(tx, run))

    def counts(self, run: int) -> Mapping[str, int]:
        return self._db.read(lambda tx: reading.count_of(tx, run))

    def events(self, run: int, *, after: int = 0) -> list[EventView]:
        return self._db.read(lambda tx: reading.events_of(tx, run, after=after))

    def turns(self, run: int, *, task: int | None = None, after: int = 0) -> list[TurnView]:
        return self._db.read(lambda tx: journaling.turns_in(tx, run, task_row=task, after=after))

    def failed_tries(self, task: int) -> list[TryView]:
        return self._db.read(lambda tx: charging.failed_tries(tx, task))

    def requests(self, run: int, *, task_id: str | None = None) -> list[RequestView]:
        return self._db.read(lambda tx: task_reading.requests_of(tx, run, task_id=task_id))

    def newest_contract_version(self, run: int, task_id: str) -> int:
        return self._db.read(lambda tx: launching.newest_contract_version(tx, run, task_id))

    def read_with(self, query: Callable[[Tx], Any]) -> Any:
        """Run a reader of this package that needs several looks on one view."""
        return self._db.read(query)

    def bytes_of(self, digest: str) -> bytes:
        """Stored bytes, digest checked. Raises ``Damaged``."""
        return self.many_bytes_of([digest])[digest]

    def many_bytes_of(self, digests: Collection[str]) -> dict[str, bytes]:
        """The same for many at once."""
        stored = self._db.read(lambda tx: reading.documents_bytes(tx, digests))
        found: dict[str, bytes] = {}
        for digest in digests:
            if digest not in stored:
                raise Damaged(f"the store has no document {digest}")
            data = stored[digest]
            if data is None:
                data = self.files.read(digest)
            if data is None:
                raise Damaged(f"the file of {digest} is missing: {self.files.path(digest)}")
            found[digest] = intact(digest, data)
        return found

    def state_of(self, task_row: int) -> State:
        query = select(t.task.c.state).where(t.task.c.id == task_row)
        return State(self._db.read(lambda tx: tx.conn.execute(query).scalar_one()))


def _bring_in(tx: Tx, tick: Tick) -> TickOutcome:
    """Every lock at once and in one order, so that two ticks cannot wait for each other; then what is finished."""
    judged = [item.claim for item in tick.verdicts]
    worked: list[Submission | Ending] = [*tick.submissions, *tick.endings]
    asking = [item.claim for item in worked if submitting.may_ask(item)]
    new = [item.orchestration_row for item in tick.delegations]
    lock_orchestrations(tx, [*(claim.orchestration_row for claim in (*judged, *asking)), *new])
    lock_tasks(tx, [claim.task_row for claim in (*judged, *(item.claim for item in worked))])
    outcome = TickOutcome(
        verdicts=deciding.decide(tx, tick.verdicts),
        submissions=submitting.submit(tx, tick.submissions),
        endings=submitting.end(tx, tick.endings),
        delegations=launching.delegate_each(tx, tick.delegations),
    )
    submitting.confirm_stopped(tx, tick.stopped)
    return outcome
