"""A run as people see it: the tree of its tasks, in one sentence how it stands, and what would be done next."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.prices import MICRO
from contracts.results import Manifest
from contracts.states import OPEN_STATES, State
from coordinator.cli.made import kept_at
from coordinator.cli.values import claims_spent, repairs_used
from coordinator.home import default_store, open_home
from coordinator.results import judged_attempt
from coordinator.store import Damaged, TaskStore
from coordinator.store.views import RequestView, RunView, TaskView
from coordinator.text import shown

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

__all__ = [
    "STYLES",
    "Doing",
    "answer_commands",
    "dollars",
    "duration",
    "follow_up",
    "how_it_stands",
    "next_command",
    "open_requests",
    "run_tree",
    "somebody_works",
]

STYLES = {
    "accepted": "green",
    "partial": "yellow",
    "failed": "bold red",
    "cancelled": "red",
    "superseded": "dim",
    "running": "cyan",
    "submitted": "blue",
    "being judged": "blue",
    "waiting": "bold magenta",
    "blocked": "yellow",
    "lease ran out": "yellow",
    "unknown": "bold red",
    "damaged": "bold red",
}
"""A colour for each word; the word itself always stands there too."""

URGENCY = (
    "waiting", "unknown", "damaged", "failed", "running", "being judged", "submitted", "lease ran out", "cancelled",
    "partial", "blocked", "pending", "accepted",
)  # fmt: skip
NAME_WIDTH_MAX = 28
Doing = Callable[[TaskView], str]
"""What a task that runs did last; empty when nothing is known."""


def run_tree(
    run: RunView, *, now: datetime | None = None, rows_max: int | None = None, doing: Doing | None = None
) -> Tree:
    """The tasks of a run, children under their parents. Of more than ``rows_max`` the most pressing are shown."""
    from rich.text import Text
    from rich.tree import Tree

    now = now or datetime.now(UTC)
    tasks = _most_pressing(run.tasks, rows_max)
    title = Text.assemble((run.run_id, "bold"), "  ", shown(run.objective, 120))
    tree = Tree(title, guide_style="dim")
    width = min(max((len(task.task_id) for task in tasks), default=0), NAME_WIDTH_MAX)
    branches: dict[str, Tree] = {}
    for task in tasks:
        above = branches.get(task.parent_task_id or "", tree)
        branches[task.task_id] = above.add(task_line(task, now, width, doing(task) if doing is not None else ""))
    hidden = len(run.tasks) - len(tasks)
    if hidden:
        tree.add(Text(f"… and {hidden} more: {_counts(run.tasks)}", "dim"))
    if not run.tasks:
        tree.add(Text("no task has been delegated yet", "dim"))
    return tree


def task_line(task: TaskView, now: datetime, width: int = 0, doing: str = "") -> Text:
    """One task: its word, who holds it, how often it was tried; and on lines of their own why it stands so, what it did
    last, and where unsaved work lies."""
    from rich.text import Text

    line = Text(task.task_id.ljust(width) + "  ")
    line.append(task.word, STYLES.get(task.word, ""))
    facts = _facts(task, now)
    if facts:
        line.append("  " + ", ".join(facts), "dim")
    if task.why:
        line.append("\n" + shown(task.why, 400))
    if doing:
        line.append("\n" + shown(doing), "dim")
    for folder in kept_at(task.attempts)[-1:]:
        line.append(f"\nwork kept at {shown(folder, 400)}")
    return line


def _facts(task: TaskView, now: datetime) -> list[str]:
    facts: list[str] = []
    if task.damage:
        return facts
    limits = task.terms.limits
    if task.owner is not None and task.lease_until is not None:
        left_s = (task.lease_until - now).total_seconds()
        lease = f"lease {duration(left_s)} left" if left_s > 0 else f"lease over since {duration(-left_s)}"
        facts.append(f"{shown(task.owner, 60)}, generation {task.generation}, {lease}")
    if len(task.attempts) > 1 or (task.attempts and task.word != "accepted"):
        facts.append(f"attempt {len(task.attempts)}")
    spent = claims_spent(task)
    if spent and (task.state in OPEN_STATES or task.state is State.FAILED):
        facts.append(f"{spent} of {limits.max_claims} claims spent")
    if repairs := repairs_used(task):
        facts.append(f"{repairs} of {limits.max_repairs} repairs used")
    if any(attempt.late for attempt in task.attempts):
        facts.append("a late result was kept")
    return [*facts, *_charged(task)]


def _charged(task: TaskView) -> list[str]:
    """What the budget was charged, with what is delegated below; the worst case of a call that is under way."""
    budget, words = task.terms.budget, []
    if task.charged_micro_usd:
        most = f" of ${budget.max_cost_usd:g}" if budget.max_cost_usd is not None else ""
        words.append(f"charged {dollars(task.charged_micro_usd)}{most}")
    elif budget.max_cost_usd is not None:
        words.append(f"may cost ${budget.max_cost_usd:g}")
    if task.charged_tokens:
        most = f" of {budget.max_tokens:,}" if budget.max_tokens is not None else ""
        words.append(f"{task.charged_tokens:,}{most} tokens")
    if task.unsettled is not None:
        count = task.unsettled.charges
        many = "1 call was" if count == 1 else f"{count} calls were"
        sums = f"{dollars(task.unsettled.micro_usd)}, {task.unsettled.tokens:,} tokens"
        words.append(f"{many} never settled, which keeps {sums} charged")
    return words


def _most_pressing(tasks: Sequence[TaskView], rows_max: int | None) -> Sequence[TaskView]:
    if rows_max is None or len(tasks) <= rows_max:
        return tasks
    rank = {word: place for place, word in enumerate(URGENCY)}
    chosen = sorted(tasks, key=lambda task: rank.get(task.word, len(rank)))[: max(rows_max, 1)]
    rows = {task.row for task in chosen}
    return [task for task in tasks if task.row in rows]


def duration(seconds: float) -> str:
    """A length of time in its largest fitting unit."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.1f} s"


