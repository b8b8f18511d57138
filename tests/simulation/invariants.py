"""What always holds, checked after every commit by code that shares nothing with the store's own.

Each change of rows must follow from the events written with it, by a small model of its own: what may come from where,
who had the right to it, and what it leaves behind. Numbers in brackets are those of the design, section "What always
holds".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

from tests.simulation.acceptance import Acceptance
from tests.simulation.snapshot import FINAL, Call, Reader, Row, Snapshot, Violation
from tests.simulation.spending import EVENTS, Spending

__all__ = ["Observer"]

OPEN = ("pending", "running", "submitted")
ARROWS: dict[str, tuple[tuple[str, ...], str]] = {
    "claimed": (("pending",), "running"),
    "submitted": (("running",), "submitted"),
    "released": (("running",), "pending"),
    "lost": (("running",), "pending"),
    "ended": (("running",), "pending"),
    "exhausted": (("running",), "failed"),
    "gate_claimed": (("submitted",), "submitted"),
    "gate_lost": (("submitted",), "submitted"),
    "gate_released": (("submitted",), "submitted"),
    "not_judged": (("submitted",), "submitted"),
    "accepted": (("submitted",), "accepted"),
    "accepted_partial": (("submitted",), "partial"),
    "repair_required": (("submitted",), "pending"),
    "repairs_exhausted": (("submitted",), "failed"),
    "rejected": (("submitted",), "failed"),
    "cancelled": (OPEN, "cancelled"),
    "superseded": (OPEN, "superseded"),
}
TAKES = ("claimed", "gate_claimed")
BY_WORKER = ("submitted", "released", "ended")
BY_GATE = ("gate_released", "not_judged", "accepted", "accepted_partial", "repair_required", "repairs_exhausted")
JUDGES = {"not_judged": "not_judged", "accepted": "accepted", "accepted_partial": "accepted", "rejected": "rejected",
          "repair_required": "repair_required", "repairs_exhausted": "repair_required"}  # fmt: skip
SPENDS = ("failed", "cancelled", "unknown", "no_result", "deadline")
ENDS = {"submitted": ("submitted",), "released": ("released", "blocked"), "lost": ("lost",), "ended": SPENDS,
        "exhausted": (*SPENDS, "lost"), "cancelled": ("cancelled",), "superseded": ("superseded",)}  # fmt: skip


def need(holds: object, number: int, text: str) -> None:
    if not holds:
        raise Violation(f"[{number}] {text}")


@dataclass(slots=True)
class Model:
    """A task row as its events say that it must be."""

    state: str = "pending"
    generation: int = 0
    owner: str | None = None
    token: str | None = None
    kind: str | None = None
    lease_until: int | None = None
    steps: int = 0
    tries: int | None = 0
    """Of judging; None where these events do not say."""

    def free(self) -> None:
        self.owner = self.token = self.kind = self.lease_until = None


class Observer:
    """Looks at the database after each commit. ``now``: the wall clock in microseconds. ``is_gone``: whether the owner
    of a claim is really dead, with all that held its lock."""

    def __init__(
        self, reader: Reader, *, now: Callable[[], int], is_gone: Callable[[str], bool], acceptance: Acceptance,
        spending: Spending, unheard: Set[str],
    ) -> None:  # fmt: skip
        """``unheard``: tokens of the claims of which nobody was told."""
        self.reader = reader
        self.before = self._before_call = Snapshot()
        self.call: Call | None = None
        self.looks = 0
        self._now = now
        self._is_gone = is_gone
        self._acceptance = acceptance
        self._spending = spending
        self._unheard = unheard
        self._terms: dict[int, dict[str, Any]] = {}
        self._tokens: set[str] = set()

    def look(self) -> None:
        """Check what was committed since the last look. Raises ``Violation``."""
        if not self.reader.changed():
            return
        self.looks += 1
        before, after = self.before, self.reader.snapshot()
        self.before, self._before_call = after, before
        call = self.call or Call("none")
        now = self._now()
        self._documents(before, after)
        models = self._replay(before, after, call, now)
        self._rows(before, after, models, call, now)
        self._attempts(before, after, now)
        self._requests(before, after)
        self._spending.look(before, after, call, now, lambda task: self._authority(
            task, models[task], "work", models[task].generation, models, after, call, now))  # fmt: skip
        self._state(after)
        self._acceptance.heads(before, after)

    def terms(self, task: Row) -> dict[str, Any]:
        found = self._terms.get(task["terms_id"])
        if found is None:
            data = self.reader.bytes[task["terms_id"]]
            assert data is not None
            found = self._terms[task["terms_id"]] = json.loads(data)
        return found

    # -- bytes before rows ---------------------------------------------------------------------------------------

    def _documents(self, before: Snapshot, after: Snapshot) -> None:
        for row in after.documents:
            self._acceptance.stored(row)
        count = before.documents_count + len(after.documents)
        need(after.documents_count == count, 4, "a document vanished")
        for table, columns in (("attempts", ("manifest_id", "decision_id")), ("requests", ("question_id", "answer_id")),
                               ("tasks", ("terms_id",)), ("runs", ("document_id",)),
                               ("operations", ("arguments_id", "outcome_id"))):  # fmt: skip
            for row in getattr(after, table).values():
                for column in columns:
                    named = row[column]
                    need(named is None or named in self.reader.digests, 4, f"{column} {named} names nothing")

    # -- transitions, one by one ---------------------------------------------------------------------------------

    def _replay(self, before: Snapshot, after: Snapshot, call: Call, now: int) -> dict[int, Model]:
        models = {
            row["id"]: Model(row["state"], row["generation"], row["owner"], row["token"], row["claim_kind"],
                             row["lease_until"], tries=row["gate_tries"])
            for row in before.tasks.values()
        }  # fmt: skip
        asked = {row["request_id"]: row["task_id"] for row in before.requests.values() if row["state"] == "open"}
        heads = {row["id"]: row["head"] for row in before.runs.values()}
        current = {row["id"] for row in before.tasks.values() if row["is_current"]}
        for event in after.events:
            need(event["at"] == now, 13, f"{event['verb']} is dated {event['at']}, and the clock says {now}")
            verb, task, data = event["verb"], event["task_id"], json.loads(event["data"] or "{}")
            if verb == "issued":
                self._issued(after, task, models, call, now)
                current = {row["id"] for row in after.tasks.values() if row["is_current"]}
            elif verb == "asked":
                asked[data["request"]] = task
            elif verb == "answered":
                need(call.verb == "answer", 9, "an answer came from nobody")
                asked.pop(data["request"], None)
            elif verb in ARROWS:
                self._transition(event, models, asked, heads, current, before, after, call, now)
            else:
                known = ("created", "amended", "run_cancelled", "late_result", "stopped", *EVENTS)
                need(verb in known, 3, f"an event says {verb!r}")
        return models

    def _issued(self, after: Snapshot, task: int, models: dict[int, Model], call: Call, now: int) -> None:
        issues = call.verb in ("create_run", "delegate", "amend") or call.delegates
        need(issues, 3, f"{call.verb} issued a task")
        parent = after.tasks[task]["parent_id"]
        if parent is not None:
            self._authority(parent, models[parent], "work", models[parent].generation, models, after, call, now)
        run = after.runs[after.tasks[task]["orchestration_id"]]
        need(run["cancelled_at"] is None, 10, f"task {task} was born in a cancelled run")
        models[task] = Model()

    def _authority(
        self, task: int, model: Model, kind: str, generation: int | None, models: dict[int, Model], after: Snapshot,
        call: Call, now: int,
    ) -> None:  # fmt: skip
        """Generation, token, a lease that has not ended, and nothing above that has ended. (Parent and child may be
        accepted together, in one transaction.)"""
        who = f"task {task}, {call.verb}"
        need(model.owner is not None and model.kind == kind, 1, f"{who}: nobody holds it to {kind}")
        need(generation == model.generation, 1, f"{who}: generation {generation} acted, {model.generation} holds it")
        need(model.token in call.tokens.get(task, ()), 1, f"{who}: acted without the token of generation {generation}")
        need((model.lease_until or 0) > now, 1, f"{who}: acted after its lease had ended")
        for above in after.ancestors(task):
            state = models[above].state if models[above].state in ("cancelled", "superseded") else ""
            state = state or self._before_call.tasks[above]["state"]
            need(state not in FINAL, 10, f"{who}: acted below {above}, which is {state}")

    def _transition(
        self, event: Row, models: dict[int, Model], asked: dict[str, int], heads: dict[int, str | None],
        current: set[int], before: Snapshot, after: Snapshot, call: Call, now: int,
    ) -> None:  # fmt: skip
        verb, task = event["verb"], event["task_id"]
        model, row = models[task], after.tasks[task]
        limits = self.terms(row)["limits"]
        broken = re.match(
            r"(Type|Attribute|Name|Key|Assertion)Error: .*", json.loads(event["data"] or "{}").get("reason", "")
        )
        need(not broken, 0, f"what is simulated does not fit production: {broken and broken[0]}")
        sources, target = ARROWS[verb]
        need(model.state in sources, 3, f"task {task} was {verb} while it was {model.state}")
        lost = verb in ("lost", "gate_lost") or (verb == "exhausted" and self._ended_as(after, event) == "lost")
        if verb in TAKES:
            need(model.owner is None, 1, f"task {task} was {verb} while {model.owner} held it")
            need(event["generation"] == model.generation + 1, 1, f"{verb} did not make the next generation of {task}")
            need(event["owner"] == call.owner, 1, f"{call.owner} claimed for {event['owner']}")
            need(task not in asked.values(), 3, f"task {task} was {verb} while a request is open")
            if verb == "claimed":
                self._may_start(task, models, current, after)
        elif lost:
            over = model.lease_until is not None and model.lease_until <= now
            proved = model.owner in call.gone and model.owner is not None and self._is_gone(model.owner)
            need(over or proved, 1, f"task {task} was taken from {model.owner}, who lives and whose lease runs")
        elif self._is_given_back(verb, task, model, call):
            need(model.token in self._unheard, 1, f"task {task} was given back by {model.owner}, who was told of it")
        elif verb in BY_WORKER or verb == "exhausted":
            self._authority(task, model, "work", event["generation"], models, after, call, now)
        elif verb in BY_GATE or (verb == "rejected" and call.verb != "answer"):
            self._authority(task, model, "gate", event["generation"], models, after, call, now)
        elif verb == "superseded":
            need(call.verb == "amend", 3, f"task {task} was superseded by {call.verb}")
        if verb in ENDS:
            self._ending(event, model, after, limits, now)
        if verb in JUDGES and call.verb != "answer":
            self._acceptance.decided(event, row, after, JUDGES[verb], heads, self.terms(row))
        if verb == "repair_required":
            repairs = sum(a["decision"] == "repair_required" for a in after.attempts_of(task))
            need(repairs <= limits["max_repairs"], 11, f"task {task} was sent back {repairs} times")
        if verb == "gate_claimed" and model.tries is not None:
            model.tries += 1
        elif self._is_given_back(verb, task, model, call):
            if verb == "gate_released" and model.tries is not None:
                model.tries -= 1
        elif verb not in ("claimed", "lost", "gate_lost"):
            model.tries = None
        if verb in TAKES:
            model.generation += 1
            model.owner, model.token = event["owner"], None
            model.kind = "work" if verb == "claimed" else "gate"
            model.lease_until = now + int(limits["lease_s"] * 1_000_000)
        else:
            model.free()
        model.state = target
        model.steps += 1
        if target in FINAL:
            for request in [request for request, of in asked.items() if of == task]:
                del asked[request]

    def _is_given_back(self, verb: str, task: int, model: Model, call: Call) -> bool:
        """Its owner does not know of the claim, and says so by what it knows of."""
        mine = call.held is not None and model.owner is not None and model.owner == call.owner
        return mine and verb in ("released", "gate_released") and model.token not in call.tokens.get(task, ())

    def _may_start(self, task: int, models: dict[int, Model], current: set[int], after: Snapshot) -> None:
        row = after.tasks[task]
        run = row["orchestration_id"]
        for wanted in after.needs.get(task, []):
            states = [
                models[other].state for other in current
                if after.tasks[other]["orchestration_id"] == run and after.tasks[other]["key"] == wanted["needed_key"]
            ]  # fmt: skip
            enough = {"accepted", "partial"} if wanted["partial_ok"] else {"accepted"}
            need(set(states) & enough, 6, f"task {task} began though its need {wanted['needed_key']} is {states}")
        family = {task, *after.ancestors(task)}
        need(all(models[above].state not in FINAL for above in family), 10, f"task {task} began below what has ended")
        mine = self.terms(row)["resources"]["write_scope"]
        for other, model in models.items():
            theirs = after.tasks[other]
            apart = theirs["orchestration_id"] != run or other in family or task in after.ancestors(other)
            if not apart and model.state in ("running", "submitted"):
                meets = scopes_meet(mine, self.terms(theirs)["resources"]["write_scope"])
                need(not meets, 6, f"tasks {task} and {other} were under way at once, and their write scopes meet")

    def _ended_as(self, after: Snapshot, event: Row) -> str | None:
        return next(
            (a["ended"] for a in after.attempts_of(event["task_id"]) if a["generation"] == event["generation"]), None
        )

    def _ending(self, event: Row, model: Model, after: Snapshot, limits: dict[str, Any], now: int) -> None:
        """What the end of an attempt leaves behind, and whether it used up a claim."""
        verb, task = event["verb"], event["task_id"]
        own = after.attempts_of(task)
        if model.state != "running":
            return
        attempt = next(a for a in own if a["generation"] == model.generation)
        need(attempt["ended"] in ENDS[verb], 3, f"{verb} left attempt {attempt['id']} as {attempt['ended']}")
        if verb == "submitted":
            need(attempt["manifest_id"] is not None, 3, f"task {task} was submitted without a manifest")
            need(attempt["deadline_at"] > now, 11, f"task {task} was submitted after its deadline")
        if verb in ("ended", "lost", "exhausted"):
            spent = 0
            for row in sorted(own, key=lambda a: int(a["number"])):
                if row["number"] <= attempt["number"]:
                    spent = 0 if row["ended"] == "submitted" else spent + (row["ended"] in (*SPENDS, "lost"))
            limit = limits["max_claims"]
            # Nobody knows yet what it has done outside, so it has not failed.
            waits = any(row["task_id"] == task and row["state"] == "sent" for row in after.operations.values())
            over = spent >= limit and not waits
            need(over == (verb == "exhausted"), 11, f"{spent} of {limit} claims spent, and it was {verb}")

    # -- rows before and after -----------------------------------------------------------------------------------

    def _rows(self, before: Snapshot, after: Snapshot, models: dict[int, Model], call: Call, now: int) -> None:
        need(set(after.tasks) == set(models), 3, "a task came or went without an event")
        for task, row in after.tasks.items():
            old, model = before.tasks.get(task), models[task]
            need(row["state"] == model.state, 3, f"task {task} is {row['state']}; its events say {model.state}")
            need(row["generation"] == model.generation, 1, f"generation of {task} is {row['generation']}, not "
                 f"{model.generation}")  # fmt: skip
            need((row["owner"], row["claim_kind"]) == (model.owner, model.kind), 1, f"{row['owner']} holds task {task}")
            held = {row["owner"] is None, row["token"] is None, row["lease_until"] is None, row["claim_kind"] is None}
            need(len(held) == 1, 1, f"half a claim on task {task}")
            if row["token"] is not None and row["token"] != model.token:
                need(model.token is None, 1, f"the token of task {task} changed under a claim")
                need(row["token"] not in self._tokens, 1, f"a token was given out again, for task {task}")
                self._tokens.add(row["token"])
            if row["lease_until"] != model.lease_until:
                self._renewed(task, row, model, call, now)
            if old is not None:
                need(row["row_version"] == old["row_version"] + model.steps, 3, f"row version of task {task}")
                known = model.steps == 0 or model.tries in (None, row["gate_tries"])
                need(known, 11, f"task {task} was judged {model.tries} times, and {row['gate_tries']} are counted")
                fixed = ("orchestration_id", "key", "contract_version", "parent_id", "delegation_id", "terms_id")
                need(all(row[c] == old[c] for c in fixed), 6, f"task {task} became another one")
                if old["state"] in FINAL:
                    changed = {c for c in row.keys() if row[c] != old[c]}  # noqa: SIM118 - a row has no items
                    settled = {"charged_micro_usd", "charged_tokens"} if call.verb == "settle" else set()
                    changed -= {"is_current", *settled}
                    need(not changed, 6, f"{sorted(changed)} of task {task} changed after its end")

    def _renewed(self, task: int, row: Row, model: Model, call: Call, now: int) -> None:
        need(call.verb == "renew", 1, f"{call.verb} moved the lease of task {task}")
        need(row["token"] in call.tokens.get(task, ()), 1, f"the lease of task {task} was renewed without its token")
        need((model.lease_until or 0) > now, 1, f"a lease that had ended was renewed, of task {task}")
        until = now + int(self.terms(row)["limits"]["lease_s"] * 1_000_000)
        need(row["lease_until"] == until, 11, f"the lease of task {task} was renewed for another time than agreed")

    def _attempts(self, before: Snapshot, after: Snapshot, now: int) -> None:
        verbs = {(e["task_id"], e["generation"]): e["verb"] for e in after.events if e["verb"] == "claimed"}
        late = {(e["task_id"], e["generation"]) for e in after.events if e["verb"] == "late_result"}
        ended = {e["task_id"] for e in after.events if e["verb"] in ENDS}
        judged = {e["task_id"] for e in after.events if e["verb"] in JUDGES}
        numbers: dict[int, int] = {}
        for key, row in after.attempts.items():
            task, old = row["task_id"], before.attempts.get(key)
            numbers[task] = numbers.get(task, 0) + 1
            need(row["number"] == numbers[task], 6, f"attempt {row['number']} of task {task} follows none")
            if old is None:
                need(verbs.pop((task, row["generation"]), None), 3, f"an attempt of task {task} without a claim")
                limit = int(self.terms(after.tasks[task])["limits"]["deadline_s"] * 1_000_000)
                need(row["deadline_at"] == now + limit, 11, f"deadline of attempt {key}")
                continue
            fixed = ("task_id", "number", "generation", "child_run_id", "owner", "started_at", "deadline_at")
            need(all(row[c] == old[c] for c in fixed), 11, f"attempt {key} became another one")
            if row["ended"] != old["ended"]:
                need(old["ended"] is None, 6, f"attempt {key} ended as {old['ended']}, then as {row['ended']}")
                need(task in ended, 3, f"attempt {key} ended without an event")
            if row["manifest_id"] != old["manifest_id"]:
                need(old["manifest_id"] is None, 6, f"the result of attempt {key} was overwritten")
                need(task in ended or (task, row["generation"]) in late, 3, f"result of attempt {key} without an event")
            if (row["decision"], row["decision_id"]) != (old["decision"], old["decision_id"]):
                need(old["decision"] in (None, "not_judged", "waiting"), 5, f"attempt {key} was decided twice")
        need(not verbs, 3, f"claims without an attempt: {sorted(verbs)}")
        need(set(before.attempts) <= set(after.attempts), 6, "an attempt vanished")
        for task in judged:
            own = after.attempts_of(task)
            need(sum(a["decision"] == "accepted" for a in own) <= 1, 5, f"task {task} was accepted twice")

    def _requests(self, before: Snapshot, after: Snapshot) -> None:
        order = {"open": 0, "answered": 1, "void": 1}
        asked = sum(e["verb"] == "asked" for e in after.events)
        need(len(after.requests) - len(before.requests) == asked, 9, "a request without an event")
        sequences: dict[int, int] = {}
        for key, row in after.requests.items():
            run = row["orchestration_id"]
            sequences[run] = sequences.get(run, 0) + 1
            need(row["sequence"] == sequences[run], 9, f"request {row['request_id']} has number {row['sequence']}")
            old = before.requests.get(key)
            if old is not None and tuple(row) != tuple(old):
                need(
                    order[row["state"]] > order[old["state"]], 9, f"request {key}: {old['state']}, then {row['state']}"
                )
        keys = [(row["orchestration_id"], row["dedupe_key"]) for row in after.requests.values()]
        need(len(keys) == len(set(keys)), 9, "the same was asked twice")

    # -- what any moment must look like --------------------------------------------------------------------------

    def _state(self, after: Snapshot) -> None:
        states = {(t["orchestration_id"], t["key"]): t["state"] for t in after.tasks.values() if t["is_current"]}
        asked = {row["task_id"] for row in after.requests.values() if row["state"] == "open"}
        for task, row in after.tasks.items():
            run, state = row["orchestration_id"], row["state"]
            above = after.ancestors(task)
            if state not in FINAL:
                need(all(after.tasks[one]["state"] not in FINAL for one in above), 10, f"{task} outlives what is above")
                need(after.runs[run]["cancelled_at"] is None, 10, f"task {task} is open in a cancelled run")
            else:
                need(task not in asked, 9, f"a request about task {task}, which has ended, is open")
            met = all(
                states.get((run, wanted["needed_key"]))
                in (("accepted", "partial") if wanted["partial_ok"] else ("accepted",))
                for wanted in after.needs.get(task, [])
            )
            ready = state not in FINAL and task not in asked and (met or state != "pending")
            need(bool(row["ready"]) == ready, 3, f"task {task} ({state}) is {'not ' * ready}ready, wrongly")
            running = [a for a in after.attempts_of(task) if a["ended"] is None]
            need(len(running) == (state == "running"), 1, f"task {task} ({state}) has {len(running)} open attempts")


def scopes_meet(one: list[str], other: list[str]) -> bool:
    """The simulation's scopes are folders, with a slash at their end."""
    return any(a.startswith(b) or b.startswith(a) for a in one for b in other)
