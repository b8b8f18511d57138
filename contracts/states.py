"""Task states and their legal transitions: one table for code, SQL conditions, docs and tests."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

__all__ = [
    "FINAL_STATES",
    "OPEN_STATES",
    "TRANSITIONS",
    "ClaimKind",
    "Outcome",
    "State",
    "Transition",
    "sources_of",
    "targets_of",
    "transition_table",
]


class State(StrEnum):
    """What is stored of a task row. A final state is never left."""

    PENDING = "pending"
    RUNNING = "running"
    SUBMITTED = "submitted"
    ACCEPTED = "accepted"
    PARTIAL = "partial"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"


FINAL_STATES = frozenset({State.ACCEPTED, State.PARTIAL, State.FAILED, State.CANCELLED, State.SUPERSEDED})
OPEN_STATES = frozenset(State) - FINAL_STATES


class ClaimKind(StrEnum):
    """What a claim gives the right to do."""

    WORK = "work"
    GATE = "gate"


class Outcome(StrEnum):
    """What a child says of its own work. ``completed`` is a claim, not an acceptance."""

    COMPLETED = "completed"
    PARTIAL = "partial"
    FAILED = "failed"
    CANCELLED = "cancelled"
    BLOCKED = "blocked"
    UNKNOWN = "unknown"


class Transition(NamedTuple):
    """``verb`` is also the name of the event that is stored with the change."""

    verb: str
    source: State
    target: State
    why: str


P, R, S = State.PENDING, State.RUNNING, State.SUBMITTED

TRANSITIONS: tuple[Transition, ...] = (
    Transition("claimed", P, R, "a worker won the right to work on it"),
    Transition("submitted", R, S, "the child handed in a result; nothing is accepted by that"),
    Transition("released", R, P, "given back without fault: a safe stop, or blocked on a question"),
    Transition("lost", R, P, "the lease ran out, or the owner is proved to be gone"),
    Transition("ended", R, P, "the child failed, stopped itself, or gave no result"),
    Transition("exhausted", R, State.FAILED, "max_claims claims ended without a submission"),
    Transition("gate_claimed", S, S, "a worker won the right to judge it"),
    Transition("gate_lost", S, S, "the judge's lease ran out, or it is proved to be gone; the result keeps its place"),
    Transition("gate_released", S, S, "judging waits for a person, or the judge gave it back"),
    Transition("not_judged", S, S, "a check erred; the result keeps its place"),
    Transition("accepted", S, State.ACCEPTED, "every check and all required evidence held"),
    Transition("accepted_partial", S, State.PARTIAL, "the contribution is accepted, scope stays open"),
    Transition("repair_required", S, P, "a check failed; the findings go to the next attempt"),
    Transition("repairs_exhausted", S, State.FAILED, "max_repairs reached, or a repair changed nothing"),
    Transition("rejected", S, State.FAILED, "a person said no, or a protected limit was crossed"),
    *(Transition("cancelled", source, State.CANCELLED, "a person cancelled it or an ancestor") for source in (P, R, S)),
    *(Transition("superseded", source, State.SUPERSEDED, "a new contract version replaced it") for source in (P, R, S)),
)


def sources_of(verb: str) -> frozenset[State]:
    """States from which ``verb`` is legal; an unknown verb is a programming error."""
    found = frozenset(t.source for t in TRANSITIONS if t.verb == verb)
    assert found, f"no transition is called {verb!r}"
    return found


def targets_of(verb: str) -> frozenset[State]:
    """States to which ``verb`` leads; an unknown verb is a programming error."""
    found = frozenset(t.target for t in TRANSITIONS if t.verb == verb)
    assert found, f"no transition is called {verb!r}"
    return found


def transition_table() -> str:
    """The table for people, in Markdown."""
    rows = [("event", "from", "to", "when"), ("---",) * 4]
    rows += [(f"`{t.verb}`", f"`{t.source}`", f"`{t.target}`", t.why) for t in TRANSITIONS]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
