"""The turns of models as people read them: what was said, called, answered and paid. All of it is hostile text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from contracts.canonical import canonical_bytes
from contracts.errors import BadInput
from contracts.turns import CallRecord, FailedTry, ModelUsage, StoredTurn
from coordinator.cli.inspecting import pairs
from coordinator.cli.made import GUTTER
from coordinator.cli.tree import dollars
from coordinator.store import Damaged, TaskStore
from coordinator.store.views import AttemptView, TaskView, TurnView
from coordinator.taking_over import read_turns
from coordinator.text import shown

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "Unanswered",
    "event_of_turn",
    "is_model",
    "print_turn",
    "print_unanswered",
    "read_turn",
    "spent_of",
    "turn_line",
    "turn_value",
    "turns_of",
    "unanswered_in",
    "unanswered_value",
]

Pairs = Iterator[tuple[str, str]]
TEXT_LINES_MAX = 40
ANSWER_LINES_MAX = 8
WAIT_SHOWN_S = 0.05
STOPS = {
    "length": "cut off by the limit on its length",
    "refusal": "refused",
    "pause": "paused by the provider",
    "other": "stopped for a reason of the provider's own",
}


def is_model(task: TaskView) -> bool:
    return task.terms.agent is not None and task.terms.agent.model is not None


def turns_of(store: TaskStore, task: TaskView, attempt: AttemptView | None = None) -> list[TurnView]:
    """The turns of a task, or those that one attempt stands on: also the earlier ones of its conversation.

    Raises ``BadInput`` where no model works.
    """
    if not is_model(task):
        kind = task.terms.agent.kind if task.terms.agent is not None else "function"
        where = f"{task.run_id}/{task.task_id}"
        raise BadInput(f"{where} is no model but a {kind}, which has no transcript: `coordinator logs {where}`")
    turns = store.turns(task.orchestration_row, task=task.row)
    if attempt is None:
        return turns
    spoken_in = {turn.conversation for turn in turns if turn.attempt == attempt.number}
    return [turn for turn in turns if turn.conversation in spoken_in and turn.attempt <= attempt.number]


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A turn that an attempt asked for and got no answer to, or none yet. ``first_at``: when it was first asked for."""

    attempt: int
    number: int
    first_at: datetime
    tries: list[CallRecord]


def unanswered_in(
    store: TaskStore, task: TaskView, turns: Sequence[TurnView], attempt: AttemptView | None = None
) -> list[Unanswered]:
    """What was tried in vain for turns that are not among these; of one attempt, or of all. Raises ``Damaged``."""
    answered = {(turn.attempt, turn.number) for turn in turns}
    found: dict[tuple[int, int], Unanswered] = {}
    for view in store.failed_tries(task.row):
        try:
            tried = FailedTry.model_validate_json(view.data)
        except ValueError as error:
            where = f"{task.run_id}/{task.task_id}@{view.attempt}"
            raise Damaged(f"what is stored of a failed try of {where} cannot be read") from error
        place = (view.attempt, tried.turn)
        if place not in answered and (attempt is None or attempt.number == view.attempt):
            found.setdefault(place, Unanswered(*place, view.charged_at, [])).tries.append(tried.record)
    return list(found.values())


def read_turn(store: TaskStore, turn: TurnView) -> StoredTurn | str:
    """A turn with its bytes; or what is wrong with them."""
    try:
        return read_turns(store, [turn])[0]
    except (Damaged, ValueError, TypeError) as error:
        return str(error)


def spent_of(turns: Sequence[TurnView]) -> str:
    """What turns took: ``4,210 tokens, $0.0123``; a plus says that some of it is not known."""
    tokens = sum((turn.input_tokens or 0) + (turn.output_tokens or 0) for turn in turns)
    more = "+" if any(turn.input_tokens is None for turn in turns) else ""
    unpriced = "+" if any(turn.cost_micro_usd is None for turn in turns) else ""
    return f"{tokens:,}{more} tokens, {dollars(sum(turn.cost_micro_usd or 0 for turn in turns))}{unpriced}"


def event_of_turn(store: TaskStore, turn: TurnView) -> str:
    """A turn as one event among others: ``fix: turn 3: edit_file, 4,210 tokens, $0.0123``."""
    return f"{turn.task_id}: turn {turn.number}: {_calls_of(store, turn)}, {spent_of([turn])}"


def turn_line(store: TaskStore, task: TaskView, turns: Sequence[TurnView]) -> str:
    """Where a conversation is: ``turn 3 of 12: edit_file, 4,210 tokens, $0.0123``."""
    last = turns[-1]
    most = f" of {task.terms.budget.max_turns}" if task.terms.budget.max_turns is not None else ""
    return f"turn {last.number}{most}: {_calls_of(store, last)}, {spent_of(turns)}"


