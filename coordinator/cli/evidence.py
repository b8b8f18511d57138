"""``evidence``: what a child claimed, beside what was observed and what the gate verified; and ``--verify``."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.results import Decision, EvidenceVerdict, Manifest, ManifestItem
from coordinator.cli.addresses import find, parse_address
from coordinator.cli.inspecting import decision_lines, ended_words, pairs, read_decision, read_manifest
from coordinator.cli.made import end_words, kept_at, program_failed, program_words, some, tail_lines, workspace_lines
from coordinator.cli.output import console, opened, print_json
from coordinator.cli.tree import STYLES
from coordinator.cli.values import attempt_value
from coordinator.home import Home
from coordinator.results import judged_attempt
from coordinator.store import TaskStore
from coordinator.store.reading import unique_prefix
from coordinator.store.views import AttemptView, TaskView
from coordinator.text import shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["evidence", "print_evidence"]

ITEMS_SHOWN = 3
VALUE_CHARS = 160


def evidence(address: str | None, *, verify: bool, store: str | None, home: Path | None, json: bool) -> int:
    with opened(store, home) as (task_store, place):
        if verify:
            return verify_address(task_store, place, address, json=json)
        found = find(task_store, address)
        chosen = [(task, None) for task in found.run.tasks] if found.task is None else [(found.task, found.attempt)]
        explicit = "@" in (address or "")
        entries = [entry for task, attempt in chosen for entry in _entries(task, attempt if explicit else None)]
        if json:
            print_json([_value(task_store, task, attempt) for task, attempt in entries])
            return 0
        out = console()
        for number, (task, attempt) in enumerate(entries):
            if number:
                out.print()
            print_evidence(task_store, out, task, attempt)
        manifests = [read_manifest(task_store, attempt) for _, attempt in entries]
        for line in sorted({found.unenforced for found in manifests if isinstance(found, Manifest)} - {""}):
            out.print(f"unenforced: {shown(line, 500)}")
    return 0


def _entries(task: TaskView, only: AttemptView | None) -> list[tuple[TaskView, AttemptView | None]]:
    """What is shown of a task: the result that counts, and late ones beside it."""
    if only is not None:
        return [(task, only)]
    counted = judged_attempt(task)
    late = [attempt for attempt in task.attempts if attempt.late and attempt is not counted]
    with_result = [attempt for attempt in task.attempts if attempt.manifest_digest is not None]
    first = counted or next((attempt for attempt in reversed(with_result) if attempt not in late), None)
    if first is None and late:
        return [(task, attempt) for attempt in late]
    return [(task, first), *((task, attempt) for attempt in late)]


def _value(store: TaskStore, task: TaskView, attempt: AttemptView | None) -> dict[str, Any]:
    manifest = read_manifest(store, attempt)
    decision = read_decision(store, attempt) if attempt else None
    return {
        "address": _address(task, attempt),
        "state": str(task.state),
        "late": attempt.late if attempt else False,
        "attempt": attempt_value(attempt) if attempt else None,
        "manifest": manifest.canonical() if isinstance(manifest, Manifest) else None,
        "decision": decision.canonical() if isinstance(decision, Decision) else None,
        "damage": [text for text in (manifest, decision) if isinstance(text, str)],
    }


def _address(task: TaskView, attempt: AttemptView | None) -> str:
    return f"{task.run_id}/{task.task_id}" + (f"@{attempt.number}" if attempt else "")


def print_evidence(store: TaskStore, out: Console, task: TaskView, attempt: AttemptView | None) -> None:
    """One result: its evidence, item by item, then all else that was handed in."""
    from rich.padding import Padding
    from rich.text import Text

    title = Text(_address(task, attempt), "bold")
    title.append("  ")
    word = task.word if attempt is None or attempt is judged_attempt(task) else ended_words(attempt)
    title.append(word, STYLES.get(word, ""))
    if attempt is not None and attempt.late:
        title.append("  LATE: it came after its claim was over, and changed nothing", STYLES["failed"])
    out.print(title)
    manifest = read_manifest(store, attempt)
    decision = read_decision(store, attempt) if attempt else None
    for damage in (manifest, decision):
        if isinstance(damage, str):
            out.print(Text(f"  DAMAGED: {shown(damage, 400)}", STYLES["failed"]))
    if not isinstance(manifest, Manifest) or attempt is None:
        if manifest is None:
            why = f": {shown(task.why, 300)}" if task.why else ""
            out.print(f"  no attempt has handed in a result{why}" if task.attempts else f"  not begun yet{why}")
        return
    judged = decision if isinstance(decision, Decision) else None
    table = _items_table(task, manifest, judged)
    if table.row_count:
        out.print(Padding(table, (0, 0, 0, 2)))
    out.print(pairs(_rest(task, attempt, manifest, judged)))
    others = [other for other in task.attempts if other is not attempt]
    if others:
        listed = ", ".join(f"@{other.number} {ended_words(other)}" for other in others)
        out.print(f"  other attempts: {listed}")


def _items_table(task: TaskView, manifest: Manifest, decision: Decision | None) -> Table:
    """A row for each name and kind: what was owed first, in its order, then what came besides."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title, ratio in (("evidence", 3), ("claimed", 4), ("observed", 2), ("verified", 3)):
        table.add_column(title, ratio=ratio, overflow="fold")
    groups: dict[str, list[ManifestItem]] = defaultdict(list)
    for item in manifest.evidence:
        groups[item.name].append(item)
    verdicts = {verdict.name: verdict for verdict in decision.evidence} if decision else {}
    owed = {item.name: item for item in task.terms.required_evidence}
    for name in (*owed, *(name for name in groups if name not in owed)):
        items, verdict = groups.get(name, []), verdicts.get(name)
        kinds = ", ".join(dict.fromkeys(item.kind for item in items)) or owed[name].kind
        least = f", owed at least {owed[name].min_origin}" if name in owed else ", not asked for"
        cell = Text(shown(name, 80))
        cell.append(f" ({kinds}{least})", "dim")
        verified, style = _verified(verdict, decision, items)
        table.add_row(cell, Text(_claimed(items)), Text(_observed(items, manifest)), Text(verified, style))
    return table


