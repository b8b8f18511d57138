"""What ``inspect`` shows of a run and of one task: contract, claims, decisions with every check, and messages."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from contracts.canonical import canonical_bytes
from contracts.checks import Check
from contracts.delegation import Binding, render_contract
from contracts.requests import Action
from contracts.results import Decision, Manifest
from contracts.terms import ModelSpec, Terms
from coordinator.cli.made import GUTTER, kept_at, program_failed, program_words, tail_lines, workspace_lines
from coordinator.cli.tree import STYLES, run_tree, task_line
from coordinator.cli.values import attempt_value, run_value, task_value
from coordinator.launch import UNENFORCED
from coordinator.store import Damaged, TaskStore
from coordinator.store.views import AttemptView, RequestView, RunView, TaskView
from coordinator.text import plain, shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = [
    "binding_pairs",
    "contract_document",
    "decision_lines",
    "ended_words",
    "pairs",
    "print_run",
    "print_task",
    "read_decision",
    "read_manifest",
    "run_details",
    "short_digest",
    "task_details",
    "terms_pairs",
]

Pairs = Iterator[tuple[str, str]]

PATHS_SHOWN = 20


def contract_document(run: RunView, task: TaskView, attempt: AttemptView | None) -> dict[str, Any]:
    """The delegation contract as the child of an attempt gets it.

    Before the first claim there is no child yet: ``child_run_id`` and ``claim_generation`` are then left out.
    """
    binding = Binding(
        child_run_id=attempt.child_run_id if attempt else "none",
        parent_run_id=task.run_id,
        delegation_id=task.delegation_id,
        parent_state_version=attempt.parent_state_version if attempt else run.version,
        claim_generation=attempt.generation if attempt else None,
    )
    document = render_contract(task.terms, binding)
    if attempt is None:
        del document["child_run_id"]
    return document


def run_details(store: TaskStore, run: RunView, older: Sequence[TaskView]) -> dict[str, Any]:
    return {
        **run_value(run),
        "files": run.document.get("files", {}),
        "folder": run.document.get("folder"),
        "older_contract_versions": [task_value(task) for task in older],
    }


def task_details(
    store: TaskStore, run: RunView, task: TaskView, older: Sequence[TaskView], only: AttemptView | None
) -> dict[str, Any]:
    attempts = []
    for attempt in task.attempts if only is None else [only]:
        decision = read_decision(store, attempt)
        document = decision.canonical() if isinstance(decision, Decision) else None
        damage = decision if isinstance(decision, str) else None
        attempts.append({**attempt_value(attempt), "decision_document": document, "damage": damage})
    last = task.attempts[-1] if task.attempts else None
    return {
        **task_value(task),
        "attempts": attempts,
        "contract": contract_document(run, task, only or last),
        "terms": task.terms.canonical(),
        "unenforced": UNENFORCED if task.terms.isolation == "none" else "",
        "older_contract_versions": [task_value(other) for other in older],
    }


def read_decision(store: TaskStore, attempt: AttemptView) -> Decision | str | None:
    """The decision; what is wrong with its bytes; or None when there is none."""
    if attempt.decision_digest is None:
        return None
    try:
        return Decision.model_validate_json(store.bytes_of(attempt.decision_digest))
    except Damaged as error:
        return str(error)


def read_manifest(store: TaskStore, attempt: AttemptView | None) -> Manifest | str | None:
    """The manifest; what is wrong with its bytes; or None when there is none."""
    if attempt is None or attempt.manifest_digest is None:
        return None
    try:
        return Manifest.model_validate_json(store.bytes_of(attempt.manifest_digest))
    except Damaged as error:
        return str(error)


def print_run(store: TaskStore, out: Console, run: RunView, older: Sequence[TaskView]) -> None:
    out.print(run_tree(run))
    out.print()
    out.print(pairs(_run_pairs(run)))
    _print_older(out, older)
    requests = [request for task in run.tasks for request in task.requests]
    _print_requests(out, requests)


def _run_pairs(run: RunView) -> Pairs:
    source = run.document.get("source") or {}
    yield "objective", run.objective
    if source:
        ref = f", {source['ref']}" if source.get("ref") else ""
        yield "source", f"{source.get('origin')}{ref}, pinned at {source.get('commit')}"
        if source.get("dirty"):
            yield "", "uncommitted changes were there and are no part of it"
    yield "versions", f"orchestration version {run.orchestration_version}, state version {run.version}"
    if run.head:
        yield "head", run.head
    yield "launched", when(run.created_at)
    if run.cancelled_at:
        yield "cancelled", when(run.cancelled_at)
    yield "content", short_digest(run.authored_digest)
    for name, digest in run.document.get("files", {}).items():
        yield "file", f"{name} {short_digest(digest)}"


def print_task(
    store: TaskStore, out: Console, task: TaskView, older: Sequence[TaskView], only: AttemptView | None
) -> None:
    from rich.text import Text

    out.print(Text(f"{task.run_id}/", "bold").append_text(task_line(task, datetime.now(UTC))))
    out.print()
    out.print("contract")
    out.print(pairs(_contract_pairs(task, only)))
    for attempt in task.attempts if only is None else [only]:
        out.print()
        out.print(_attempt_title(attempt))
        out.print(pairs(_attempt_pairs(store, task, attempt)))
    if not task.attempts:
        out.print()
        out.print("no worker has claimed it yet")
    _print_requests(out, task.requests)
    _print_older(out, older)


def _contract_pairs(task: TaskView, only: AttemptView | None) -> Pairs:
    terms = task.terms
    attempt = only or (task.attempts[-1] if task.attempts else None)
    yield "objective", terms.objective
    yield "terms", f"version {terms.contract_version}, {short_digest(task.terms_digest)}"
    bound = f"delegation {task.delegation_id} of run {task.run_id}"
    if attempt is not None:
        bound += f", child run {attempt.child_run_id}, claim generation {attempt.generation}"
        bound += f", parent state version {attempt.parent_state_version}"
    yield "binding", bound
    yield from terms_pairs(terms)
    if terms.isolation == "none":
        yield "unenforced", UNENFORCED
    else:
        yield "isolation", terms.isolation


def terms_pairs(terms: Terms) -> Pairs:
    """What was agreed, line by line: who does it, from what, with which grant and limits, and what is owed."""
    resources, limits = terms.resources, terms.limits
    if terms.agent is not None:
        yield "agent", agent_words(terms)
        if terms.agent.model is not None:
            yield "model", model_words(terms.agent.model, terms.on_takeover)
    if terms.needs:
        yield "needs", ", ".join(f"{n.task} (partial will do)" if n.partial_ok else n.task for n in terms.needs)
    for name, value in terms.inputs.items():
        yield "input", f"{name} = {canonical_bytes(value).decode()}"
    for name, pin in terms.input_snapshot.items():
        yield "pinned", f"{name}: {short_digest(pin)}"
    yield "tools", ", ".join(resources.tools) or "none"
    network = resources.network if isinstance(resources.network, str) else ", ".join(resources.network)
    yield "reads", ", ".join(resources.read_scope) or "nothing"
    yield "writes", ", ".join(resources.write_scope) or "nothing"
    yield "workspace", terms.workspace
    delegation = resources.delegation if isinstance(resources.delegation, str) else "allowed"
    yield "other", f"network {network}; effects {resources.effects}; delegation {delegation}"
    if resources.needs_approval:
        yield "needs a yes", f"each call of {', '.join(resources.needs_approval)}"
    if resources.commands:
        yield "commands", "; ".join(shlex.join(words) for words in resources.commands)
    for name, server in terms.mcp_servers.items():
        yield "tool server", f"{name}: {server.url or shlex.join(server.command or [])}"
    if resources.models:
        yield "models", ", ".join(resources.models)
    if resources.credentials:
        yield "credentials", ", ".join(resources.credentials)
    yield (
        "limits",
        (
            f"deadline {limits.deadline_s:g} s, lease {limits.lease_s:g} s, at most {limits.max_claims}"
            f" claim{'s' if limits.max_claims > 1 else ''} and {limits.max_repairs} repairs"
        ),
    )
    caps = terms.budget.model_dump(exclude_none=True)
    if caps:
        yield "budget", ", ".join(f"{key} {value:.12g}" for key, value in caps.items())
    yield from _owed(terms)


def model_words(spec: ModelSpec, on_takeover: str) -> str:
    """How a model is asked: ``up to 4096 tokens a call, 120 s, key from OPENAI_API_KEY, at http://…``."""
    words = [f"at most {spec.max_output_tokens} tokens and {spec.timeout_s:g} s a call"]
    words.append(f"key from {spec.api_key_env}" if spec.api_key_env else "no key")
    if spec.base_url:
        words.append(f"at {spec.base_url}")
    return ", ".join([*words, f"a takeover starts {on_takeover}" if on_takeover == "fresh" else "a takeover continues"])


