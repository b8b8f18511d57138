"""Lint: what is wrong with a contract although its form is right. All of it at once, before anything starts."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import islice

from contracts.errors import Fault
from contracts.evidence import EVIDENCE_TABLE, EvidenceRequirement, Origin
from contracts.expressions import expression_fault
from contracts.model_specs import mcp_server_of
from contracts.orchestration import Orchestration, Task
from contracts.scopes import literal_head, scopes_overlap
from contracts.terms import Budget, Terms
from contracts.tools import TOOLS, WRITING_TOOLS

__all__ = ["LintReport", "lint_contract", "lint_orchestration", "overlapping_tasks"]


@dataclass(slots=True)
class LintReport:
    """``errors`` refuse a launch; ``warnings`` are said and do not."""

    errors: list[Fault] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)


MODEL_KINDS = ("anthropic", "openai")
MODEL_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_CIRCLES = 10
MAX_OVERLAPS = 100


def lint_orchestration(orchestration: Orchestration, *, known_tasks: Collection[str] = ()) -> LintReport:
    """Everything in an orchestration that no launch could make good. ``known_tasks`` are there already."""
    report = LintReport()
    tasks = orchestration.tasks
    for key in ("max_tool_calls", "max_wall_s"):
        if getattr(orchestration.budget, key) is not None:
            what = "it holds for one attempt at a task, so a run cannot have it"
            report.errors.append(Fault(f"budget.{key}", what, "write it under 'defaults: {budget: …}'"))
    if not tasks:
        report.errors.append(Fault("tasks", "there is nothing to do", "name at least one task"))
    for task_id, task in tasks.items():
        report.errors += lint_task(task, f"tasks.{task_id}")
        report.errors += _lint_needs(tasks, task_id, known_tasks)
        report.errors += _lint_budget(orchestration.budget, task.budget, f"tasks.{task_id}.budget")
        report.warnings += _notes(task, orchestration.budget, f"tasks.{task_id}")
    circles = find_circles({task_id: [need.task for need in task.needs] for task_id, task in tasks.items()})
    for circle in circles:
        shown = circle if len(circle) <= 20 else [*circle[:10], f"… {len(circle) - 15} more …", *circle[-5:]]
        chain = " -> ".join([*shown, circle[0]])
        report.errors.append(
            Fault(f"tasks.{circle[0]}.needs", f"the needs go in a circle: {chain}", "break one of them")
        )
    if not circles:
        pairs = _overlaps(tasks)
        for one, other in islice(pairs, MAX_OVERLAPS):
            what = f"its write scope meets that of {other!r}, so the two are never worked on at the same time"
            report.warnings.append(Fault(f"tasks.{one}.resources.write_scope", what))
        if next(pairs, None):
            report.warnings.append(Fault("tasks", "more write scopes meet", "give each task a write scope of its own"))
    return report


def _lint_needs(tasks: Mapping[str, Task], task_id: str, known_tasks: Collection[str]) -> Iterator[Fault]:
    for index, need in enumerate(tasks[task_id].needs):
        path = f"tasks.{task_id}.needs[{index}]"
        if need.task == task_id:
            yield Fault(path, "a task cannot need itself", "remove it")
        elif need.task not in tasks and need.task not in known_tasks:
            near = difflib.get_close_matches(need.task, islice(tasks, 200), n=1)
            known = ", ".join(islice((other for other in tasks if other != task_id), 10))
            hint = f"did you mean {near[0]!r}?" if near and near[0] != task_id else f"known: {known or 'none'}"
            yield Fault(path, f"no task is called {need.task!r}", hint)


def _lint_budget(of_run: Budget, of_task: Budget, path: str) -> Iterator[Fault]:
    """Without a limit of its own a task is held by the run's; only one beyond it is a contradiction."""
    for key in Budget.model_fields:
        bound, asked = getattr(of_run, key), getattr(of_task, key)
        if bound is not None and asked is not None and asked > bound:
            yield Fault(f"{path}.{key}", f"{asked} goes beyond the budget of the run", f"at most {bound}")


def _notes(task: Task, of_run: Budget, path: str) -> Iterator[Fault]:
    """What may be meant so, and is said."""
    tools = task.resources.tools
    outside = [tool for tool in tools if reaches_outside(tool)]
    if outside and task.resources.effects == "none":
        what = f"nothing records what {', '.join(outside)} may change outside the workspace"
        hint = "write 'effects: declared' if anything can: then each call is an operation that is never sent twice"
        yield Fault(f"{path}.resources.effects", what, hint)
    if task.agent.kind not in MODEL_KINDS:
        return
    if not task.acceptance:
        what = "no check judges what the model hands in, only its evidence"
        yield Fault(f"{path}.acceptance", what, "add a check that decides without the model's word")
    bounds = ("max_cost_usd", "max_tokens", "max_turns")
    if all(getattr(budget, key) is None for budget in (of_run, task.budget) for key in bounds):
        yield Fault(f"{path}.budget", "nothing but its deadline limits what this model spends", "add max_cost_usd")