def dollars(micro_usd: int) -> str:
    """``$0.0123``; nothing that was spent is shown as nothing."""
    if 0 < micro_usd < 100:
        return f"${micro_usd / MICRO:.6f}".rstrip("0")
    return f"${micro_usd / MICRO:.4f}" if micro_usd % 10_000 else f"${micro_usd / MICRO:.2f}"


def _counts(tasks: Sequence[TaskView]) -> str:
    counts = Counter(task.word for task in tasks)
    return ", ".join(f"{counts[word]} {word}" for word in (*reversed(URGENCY), "superseded") if counts[word])


def how_it_stands(run: RunView) -> str:
    """One sentence."""
    total = len(run.tasks)
    tasks = {1: "its task", 2: "both tasks"}.get(total, f"all {total} tasks")
    if run.ok and run.state == "ended":
        return f"{run.run_id} ended: {tasks} accepted"
    counts = _counts(run.tasks) or "no tasks"
    if run.state == "ended":
        return f"{run.run_id} {'was cancelled' if run.cancelled_at else 'ended'}: {counts}"
    if run.state == "waiting":
        waiting = len(open_requests(run))
        return f"{run.run_id} waits for {'an answer' if waiting == 1 else f'{waiting} answers'}: {counts}"
    if not somebody_works(run):
        return f"{run.run_id} is open and nobody works on it: {counts}"
    return f"{run.run_id} is being worked on: {counts}"


def somebody_works(run: RunView) -> bool:
    """Whether a claim is alive."""
    return any(task.owner is not None and task.word != "lease ran out" for task in run.tasks)


def open_requests(run: RunView) -> list[RequestView]:
    asked = [request for task in run.tasks for request in task.requests if request.state == "open"]
    return sorted(asked, key=lambda request: request.sequence)


def answer_commands(store: TaskStore, request: RequestView) -> tuple[str, str]:
    """How to say yes and no to a request."""
    yes = [] if request.kind != "input" else ["-m", "TEXT"]
    return (
        follow_up(store, "answer", request.request_id, "--approve", *yes),
        follow_up(store, "answer", request.request_id, "--reject", "-m", "TEXT"),
    )


def next_command(store: TaskStore, run: RunView) -> str:
    """What a person would most likely do now; empty when only a program can go on."""
    asked = open_requests(run)
    if asked:
        return answer_commands(store, asked[0])[0]
    if run.state != "ended":
        if somebody_works(run):
            return follow_up(store, "status", run.run_id, "-w")
        active = any(task.ready or task.owner is not None for task in run.tasks)
        return follow_up(store, "worker") if active else ""
    for word, command in (("failed", "inspect"), ("unknown", "inspect"), ("partial", "evidence")):
        for task in run.tasks:
            if task.word == word:
                return follow_up(store, command, f"{run.run_id}/{task.task_id}")
    if not run.ok:
        return follow_up(store, "history", run.run_id)
    found = _newest_artifact(store, run)
    if found is not None:
        return follow_up(store, "export", *found)
    return follow_up(store, "evidence", run.run_id)


def _newest_artifact(store: TaskStore, run: RunView) -> list[str] | None:
    """Address of a task that nothing else needs and that handed in an artifact, with its name if it has several."""
    needed = {need.task for task in run.tasks if not task.damage for need in task.terms.needs}
    last = [task for task in reversed(run.tasks) if task.task_id not in needed and task.state is State.ACCEPTED]
    for task in last[:20]:
        attempt = judged_attempt(task)
        if attempt is None or attempt.manifest_digest is None:
            continue
        try:
            manifest = Manifest.model_validate_json(store.bytes_of(attempt.manifest_digest))
        except (Damaged, ValueError):
            continue
        names = [entry.name for entry in manifest.artifacts]
        if names:
            return [f"{run.run_id}/{task.task_id}", *([] if len(names) == 1 else names[-1:])]
    return None


def follow_up(store: TaskStore, *words: str) -> str:
    """A command on this same store that can be copied into a shell."""
    command = shlex.join(["coordinator", *words]).replace("'TEXT'", "TEXT")
    wanted = os.environ.get("COORDINATOR_STORE")
    if store.url.startswith("sqlite:///"):
        path = store.url.removeprefix("sqlite:///")
        implied = Path((wanted or str(default_store(Path.cwd()))).removeprefix("sqlite:///")).absolute()
        given = [] if implied == Path(path) else ["--store", path]
    elif wanted or ":***@" in store.url:
        path = wanted or ""
        if not wanted:  # a password is not printed, and without it the address is of no use
            command += ' --store "$COORDINATOR_STORE"'
        given = []
    else:
        path, given = store.url, ["--store", store.url]
    folder = store.files.folder.parent
    if not path or open_home(path, create=False).folder != folder:
        given += ["--home", str(folder)]
    return f"{command} {shlex.join(given)}" if given else command
