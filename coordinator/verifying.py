"""Everything stored for a run is hashed again, and what names each other is compared: every difference, by name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError
from sqlalchemy import select

from contracts.canonical import sha256_digest
from contracts.errors import CoordinatorError, NotFound
from contracts.results import Decision, Manifest, WorkspaceRecord
from contracts.terms import Terms
from coordinator.home import Home
from coordinator.store import Damaged, TaskStore
from coordinator.store import tables as t
from coordinator.store.database import Tx
from workspaces.git import GitError, run_git
from workspaces.tree import OBJECT_ID, object_hash

__all__ = ["Difference", "Verification", "task_keys", "verify"]


@dataclass(frozen=True, slots=True)
class Difference:
    """``what`` is the thing that differs (``terms``, ``artifact 'report.md'`` …) at an address."""

    address: str
    what: str
    message: str

    def __str__(self) -> str:
        return f"{self.address}: {self.what}: {self.message}"


@dataclass(slots=True)
class Verification:
    """``counts``: how many of each kind of thing were hashed again."""

    counts: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)


class _Attempt(NamedTuple):
    task_id: int
    number: int
    generation: int
    child_run_id: str
    ended: str | None
    decision: str | None
    policy_version: str | None
    manifest: str | None
    decided: str | None


def verify(
    store: TaskStore, home: Home, run: int, *, task_id: str | None = None, attempt: int | None = None
) -> Verification:
    """Verify a run, one task of it in all its contract versions, or one attempt of its current one.

    Of candidates, judged trees and new heads the commits and top trees are hashed again; files below them are not.
    Rows are read as they are: what was altered may not parse, and must be named all the same.
    """
    return store.read_with(lambda tx: _Rows(tx, run)).verified(store, home, task_id, attempt)  # type: ignore[no-any-return]


def task_keys(store: TaskStore, run: int) -> list[str]:
    """The ids of a run's tasks, read without their terms."""
    query = select(t.task.c.key).where(t.task.c.orchestration_id == run).order_by(t.task.c.id)
    return list(dict.fromkeys(store.read_with(lambda tx: tx.conn.execute(query).scalars().all())))


class _Rows:
    """What the tables say of a run: digests, and which thing is bound to which."""

    def __init__(self, tx: Tx, run: int) -> None:
        found = select(t.orchestration.c.run_id, t.document.c.digest).join(
            t.document, t.document.c.id == t.orchestration.c.document_id
        )
        self.run_id, self.document = tx.conn.execute(found.where(t.orchestration.c.id == run)).one()
        tasks = select(t.task.c.id, t.task.c.key, t.task.c.contract_version, t.task.c.is_current, t.document.c.digest)
        tasks = tasks.join(t.document, t.document.c.id == t.task.c.terms_id)
        self.tasks = tx.conn.execute(tasks.where(t.task.c.orchestration_id == run).order_by(t.task.c.id)).all()
        manifest, decision = t.document.alias("m"), t.document.alias("d")
        a = t.attempt.c
        attempts = (
            select(
                a.task_id, a.number, a.generation, a.child_run_id, a.ended, a.decision, a.policy_version,
                manifest.c.digest, decision.c.digest,
            )
            .join(t.task, t.task.c.id == a.task_id)
            .outerjoin(manifest, manifest.c.id == a.manifest_id)
            .outerjoin(decision, decision.c.id == a.decision_id)
            .where(t.task.c.orchestration_id == run)
            .order_by(a.task_id, a.number)
        )  # fmt: skip
        self.attempts = [_Attempt(*row) for row in tx.conn.execute(attempts)]
        question, answer, action = t.document.alias("q"), t.document.alias("r"), t.document.alias("a")
        requests = (
            select(t.request.c.request_id, t.request.c.task_id, question.c.digest, answer.c.digest, action.c.digest)
            .join(question, question.c.id == t.request.c.question_id)
            .outerjoin(answer, answer.c.id == t.request.c.answer_id)
            .outerjoin(action, action.c.id == t.request.c.action_id)
            .where(t.request.c.orchestration_id == run)
            .order_by(t.request.c.sequence)
        )
        self.requests = tx.conn.execute(requests).all()

    def verified(self, store: TaskStore, home: Home, task_id: str | None, attempt: int | None) -> Verification:
        work = _Work(store, home, self.run_id)
        work.run_document(self.document)
        for task in self.tasks:
            if task_id not in (None, task.key) or (attempt is not None and not task.is_current):
                continue
            address = f"{self.run_id}/{task.key}"
            if not task.is_current:
                address += f" (contract version {task.contract_version})"
            work.terms(address, task.key, task.contract_version, task.digest)
            own = [row for row in self.attempts if row.task_id == task.id]
            if attempt is not None and attempt not in [row.number for row in own]:
                raise NotFound(f"{address} has no attempt {attempt}: it has {len(own)}")
            for row in own:
                if attempt in (None, row.number):
                    work.attempt(f"{address}@{row.number}", row, task.key, task.digest)
            for request_id, of_task, question, answer, action in self.requests:
                if of_task == task.id and attempt is None:
                    work.read(address, f"question of {request_id}", "question", question)
                    if answer is not None:
                        work.read(address, f"answer to {request_id}", "answer", answer)
                    if action is not None:
                        work.read(address, f"call asked about by {request_id}", "call", action)
        return work.found