def _claimed(items: Sequence[ManifestItem]) -> str:
    if not items:
        return "nothing handed in"
    lines = [_said(item) for item in items[:ITEMS_SHOWN]]
    if len(items) > ITEMS_SHOWN:
        lines.append(f"… and {len(items) - ITEMS_SHOWN} more")
    return "\n".join(lines)


def _said(item: ManifestItem) -> str:
    """One item in the child's words, short."""
    place = f"{item.path}:{item.line}" if item.path and item.line else item.path or ""
    said = [place, item.symbol or "", f"artifact {item.artifact}" if item.artifact else "", item.text]
    if item.data is not None:
        said.append(str(item.data))
    return shown(" ".join(part for part in said if part) or "named, without content", VALUE_CHARS)


def _observed(items: Sequence[ManifestItem], manifest: Manifest) -> str:
    seen = [item for item in items if item.origin != "claimed"]
    if not seen:
        return "not observed" if items else "-"
    calls = sorted({number for item in seen for number in item.seen_in_calls})
    share = "" if len(seen) == len(items) else f"{len(seen)} of {len(items)}: "
    if not calls:
        return share + ", ".join(dict.fromkeys(_seen_without_calls(item, manifest) for item in seen))
    listed = ", ".join(str(number) for number in calls[:6]) + (f" and {len(calls) - 6} more" if len(calls) > 6 else "")
    return f"{share}call{'s' if len(calls) > 1 else ''} {listed}"


def _seen_without_calls(item: ManifestItem, manifest: Manifest) -> str:
    if item.kind == "artifact":
        return "stored"
    if item.kind == "file":
        return "in the candidate"
    argv = item.data.get("argv") if isinstance(item.data, dict) else None
    ran = [record for record in manifest.processes if argv in (None, record.argv)]
    return f"it {end_words(ran[0])}" if ran else "by the runtime"