def lint_contract(terms: Terms) -> list[Fault]:
    """The same rules for a delegation contract in a file of its own."""
    return list(_lint(terms, ""))


def lint_task(task: Task, path: str) -> list[Fault]:
    faults = list(_lint(task, f"{path}."))
    if task.isolation == "sandbox":
        what = "there is no sandbox yet, so this isolation cannot be enforced"
        faults.append(Fault(f"{path}.isolation", what, "write 'isolation: none' and take the risk openly"))
    return faults


def _lint(task: Task | Terms, prefix: str) -> Iterator[Fault]:
    resources = task.resources
    for index, tool in enumerate(resources.tools):
        server = mcp_server_of(tool)
        if server is not None and server not in task.mcp_servers:
            what = f"no server of tools is called {server!r}" if server else f"{tool!r} names no server and tool"
            hint = f"add 'mcp_servers: {{{server}: {{command: [PROGRAM]}}}}'" if server else "write mcp__SERVER__TOOL"
            yield Fault(f"{prefix}resources.tools[{index}]", what, hint)
        elif server is None and tool not in TOOLS:
            known = f"known: {', '.join(TOOLS)}, and mcp__SERVER__TOOL"
            yield Fault(f"{prefix}resources.tools[{index}]", f"no tool is called {tool!r}", known)
        elif task.agent is not None and task.agent.kind in MODEL_KINDS and not MODEL_TOOL_NAME.fullmatch(tool):
            what = f"models cannot be offered {tool!r:.120}: such a name has at most 64 letters, digits, _ and -"
            yield Fault(f"{prefix}resources.tools[{index}]", what, "give its server a shorter name, or drop the tool")
    if "run_command" in resources.tools and not resources.commands:
        what = "run_command is granted, but no command is"
        yield Fault(f"{prefix}resources.commands", what, "add 'commands: [[python, -m, pytest]]', or drop run_command")
    yield from _lint_reach(task, prefix)
    if not task.acceptance and not any(item.min_origin != "claimed" for item in task.required_evidence):
        yield Fault(
            f"{prefix}acceptance",
            "nothing here can be checked",
            "add a check, or evidence with min_origin observed or verified",
        )
    for index, item in enumerate(task.required_evidence):
        message = producible(item, task)
        if message:
            yield Fault(f"{prefix}required_evidence[{index}]", *message)
    if task.workspace == "none":
        writing = [tool for tool in resources.tools if tool in WRITING_TOOLS]
        if writing:
            what = f"{', '.join(writing)} need a workspace, and this task has none"
            yield Fault(f"{prefix}workspace", what, "write 'workspace: clone' or 'workspace: directory'")
    owed = {item.name: item.kind for item in task.required_evidence}
    for index, check in enumerate(task.acceptance):
        if check.citations_resolve is not None and check.citations_resolve not in owed:
            what = f"no required evidence is called {check.citations_resolve!r}"
            yield Fault(f"{prefix}acceptance[{index}].citations_resolve", what, f"known: {', '.join(owed) or 'none'}")
        elif check.citations_resolve is not None and owed[check.citations_resolve] not in ("citation", "note"):
            what = f"{check.citations_resolve!r} is evidence of the kind {owed[check.citations_resolve]}"
            yield Fault(f"{prefix}acceptance[{index}].citations_resolve", what, "make it 'kind: citation'")
        if check.paths_unchanged is not None and task.workspace == "none":
            what = "without a workspace the child can change no path"
            yield Fault(
                f"{prefix}acceptance[{index}].paths_unchanged", what, "give the task a workspace, or drop the check"
            )
        wrong = expression_fault(check.cel) if check.cel is not None else None
        if wrong:
            hint = "it sees output, evidence, contract and observed"
            yield Fault(f"{prefix}acceptance[{index}].cel", f"{check.cel!r:.80}: {wrong}", hint)


def _lint_reach(task: Task | Terms, prefix: str) -> Iterator[Fault]:
    """What only children can do that work by tool calls, and what such tools need."""
    resources = task.resources
    by_calls = task.agent is None or task.agent.kind in (*MODEL_KINDS, "scripted")
    if "delegate" in resources.tools and resources.delegation == "deny":
        what = "delegate is granted, but delegation is denied"
        hint = "add 'delegation: {max_depth: 1, max_children: 5}', or drop delegate"
        yield Fault(f"{prefix}resources.delegation", what, hint)
    if resources.delegation != "deny" and not ("delegate" in resources.tools and by_calls):
        what = "a child delegates by the tool delegate, which only a model or a scripted child can call"
        hint = "add 'delegate' to its tools" if by_calls else "write 'delegation: deny'"
        yield Fault(f"{prefix}resources.delegation", what, hint)
    is_program = task.agent is not None and task.agent.kind == "command"
    calls_out = by_calls or (not is_program and any(map(reaches_outside, resources.tools)))
    if resources.effects == "declared" and not calls_out:
        what = "only calls of tools are recorded as operations, and this agent is a program of its own"
        yield Fault(f"{prefix}resources.effects", what, "write 'effects: possible'")
    if resources.needs_approval and is_program:
        what = "people are asked about calls of tools, and this agent is a program of its own, which calls none"
        yield Fault(f"{prefix}resources.needs_approval", what, "drop it, or let a model or a script do this")
    elif resources.needs_approval and resources.effects != "declared":
        what = f"a call that waits for a person's yes is an operation, and the effects are {resources.effects!r}"
        yield Fault(f"{prefix}resources.effects", what, "write 'effects: declared'")
    for index, tool in enumerate(resources.needs_approval):
        if not reaches_outside(tool):
            what = f"{tool!r} has no effect outside that a person could be asked about"
            hint = "name run_command or tools of servers, mcp__SERVER__TOOL"
            yield Fault(f"{prefix}resources.needs_approval[{index}]", what, hint)
        elif tool not in resources.tools:
            what = f"{tool!r} is not granted (granted: {', '.join(resources.tools) or 'none'})"
            yield Fault(f"{prefix}resources.needs_approval[{index}]", what, "add it to 'tools', or drop it here")


