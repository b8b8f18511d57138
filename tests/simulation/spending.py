"""Money and side effects, as their rows must be: charged before it is spent, sent once, settled once."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping

from tests.simulation.snapshot import FINAL, Call, Row, Snapshot, Violation

__all__ = ["EVENTS", "Spending"]

EVENTS = ("operation_sent", "operation_succeeded", "operation_failed")
STEPS = {("prepared", "sent"), ("sent", "succeeded"), ("sent", "failed")}
COLUMNS = (("micro_usd", "limit_micro_usd", "charged_micro_usd"), ("tokens", "limit_tokens", "charged_tokens"))

Authority = Callable[[int], None]
"""Raises unless this very call has the right to work on a task."""


def need(holds: object, number: int, text: str) -> None:
    if not holds:
        raise Violation(f"[{number}] {text}")


class Spending:
    """``ends``: by operation row what really came of it, where that is known."""

    def __init__(self, ends: Mapping[int, str]) -> None:
        self._ends = ends

    def look(self, before: Snapshot, after: Snapshot, call: Call, now: int, authority: Authority) -> None:
        if after.charges:
            self._charges(before, after, call, now, authority)
            self._sums(after)
        if after.operations:
            self._operations(before, after, call, now, authority)
            self._handed_out(before, after)

    # -- charged, then spent -------------------------------------------------------------------------------------

    def _charges(self, before: Snapshot, after: Snapshot, call: Call, now: int, authority: Authority) -> None:
        need(set(before.charges) <= set(after.charges), 7, "a charge vanished")
        for key, row in after.charges.items():
            old, stands = before.charges.get(key), (row["micro_usd"], row["tokens"])
            if old is None:
                need(call.verb == "reserve", 7, f"{call.verb} charged something")
                authority(row["task_id"])
                worst = (row["worst_micro_usd"], row["worst_tokens"])
                need(stands == worst == call.amount, 7, f"{stands} was charged, and the worst case is {call.amount}")
                need((row["charged_at"], row["settled_at"]) == (now, None), 7, f"charge {key} is settled already")
            elif tuple(row) != tuple(old):
                need((call.verb, call.charge) == ("settle", key), 7, f"{call.verb} changed charge {key}")
                need(old["failed"] in (None, row["failed"]), 7, f"charge {key} failed twice")
                if (stands, row["settled_at"]) != ((old["micro_usd"], old["tokens"]), old["settled_at"]):
                    need(old["settled_at"] is None, 7, f"charge {key} was settled twice")
                    need((stands, row["settled_at"]) == (call.amount, now), 7, f"charge {key} was settled to {stands}")
                fixed = ("task_id", "attempt_id", "worst_micro_usd", "worst_tokens", "charged_at")
                need(all(row[c] == old[c] for c in fixed), 7, f"charge {key} became another one")

    def _sums(self, after: Snapshot) -> None:
        """What every budget up the tree says is what was charged below it, and none is passed."""
        for amount, limit, charged in COLUMNS:
            of_tasks: dict[int, int] = defaultdict(int)
            of_runs: dict[int, int] = defaultdict(int)
            overruns: dict[tuple[str, int], int] = defaultdict(int)
            for row in after.charges.values():
                need(row[amount] >= 0, 7, f"charge {row['id']} is below zero")
                run = after.tasks[row["task_id"]]["orchestration_id"]
                of_runs[run] += row[amount]
                # Only a program may say that it cost more, and then it is shown.
                beyond = max(row[amount] - row[f"worst_{amount}"], 0)
                overruns["run", run] += beyond
                for task in (row["task_id"], *after.ancestors(row["task_id"])):
                    of_tasks[task] += row[amount]
                    overruns["task", task] += beyond
            for kind, rows, sums in (("task", after.tasks, of_tasks), ("run", after.runs, of_runs)):
                for key, row in rows.items():
                    name = f"{kind} {key}"
                    told = f"{charged} of {name} is {row[charged]}"
                    need(row[charged] == sums[key], 7, f"{told}; its charges: {sums[key]}")
                    fits = row[limit] is None or row[charged] - overruns[kind, key] <= row[limit]
                    need(fits, 7, f"{told} and passes its limit of {row[limit]}")

    # -- sent once, settled once ---------------------------------------------------------------------------------

    def _operations(self, before: Snapshot, after: Snapshot, call: Call, now: int, authority: Authority) -> None:
        need(set(before.operations) <= set(after.operations), 8, "an operation vanished")
        told = sorted((json.loads(e["data"])["operation"], e["verb"]) for e in after.events if e["verb"] in EVENTS)
        changed: list[tuple[int, str]] = []
        for key, row in after.operations.items():
            old = before.operations.get(key)
            if old is None:
                need((call.verb, row["state"]) == ("prepare_operation", "prepared"), 8, f"operation {key} was born "
                     f"{row['state']}, by {call.verb}")  # fmt: skip
                authority(row["task_id"])
            elif tuple(row) != tuple(old):
                self._step(old, row, call, now, authority)
                if call.verb != "answer":
                    changed.append((key, f"operation_{row['state']}"))
        need(told == changed, 8, f"events say {told} of operations that became {changed}")

    def _step(self, old: Row, row: Row, call: Call, now: int, authority: Authority) -> None:
        key, step = row["id"], (old["state"], row["state"])
        need(step in STEPS, 8, f"operation {key} was {step[0]}, then {step[1]}")
        fixed = ("task_id", "key", "tool", "arguments_id", "prepared_at")
        need(all(row[c] == old[c] for c in fixed), 8, f"operation {key} became another one")
        if step[1] == "sent":
            need((call.verb, row["sent_at"]) == ("send_operation", now), 8, f"{call.verb} sent operation {key}")
            authority(row["task_id"])
        else:
            need(call.verb in ("settle_operation", "answer"), 8, f"{call.verb} settled operation {key}")
            need(row["settled_at"] == now and row["attempt_id"] == old["attempt_id"], 8, f"settling of {key}")
            if call.verb == "settle_operation":
                really = self._ends.get(key)
                need(step[1] == really, 8, f"operation {key} is {step[1]} in the store, and {really} outside")

    def _handed_out(self, before: Snapshot, after: Snapshot) -> None:
        """A task with an operation of which nobody knows the end waits for a person."""
        taken = {event["task_id"] for event in after.events if event["verb"] in ("claimed", "gate_claimed")}
        for row in before.operations.values():
            hidden = row["state"] == "sent" and row["task_id"] in taken
            need(not hidden, 8, f"task {row['task_id']} was handed out, and operation {row['id']} is not settled")
        asked = {
            (row["task_id"], row["dedupe_key"].rpartition(":")[2])
            for row in after.requests.values() if row["state"] == "open" and row["kind"] == "operation"
        }  # fmt: skip
        for key, row in after.operations.items():
            task = after.tasks[row["task_id"]]
            if row["state"] != "sent" or task["state"] in FINAL:
                continue
            if task["state"] == "running":
                now = next(a["id"] for a in after.attempts_of(task["id"]) if a["ended"] is None)
                need(now == row["attempt_id"], 8, f"operation {key} is not settled, and attempt {now} works")
            else:
                need((task["id"], str(key)) in asked, 8, f"operation {key} is not settled, and nobody is asked")