def agent_words(terms: Terms) -> str:
    """Who does the work: ``command sh prog.sh``."""
    return f"{terms.agent.kind} {terms.agent.label()}" if terms.agent is not None else "none"


def _owed(terms: Terms) -> Pairs:
    for item in terms.required_evidence:
        schema = f", data as {item.schema_file}" if item.schema_file else ""
        yield "evidence", f"{item.name} ({item.kind}, at least {item.min_origin}{schema})"
    for check in terms.acceptance:
        end = " (only at the end)" if check.when == "end" else ""
        yield "check", check_line(check) + end


def check_line(check: Check) -> str:
    """A check with what it asks for."""
    if check.command is not None:
        env = f", with {', '.join(check.env)}" if check.env else ""
        return f"{check.label()} (at most {check.timeout_s:g} s{env})"
    asked = check.json_schema or check.cel or check.approval or ", ".join(check.sections or check.paths_unchanged or [])
    return check.label() + (f": {asked}" if asked else "")


def _attempt_title(attempt: AttemptView) -> str:
    late = ", LATE: its result came after its claim was over" if attempt.late else ""
    return f"attempt {attempt.number}: {ended_words(attempt)}{late}"


def ended_words(attempt: AttemptView) -> str:
    """How an attempt stands, in words."""
    if attempt.decision is not None:
        return attempt.decision.replace("_", " ")
    if attempt.ended is None:
        return "running"
    return {"submitted": "submitted, not judged yet", "no_result": "no result", "lost": "its claim was lost"}.get(
        attempt.ended, attempt.ended
    )


