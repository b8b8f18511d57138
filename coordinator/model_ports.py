"""What a child that is a model gets from the store: its journal, its meter, its operations and its answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from contracts.canonical import canonical_bytes, sha256_digest, well_formed
from contracts.errors import CoordinatorError, OperationUnsettled, Refused, StoreUnavailable, Unanswered
from contracts.ports import CancelSignal, Reserved, Standing, Worst
from contracts.tools import AWAIT_CHILDREN, CONTROL_TOOLS, TOOLS, WRITING_TOOLS
from contracts.turns import CallRecord, FailedTry, ModelUsage, StoredTurn, ToolAnswer, TurnResponse
from coordinator import crash_points
from coordinator.approving import call_question
from coordinator.redaction import Redactor
from coordinator.store import TaskStore
from coordinator.store.artifacts import INLINE_BYTES_MAX
from coordinator.store.database import Blob, StoreBroken
from coordinator.store.journaling import Answered, Earlier
from coordinator.store.records import Claim, Question
from coordinator.store.views import TurnView

__all__ = [
    "AttemptJournal",
    "AttemptMeter",
    "Start",
    "TaskInbox",
    "TaskOperations",
    "patiently",
    "read_turns",
    "start_of",
]

PATIENCE_S = 30.0
"""How long what was paid for or done already is kept for a store that is away."""

RETRY_S = 0.2

LEAVES_FILES = (frozenset(TOOLS) - WRITING_TOOLS) | frozenset(CONTROL_TOOLS) | {AWAIT_CHILDREN.name}
"""Tools after which the workspace is what it was."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Start:
    """Where an attempt begins: the turns that it goes on from, and the tree its workspace gets; None: its base.

    ``conversation``: the number of the attempt in which it began.
    """

    conversation: int
    turns: Sequence[StoredTurn] = ()
    tree: str | None = None
    tree_of: int | None = None
    """The attempt that left it so."""


def start_of(store: TaskStore, claim: Claim) -> Start:
    """Where the attempts before this one were, if the contract says so and it can be had exactly; else the beginning.

    Another head is another base: then nothing of it is taken. ``fresh`` takes the tree alone.
    """
    fresh = Start(claim.attempt)
    if claim.attempt == 1 or claim.terms.agent is None or claim.terms.agent.model is None:
        return fresh
    earlier = store.earlier_of(claim)
    if earlier is None or any(turn.base_commit != claim.head for turn in earlier.turns):
        return fresh
    done = [turn for turn in earlier.turns if turn.answers_digest is not None]
    tree = done[-1].workspace_tree if done else None
    if done and tree is None and claim.terms.workspace != "none":
        return fresh  # it could not be recorded
    left_by = done[-1].attempt if tree is not None else None
    fresh = Start(claim.attempt, tree=tree, tree_of=left_by)
    in_order = done == list(earlier.turns)[: len(done)] and len(earlier.turns) - len(done) <= 1
    if claim.terms.on_takeover == "fresh" or not in_order:
        return _as_asked(store, earlier, fresh)
    try:
        turns = read_turns(store, earlier.turns)
    except (CoordinatorError, ValueError, KeyError):
        return fresh
    # What a model has ended by its own word it would end again.
    if earlier.broken_off and not _underway(turns[-1]):
        return fresh
    return Start(earlier.turns[0].conversation, turns, tree, left_by)


def _as_asked(store: TaskStore, earlier: Earlier, fresh: Start) -> Start:
    """With the files as they were when the attempt before asked a person, perhaps in the midst of a turn: the answer
    may be about just these."""
    if earlier.blocked is None:
        return fresh
    number, digest = earlier.blocked
    workspace = json.loads(store.bytes_of(digest)).get("workspace")
    return fresh if workspace is None else replace(fresh, tree=workspace["candidate_tree"], tree_of=number)


