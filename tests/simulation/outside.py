"""What lies outside of the coordinator, simulated: git, as sets of files by commit, and the children."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from contracts.assignment import Assignment
from contracts.errors import CoordinatorError, Refused
from contracts.results import ProcessRecord, Result
from workspaces import Candidate, Change, Merge, SourcePin, Workspace

__all__ = ["Behaviour", "Git", "SimulatedRuntime", "choose_behaviour"]

MODE, NONE = "100644", "000000"


def object_id(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:40]


@dataclass(frozen=True, slots=True)
class Commit:
    files: Mapping[str, str]
    holds: frozenset[str]
    """The candidates that went into it."""
    parent: str | None = None


@dataclass
class Git:
    """Commits by id, and the folders in which children write. One for all processes, as a disk is.

    ``fail`` is told of a use that breaks a promise of the design.
    """

    fail: Callable[[str], None]
    commits: dict[str, Commit] = field(default_factory=dict)
    written: dict[Path, dict[str, str]] = field(default_factory=dict)
    busy: set[Path] = field(default_factory=set)
    """Folders in which a child may still write."""

    def base(self) -> SourcePin:
        commit = self._keep({"README": "start"}, frozenset())
        return SourcePin("git", "/simulated", "simulated", "HEAD", commit, self.tree(commit), None, False)

    def tree(self, commit: str) -> str:
        return object_id("tree", sorted(self.commits[commit].files.items()))

    def _keep(self, files: Mapping[str, str], holds: frozenset[str], *more: object) -> str:
        commit = object_id(sorted(files.items()), sorted(holds), *more)
        self.commits[commit] = Commit(files, holds)
        return commit

    def make_workspace(self, git_dir: Path, folder: Path, kind: Any, commit: str, **about: Any) -> Workspace:
        if folder in self.written:
            self.fail(f"{folder} was entered a second time")
        folder.mkdir()
        self.written[folder] = {}
        return Workspace(folder, kind, commit, self.tree(commit))

    def snapshot(self, git_dir: Path, workspace: Workspace, **about: Any) -> Candidate:
        if workspace.folder in self.busy:
            self.fail(f"the candidate of {workspace.folder} was taken under its child")
        base = self.commits[workspace.base_commit]
        written = self.written[workspace.folder]
        changes = tuple(
            Change(path, "modified" if path in base.files else "added", MODE if path in base.files else NONE, MODE,
                   object_id(base.files.get(path)), object_id(text))
            for path, text in sorted(written.items()) if base.files.get(path) != text
        )  # fmt: skip
        files = {**base.files, **written}
        commit = object_id(workspace.base_commit, about["keep_ref"])
        holds = base.holds | {commit} if changes else base.holds
        self.commits[commit] = Commit(files, holds, workspace.base_commit)
        return Candidate(commit, self.tree(commit), workspace.base_commit, changes, ())

    def merge_onto(self, git_dir: Path, head: str, candidate: str, *, keep_ref: str, **about: Any) -> Merge:
        made, onto = self.commits[candidate], self.commits[head]
        assert made.parent is not None, candidate
        if head == made.parent:
            return Merge(self.tree(candidate), candidate, (), ())
        base = self.commits[made.parent]
        changed = {path: text for path, text in made.files.items() if base.files.get(path) != text}
        conflicts = [
            path for path in changed
            if onto.files.get(path) != base.files.get(path) and onto.files.get(path) != changed[path]
        ]  # fmt: skip
        if conflicts:
            return Merge(None, None, tuple(sorted(conflicts)), ())
        commit = self._keep({**onto.files, **changed}, onto.holds | {candidate}, keep_ref)
        return Merge(self.tree(commit), commit, (), ())

    def remove_workspace(self, git_dir: Path, workspace: Workspace, *, saved: Candidate | None = None) -> None:
        if self.written[workspace.folder] and saved is None:
            raise Refused(f"{workspace.folder} holds unsaved work")
        if workspace.folder in self.busy:
            self.fail(f"{workspace.folder} was removed under its child")
        workspace.folder.rmdir()


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What one attempt does. ``obeys``: how long after a cancel signal it stops; None: never."""

    ends: str
    lasts_s: float
    obeys: float | None
    kind: str
    writes: bool
    outside: bool
    delegates: int
    same: bool
    """What is bad is as bad as the last time."""