def _attempt_pairs(store: TaskStore, task: TaskView, attempt: AttemptView) -> Pairs:
    yield "claim", f"generation {attempt.generation}, {attempt.owner}, child run {attempt.child_run_id}"
    seen = f"ended {when(attempt.ended_at)}" if attempt.ended_at else ""
    if not seen:
        seen = "still running" if attempt.ended is None else "nobody saw it end"
    yield "time", f"started {when(attempt.started_at)}, {seen}, deadline {when(attempt.deadline_at)}"
    if attempt.manifest_digest:
        yield "manifest", short_digest(attempt.manifest_digest)
    manifest = read_manifest(store, attempt)
    if isinstance(manifest, str):
        yield "DAMAGED", f"manifest: {manifest}"
    elif manifest is not None:
        for record in manifest.processes:
            yield "program", program_words(record)
            if program_failed(record):
                yield from tail_lines(record)
        if manifest.workspace is not None:
            yield from workspace_lines(manifest.workspace)
    if attempt.ended is None and attempt.workspace is not None:
        yield "works in", attempt.workspace
    for folder in kept_at([attempt]):
        yield "work kept at", f"{folder} (something in it may be saved nowhere else)"
    decision = read_decision(store, attempt)
    if isinstance(decision, str):
        yield "DAMAGED", f"decision: {decision}"
    elif decision is not None:
        yield from decision_lines(decision, task.terms)
        bound = decision.bound
        yield "bound to", f"terms {short_digest(bound.terms_digest)}, manifest {short_digest(bound.manifest_digest)}"
        yield "", f"policy {short_digest(bound.policy_version)}"
        if bound.head:
            yield "", f"head {bound.head}"
        yield "", f"generation {bound.generation_submitted} at submission, {bound.generation_gated} at the gate"
        yield "document", short_digest(attempt.decision_digest or "")


