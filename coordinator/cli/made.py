"""What was seen of a result: the programs that ran, the workspace, and what was changed in it."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterable, Iterator, Sequence

from contracts.results import PathChange, ProcessRecord, WorkspaceRecord
from coordinator.store.views import AttemptView
from coordinator.text import shown

__all__ = ["GUTTER", "end_words", "kept_at", "program_failed", "program_words", "some", "tail_lines", "workspace_lines"]

Pairs = Iterator[tuple[str, str]]
GUTTER = "|"
"""The name of a line that is a program's output: its spaces are kept."""
LISTED = 20
TAIL_LINES = 12
HOW = {
    "timeout": "was ended at its time limit",
    "no_output": "was ended because it wrote nothing for too long",
    "cancelled": "was ended when told to stop",
    "start_failed": "could not be started",
    "unknown": "was lost: nobody saw its end",
}


def program_words(record: ProcessRecord) -> str:
    """One program: what it was, and how it ended."""
    words = [f"`{shown(shlex.join(record.argv), 300)}` {end_words(record)} after {record.elapsed_s:.1f} s"]
    if record.left_behind:
        words.append(f"{record.left_behind} process{'es' if record.left_behind > 1 else ''} left behind and killed")
    if not record.all_gone:
        words.append("something of it could not be ended")
    return ", ".join(words)


def end_words(record: ProcessRecord) -> str:
    """How a program ended."""
    if record.how != "exited":
        return HOW.get(record.how, record.how)
    if record.signal is None:
        return f"exited {record.exit_status}"
    known = {number.value: number.name for number in signal.Signals}
    return f"was ended by {known.get(record.signal, f'signal {record.signal}')}"


def program_failed(record: ProcessRecord) -> bool:
    return record.how != "exited" or record.exit_status != 0


def tail_lines(record: ProcessRecord) -> Pairs:
    """The last lines of what a program wrote."""
    lines = [line for line in record.output_tail.splitlines() if line.strip()]
    for line in lines[-TAIL_LINES:]:
        yield GUTTER, line
    if not lines:
        yield GUTTER, "(it wrote nothing)"


def workspace_lines(record: WorkspaceRecord) -> Pairs:
    """Where the child wrote, the candidate made of it, and every difference from the base."""
    yield "workspace", f"{record.kind} of commit {record.base_commit[:12]}"
    if record.candidate_tree == record.base_tree:
        yield "candidate", f"the base itself: nothing was changed (tree {record.candidate_tree[:12]})"
    else:
        yield "candidate", f"commit {record.candidate_commit[:12]}, tree {record.candidate_tree[:12]}"
    for number, change in enumerate(record.changes[:LISTED]):
        yield "" if number else "changed", change_words(change)
    if len(record.changes) > LISTED:
        yield "", f"… and {len(record.changes) - LISTED} more paths"
    if record.outside_scope:
        yield "OUTSIDE", f"the write scope: {some(record.outside_scope)}"
    if record.left_out:
        yield "left out", f"ignored files, no part of the candidate: {some(record.left_out)}"


def change_words(change: PathChange) -> str:
    kind = {"120000": "link", "160000": "submodule"}
    words = f"{change.status} {change.path}"
    if change.status == "type":
        old, new = (kind.get(mode, "file") for mode in (change.old_mode, change.new_mode))
        return f"changed {change.path} from {old} to {new}"
    if change.status == "modified" and change.old_mode != change.new_mode:
        return f"{words} (mode {change.old_mode} -> {change.new_mode})"
    if change.status == "added" and change.new_mode != "100644":
        return f"{words} ({kind.get(change.new_mode, f'mode {change.new_mode}')})"
    return words


def kept_at(attempts: Iterable[AttemptView]) -> list[str]:
    """Folders of ended attempts that are still there: something in them may be saved nowhere else."""
    return [attempt.workspace for attempt in attempts if attempt.workspace is not None and attempt.ended is not None]


def some(names: Sequence[str], most: int = 6) -> str:
    more = f", … and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shown(name, 120) for name in names[:most]) + more
