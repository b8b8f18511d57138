"""The pinned source and files of runs, opened once for all children of a worker."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from contracts.ports import SourceReader
from coordinator.home import Home
from coordinator.store import TaskStore
from coordinator.store.records import Claim
from workspaces import TreeReader

__all__ = ["Sources"]


class Sources:
    """Safe to use from several threads."""

    def __init__(self, store: TaskStore, home: Home) -> None:
        self._store = store
        self._home = home
        self._lock = threading.Lock()
        self._documents: dict[int, dict[str, Any]] = {}
        self._readers: dict[str, TreeReader] = {}

    def close(self) -> None:
        with self._lock:
            for reader in self._readers.values():
                reader.close()
            self._readers.clear()

    def reader(self, claim: Claim) -> SourceReader | None:
        """Reads the tree that the claim's terms are pinned to; None when the run has no source."""
        commit = claim.terms.input_snapshot.get("repo_ref", "").rpartition("@")[2]
        if not commit:
            return None
        with self._lock:
            document = self._document(claim, lambda found: found["source"] and found["source"]["commit"] == commit)
            name = document["git_dir"]
            if name not in self._readers:
                self._readers[name] = TreeReader(self._home.git_dir(name), commit)
            return self._readers[name]

    def folder(self, claim: Claim) -> Path | None:
        """The folder of the run's file."""
        with self._lock:
            return Path(self._document(claim, lambda found: True)["folder"])

    def pinned_bytes(self, claim: Claim, name: str) -> bytes:
        """Exact bytes of a file that the contract names. Raises ``KeyError``, ``Damaged``."""
        return self._store.bytes_of(claim.terms.input_snapshot[name].rpartition("@")[2])

    def pinned_file(self, claim: Claim, name: str) -> Path:
        digest = claim.terms.input_snapshot[name].rpartition("@")[2]
        return self._home.pinned_file(name, digest, self._store.bytes_of(digest))

    def _document(self, claim: Claim, fits: Any) -> dict[str, Any]:
        """The run's document; read again when the run was given another source by a new version."""
        known = self._documents.get(claim.orchestration_row)
        if known is None or not fits(known):
            known = self._documents[claim.orchestration_row] = self._store.run_document(claim.orchestration_row)
        return known