def decision_lines(decision: Decision, terms: Terms) -> Pairs:
    """The decision with every check and every piece of required evidence."""
    word = decision.decision.replace("_", " ") + (" as partial" if decision.partial else "")
    yield (
        "decision",
        f"{word}, {decision.decided_at[:19].replace('T', ' ')}Z" + (f": {decision.reason}" if decision.reason else ""),
    )
    # A gate that got as far as the contract's checks has an outcome for each, in their order.
    whole = [check.check for check in decision.checks] == [shown(check.label(), 500) for check in terms.acceptance]
    for number, check in enumerate(decision.checks):
        yield "check", f"{check.outcome}: " + (check_line(terms.acceptance[number]) if whole else check.check)
        for finding in check.findings:
            # The output itself stands below, line by line.
            message = finding.message.partition("; its last output: ")[0] if decision.processes else finding.message
            yield "", f"- {message}" + (f" ({finding.place})" if finding.place else "")
    for owed in decision.evidence:
        found = f"found {owed.found_origin}" if owed.found_origin else "found nothing"
        needed = f"{owed.name} ({owed.kind}, at least {owed.min_origin}), {found}"
        why = f": {owed.message}" if owed.message else ""
        yield "evidence", f"{'passed' if owed.ok else 'failed'}: {needed}{why}"
    for record in decision.processes:
        yield "gate ran", program_words(record)
        if program_failed(record):
            yield from tail_lines(record)
    if decision.judged_tree:
        yield "judged", decision.judged_tree
    if decision.new_head:
        yield "new head", decision.new_head


def _print_requests(out: Console, requests: Sequence[RequestView]) -> None:
    if requests:
        out.print()
        out.print("messages")
        out.print(pairs(line for request in requests for line in _request_lines(request)))


def _request_lines(request: RequestView) -> Pairs:
    yield request.request_id, request_line(request)
    if request.action is not None:
        yield from ((name, short_digest(text)) for name, text in binding_pairs(request.action))


def binding_pairs(action: Action) -> Pairs:
    """What a yes to a call covers, and nothing else."""
    yield "covers", f"one call of {action.tool} under contract version {action.contract_version}, {action.terms_digest}"
    yield "with", action.arguments
    yield "in files", action.tree_digest or "none: the task has no workspace"
    shown_paths, more = action.changed[:PATHS_SHOWN], action.changed_count - len(action.changed[:PATHS_SHOWN])
    for path in shown_paths:
        yield "changed", json.dumps(path, ensure_ascii=False)
    if more:
        yield "", f"and {more:,} more changed files"


def request_line(request: RequestView) -> str:
    line = f"{request.kind.replace('_', ' ')} about {request.task_id}, {request.state}: {request.question}"
    if request.answer is not None:
        said = "approved" if request.answer.approved else "rejected"
        line += f" -> {said}" + (f": {request.answer.message}" if request.answer.message else "")
    return line


def _print_older(out: Console, older: Sequence[TaskView]) -> None:
    if older:
        out.print()
        out.print("older contract versions")
        rows = []
        for task in older:
            counts = f"{len(task.attempts)} attempt{'s' if len(task.attempts) != 1 else ''}"
            why = f", {task.reason}" if task.reason else ""
            what = f"version {task.contract_version}: {task.state}{why}, {counts}, {short_digest(task.terms_digest)}"
            rows.append((task.task_id, what))
        out.print(pairs(rows))


def pairs(rows: Iterator[tuple[str, str]] | Sequence[tuple[str, str]]) -> Table:
    """Names on the left, what they say folded on the right. Text may be hostile: it is made harmless here."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, max_width=24)
    table.add_column(overflow="fold")
    for name, value in rows:
        text = plain(value).expandtabs()[:400] if name == GUTTER else shown(value, 2000)
        table.add_row(Text("  " + shown(name, 60), "dim"), Text(text, word_style(name, text)))
    return table


def word_style(name: str, text: str) -> str:
    """Colour by what a line says; the words say it too."""
    if (
        name in ("DAMAGED", "OUTSIDE")
        or (name in ("program", "gate ran") and "` exited 0 " not in text)
        or (name in ("check", "evidence") and text.startswith(("failed", "refused", "errored")))
    ):
        return STYLES["failed"]
    if name in ("check", "evidence") and text.startswith("passed"):
        return STYLES["accepted"]
    return ""


def short_digest(text: str) -> str:
    """Enough of a digest to tell it from others; ``--json`` has all of it."""
    return re.sub(r"(sha256:[0-9a-f]{16})[0-9a-f]{48}", "\\1…", text)


def when(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}Z" if moment is not None else "-"
