"""The production store, with every call announced to the observer, and remembered so that it can come again, late."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from sqlalchemy import Engine

from contracts.errors import Refused, StaleClaim, StoreUnavailable
from contracts.ports import Worst
from coordinator.store import TaskStore, Tick, TickOutcome
from coordinator.store.database import Blob
from coordinator.store.operating import Settled
from coordinator.store.records import Claim, Done, Ending, HeadMoved, NewChild, Submission, Verdict
from tests.simulation.elapsed import Elapsed
from tests.simulation.invariants import Observer
from tests.simulation.loop import current
from tests.simulation.lost import LostCalls
from tests.simulation.snapshot import Call

__all__ = ["AnnouncingStore", "History", "Said", "forged", "judge_late"]

_first: list[Engine] = []
MADE_UP = "f" * 32


@dataclass(frozen=True, slots=True)
class Said:
    """A call that was made; ``outcome`` None: its caller died before it had an answer."""

    verb: str
    item: Any
    outcome: Any


def forged(said: Said) -> Said:
    """The same call with a token that was made up."""
    return Said(said.verb, replace(said.item, claim=replace(said.item.claim, token=MADE_UP)), StaleClaim("made up"))


def judge_late(said: Said, answer: Any, fail: Callable[[str], NoReturn]) -> None:
    """A call that was answered before: it gets its first answer; with another token it is never new work."""
    repeated = isinstance(answer, Done) and answer.repeated
    if said.item.claim.token == MADE_UP:
        if not (repeated or isinstance(answer, StaleClaim | HeadMoved)):
            fail(f"[2] a forged {said.verb} was taken: {answer}")
    elif isinstance(said.outcome, Done):
        stays = said.verb == "decide" and said.item.decision.decision in ("not_judged", "waiting")
        if answer != replace(said.outcome, repeated=True) and not (stays and isinstance(answer, StaleClaim)):
            fail(f"[2] {said.verb}: {said.outcome}, then {answer}")


@dataclass(slots=True)
class History:
    said: list[Said] = field(default_factory=list)
    claims: dict[str, Claim] = field(default_factory=dict)
    """By child run id, the claims to work."""
    delegated: list[tuple[Claim, Any]] = field(default_factory=list)
    unheard: set[str] = field(default_factory=set)
    """Tokens of claims that were committed, and nobody was told."""
    unheard_charges: dict[int, int] = field(default_factory=dict)
    """By attempt, the number of a charge of which nobody was told."""


def _tokens(claims: Sequence[Claim]) -> dict[int, set[str]]:
    found: dict[int, set[str]] = defaultdict(set)
    for claim in claims:
        found[claim.task_row].add(claim.token)
    return found


class AnnouncingStore(TaskStore):
    """What a simulated process opens. ``observe``: look at the database, and end the simulation if it is wrong.

    ``mixed``: late calls that come with new ones, by verb. ``loses_answer``: whether the answer to a tick is lost.
    """

    def __init__(
        self, *args: Any, observer: Observer, observe: Callable[[], None], history: History,
        mixed: Callable[[Sequence[str]], dict[str, list[Said]]], loses_answer: Callable[[], bool],
        fail: Callable[[str], NoReturn], elapsed: Elapsed, lost: LostCalls,
        **options: Any,
    ) -> None:  # fmt: skip
        self._observer, self._observe, self._history = observer, observe, history
        self._mixed, self._loses_answer, self._fail = mixed, loses_answer, fail
        self._elapsed, self._lost = elapsed, lost
        super().__init__(*args, **options)
        # Statements are put together once for all seeds, rather than once for each process that is simulated.
        engine = self._db.engine
        if not _first:
            _first.append(engine)
        engine.dialect, engine._compiled_cache = _first[0].dialect, _first[0]._compiled_cache

    @contextlib.contextmanager
    def _calling(self, verb: str, claims: Sequence[Claim] = (), **more: Any) -> Iterator[None]:
        self._observer.call = Call(verb, tokens=_tokens(claims), **more)
        try:
            yield
            self._observe()
        finally:
            self._observer.call = None

    def tick(self, owner: str, tick: Tick, *, runs: Sequence[int] | None = None) -> TickOutcome:
        lists: dict[str, Sequence[Submission | Ending | Verdict]] = {
            "submit": tick.submissions, "end": tick.endings, "decide": tick.verdicts,
        }  # fmt: skip
        self._elapsed.looks()
        for ending in tick.endings:
            self._elapsed.ends(ending)
        outcomes: dict[str, list[Any]] = {verb: [None] * len(some) for verb, some in lists.items()}
        late = self._mixed([verb for verb, some in lists.items() if some])
        sent: dict[str, list[Any]] = {
            verb: [*(said.item for said in late.get(verb, ())), *some] for verb, some in lists.items()
        }
        mixed = replace(tick, submissions=sent["submit"], endings=sent["end"], verdicts=sent["decide"])
        held = frozenset(tick.held) if tick.held is not None else None
        try:
            claims = [item.claim for some in sent.values() for item in some]
            with self._calling("tick", claims, owner=owner, gone=frozenset(tick.gone), held=held):
                done = super().tick(owner, mixed, runs=runs)
            self._history.claims.update({claim.child_run_id: claim for claim in done.claims if claim.kind == "work"})
            if self._loses_answer():
                self._history.unheard |= {claim.token for claim in done.claims}
                self._elapsed.waits()
                raise StoreUnavailable("the answer is lost")
            given: dict[str, list[Any]] = {"submit": done.submissions, "end": done.endings, "decide": done.verdicts}
            for verb, earlier in late.items():
                for said, answer in zip(earlier, given[verb], strict=False):
                    judge_late(said, answer, self._fail)
                del given[verb][: len(earlier)]
            outcomes = given
        finally:
            for verb, some in lists.items():
                pairs = zip(some, outcomes[verb], strict=True)
                self._history.said += [Said(verb, item, outcome) for item, outcome in pairs]
        return done

    def renew(self, claims: Sequence[Claim]) -> Any:
        late = self._mixed(["end"]).get("end", []) if claims else []
        tried = [*(said.item.claim for said in late), *claims]
        process = current.get()
        by_holder = process is not None and not process.commands
        if by_holder:
            self._elapsed.tries(claims)
        with self._calling("renew", tried):
            outcomes = super().renew(tried)[len(late) :]
        if by_holder:
            self._lost.perhaps_renewals(claims[0].terms.limits.lease_s)
            self._elapsed.renewed(claims, outcomes)
        return outcomes

    def claim_owners(self) -> list[str]:
        self._elapsed.looks()
        return super().claim_owners()

    def due(self, *, runs: Sequence[int] | None = None) -> bool:
        self._elapsed.looks()
        return super().due(runs=runs)

    def submit(self, items: Sequence[Submission]) -> Any:
        with self._calling("submit", [item.claim for item in items]):
            return super().submit(items)

    def end(self, items: Sequence[Ending]) -> Any:
        with self._calling("end", [item.claim for item in items]):
            return super().end(items)

    def decide(self, items: Sequence[Verdict]) -> Any:
        with self._calling("decide", [item.claim for item in items]):
            return super().decide(items)

    def confirm_stopped(self, claims: Sequence[Claim]) -> None:
        with self._calling("confirm_stopped"):
            super().confirm_stopped(claims)

    def create_run(self, *args: Any, **more: Any) -> Any:
        with self._calling("create_run"):
            return super().create_run(*args, **more)

    def delegate(self, run: int, items: Any, *, parent: Claim | None = None, files: Any = ()) -> Any:
        if parent is not None:
            self._history.delegated.append((parent, items))
        with self._calling("delegate", [parent] if parent is not None else []):
            return super().delegate(run, items, parent=parent, files=files)

    def delegate_by_tick(self, child: NewChild) -> None:
        """As a worker does for its program."""
        with self._calling("tick", delegates=True):
            (outcome,) = super().tick("program", Tick(delegations=[child])).delegations
        if isinstance(outcome, Refused):
            raise outcome

    def amend(self, run: int, **change: Any) -> int:
        with self._calling("amend"):
            return super().amend(run, **change)

    def answer(self, request_id: str, **more: Any) -> Any:
        with self._calling("answer"):
            return super().answer(request_id, **more)

    def reserve(self, claim: Claim, worst: Worst, *, after: int | None = None) -> int:
        with self._calling("reserve", [claim], amount=(worst.micro_usd, worst.tokens)):
            number = super().reserve(claim, worst, after=after)
        unheard = self._history.unheard_charges.pop(claim.attempt_row, number)
        if number != unheard:
            self._fail(f"[7] charge {unheard}, of which nobody was told, was made again, as {number}")
        self._history.unheard_charges[claim.attempt_row] = number
        self._lost.perhaps("reserve")
        del self._history.unheard_charges[claim.attempt_row]
        return number

    def settle(self, charge: int, spent: Worst | None, *, failed: bytes | None = None) -> None:
        amount = None if spent is None else (spent.micro_usd, spent.tokens)
        with self._calling("settle", charge=charge, amount=amount):
            super().settle(charge, spent, failed=failed)
        self._lost.perhaps("settle")

    def prepare_operation(self, claim: Claim, key: str, tool: str, arguments: Blob) -> Settled:
        with self._calling("prepare_operation", [claim]):
            return super().prepare_operation(claim, key, tool, arguments)

    def send_operation(self, claim: Claim, row: int, action_digest: str | None = None) -> bool:
        with self._calling("send_operation", [claim]):
            return super().send_operation(claim, row, action_digest)

    def settle_operation(self, claim: Claim, row: int, *, ok: bool, outcome: Blob) -> None:
        with self._calling("settle_operation", [claim]):
            super().settle_operation(claim, row, ok=ok, outcome=outcome)
        self._lost.perhaps("settle_operation")

    def cancel(self, *args: Any, **more: Any) -> int:
        with self._calling("cancel"):
            return super().cancel(*args, **more)
