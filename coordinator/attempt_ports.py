"""The ports of one attempt, put together: what its tools and its model reach through them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.errors import BudgetExhausted, StoreUnavailable
from contracts.model_specs import servers_used
from contracts.ports import CancelSignal, Journal, Meter, Worst
from contracts.prices import micro_usd
from contracts.terms import Terms
from coordinator.commands import WorkspaceCommands
from coordinator.delegating import ChildDelegator
from coordinator.home import Home
from coordinator.model_ports import AttemptJournal, AttemptMeter, TaskInbox, TaskOperations, patiently
from coordinator.models import keys_of
from coordinator.redaction import Redactor
from coordinator.runtimes import load_agents
from coordinator.store import TaskStore
from coordinator.store.records import Claim
from coordinator.taking_over import Start
from coordinator.workplaces import Workplace, Workplaces

if TYPE_CHECKING:
    from agents.broker import ToolServers

__all__ = ["AttemptPorts", "secret_names", "set_here"]


def secret_names(terms: Terms) -> list[str]:
    """Variables whose values this attempt must not leave behind: granted ones, and keys of its model and servers."""
    keys = keys_of(terms)
    return [*terms.resources.credentials, *keys.model, *keys.servers]


class AttemptPorts:
    """``journal`` and ``meter`` are there for a model, ``delegator`` where the contract lets it delegate, ``servers``
    where it grants tools of some."""

    journal: Journal | None = None
    meter: Meter | None = None
    delegator: ChildDelegator | None = None
    servers: ToolServers | None = None

    def __init__(
        self,
        claim: Claim,
        store: TaskStore,
        home: Home,
        workplaces: Workplaces,
        place: Workplace,
        start: Start,
        *,
        loop: asyncio.AbstractEventLoop,
        signal: CancelSignal,
        redactor: Redactor,
        clean: Callable[[str], str],
        rests: Callable[[bool], None],
        pinned_file: Callable[[Claim, str], Path],
        output_path: Path,
        lock_path: Path,
    ) -> None:
        terms, pins = claim.terms, claim.terms.input_snapshot
        self._claim = claim
        self._store = store
        self._signal = signal
        self._charge: int | None = None
        self._servers_gone = True
        self.inbox = TaskInbox(store, claim, clean)
        self.operations = TaskOperations(store, claim, redactor, signal, start.files_missing)
        self.runner = WorkspaceCommands(
            loop,
            scratch=place.scratch,
            working_folder=place.working_folder,
            output_path=output_path,
            lock_path=lock_path,
            credentials=set_here(terms.resources.credentials),
            pinned=lambda argument: str(pinned_file(claim, argument)) if argument in pins else argument,
            cancel=signal,
        )
        if terms.agent is not None and terms.agent.model is not None:
            self.journal = AttemptJournal(
                store, claim, start, redactor, signal,
                tree=place.tree, record=lambda turn: workplaces.record(claim, place, turn, redactor),
            )  # fmt: skip
            self.meter = AttemptMeter(store, claim, redactor, signal)
        if terms.resources.delegation != "deny":
            self.delegator = ChildDelegator(store, home, claim, signal, rests)
        if servers_used(terms.resources.tools):
            load_agents()
            from agents.broker import ServerPlace, ToolServers

            where = ServerPlace(
                scratch=place.scratch / "servers",
                cwd=place.working_folder,
                credentials=set_here(keys_of(terms).servers),
                lock_path=lock_path,
            )
            self.servers = ToolServers(terms.mcp_servers, terms.resources.tools, where, signal)

    @property
    def all_gone(self) -> bool:
        """Whether nothing of what was started through them is left."""
        return self.runner.all_gone and self._servers_gone

    def charge_program(self) -> None:
        """A program says at its end what it cost, if it does: what is left of its own budget is charged before it
        starts.

        Raises ``BudgetExhausted``, ``StaleClaim``.
        """
        terms = self._claim.terms
        if terms.agent is None or terms.agent.kind != "command" or terms.budget.max_cost_usd is None:
            return
        left = self._store.left_of_own(self._claim)
        if left.micro_usd == 0:
            raise BudgetExhausted(
                f"the budget of task {self._claim.task_id} is exhausted: {terms.budget.max_cost_usd:g} USD were "
                "charged for earlier attempts, which may have spent all of it"
            )
        worst = Worst(left.micro_usd, 0)
        self._charge = patiently(lambda: self._store.reserve(self._claim, worst, after=0), self._signal)

    def settle_program(self, cost_usd: float | None) -> None:
        """What it says that it cost. Where it says nothing, or the store is away for long, the charge stands."""
        charge = self._charge
        if charge is not None and cost_usd is not None:
            spent = Worst(micro_usd(cost_usd), 0)
            with contextlib.suppress(StoreUnavailable):
                patiently(lambda: self._store.settle(charge, spent), self._signal)

    def close(self) -> None:
        """The child has ended."""
        if self.servers is not None:
            self._servers_gone = self.servers.close()


def set_here(names: list[str]) -> dict[str, str]:
    """Variables of these names, those that are set."""
    return {name: os.environ[name] for name in names if name in os.environ}