def _calls_of(store: TaskStore, turn: TurnView) -> str:
    stored = read_turn(store, turn)
    names = [] if isinstance(stored, str) else [call.name for call in stored.response.calls]
    calls = ", ".join(shown(name, 60) for name in names[:3]) or "no tool"
    return calls + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def turn_value(turn: TurnView, stored: StoredTurn | str) -> dict[str, Any]:
    """All of a turn, for programs."""
    whole = stored.model_dump(mode="json") if isinstance(stored, StoredTurn) else {}
    return {
        "attempt": turn.attempt,
        "conversation": turn.conversation,
        "number": turn.number,
        "late": turn.late,
        "model": turn.model,
        "answered_at": turn.answered_at,
        "finished_at": turn.finished_at,
        "response_digest": turn.response_digest,
        "answers_digest": turn.answers_digest,
        "cost_micro_usd": turn.cost_micro_usd,
        "workspace_tree": turn.workspace_tree,
        "damage": stored if isinstance(stored, str) else None,
        **{key: whole.get(key) for key in ("request_digest", "usage", "tries", "response", "answers")},
    }


def print_turn(out: Console, turn: TurnView, stored: StoredTurn | str) -> None:
    late = ", LATE: its attempt had lost the task" if turn.late else ""
    out.print(
        f"turn {turn.number}, attempt {turn.attempt}, {turn.answered_at:%Y-%m-%d %H:%M:%S}Z, "
        f"{shown(turn.model, 100)}{late}"
    )
    out.print(pairs(_turn_pairs(turn, stored)))


def unanswered_value(turn: Unanswered) -> dict[str, Any]:
    tries = [record.model_dump(mode="json") for record in turn.tries]
    return {"attempt": turn.attempt, "number": turn.number, "first_at": turn.first_at, "tries": tries}


def print_unanswered(out: Console, turn: Unanswered) -> None:
    out.print(f"turn {turn.number}, attempt {turn.attempt}, {turn.first_at:%Y-%m-%d %H:%M:%S}Z, not answered")
    out.print(pairs(("try", try_words(record)) for record in turn.tries))


def _turn_pairs(turn: TurnView, stored: StoredTurn | str) -> Pairs:
    if isinstance(stored, str):
        yield "DAMAGED", stored
        return
    response = stored.response
    yield "usage", usage_words(stored.usage, turn.cost_micro_usd)
    for record in stored.tries:
        if record.outcome != "answered":
            yield "try", try_words(record)
    if response.stop in STOPS:
        yield "stop", STOPS[response.stop]
    yield from _lines(response.text, TEXT_LINES_MAX)
    answers = {answer.call_id: answer for answer in stored.answers or ()}
    for call in response.calls:
        said = canonical_bytes(call.arguments).decode() if call.arguments is not None else f"({call.malformed})"
        yield "call", f"{call.name} {said}"
        answer = answers.get(call.call_id)
        if answer is not None:
            yield "refused" if answer.is_error else "answer", f"{len(answer.text):,} characters"
            yield from _lines(answer.text, ANSWER_LINES_MAX)
        elif stored.answers is None:
            yield "answer", "none is stored yet"


def _lines(text: str, most: int) -> Pairs:
    lines = [line for line in text.splitlines() if line.strip()]
    for line in lines[:most]:
        yield GUTTER, line
    if len(lines) > most:
        yield GUTTER, f"… and {len(lines) - most} more lines; --json has all of it"


def usage_words(usage: ModelUsage | None, cost_micro_usd: int | None) -> str:
    cost = "cost unknown" if cost_micro_usd is None else dollars(cost_micro_usd)
    if usage is None:
        return f"tokens unknown, {cost}"
    cached = f" ({usage.cached_input_tokens:,} from a cache)" if usage.cached_input_tokens else ""
    return f"{usage.input_tokens:,} tokens in{cached}, {usage.output_tokens:,} out, {cost}"


def try_words(record: CallRecord) -> str:
    """A try that brought no answer."""
    status = f" ({record.status})" if record.status is not None else ""
    charged = {"no": "not charged", "yes": "charged", "unknown": "perhaps billed, so it stays charged"}[record.billed]
    waited = f", {record.waited_s:.1f} s were waited before" if record.waited_s >= WAIT_SHOWN_S else ""
    said = f": {record.said}" if record.said else ""
    return f"{record.number}: {record.outcome}{status} after {record.elapsed_s:.1f} s{waited}, {charged}{said}"