class _Work:
    """Reads, hashes and compares; remembers what it has hashed already."""

    def __init__(self, store: TaskStore, home: Home, run_id: str) -> None:
        self.found = Verification()
        self._store = store
        self._home = home
        self._git_dirs: list[Path] = []
        self._known_objects: dict[str, tuple[str, bytes] | str] = {}
        self._run_id = run_id
        self._known: dict[str, bytes | str] = {}

    def run_document(self, digest: str) -> None:
        data = self.read(self._run_id, "run document", "run document", digest)
        document = self._parsed(self._run_id, "run document", data, json.loads)
        if document is not None:
            if document.get("git_dir"):
                self._git_dirs = list(self._dirs_of(document["git_dir"], document["name"]))
            for name, pinned in sorted((document.get("files") or {}).items()):
                self.read(self._run_id, f"pinned file {name!r}", "pinned file", pinned)

    def _dirs_of(self, newest: str, name: str) -> Iterator[Path]:
        """The run's git directory, and those that it had before it was given another source."""
        yield self._home.git_dir(newest)
        yield from (path for path in self._home.git_dir("").glob(f"{name}-*.git") if path.name != newest)

    def terms(self, address: str, key: str, version: int, digest: str) -> None:
        data = self.read(address, "terms", "contract", digest)
        terms = self._parsed(address, "terms", data, lambda raw: Terms.from_canonical(json.loads(raw)))
        if terms is not None:
            for name, pin in terms.input_snapshot.items():
                pinned = pin.rpartition("@")[2]
                if pinned.startswith("sha256:") and pinned not in self._known:  # else it was the run document's
                    self.read(address, f"pinned file {name!r}", "pinned file", pinned)
            pairs = [("task", terms.task_id, key), ("contract version", terms.contract_version, version)]
            self._same(address, "terms", pairs)

    def attempt(self, address: str, row: _Attempt, key: str, terms_digest: str) -> None:
        if row.manifest is not None:
            data = self.read(address, "manifest", "manifest", row.manifest)
            manifest = self._parsed(address, "manifest", data, Manifest.model_validate_json)
            if manifest is not None:
                self._manifest(address, manifest, row, key, terms_digest)
        if row.decided is not None:
            data = self.read(address, "decision", "decision", row.decided)
            decision = self._parsed(address, "decision", data, Decision.model_validate_json)
            if decision is not None:
                self._decision(address, decision, row, terms_digest)
        elif row.decision is not None:
            self._differs(address, "decision", f"the row says {row.decision}, but names no decision document")

    def _manifest(self, address: str, manifest: Manifest, row: _Attempt, key: str, terms_digest: str) -> None:
        pairs = [
            ("run", manifest.run_id, self._run_id), ("task", manifest.task_id, key),
            ("attempt", manifest.attempt, row.number), ("claim generation", manifest.claim_generation, row.generation),
            ("child run", manifest.child_run_id, row.child_run_id), ("terms", manifest.terms_digest, terms_digest),
        ]  # fmt: skip
        self._same(address, "manifest", pairs)
        for entry in manifest.artifacts:
            what = f"artifact {entry.name!r}"
            data = self.read(address, what, "artifact", entry.digest)
            if data is not None and len(data) != entry.size_bytes:
                self._differs(address, what, f"it has {len(data)} bytes, the manifest says {entry.size_bytes}")
        if manifest.workspace is not None:
            self._candidate(address, manifest.workspace)

    def _candidate(self, address: str, made: WorkspaceRecord) -> None:
        self._object(address, "base tree", made.base_tree, "tree")
        self._object(address, "candidate tree", made.candidate_tree, "tree")
        self._object(address, "base commit", made.base_commit, "commit", tree=made.base_tree)
        self._object(address, "candidate commit", made.candidate_commit, "commit", tree=made.candidate_tree)

    def _decision(self, address: str, decision: Decision, row: _Attempt, terms_digest: str) -> None:
        bound = decision.bound
        pairs = [
            ("terms", bound.terms_digest, terms_digest), ("manifest", bound.manifest_digest, row.manifest),
            ("policy version", bound.policy_version, row.policy_version),
            ("claim generation", bound.generation_submitted, row.generation), ("word", decision.decision, row.decision),
        ]  # fmt: skip
        self._same(address, "decision", pairs)
        if decision.judged_tree is not None:
            # A result that changed nothing is judged on the head itself, which is named by its commit.
            kinds = ("tree",) if decision.new_head is not None else ("tree", "commit")
            self._object(address, "judged tree", decision.judged_tree, *kinds)
        if decision.new_head is not None:
            self._object(address, "new head", decision.new_head, "commit", tree=decision.judged_tree)

    def _object(self, address: str, what: str, object_id: str, *kinds: str, tree: str | None = None) -> None:
        """Whether a git object is there, has its id and is of such a kind; for a commit, whether it is of this tree."""
        if object_id not in self._known_objects:
            self._known_objects[object_id] = self._read_object(object_id)
        self.found.counts[what] += 1
        found = self._known_objects[object_id]
        if isinstance(found, str):
            self._differs(address, what, found)
        elif found[0] not in kinds:
            self._differs(address, what, f"{object_id} is a {found[0]}, not a {kinds[0]}")
        elif tree is not None and found[1].partition(b"\n")[0] != b"tree " + tree.encode():
            self._differs(address, what, f"commit {object_id} is not of the tree {tree}")

    def _read_object(self, object_id: str) -> tuple[str, bytes] | str:
        """Kind and bytes of an object whose id is right, or what is wrong with it."""
        if not OBJECT_ID.fullmatch(object_id):
            return f"{object_id!r} is no full object id"
        wrong = f"{object_id} is in no git directory of this run"
        for folder in self._git_dirs:
            if not folder.is_dir():
                wrong = f"the git directory {folder} is missing"
                continue
            try:
                kind = run_git(["cat-file", "-t", object_id], git_dir=folder).decode("ascii", "replace").strip()
                data = run_git(["cat-file", kind, object_id], git_dir=folder)
            except GitError as error:
                wrong = f"{object_id} cannot be read from {folder}: {error.message}"
                continue
            digest = object_hash(kind, len(data), len(object_id))
            digest.update(data)
            if digest.hexdigest() == object_id:
                return kind, data
            wrong = f"stored bytes of {object_id} in {folder} were changed"
        return wrong

    def read(self, address: str, what: str, kind: str, digest: str) -> bytes | None:
        """Stored bytes whose digest is right; otherwise the difference is noted, and None."""
        if digest not in self._known:
            try:
                self._known[digest] = self._store.bytes_of(digest)
            except Damaged as error:
                self._known[digest] = str(error)
            except (CoordinatorError, OSError, AssertionError) as error:
                self._known[digest] = f"{digest} cannot be read: {error}"
        self.found.counts[kind] += 1
        data = self._known[digest]
        if isinstance(data, str):
            self._differs(address, what, data)
            return None
        return data

    def _parsed(self, address: str, what: str, data: bytes | None, parse: Callable[[bytes], Any]) -> Any:
        if data is None:
            return None
        try:
            return parse(data)
        except (ValidationError, ValueError, KeyError, TypeError) as error:
            self._differs(address, what, f"{sha256_digest(data)} is not such a document: {type(error).__name__}")
            return None

    def _same(self, address: str, what: str, pairs: Sequence[tuple[str, object, object]]) -> None:
        for name, found, due in pairs:
            if found != due:
                self._differs(address, what, f"its {name} is {found}, the store's row says {due}")

    def _differs(self, address: str, what: str, message: str) -> None:
        self.found.differences.append(Difference(address, what, message))