def reaches_outside(tool: str) -> bool:
    """Whether a call of it can change anything beyond the workspace."""
    return tool == "run_command" or mcp_server_of(tool) is not None


def producible(item: EvidenceRequirement, task: Task | Terms) -> tuple[str, str] | None:
    """Why this evidence cannot come to be under this contract, and what would help; None when it can."""
    origins = EVIDENCE_TABLE[item.kind]
    least = Origin[item.min_origin]
    reachable = {name: who for name, who in origins.items() if Origin[name] >= least}
    if not reachable:
        best = max(origins, key=lambda name: Origin[name])
        return f"nothing makes {item.kind} evidence {item.min_origin}", f"at most {best}"
    granted = task.resources.tools
    checks = {check.kind for check in task.acceptance if check.citations_resolve in (None, item.name)}
    kind = task.agent.kind if task.agent is not None else None
    for who in reachable.values():
        if who.anyone or who.tools & set(granted) or who.checks & checks or kind in who.agents:
            return None
        if who.workspace and task.workspace != "none":
            return None
    tools = sorted(set().union(*(who.tools for who in reachable.values())))
    checked = sorted(set().union(*(who.checks for who in reachable.values())))
    ways = [f"grant {' or '.join(tools)}"] if tools else []
    ways += [f"add the check {' or '.join(checked)}"] if checked else []
    found = ", ".join(granted) or "none"
    what = f"no granted tool and no check can make {item.kind} evidence {item.min_origin} (granted: {found})"
    return what, ", or ".join(ways)


def find_circles(needs: Mapping[str, list[str]]) -> list[list[str]]:
    """Circles of two and more tasks, each from dependent to need; at most ``MAX_CIRCLES``, none sharing a task."""
    graph = {task: [need for need in its if need in needs and need != task] for task, its in needs.items()}
    circles: list[list[str]] = []
    while len(circles) < MAX_CIRCLES:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            circle: list[str] = error.args[1][:0:-1]  # the library goes from need to dependent, and closes the circle
        else:
            break
        position = {task: index for index, task in enumerate(graph)}
        first = circle.index(min(circle, key=position.__getitem__))
        circles.append(circle[first:] + circle[:first])
        gone = set(circle)
        graph = {task: [need for need in its if need not in gone] for task, its in graph.items() if task not in gone}
    return circles


def overlapping_tasks(tasks: Mapping[str, Task]) -> list[tuple[str, str]]:
    """Pairs of tasks that could run side by side and whose write scopes meet. The needs must not go in a circle."""
    return list(_overlaps(tasks))


def _overlaps(tasks: Mapping[str, Task]) -> Iterator[tuple[str, str]]:
    number = {task_id: index for index, task_id in enumerate(tasks)}
    above: dict[str, int] | None = None
    # Scopes can meet only where one begins as the other does, and sorting brings those together.
    heads = sorted((literal_head(p), number[t], t) for t, task in tasks.items() for p in task.resources.write_scope)
    seen: set[tuple[str, str]] = set()
    for index, (head, _, one) in enumerate(heads):
        for other_head, _, other in islice(heads, index + 1, None):
            if not other_head.startswith(head):
                break
            above = above or _all_needs(tasks, number)
            if above[one] >> number[other] & 1 or above[other] >> number[one] & 1 or one == other:
                continue
            pair = (one, other) if number[one] < number[other] else (other, one)
            if pair in seen:
                continue
            seen.add(pair)
            if scopes_overlap(tasks[one].resources.write_scope, tasks[other].resources.write_scope):
                yield pair


def _all_needs(tasks: Mapping[str, Task], number: Mapping[str, int]) -> dict[str, int]:
    """For each task those that must end before it, as the bits of an integer: thousands of sets are large."""
    graph = {task_id: [need.task for need in task.needs if need.task in tasks] for task_id, task in tasks.items()}
    above: dict[str, int] = {}
    for task_id in TopologicalSorter(graph).static_order():
        above[task_id] = 0
        for need in graph[task_id]:
            above[task_id] |= above[need] | 1 << number[need]
    return above
