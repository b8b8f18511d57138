"""Where attempts work: workspaces and private folders, outside every repository, recorded before they are made."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from contracts.canonical import well_formed
from contracts.errors import BadInput, CoordinatorError, Refused
from contracts.results import PathChange, WorkspaceRecord
from contracts.terms import Terms
from coordinator import crash_points
from coordinator.home import Home
from coordinator.redaction import Redactor
from coordinator.sources import Sources
from coordinator.store import TaskStore
from coordinator.store.database import from_micros
from coordinator.store.records import Claim
from workspaces import Candidate, GitError, Workspace, make_workspace, outside_scope, remove_workspace, snapshot
from workspaces.places import place_of
from workspaces.trash import delete_folder

__all__ = ["Workplace", "Workplaces", "refuse_unfit_place"]


def refuse_unfit_place(home: Home, issued: Iterable[Terms]) -> None:
    """Raise ``Refused``, naming what is there, when programs or children would work below a repository or a file that
    decides."""
    for terms in issued:
        runs_program = terms.agent is not None and terms.agent.kind == "command"
        if runs_program or terms.workspace != "none" or any(check.command for check in terms.acceptance):
            place_of(home.outside / "workspaces")
            above = deciding_above(home.outside)
            if above is not None:
                raise Refused(
                    f"{above} lies above {home.outside}, where children and checks work, and could decide them: "
                    "give a --home that has nothing above it"
                )
            return


def deciding_above(folder: Path) -> Path | None:
    """A file above (or in) a folder in which tools that look upwards would find their configuration."""
    for parent in (folder, *folder.parents):
        for name in DECIDING:
            if (parent / name).exists():
                return parent / name
    return None


def still_inside(folder: Path) -> list[int]:
    """Processes whose working folder is in a folder: what a child started and left behind."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if Path(os.readlink(entry / "cwd")).is_relative_to(folder):
                    found.append(int(entry.name))
    return found


def _has_own_objects(folder: Path) -> bool:
    """Whether a clone's repository holds what its child put there: commits and stashes that are in no file."""
    objects = folder / ".git" / "objects"
    return (
        any(len(entry.name) == 2 and any(entry.iterdir()) for entry in objects.iterdir()) if objects.is_dir() else False
    )


DECIDING = (
    *("pytest.ini", ".pytest.ini", "conftest.py", "pyproject.toml", "tox.ini", "setup.cfg", "mypy.ini", "ruff.toml"),
    *(".ruff.toml", "package.json", "tsconfig.json", "Cargo.toml", ".cargo/config.toml", "go.mod", "go.work"),
)
"""What common tools look for in the folders above the one they work in."""


@dataclass(slots=True)
class Workplace:
    """What one attempt has: a private folder, and its workspace if the contract gives it one."""

    scratch: Path
    workspace: Workspace | None
    candidate: Candidate | None = None
    handed_in: bool = False
    tree: str | None = None
    """Whose files it began with; None without a workspace."""

    @property
    def working_folder(self) -> Path:
        return self.workspace.folder if self.workspace is not None else self.scratch / "work"


