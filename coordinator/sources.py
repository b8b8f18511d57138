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

READERS_MAX = 16
"""How many are kept, each with a git process, though nobody reads."""


class Sources:
    """Safe to use from several threads."""

    def __init__(self, store: TaskStore, home: Home) -> None:
        self._store = store
        self._home = home
        self._lock = threading.Lock()
        self._documents: dict[int, dict[str, Any]] = {}
        self._readers: dict[tuple[Path, str], TreeReader] = {}
        self._lent: dict[str, set[tuple[Path, str]]] = {}

    def close(self) -> None:
        with self._lock:
            for reader in self._readers.values():
                reader.close()
            self._readers.clear()

    def reader(self, claim: Claim) -> SourceReader | None:
        """Reads the accepted tree at the time of the claim; None when the run has no source."""
        return None if claim.head is None else self.reader_at(claim, claim.head)

    def reader_at(self, claim: Claim, commit: str) -> SourceReader:
        """Reads any commit of the run's own git directory. It stays open until the claim gives it back."""
        key = (self.git_dir(claim), commit)
        with self._lock:
            reader = self._readers.pop(key, None) or TreeReader(*key)
            self._readers[key] = reader  # the newest is last
            self._lent.setdefault(claim.token, set()).add(key)
            return reader

    def give_back(self, claim: Claim) -> None:
        """The claim reads no more; what was last used longest ago is closed when there are many."""
        with self._lock:
            self._lent.pop(claim.token, None)
            in_use = set().union(*self._lent.values())
            spare = [key for key in self._readers if key not in in_use]
            for key in spare[: max(len(spare) - READERS_MAX, 0)]:
                self._readers.pop(key).close()

    def git_dir(self, claim: Claim) -> Path:
        """The run's own git directory, for the source that the claim's terms are pinned to."""
        pin = claim.terms.input_snapshot.get("repo_ref", "").rpartition("@")[2]
        with self._lock:
            document = self._document(claim, lambda found: bool(found["source"]) and found["source"]["commit"] == pin)
        assert document["git_dir"] is not None, claim.address
        return self._home.git_dir(document["git_dir"])

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
        """What the run's document says of places; read again when a new version gave the run another source."""
        known = self._documents.get(claim.orchestration_row)
        if known is None or not fits(known):
            whole = self._store.run_document(claim.orchestration_row)  # large: all that was authored
            known = {key: whole[key] for key in ("folder", "source", "git_dir")}
            self._documents[claim.orchestration_row] = known
        return known
