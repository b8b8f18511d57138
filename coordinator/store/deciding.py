"""Decisions: the acceptance row is the authority, and its transaction compares everything that was judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import Executable, bindparam, func, select, update
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from contracts.errors import StaleClaim
from contracts.results import Finding
from contracts.states import State
from coordinator.store import tables as t
from coordinator.store.asking import open_request
from coordinator.store.claiming import MAX_GATE_TRIES, not_judged_question
from coordinator.store.database import Blob, Tx
from coordinator.store.records import Claim, Done, HeadMoved, Verdict
from coordinator.store.transitions import (
    UNCLAIMED,
    Move,
    advance,
    bump_version,
    first_answer,
    move_of,
    refresh_ready,
    stale,
)

__all__ = ["decide"]

VERBS = (
    "accepted", "accepted_partial", "gate_released", "not_judged", "rejected", "repair_required", "repairs_exhausted",
)  # fmt: skip


HEAD_MOVED = "the head moved on"


def decide(tx: Tx, items: Sequence[Verdict]) -> list[Done | HeadMoved | StaleClaim]:
    """Commit decisions. Repeating one returns its first answer. The caller holds the locks of runs and tasks."""
    if not items:
        return []
    decisions = [Blob.of(item.decision.canonical()) for item in items]
    documents = tx.documents(decisions)
    answers: dict[int, Done | HeadMoved | StaleClaim] = {}
    together: list[_Ruling] = []
    alone: list[_Ruling] = []
    for index, (item, decision) in enumerate(zip(items, decisions, strict=True)):
        _assert_bound(item)
        ruling = _Ruling(index, item, documents[decision.digest])
        # One that moves the head is compared with what the one before has made of it.
        (alone if item.decision.new_head is not None else together).append(ruling)
    for batch in [together, *([ruling] for ruling in alone)]:
        answers |= _decide(tx, batch)
    return [answers[index] for index in range(len(items))]


_HEADS = select(t.orchestration.c.id, t.orchestration.c.head).where(
    t.orchestration.c.id.in_(bindparam("of_runs", expanding=True))
)
_DECIDED = (
    update(t.attempt)
    .where(t.attempt.c.id == bindparam("of_attempt"))
    .values(
        decision=bindparam("v_decision"),
        decision_id=bindparam("v_decision_id"),
        policy_version=bindparam("v_policy_version"),
    )
)


@dataclass(frozen=True, slots=True)
class _Ruling:
    """A verdict of this call. ``decision_id``: row of its document."""

    index: int
    item: Verdict
    decision_id: int


@dataclass(frozen=True, slots=True)
class _Target:
    """The transition that a decision means. ``columns``: to set besides."""

    verb: str
    state: State
    reason: str = ""
    columns: tuple[tuple[str, Any], ...] = ()
    head_moved: bool = False


def _assert_bound(item: Verdict) -> None:
    claim, bound = item.claim, item.decision.bound
    assert (bound.terms_digest, bound.manifest_digest) == (claim.terms_digest, claim.manifest_digest), claim.address
    assert (bound.generation_gated, bound.generation_submitted) == (claim.generation, claim.generation_submitted)


def _decide(tx: Tx, batch: Sequence[_Ruling]) -> dict[int, Done | HeadMoved | StaleClaim]:
    """Those that go through the same transition go together."""
    if not batch:
        return {}
    runs = {ruling.item.claim.orchestration_row for ruling in batch}
    heads: dict[int, str | None] = {row.id: row.head for row in tx.conn.execute(_HEADS, {"of_runs": sorted(runs)})}
    groups: dict[tuple[str, State, tuple[tuple[str, Any], ...]], list[tuple[_Ruling, _Target]]] = {}
    for ruling in batch:
        head = heads[ruling.item.claim.orchestration_row]
        target = _target(tx, ruling.item, head)
        groups.setdefault((target.verb, target.state, target.columns), []).append((ruling, target))
    answers: dict[int, Done | HeadMoved | StaleClaim] = {}
    for (verb, state, _), members in groups.items():
        moves = [_move(tx, ruling.item, target) for ruling, target in members]
        made = advance(tx, verb, moves, target=state, guards=["fence", "same_content", "same_terms"])
        decided: list[tuple[_Ruling, _Target]] = []
        for (ruling, target), ok in zip(members, made, strict=True):
            claim, bound = ruling.item.claim, ruling.item.decision.bound
            head_moved = HeadMoved(found=heads[claim.orchestration_row], judged=bound.head)
            if not ok:
                # A claim to judge ends with its one decision, so whatever it was told then is the answer.
                first = first_answer(tx, claim, VERBS)
                again = head_moved if first is not None and first.reason == HEAD_MOVED else first
                answers[ruling.index] = again or stale(tx, claim, "deciding")
            elif target.head_moved:
                answers[ruling.index] = head_moved
            else:
                answers[ruling.index] = Done(state, reason=target.reason)
                decided.append((ruling, target))
        if decided:
            _record(tx, state, decided)
    return answers


def _record(tx: Tx, state: State, decided: Sequence[tuple[_Ruling, _Target]]) -> None:
    """What a decision brings with it, besides the state of its task."""
    tx.conn.execute(
        _DECIDED,
        [
            {
                "of_attempt": ruling.item.claim.attempt_row, "v_decision": ruling.item.decision.decision,
                "v_decision_id": ruling.decision_id, "v_policy_version": ruling.item.decision.bound.policy_version,
            }
            for ruling, _ in decided
        ],
    )  # fmt: skip
    _record_checks(tx, [ruling.item for ruling, _ in decided])
    for ruling, _ in decided:
        for question in ruling.item.questions:
            open_request(tx, ruling.item.claim.orchestration_row, ruling.item.claim.task_row, question)
    if state in (State.ACCEPTED, State.PARTIAL):
        _build_on(tx, [ruling.item for ruling, _ in decided])
    elif state is State.PENDING:
        for ruling, _ in decided:
            refresh_ready(tx, ruling.item.claim.orchestration_row, task_row=ruling.item.claim.task_row)
    else:
        for ruling, _ in decided:
            if ruling.item.decision.decision == "not_judged":
                _ask_when_tried_enough(tx, ruling.item)


def _build_on(tx: Tx, accepted: Sequence[Verdict]) -> None:
    """What others may build on has grown."""
    keys: dict[int, list[str]] = {}
    for item in accepted:
        row = item.claim.orchestration_row
        keys.setdefault(row, []).append(item.claim.task_id)
        if item.decision.new_head is not None:
            # The head was compared above, under the run's lock: what becomes the head is what was judged.
            moved = update(t.orchestration).where(t.orchestration.c.id == row)
            tx.conn.execute(moved.values(head=item.decision.new_head))
    for row, accepted_keys in keys.items():
        bump_version(tx, row)
        refresh_ready(tx, row, needing=accepted_keys)


def _ask_when_tried_enough(tx: Tx, item: Verdict) -> None:
    claim = item.claim
    tries = tx.conn.execute(select(t.task.c.gate_tries).where(t.task.c.id == claim.task_row)).scalar_one()
    if tries >= MAX_GATE_TRIES:
        question = not_judged_question(claim.task_row, claim.generation, int(tries), item.decision.reason)
        open_request(tx, claim.orchestration_row, claim.task_row, question)


def _target(tx: Tx, item: Verdict, head: str | None) -> _Target:
    claim, decision = item.claim, item.decision
    untried = (("gate_tries", 0),)
    if head != decision.bound.head:
        return _Target("gate_released", State.SUBMITTED, HEAD_MOVED, untried, head_moved=True)
    match decision.decision:
        case "accepted" if decision.partial:
            return _Target("accepted_partial", State.PARTIAL, "accepted as partial: scope stays open")
        case "accepted":
            return _Target("accepted", State.ACCEPTED)
        case "rejected":
            return _Target("rejected", State.FAILED, decision.reason)
        case "not_judged":
            return _Target("not_judged", State.SUBMITTED, decision.reason)
        case "waiting":
            return _Target("gate_released", State.SUBMITTED, decision.reason, untried)
        case "repair_required":
            repairs = _repairs(tx, claim)
            if item.no_progress:
                why = "no progress: the repaired result and its findings are the same as before"
                return _Target("repairs_exhausted", State.FAILED, f"{why}; {decision.reason}")
            if repairs >= claim.terms.limits.max_repairs:
                why = f"{repairs} of {claim.terms.limits.max_repairs} repairs used"
                return _Target("repairs_exhausted", State.FAILED, f"{why}; {decision.reason}")
            return _Target("repair_required", State.PENDING, decision.reason)


def _repairs(tx: Tx, claim: Claim) -> int:
    query = select(func.count()).where(
        t.attempt.c.task_id == claim.task_row,
        t.attempt.c.decision == "repair_required",
        t.attempt.c.id != claim.attempt_row,
    )
    return int(tx.conn.execute(query).scalar_one())


def _move(tx: Tx, item: Verdict, target: _Target) -> Move:
    claim, bound = item.claim, item.decision.bound
    reason = target.reason if target.state is State.FAILED else None
    return move_of(
        claim,
        tx.now,
        values={**UNCLAIMED, **dict(target.columns), "reason": reason},
        data=_event_data(claim, target.reason, item.decision.feedback),
        attempt=claim.attempt_row,
        submitted=bound.generation_submitted,
        manifest=bound.manifest_digest,
        terms=bound.terms_digest,
    )


def _event_data(claim: Claim, reason: str, feedback: Sequence[Finding]) -> dict[str, Any]:
    data: dict[str, Any] = {"attempt": claim.attempt}
    if reason:
        data["reason"] = reason
    if feedback:
        data["findings"] = [f"{finding.check}: {finding.message}" for finding in feedback[:20]]
    return data


def _record_checks(tx: Tx, items: Sequence[Verdict]) -> None:
    runs = {
        (item.claim.attempt_row, run.check_digest, item.decision.bound.policy_version): run.outcome
        for item in items
        for run in item.decision.checks
    }
    if runs:
        tx.conn.execute(
            _CHECK_RUN[tx.conn.dialect.name],
            [
                {
                    "attempt_id": attempt, "check_digest": digest, "policy_version": policy, "outcome": outcome,
                    "at": tx.now,
                }
                for (attempt, digest, policy), outcome in runs.items()
            ],
        )  # fmt: skip


def _newest_wins(insert: Any) -> Executable:
    statement = insert(t.check_run)
    found = statement.excluded
    return cast(
        "Executable",
        statement.on_conflict_do_update(
            index_elements=["attempt_id", "check_digest", "policy_version"],
            set_={"outcome": found.outcome, "at": found.at},
        ),
    )


_CHECK_RUN = {"sqlite": _newest_wins(sqlite_insert), "postgresql": _newest_wins(postgres_insert)}
