"""Named points at which a test or a demonstration can kill this process. Off, they cost one comparison.

A fault is written ``POINT``, ``POINT:TASK`` or ``POINT:TASK:ATTEMPT``; the process dies by SIGKILL when it gets there.
Commits, and steps of which the task is not known where they happen, are named by ``POINT`` alone.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from contracts.errors import BadInput
from contracts.steps import is_watched, reached, watch
from contracts.steps import watched as armed

__all__ = ["POINTS", "VERBS", "Fault", "arm", "armed", "at_commit", "reached"]

VERBS: Mapping[str, str] = {
    "prepare": "the tables of a new database",
    "create_run": "a new run",
    "delegate": "tasks that a child delegates, or a program whose worker has ended",
    "amend": "a new version of a run",
    "close_run": "that a program delegates no more",
    "tick": "results, endings, decisions and what a program delegates, and new claims",
    "renew": "longer leases",
    "submit": "results",
    "end": "endings without a result",
    "decide": "decisions",
    "confirm_stopped": "that children have stopped",
    "record_workspace": "where an attempt's workspace will be",
    "workspace_removed": "that workspaces are gone",
    "answer": "a person's answer",
    "cancel": "that a run or a task is cancelled",
    "reserve": "the most that a call can cost, in every budget above it",
    "settle": "what a call did cost",
    "answered": "a model's turn",
    "finished": "what the calls of a model's turn were answered",
    "prepare_operation": "a side effect that is to be sent",
    "send_operation": "that a side effect leaves now",
    "settle_operation": "what came of a side effect",
}
"""What each verb of the store commits."""

_STEPS: Mapping[str, str] = {
    "source_fetched": "the run's git directory holds its source; no row names it",
    "claimed": "a claim is committed; its holder has done nothing yet",
    "workspace_filled": "the files of a workspace or a clean checkout are there; the folder has not its name yet",
    "workspace_made": "the workspace is there and recorded; nothing has run in it",
    "prepared": "all that the child gets is ready; it has not begun",
    "program_started": "the child's or the check's program runs; nothing of it is known",
    "model_charged": "the most that a model call can cost is charged; nothing was sent",
    "model_answered": "the model has answered; its answer is in memory, its cost is not settled",
    "turn_answered": "the model's answer is in the journal; its tools have not run",
    "turn_finished": "the answers of a turn's tools are in the journal",
    "operation_sent": "a side effect is recorded as sent; it has not left",
    "operation_done": "a side effect has happened; what came of it is in memory",
    "tool_call": "a tool did what the child asked; the child has no answer yet",
    "program_gone": "every process of a program has ended; nothing of it is known",
    "child_returned": "the child's result is in memory",
    "commit_imported": "git has written a candidate or a merge with its ref; neither is flushed",
    "candidate_kept": "the candidate and its ref are durable; no row names them",
    "file_written": "a larger artifact, or a pinned file for a child, is flushed; it has not its name yet",
    "file_named": "a larger artifact, or a pinned file for a child, is durable; no row names it",
    "submitted": "the result is committed, and perhaps the claim to judge it",
    "merged": "the candidate is brought onto the head as objects; nothing has moved",
    "checkout_made": "the clean checkout for a check is there",
    "check_ran": "a check has run; its outcome is in memory",
    "judged": "the decision is in memory",
    "decided": "the decision is committed",
    "workspace_renamed": "the workspace has lost its name; its files are not yet deleted",
    "workspace_deleted": "the workspace is gone; its row does not say so",
    "export_written": "the exported bytes are flushed under a name of their own",
    "export_named": "the exported file has its name",
}

POINTS: Mapping[str, str] = {
    **{
        f"{verb}.{when}": what
        for verb, subject in VERBS.items()
        for when, what in (
            ("commit", f"{subject}: written in a transaction, not committed"),
            ("committed", f"{subject}: committed; the caller does not know it"),
        )
    },
    **_STEPS,
}
"""What has happened by then, and what has not."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``task_id`` or ``attempt`` None: whichever."""

    point: str
    task_id: str | None = None
    attempt: int | None = None

    @classmethod
    def parse(cls, text: str) -> Fault:
        parts = text.split(":")
        if len(parts) > 3 or parts[0] not in POINTS or (len(parts) == 3 and not parts[2].isdigit()):
            raise BadInput(
                f"--fault {text!r}: write POINT, POINT:TASK or POINT:TASK:ATTEMPT, POINT one of {', '.join(POINTS)}"
            )
        return cls(parts[0], parts[1] if len(parts) > 1 else None, int(parts[2]) if len(parts) == 3 else None)

    def __call__(self, point: str, task_id: str | None, attempt: int | None) -> None:
        """Die here if this is the place."""
        if point == self.point and self.task_id in (None, task_id) and self.attempt in (None, attempt):
            os.kill(os.getpid(), signal.SIGKILL)


def arm(fault: Fault | None) -> None:
    """Die at this fault; None: live on."""
    watch(fault)


def at_commit(change: object, when: str) -> None:
    """``VERB.commit`` or ``VERB.committed``; the verb is the method in which the change was written down."""
    if is_watched():
        reached(f"{getattr(change, '__qualname__', '?.?').split('.')[1].lstrip('_')}.{when}")