def choose_behaviour(
    chance: random.Random, *, trouble: float, lease_s: float, deadline_s: float, delegates: bool
) -> Behaviour:
    """``trouble`` in 0..1: how much goes wrong."""
    ends = "completed"
    if chance.random() < 0.6 * trouble:
        ends = chance.choice(["partial", "failed", "blocked", "cancelled", "raises", "no_result", *["bad"] * 5])
    lasts_s = chance.uniform(0.01, min(1.5 * lease_s, deadline_s / 2))
    if chance.random() < 0.15 * trouble:
        lasts_s = deadline_s * chance.choice([0.8, 0.95, 0.99, 1.0, 1.1, 2.0])
    return Behaviour(
        ends=ends,
        lasts_s=lasts_s,
        obeys=chance.choice([0.0, 0.2, 3.0, None]),
        kind=chance.choice(["program", "function", "async"]),
        writes=chance.random() < 0.8,
        outside=chance.random() < 0.12 * trouble,
        delegates=chance.choice([0, 0, 0, 1, 2]) if delegates else 0,
        same=chance.random() < 0.3,
    )


Delegate = Callable[[Assignment, int], None]
Spend = Callable[[Assignment], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Later:
    """Work that begins when it is awaited: a process may be killed before."""

    begin: Callable[[], Coroutine[Any, Any, Result]]

    def __await__(self) -> Generator[Any, Any, Result]:
        return self.begin().__await__()


class SimulatedRuntime:
    """Implements ``agents.runtimes.Runtime``: a program (killed when told to stop), a function in a thread (which
    nothing can stop), or an async function."""

    def __init__(
        self, behaviour: Behaviour, git: Git, delegate: Delegate, spend: Spend, cost_usd: float | None,
        works: Callable[[], None],
    ) -> None:  # fmt: skip
        """``works``: called while nobody has told it to stop."""
        self._behaviour = behaviour
        self._spend = spend
        self._cost_usd = cost_usd
        self._works = works
        self._git = git
        self._delegate = delegate
        self.kills = behaviour.kind == "program"
        self.stoppable = behaviour.kind == "async"
        self.all_gone = True
        self.processes: list[ProcessRecord] = []

    def run(self, assignment: Assignment) -> Awaitable[Result]:
        return _Later(partial(self._begun, assignment))

    async def _begun(self, assignment: Assignment) -> Result:
        work = asyncio.ensure_future(self._run(assignment))
        # A thread goes on though nobody waits for it any more.
        return await (work if self._behaviour.kind == "async" else asyncio.shield(work))

    async def _run(self, assignment: Assignment) -> Result:
        plan = self._behaviour
        folder = assignment.workspace
        if folder is not None:
            self._git.busy.add(folder)
        try:
            told = await self._work(assignment)
        finally:
            if folder is not None:
                self._git.busy.discard(folder)
        if told and plan.kind == "program":
            raise CoordinatorError("the program was ended")
        if told and plan.obeys is not None:
            return assignment.cancelled()
        return self._ended(assignment).model_copy(update={"cost_usd": self._cost_usd})

    def _ended(self, assignment: Assignment) -> Result:
        plan = self._behaviour
        output = {"n": -1 if plan.ends == "bad" else 1, "of": "the same" if plan.same else assignment.child_run_id}
        match plan.ends:
            case "completed" | "bad":
                return assignment.completed(output)
            case "partial":
                return assignment.partial(output)
            case "failed":
                return assignment.failed("could not")
            case "blocked":
                return assignment.completed(output) if assignment.answers else assignment.blocked("Which one?")
            case "cancelled":
                return assignment.cancelled("by itself")
            case "no_result":
                raise CoordinatorError("nothing that is a result")
            case _:
                raise ValueError("it broke")

    async def _work(self, assignment: Assignment) -> bool:
        """Whether it stopped early because it was told to."""
        plan = self._behaviour
        left_s = plan.lasts_s
        for number in range(plan.delegates):
            await asyncio.sleep(left_s / 4)
            left_s -= left_s / 4
            await asyncio.to_thread(self._delegate, assignment, number)
        await self._spend(assignment)
        if assignment.workspace is not None and plan.writes:
            self._git.written[assignment.workspace].update(self._writes(assignment))
        slice_s = max(left_s / 4, 0.25)
        while left_s > 0:
            await asyncio.sleep(min(slice_s, left_s))
            left_s -= slice_s
            if not assignment.cancel.is_set():
                self._works()
            if assignment.cancel.is_set() and (plan.kind == "program" or plan.obeys is not None):
                await asyncio.sleep(plan.obeys or 0.0)
                return True
        return False

    def _writes(self, assignment: Assignment) -> dict[str, str]:
        resources = assignment.contract["resources"]
        scope: Sequence[str] = resources["write_scope"]
        files = {f"{part.rstrip('/')}/{assignment.task_id}": assignment.child_run_id for part in scope}
        if self._behaviour.outside:
            files["elsewhere"] = assignment.child_run_id
        return files