class Workplaces:
    """Makes, snapshots and removes the workplaces of one worker."""

    def __init__(self, store: TaskStore, home: Home, sources: Sources) -> None:
        self._store = store
        self._home = home
        self._sources = sources

    def make(self, claim: Claim, files_of: str | None = None) -> Workplace:
        """A new folder for this attempt; a predecessor's is never entered. Raises ``Refused``, ``BadInput``.

        ``files_of``: the tree that a predecessor left. Where it cannot be had whole, the place begins with its base,
        and its ``tree`` says so.
        """
        scratch = self._home.outside / "attempts" / claim.child_run_id
        workspace = tree = None
        kind = claim.terms.workspace
        if kind != "none":
            assert claim.head is not None, claim.address
            folder = self._home.outside / "workspaces" / claim.child_run_id
            folder.parent.mkdir(parents=True, exist_ok=True)
            self._store.record_workspace(claim, folder=str(folder), base_commit=claim.head)
            git_dir = self._sources.git_dir(claim)
            tree = files_of
            try:
                workspace = make_workspace(git_dir, folder, kind, claim.head, files_of=files_of)
            except (GitError, BadInput):
                if files_of is None:
                    raise
                workspace = make_workspace(git_dir, folder, kind, claim.head)
                tree = None
            tree = tree or workspace.base_tree
            crash_points.reached("workspace_made", claim.task_id, claim.attempt)
        agent = claim.terms.agent
        if claim.terms.resources.tools or agent is None or agent.command is not None:
            (scratch / "work").mkdir(parents=True)
        return Workplace(scratch, workspace, tree=tree)

    def record(self, claim: Claim, place: Workplace, turn: int, redactor: Redactor) -> str | None:
        """The tree of the workspace as it is after a turn, durable; None where it cannot be taken."""
        if place.workspace is None:
            return None
        try:
            return snapshot(
                self._sources.git_dir(claim),
                place.workspace,
                write_scope=claim.terms.resources.write_scope,
                message=f"{claim.address} attempt {claim.attempt} turn {turn}",
                keep_ref=f"turns/{claim.child_run_id}/{turn}",
                at=from_micros(claim.claimed_at),
                holds_secret=lambda data: redactor.data(data)[1] > 0,
            ).tree
        except (CoordinatorError, OSError):
            return None

    def snapshot(self, claim: Claim, place: Workplace, redactor: Redactor) -> WorkspaceRecord | None:
        """The candidate, durable. Only when every process of the child is gone. Raises ``Refused``."""
        workspace = place.workspace
        if workspace is None:
            return None
        left = still_inside(workspace.folder)
        if left:
            raise Refused(f"{len(left)} processes that the child started still run in its workspace; end them first")
        scope = claim.terms.resources.write_scope
        candidate = snapshot(
            self._sources.git_dir(claim),
            workspace,
            write_scope=scope,
            message=f"{claim.address} attempt {claim.attempt}",
            keep_ref=f"candidates/{claim.child_run_id}",
            at=from_micros(claim.claimed_at),
            holds_secret=lambda data: redactor.data(data)[1] > 0,
        )
        crash_points.reached("candidate_kept", claim.task_id, claim.attempt)
        place.candidate = candidate
        assert workspace.kind in ("directory", "clone"), workspace
        return WorkspaceRecord(
            kind=workspace.kind,
            base_commit=candidate.base_commit,
            base_tree=workspace.base_tree,
            candidate_commit=candidate.commit,
            candidate_tree=candidate.tree,
            changes=[
                PathChange(
                    path=well_formed(change.path),
                    status=change.status,
                    old_mode=change.old_mode,
                    new_mode=change.new_mode,
                )
                for change in candidate.changes
            ],
            outside_scope=outside_scope(candidate.changes, scope),
            left_out=list(candidate.left_out),
        )

    def leave(self, claim: Claim, place: Workplace) -> None:
        """Tidy up: the private folder goes; the workspace goes only if nothing in it is unsaved."""
        with contextlib.suppress(OSError):
            delete_folder(place.scratch)
        if place.workspace is not None and self._may_go(place.workspace, place.handed_in):
            # Something in it is saved nowhere else, or cannot be read: it stays.
            with contextlib.suppress(CoordinatorError, OSError):
                remove_workspace(self._sources.git_dir(claim), place.workspace, saved=place.candidate)
                crash_points.reached("workspace_deleted", claim.task_id, claim.attempt)
                self._store.workspace_removed([claim])

    def _may_go(self, workspace: Workspace, handed_in: bool) -> bool:
        """A process in it would lose its ground; commits of an attempt that handed nothing in are saved nowhere
        else."""
        kept = workspace.kind == "clone" and not handed_in and _has_own_objects(workspace.folder)
        return not kept and not still_inside(workspace.folder)