def _verified(
    verdict: EvidenceVerdict | None, decision: Decision | None, items: Sequence[ManifestItem]
) -> tuple[str, str]:
    """What the gate found, and its colour."""
    if decision is None:
        return "not judged yet", ""
    if verdict is None:
        return "-", ""
    said = f": {shown(verdict.message, 300)}" if verdict.message else ""
    if not verdict.ok:
        return f"no{said}", STYLES["failed"]
    if verdict.found_origin == "verified":
        count = f", all {len(items)}" if len(items) > 1 else ""
        return f"yes, by the gate{count}{said}", STYLES["accepted"]
    return f"no; {verdict.found_origin} is enough{said}", ""


def _rest(
    task: TaskView, attempt: AttemptView, manifest: Manifest, decision: Decision | None
) -> Iterator[tuple[str, str]]:
    said = f": {manifest.message}" if manifest.message else ""
    yield "outcome", f"{manifest.outcome} (the child's word){said}"
    if manifest.output is not None:
        yield "output", shown(str(manifest.output), 300)
    for entry in manifest.artifacts:
        redacted = ", secrets redacted" if entry.redacted else ""
        yield "artifact", f"{entry.name} ({entry.size_bytes:,} bytes, {entry.media_type}{redacted}) {entry.digest}"
    for gap in manifest.gaps:
        yield "gap", gap
    for assumption in manifest.assumptions:
        yield "assumed", assumption
    if manifest.next_action:
        yield "proposed", manifest.next_action
    yield "observed", _calls(manifest)
    if manifest.read_set:
        files = len(manifest.read_set)
        yield "read", f"{files} file{'s' if files > 1 else ''}, with digests: {some(list(manifest.read_set))}"
    for record in manifest.processes:
        yield "program", program_words(record)
        if program_failed(record):
            yield from tail_lines(record)
    if manifest.workspace is not None:
        yield from workspace_lines(manifest.workspace)
    for folder in kept_at([attempt]):
        yield "work kept at", folder
    if manifest.redactions:
        yield "redacted", f"{manifest.redactions} secret{'s' if manifest.redactions > 1 else ''} before storing"
    if decision is not None:
        yield from ((name, text) for name, text in decision_lines(decision, task.terms) if name != "evidence")
    else:
        yield "decision", "none yet" if task.word != "cancelled" else "none"


def _calls(manifest: Manifest) -> str:
    if not manifest.observed_calls:
        return "no tool calls"
    counts = Counter(call.tool for call in manifest.observed_calls)
    refused = Counter(call.tool for call in manifest.observed_calls if not call.ok)
    parts = [
        f"{tool} {count}" + (f" ({refused[tool]} refused or failed)" if refused[tool] else "")
        for tool, count in sorted(counts.items())
    ]
    total = len(manifest.observed_calls)
    return f"{total} tool call{'s' if total > 1 else ''}: {', '.join(parts)}"


def verify_address(store: TaskStore, place: Home, address: str | None, *, json: bool) -> int:
    """Hash everything again. 1 when something differs."""
    from coordinator.verifying import task_keys, verify

    run_part, task_part, number = parse_address(address)
    row = store.find_run(run_part)
    task_id = None
    if task_part is not None:
        keys = task_keys(store, row)
        task_id = keys[unique_prefix(task_part, keys, "task")]
    result = verify(store, place, row, task_id=task_id, attempt=number)
    if json:
        print_json(
            {
                "ok": not result.differences,
                "counts": dict(result.counts),
                "differences": [asdict(difference) for difference in result.differences],
            }
        )
        return 1 if result.differences else 0
    counts = ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in result.counts.items())
    if not result.differences:
        console().print(f"verified: every digest is right ({counts})", soft_wrap=True)
        return 0
    out = console()
    for difference in result.differences:
        out.print(shown(str(difference), 1000), soft_wrap=True)
    total = len(result.differences)
    out.print(f"{total} difference{'s' if total > 1 else ''} in {counts}", soft_wrap=True)
    return 1