def read_turns(store: TaskStore, turns: Sequence[TurnView]) -> list[StoredTurn]:
    """Turns with their bytes. Raises ``Damaged``, and ``ValueError`` for bytes that are no turn."""
    digests = [digest for turn in turns for digest in (turn.response_digest, turn.answers_digest) if digest is not None]
    stored = store.many_bytes_of(digests)
    return [
        StoredTurn.model_validate(
            {
                **json.loads(stored[turn.response_digest]),
                "answers": None if turn.answers_digest is None else json.loads(stored[turn.answers_digest]),
                "workspace_tree": turn.workspace_tree,
            }
        )
        for turn in turns
    ]


def _underway(turn: StoredTurn) -> bool:
    names = {call.name for call in turn.response.calls}
    return bool(names) and "submit_result" not in names


class AttemptJournal:
    """Implements ``contracts.ports.Journal``. ``record``: takes the workspace as it is, after the turn of this number;
    its tree, or None where it cannot be recorded."""

    def __init__(
        self,
        store: TaskStore,
        claim: Claim,
        start: Start,
        redactor: Redactor,
        signal: CancelSignal,
        *,
        tree: str | None,
        record: Callable[[int], str | None],
    ) -> None:
        """``tree``: of the workspace as it begins."""
        self._store = store
        self._claim = claim
        self._start = start
        self._redactor = redactor
        self._signal = signal
        self._record = record
        self._tree = tree
        self._leaves_files = False
        """Whether nothing was called since the tree was recorded that could have changed it."""

    @property
    def conversation(self) -> int:
        """The number of the attempt in which it began."""
        return self._start.conversation

    def turns(self) -> Sequence[StoredTurn]:
        return self._start.turns

    def answered(
        self,
        number: int,
        request_digest: str,
        response: TurnResponse,
        usage: ModelUsage | None,
        cost_micro_usd: int | None,
        tries: Sequence[CallRecord],
    ) -> None:
        """Raises ``StaleClaim`` when the turn is kept, but the task is another's by now."""
        turn = StoredTurn(
            number=number, request_digest=request_digest, response=response, usage=usage,
            cost_micro_usd=cost_micro_usd, tries=list(tries), answers=None,
        )  # fmt: skip
        self._leaves_files = all(call.name in LEAVES_FILES for call in response.calls)
        blob = self._blob(turn.model_dump(mode="json", exclude={"answers", "workspace_tree"}))
        item = Answered(self._claim, self.conversation, number, blob, response.model, usage, cost_micro_usd)
        patiently(lambda: self._store.answered(item), self._signal)

    def finished(self, number: int, answers: Sequence[ToolAnswer]) -> None:
        if not self._leaves_files:
            self._tree = self._record(number)
        self._leaves_files = False
        blob = self._blob([answer.model_dump(mode="json", exclude_none=True) for answer in answers])
        # Too long to be kept inline, so they are durable since they were made.
        wholes = [
            Blob(answer.whole.digest, answer.whole.size_bytes, None)
            for answer in answers
            if answer.whole is not None and answer.whole.size_bytes > INLINE_BYTES_MAX
        ]
        self._store.finished(self._claim, self.conversation, number, blob, self._tree, wholes)

    def _blob(self, value: Any) -> Blob:
        clean, _ = self._redactor.value(value)
        # Not canonical JSON: what a model sends may hold numbers that have no such form.
        return self._store.files.make_durable(well_formed(json.dumps(clean, ensure_ascii=False)).encode())


class AttemptMeter:
    """Implements ``contracts.ports.Meter``."""

    def __init__(self, store: TaskStore, claim: Claim, redactor: Redactor, signal: CancelSignal) -> None:
        self._store = store
        self._claim = claim
        self._redactor = redactor
        self._signal = signal
        self._heard = 0
        """Number of the last charge of this attempt whose number came back."""

    def reserve(self, worst: Worst) -> Reserved:
        self._heard = patiently(lambda: self._store.reserve(self._claim, worst, after=self._heard), self._signal)
        return Reserved(self._heard)

    def settle(self, reserved: Reserved, spent: Worst) -> None:
        patiently(lambda: self._store.settle(reserved.number, spent), self._signal)

    def failed(self, reserved: Reserved, tried: FailedTry) -> None:
        clean, _ = self._redactor.value(tried.model_dump(mode="json"))
        data = canonical_bytes(clean)
        spent = Worst(0, 0) if tried.record.billed == "no" else None
        patiently(lambda: self._store.settle(reserved.number, spent, failed=data), self._signal)

    def left(self) -> Worst:
        return self._store.left(self._claim)


