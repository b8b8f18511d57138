"""What simulated children spend and do outside, through the production ports; and the outside, which remembers it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

from contracts.assignment import Assignment
from contracts.errors import CoordinatorError, OperationUnsettled, Refused, StaleClaim
from contracts.ports import Worst
from contracts.turns import CallRecord, FailedTry
from coordinator import crash_points
from coordinator.model_ports import TaskOperations
from coordinator.redaction import Redactor
from coordinator.store import TaskStore
from coordinator.store.database import Blob
from coordinator.store.records import Claim
from tests.simulation.snapshot import Reader

__all__ = ["Outside", "Spender"]

NO_SECRETS = Redactor({})


@dataclass
class Outside:
    """Where money and bytes go. ``fail`` is told of what breaks a promise."""

    reader: Reader
    fail: Callable[[str], NoReturn]
    ends: dict[int, str] = field(default_factory=dict)
    """By operation row what came of it; ``unknown``: its sender does not know."""
    spent: dict[int, Worst] = field(default_factory=dict)
    """By number of its charge."""

    def spend(self, charge: int, amount: Worst) -> None:
        rows = self.reader.rows("SELECT * FROM charge WHERE id = ? AND settled_at IS NULL", charge)
        covered = rows and rows[0]["micro_usd"] >= amount.micro_usd and rows[0]["tokens"] >= amount.tokens
        if not covered or charge in self.spent:
            self.fail(f"[7] {amount} was spent, and it was not charged before")
        self.spent[charge] = amount

    def row_of(self, claim: Claim, key: str) -> int:
        (row,) = self.reader.rows("SELECT id FROM operation WHERE task_id = ? AND key = ?", claim.task_row, key)
        return int(row["id"])

    def send(self, claim: Claim, key: str, end: str) -> str:
        query = "SELECT * FROM operation WHERE task_id = ? AND key = ?"
        rows = self.reader.rows(query, claim.task_row, key)
        if [(row["state"], row["attempt_id"]) for row in rows] != [("sent", claim.attempt_row)]:
            self.fail(f"[8] the bytes of {key} of {claim.task_id} left, and it is {[row['state'] for row in rows]}")
        if rows[0]["id"] in self.ends:
            self.fail(f"[8] {key} of {claim.task_id} was sent again; before, it {self.ends[rows[0]['id']]}")
        self.ends[rows[0]["id"]] = end
        if end == "failed":
            raise OSError("it did not work")
        if end == "unknown":
            raise OperationUnsettled("nobody saw what came of it")
        return "it worked"


@dataclass(frozen=True, slots=True)
class Spender:
    """One child that pays for calls of a model and has effects outside."""

    outside: Outside
    store: TaskStore
    claim: Claim
    chance: random.Random
    trouble: float

    async def work(self, assignment: Assignment) -> None:
        """Raises what the ports raise, and ``CoordinatorError`` when nobody knows what came of an operation."""
        for number in range(self.chance.randint(1, 3)):
            if self.chance.random() < 0.7:
                await self._operate(assignment, f"operation-{number}")
            await self._call(assignment)

    async def _call(self, assignment: Assignment) -> None:
        chance, meter = self.chance, assignment.meter
        assert meter is not None, self.claim.address
        worst = Worst(chance.randint(1, 30_000), chance.randint(0, 200))
        reserved = await asyncio.to_thread(meter.reserve, worst)
        crash_points.reached("model_charged", self.claim.task_id, self.claim.attempt)
        spent = Worst(chance.randint(0, worst.micro_usd), chance.randint(0, worst.tokens))
        billed = chance.choice(["no", "unknown"]) if chance.random() < 0.2 * self.trouble else "yes"
        if billed != "no":
            self.outside.spend(reserved.number, spent)
        await asyncio.sleep(chance.choice([0.0, 0.2, self._long_s()]))
        crash_points.reached("model_answered", self.claim.task_id, self.claim.attempt)
        if chance.random() < 0.1 * self.trouble:
            return  # the price is not said: the worst case stands
        if billed != "yes":
            record = CallRecord(number=1, started_at="", elapsed_s=0.0, outcome="dropped", billed=billed)
            for _ in range(chance.choice([1, 1, 2])):
                await asyncio.to_thread(meter.failed, reserved, FailedTry(turn=1, record=record))
            return
        await asyncio.to_thread(meter.settle, reserved, spent)
        if chance.random() < 0.3:
            await asyncio.to_thread(meter.settle, reserved, chance.choice([spent, Worst(0, 0)]))

    async def _operate(self, assignment: Assignment, key: str) -> None:
        chance = self.chance
        operations = TaskOperations(self.store, self.claim, NO_SECRETS, assignment.cancel)
        end = "succeeded"
        if chance.random() < 0.8 * self.trouble:
            end = chance.choice(["failed", "unknown", "unknown"])
        send = partial(self.outside.send, self.claim, key, end)
        try:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(operations.run, key, "pay", {"of": key}, send)
            if chance.random() < 0.2:
                await self._settle(self.outside.row_of(self.claim, key), ok=chance.random() < 0.5)  # the first stands
        except OperationUnsettled:
            if chance.random() < 0.5:
                await self._learn_late(key)
            if chance.random() < 0.5:
                raise CoordinatorError("nobody knows what came of it") from None
        except StaleClaim:
            raise
        except Refused:
            return  # it failed before

    async def _learn_late(self, key: str) -> None:
        """The answer comes after all: to a child that may be long gone by then."""
        await asyncio.sleep(self.chance.choice([0.5, self._long_s()]))
        row, ok = self.outside.row_of(self.claim, key), self.chance.random() < 0.5
        if self.outside.ends[row] == "unknown":
            self.outside.ends[row] = "succeeded" if ok else "failed"
            await self._settle(row, ok=ok)

    async def _settle(self, row: int, *, ok: bool) -> None:
        settle = partial(self.store.settle_operation, ok=ok, outcome=Blob.of("it came late"))
        await asyncio.to_thread(settle, self.claim, row)

    def _long_s(self) -> float:
        return self.chance.uniform(0, 1.5 * self.claim.terms.limits.lease_s) * self.trouble
