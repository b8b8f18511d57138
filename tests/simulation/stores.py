"""The production store, with every call announced to the observer, and remembered so that it can come again, late."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine

from coordinator.store import TaskStore, Tick, TickOutcome
from coordinator.store.records import Claim, Ending, Submission, Verdict
from tests.simulation.invariants import Observer
from tests.simulation.snapshot import Call

__all__ = ["AnnouncingStore", "History", "Said"]

_first: list[Engine] = []


@dataclass(frozen=True, slots=True)
class Said:
    """A call that was made; ``outcome`` None: its caller died before it had an answer."""

    verb: str
    item: Any
    outcome: Any


@dataclass(slots=True)
class History:
    said: list[Said] = field(default_factory=list)
    claims: dict[str, Claim] = field(default_factory=dict)
    """By child run id, the claims to work."""
    delegated: list[tuple[Claim, Any]] = field(default_factory=list)


def _tokens(claims: Sequence[Claim]) -> dict[int, set[str]]:
    found: dict[int, set[str]] = defaultdict(set)
    for claim in claims:
        found[claim.task_row].add(claim.token)
    return found


class AnnouncingStore(TaskStore):
    """What a simulated process opens. ``observe``: look at the database, and end the simulation if it is wrong."""

    def __init__(self, *args: Any, observer: Observer, observe: Callable[[], None], history: History, **options: Any):
        self._observer, self._observe, self._history = observer, observe, history
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
        lists = {"submit": tick.submissions, "end": tick.endings, "decide": tick.verdicts}
        items: list[tuple[str, Submission | Ending | Verdict]] = [
            (verb, item) for verb, some in lists.items() for item in some
        ]
        outcomes: dict[str, Sequence[Any]] = {verb: [None] * len(some) for verb, some in lists.items()}
        try:
            claims = [item.claim for _, item in items]
            with self._calling("tick", claims, owner=owner, gone=frozenset(tick.gone)):
                done = super().tick(owner, tick, runs=runs)
            outcomes = {"submit": done.submissions, "end": done.endings, "decide": done.verdicts}
        finally:
            for verb, some in lists.items():
                pairs = zip(some, outcomes[verb], strict=True)
                self._history.said += [Said(verb, item, outcome) for item, outcome in pairs]
        self._history.claims.update({claim.child_run_id: claim for claim in done.claims if claim.kind == "work"})
        return done

    def renew(self, claims: Sequence[Claim]) -> Any:
        with self._calling("renew", claims):
            return super().renew(claims)

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

    def amend(self, run: int, **change: Any) -> int:
        with self._calling("amend"):
            return super().amend(run, **change)

    def answer(self, request_id: str, **more: Any) -> Any:
        with self._calling("answer"):
            return super().answer(request_id, **more)

    def cancel(self, *args: Any, **more: Any) -> int:
        with self._calling("cancel"):
            return super().cancel(*args, **more)