class TaskOperations:
    """Implements ``contracts.ports.Operations``. What ``send`` raises means that it failed; only ``OperationUnsettled``
    means that nobody knows."""

    def __init__(self, store: TaskStore, claim: Claim, redactor: Redactor, signal: CancelSignal) -> None:
        self._store = store
        self._claim = claim
        self._redactor = redactor
        self._signal = signal
        self.unanswered: dict[str, Question] = {}
        """By their text: what has to be asked before a call can be sent."""

    def run(
        self,
        key: str,
        tool: str,
        arguments: Mapping[str, Any],
        send: Callable[[], str],
        standing: Callable[[], Standing] | None = None,
    ) -> str:
        """Raises ``Refused`` with the first outcome of one that has failed before."""
        claim, store = self._claim, self._store
        known = store.prepare_operation(claim, key, tool, self._blob(dict(arguments)))
        if known.state == "succeeded":
            return known.outcome or ""
        if known.state == "failed":
            raise Refused(known.outcome or "it failed before")
        if known.state == "sent":
            raise OperationUnsettled(f"{tool} was sent before, and nobody saw what came of it: a person has to say")
        if tool in claim.terms.resources.needs_approval:
            here = standing() if standing is not None else None
            question = call_question(claim, tool, arguments, here, self._redactor)
            if not store.send_operation(claim, known.row, question.bound_digest):
                self.unanswered[question.text] = question
                raise Unanswered(question.text)
        else:
            store.send_operation(claim, known.row)
        crash_points.reached("operation_sent", claim.task_id, claim.attempt)
        try:
            said = send()
        except OperationUnsettled:
            raise
        except Exception as error:
            self._settle(known.row, str(error) or type(error).__name__, ok=False)
            raise
        crash_points.reached("operation_done", claim.task_id, claim.attempt)
        self._settle(known.row, said, ok=True)
        return said

    def _settle(self, row: int, text: str, *, ok: bool) -> None:
        outcome = self._blob(well_formed(text))
        patiently(lambda: self._store.settle_operation(self._claim, row, ok=ok, outcome=outcome), self._signal)

    def _blob(self, value: Any) -> Blob:
        """Inline, since the store reads it."""
        data = json.dumps(self._redactor.value(value)[0]).encode()
        return Blob(sha256_digest(data), len(data), data)


class TaskInbox:
    """Implements ``contracts.ports.Inbox``. ``clean``: makes of a question what was asked of people."""

    def __init__(self, store: TaskStore, claim: Claim, clean: Callable[[str], str]) -> None:
        self._store = store
        self._claim = claim
        self._clean = clean

    def answer_to(self, question: str) -> tuple[bool, str] | None:
        asked = self._clean(question)
        for item in reversed(self._store.requests(self._claim.orchestration_row, task_id=self._claim.task_id)):
            agreed = item.contract_version == self._claim.terms.contract_version
            if item.kind == "input" and agreed and item.question == asked and item.answer:
                return item.answer.approved, item.answer.message
        return None


def patiently(write: Callable[[], T], signal: CancelSignal) -> T:
    """Repeat a write, which must not mind that, while the store is away: what it says has happened, whatever comes.

    Raises what the write raises, ``StoreUnavailable`` too when it takes too long or the child is told to stop.
    """
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return write()
        except StoreBroken:
            raise
        except StoreUnavailable:
            if time.monotonic() > until_s or signal.wait(RETRY_S):
                raise
