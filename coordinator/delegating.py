"""Children of a child: its terms are hostile data, and its grant is the most that it can hand on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from contracts.attenuation import Grant, attenuation_faults
from contracts.base import Identifier
from contracts.documents import pydantic_faults
from contracts.errors import BadInput, Fault, NotFound, Refused, StoreUnavailable
from contracts.orchestration import Orchestration, Source, Task, merge
from contracts.ports import CancelSignal, ChildEnd
from contracts.states import FINAL_STATES
from contracts.terms import Terms
from contracts.tools import SOURCE_TOOLS, WRITING_TOOLS
from coordinator.home import Home
from coordinator.launch import plan_launch
from coordinator.models import refuse_missing_keys
from coordinator.results import TaskResult, task_result
from coordinator.store import TaskStore
from coordinator.store.database import StoreBroken
from coordinator.store.records import Claim, NewTask
from coordinator.store.views import TaskView
from coordinator.workplaces import refuse_unfit_place
from workspaces import SourcePin

__all__ = ["ChildDelegator"]

POLL_S = 0.2

HANDING_IN_S_MAX = 60.0
HANDING_IN_PART = 0.2
"""Of the time that is left to a parent, what its wait leaves it to hand in: a turn of a model."""

OUT_OF_TIME = "it has not ended, and the time to wait for it is over"


class ChildDelegator:
    """Implements ``contracts.ports.Delegator`` for one attempt.

    A child's task id is its parent's, a dot, and the name that the parent gave it. ``rests``: told True when the parent
    holds no slot from now on, False when it does again.
    """

    def __init__(
        self, store: TaskStore, home: Home, claim: Claim, signal: CancelSignal, rests: Callable[[bool], None]
    ) -> None:
        self._store = store
        self._home = home
        self._claim = claim
        self._signal = signal
        self._rests = rests

    def delegate(self, delegation_id: str, terms: Mapping[str, Any]) -> str:
        claim, parent = self._claim, self._claim.terms
        if parent.resources.delegation == "deny":
            raise Refused("the contract grants no delegation")
        task_id = self._task_id(delegation_id)
        said = dict(terms)
        inputs = said.pop("inputs", {})
        if not isinstance(inputs, dict):
            raise BadInput([Fault("inputs", "inputs are an object", "name each of them")])
        task = _checked_task(parent, said)
        faults = [*attenuation_faults(Grant.of(parent), Grant.of(task), path="terms"), *_limit_faults(parent, task)]
        if faults:
            raise BadInput(faults)
        issued, files = self._issue(task_id, task, {**parent.inputs, **inputs})
        refuse_missing_keys([issued])
        refuse_unfit_place(self._home, [issued])
        blobs = [self._store.files.make_durable(data) for data in files.values()]
        new = NewTask(issued, task_id)
        self._store.delegate(claim.orchestration_row, [new], parent=claim, files=blobs)
        return task_id

    def wait(self, delegation_ids: Sequence[str], time_left_s: float) -> Sequence[ChildEnd]:
        names = {self._task_id(name): name for name in delegation_ids}
        until_s = time.monotonic() + time_left_s - min(HANDING_IN_S_MAX, HANDING_IN_PART * time_left_s)
        self._rests(True)
        try:
            seen = -1
            while True:
                if self._signal.is_set():
                    raise Refused(f"told to stop while children were waited for: {self._signal.reason}")
                try:
                    is_over = until_s <= time.monotonic()
                    newest = self._store.newest_event(self._claim.orchestration_row)
                    if newest != seen or is_over:
                        seen = newest
                        ends = self._ends(names, is_over=is_over)
                        if ends is not None:
                            return ends
                except StoreBroken:
                    raise
                except StoreUnavailable:
                    seen = -1
                left_s = until_s - time.monotonic()
                self._signal.wait(min(POLL_S, left_s) if left_s > 0 else POLL_S)
        finally:
            self._rests(False)

    def _task_id(self, delegation_id: str) -> str:
        task_id = f"{self._claim.task_id}.{delegation_id}"
        try:
            TypeAdapter(Identifier).validate_python(delegation_id)
            return TypeAdapter(Identifier).validate_python(task_id)
        except ValidationError:
            what = f"{delegation_id!r:.120} cannot name a child"
            raise BadInput([Fault("delegation_id", what, "use letters, digits, . _ and -, 100 in all")]) from None

    def _issue(self, task_id: str, task: Task, inputs: Mapping[str, Any]) -> tuple[Terms, Mapping[str, bytes]]:
        """The terms, with the pins of the parent for the files that both name, and the files that are new."""
        parent = self._claim.terms
        document = self._store.run_document(self._claim.orchestration_row)
        # Without the run's defaults: what the parent has is the default, and was laid under the task already.
        pin = SourcePin.from_json(document["source"]) if document["source"] else None
        try:
            orchestration = Orchestration(
                name=document["name"],
                objective=document["objective"],
                source=Source(repo=pin.origin) if pin is not None else None,
                inputs=dict(inputs),
                tasks={task_id: task},
            )
        except ValidationError as error:
            raise BadInput(pydantic_faults(error, None)) from None
        orchestration._folder = Path(document["folder"])
        plan = plan_launch(orchestration, pin=pin)
        plan.refuse()
        issued = plan.terms[task_id]
        pinned = {name: parent.input_snapshot.get(name, pin_) for name, pin_ in issued.input_snapshot.items()}
        files = {name: data for name, data in plan.files.items() if name not in parent.input_snapshot}
        return issued.model_copy(update={"input_snapshot": pinned}), files

    def _ends(self, names: Mapping[str, str], *, is_over: bool) -> list[ChildEnd] | None:
        """How they ended, or wait for a person; None while one of them goes on without, unless the wait is over. Raises
        ``NotFound``."""
        looked_at = [self._store.task(self._claim.orchestration_row, task_id=task_id) for task_id in names]
        own = [task for task in looked_at if task is not None and task.parent_task_id == self._claim.task_id]
        tasks = {task.task_id: task for task in own}
        unknown = [name for task_id, name in names.items() if task_id not in tasks]
        if unknown:
            raise NotFound(f"no child was delegated as {', '.join(unknown)}")
        questions = {task_id: _question(task) for task_id, task in tasks.items() if task.state not in FINAL_STATES}
        if None in questions.values() and not is_over:
            return None
        results = {task.task_id: task_result(self._store, task) for task in tasks.values()}
        ends = {task_id: _end(name, results[task_id]) for task_id, name in names.items()}
        for task_id, question in questions.items():
            # It may never be answered, and the parent's own deadline goes on.
            told = ("blocked", question) if question is not None else (tasks[task_id].word, OUT_OF_TIME)
            ends[task_id] = replace(ends[task_id], word=told[0], reason=told[1])
        return list(ends.values())


def _question(task: TaskView) -> str | None:
    """What a person is asked before a task can go on; None when it is being worked on, or can be."""
    asked = [request.question for request in task.requests if request.state == "open"]
    return asked[0] if asked and task.owner is None else None


def _end(name: str, result: TaskResult) -> ChildEnd:
    manifest = result.manifest
    return ChildEnd(
        delegation_id=name,
        word=result.outcome,
        reason=result.reason,
        output=result.output,
        artifacts={entry.name: entry.digest for entry in manifest.artifacts} if manifest is not None else {},
        gaps=tuple(manifest.gaps) if manifest is not None else (),
    )


def _checked_task(parent: Terms, said: Mapping[str, Any]) -> Task:
    """What was said, laid over what the parent has. Raises ``BadInput`` with every fault."""
    if said.get("needs"):
        raise BadInput([Fault("terms.needs", "a child's child needs no other task", "wait for that one first")])
    try:
        return Task.model_validate(merge(_defaults(parent, said), dict(said)))
    except ValidationError as error:
        raise BadInput(pydantic_faults(error, None)) from None


def _defaults(parent: Terms, said: Mapping[str, Any]) -> dict[str, Any]:
    """The parent's limits, and of what it may do the reading alone."""
    asked = said.get("resources")
    asked = asked if isinstance(asked, dict) else {}
    reading = [tool for tool in parent.resources.tools if tool in SOURCE_TOOLS - WRITING_TOOLS]
    writes = bool(asked.get("write_scope") or asked.get("commands"))
    document = parent.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert parent.agent is not None
    defaults: dict[str, Any] = {
        "workspace": parent.workspace if writes else "none",
        "isolation": parent.isolation,
        "resources": {"tools": reading, "read_scope": list(parent.resources.read_scope)},
        "budget": document["budget"],
        "limits": document["limits"],
        "on_takeover": parent.on_takeover,
        "prices": document.get("prices", {}),
        "mcp_servers": document.get("mcp_servers", {}),
    }
    if "agent" not in said:
        defaults["agent"] = parent.agent.document()
    if not said.get("acceptance") and not said.get("required_evidence"):
        defaults["acceptance"] = [{"cel": "output != null"}]
    return defaults


def _limit_faults(parent: Terms, task: Task) -> list[Fault]:
    return [
        Fault(f"terms.limits.{name}", f"{asked:g} goes beyond the parent's", f"the parent has {bound:g}")
        for name in ("deadline_s", "max_claims", "max_repairs")
        if (asked := getattr(task.limits, name)) > (bound := getattr(parent.limits, name))
    ]
