"""What a child that is a model gets from the store: its journal, its meter, its operations and its answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from contracts.canonical import canonical_bytes, sha256_digest, well_formed
from contracts.errors import OperationUnsettled, Refused, StoreUnavailable, Unanswered
from contracts.ports import CancelSignal, Reserved, Standing, Worst
from contracts.tools import AWAIT_CHILDREN, CONTROL_TOOLS, TOOLS, WRITING_TOOLS
from contracts.turns import CallRecord, FailedTry, ModelUsage, StoredTurn, ToolAnswer, TurnResponse
from coordinator import crash_points
from coordinator.approving import call_question
from coordinator.redaction import Redactor
from coordinator.store import TaskStore
from coordinator.store.artifacts import INLINE_BYTES_MAX
from coordinator.store.database import Blob, StoreBroken
from coordinator.store.journaling import Answered
from coordinator.store.records import Claim, Question
from coordinator.taking_over import Start

__all__ = ["AttemptJournal", "AttemptMeter", "TaskInbox", "TaskOperations", "patiently"]

PATIENCE_S = 30.0
"""How long what was paid for or done already is kept for a store that is away."""

RETRY_S = 0.2

LEAVES_FILES = (frozenset(TOOLS) - WRITING_TOOLS) | frozenset(CONTROL_TOOLS) | {AWAIT_CHILDREN.name}
"""Tools after which the workspace is what it was."""

SAID_CHARS_MAX = 300
"""Of a provider's words about a try, what is kept."""

T = TypeVar("T")


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
            cost_micro_usd=cost_micro_usd, tries=[_kept(one, self._redactor) for one in tries], answers=None,
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


def _kept(record: CallRecord, redactor: Redactor) -> CallRecord:
    """A try as it is stored."""
    said, _ = redactor.text(record.said)
    if len(said) > SAID_CHARS_MAX:  # not before: the half of a secret would not be found
        said = f"{said[:SAID_CHARS_MAX]} …"
    return record.model_copy(update={"said": said})


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
        kept = FailedTry(turn=tried.turn, record=_kept(tried.record, self._redactor))
        clean, _ = self._redactor.value(kept.model_dump(mode="json"))
        data = canonical_bytes(clean)
        spent = Worst(0, 0) if tried.record.billed == "no" else None
        patiently(lambda: self._store.settle(reserved.number, spent, failed=data), self._signal)

    def left(self) -> Worst:
        return self._store.left(self._claim)


class TaskOperations:
    """Implements ``contracts.ports.Operations``. What ``send`` raises means that it failed; only ``OperationUnsettled``
    means that nobody knows."""

    def __init__(
        self,
        store: TaskStore,
        claim: Claim,
        redactor: Redactor,
        signal: CancelSignal,
        files_missing: Collection[str] = (),
    ) -> None:
        """``files_missing``: keys of what earlier attempts have done, and whose files are not in this workspace."""
        self._store = store
        self._claim = claim
        self._redactor = redactor
        self._signal = signal
        self._files_missing = files_missing
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

    def files_are_missing(self, key: str) -> bool:
        return key in self._files_missing

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
