"""The evidence manifest: what the child said, beside what was observed; secrets are gone before anything is hashed."""

from __future__ import annotations

import json
import mimetypes
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from contracts.canonical import digest_of, well_formed
from contracts.errors import Refused, StoreUnavailable
from contracts.evidence import EvidenceItem
from contracts.ports import ArtifactRef, ToolCall
from contracts.results import (
    ArtifactEntry,
    Manifest,
    ManifestItem,
    ObservedCall,
    ProcessRecord,
    Result,
    WorkspaceRecord,
)
from contracts.states import Outcome
from coordinator.launch import UNENFORCED
from coordinator.redaction import Redactor
from coordinator.store import Damaged, TaskStore
from coordinator.store.database import Blob
from coordinator.store.records import Claim

__all__ = ["ChildArtifacts", "build_manifest"]


class ChildArtifacts:
    """Implements ``contracts.ports.ArtifactStore`` for one attempt: bytes are redacted, then durable, then named."""

    def __init__(self, store: TaskStore, redactor: Redactor) -> None:
        self._store = store
        self._redactor = redactor
        self._lock = threading.Lock()
        self._blobs: dict[str, Blob] = {}

    def put(self, name: str, data: bytes, media_type: str) -> ArtifactRef:
        clean, found = self._redactor.data(data)
        try:
            blob = self._store.files.make_durable(clean)
        except StoreUnavailable as error:
            # To the child, not to the store: a result that does not fit here would be made again for ever.
            raise Refused(str(error)) from None
        with self._lock:
            self._blobs[blob.digest] = blob
        guessed = mimetypes.guess_type(name)[0] if media_type == "application/octet-stream" else None
        return ArtifactRef(name, blob.digest, blob.size_bytes, guessed or media_type, redacted=found > 0)

    def get(self, digest: str) -> bytes:
        with self._lock:
            blob = self._blobs.get(digest)
        if blob is not None and blob.data is not None:
            return blob.data
        try:
            return self._store.bytes_of(digest)
        except Damaged as error:
            raise ValueError(str(error)) from error

    def blobs(self) -> Sequence[Blob]:
        with self._lock:
            return tuple(self._blobs.values())


def build_manifest(
    claim: Claim,
    result: Result,
    *,
    calls: Sequence[ToolCall],
    read_set: Mapping[str, str],
    shown_by: Mapping[str, Sequence[int]],
    artifacts: ChildArtifacts,
    redactor: Redactor,
    started_at: datetime,
    finished_at: datetime,
    processes: Sequence[ProcessRecord] = (),
    workspace: WorkspaceRecord | None = None,
) -> Manifest:
    """Put together what one attempt handed in. An artifact that was never handed over as bytes is dropped, and named
    as a gap."""
    durable = {blob.digest for blob in artifacts.blobs()}
    kept = [entry for entry in result.artifacts if entry.digest in durable]
    gaps = [
        *result.gaps,
        *(f"artifact {e.name!r} was named but never handed over" for e in result.artifacts if e.digest not in durable),
    ]
    observed = [
        ObservedCall(
            number=call.number, tool=call.tool, arguments=dict(call.arguments), ok=call.ok,
            at=call.at.isoformat(), result_digest=call.result_digest, error=call.error,
        )
        for call in calls
    ]  # fmt: skip
    read = {well_formed(path): digest for path, digest in sorted(read_set.items())}
    said: dict[str, Any] = {
        "output": result.output,
        "message": well_formed(result.message),
        "evidence": [
            _item(item, read, shown_by, observed, kept, processes, workspace).model_dump(mode="json")
            for item in result.evidence
        ],
        "gaps": [well_formed(gap) for gap in gaps],
        "assumptions": [well_formed(text) for text in result.assumptions],
        "next_action": well_formed(result.next_action),
    }
    clean, redactions = redactor.value(said)
    calls_clean, more = redactor.value([call.model_dump(mode="json") for call in observed])
    ran, in_programs = redactor.value([record.model_dump(mode="json") for record in processes])
    entries, in_names = redactor.value([entry.model_dump(mode="json") for entry in kept])
    return Manifest.model_validate(
        {
            "schema": "coordinator/manifest/v1",
            "run_id": claim.run_id,
            "task_id": claim.task_id,
            "contract_version": claim.terms.contract_version,
            "child_run_id": claim.child_run_id,
            "attempt": claim.attempt,
            "claim_generation": claim.generation,
            "terms_digest": claim.terms_digest,
            "outcome": Outcome(result.outcome),
            **clean,
            "artifacts": entries,
            "observed_calls": calls_clean,
            "read_set": read,
            "processes": ran,
            "workspace": workspace.model_dump(mode="json") if workspace is not None else None,
            "content_digest": digest_of(
                [
                    clean["output"],
                    clean["evidence"],
                    entries,
                    clean["gaps"],
                    str(result.outcome),
                    workspace.candidate_tree if workspace is not None else None,
                ]
            ),
            "isolation": claim.terms.isolation,
            "unenforced": UNENFORCED if claim.terms.isolation == "none" else "",
            "redactions": redactions + more + in_programs + in_names + sum(entry.redacted for entry in kept),
            "started_at": started_at.isoformat(),
            "finished_at": finished_at.isoformat(),
        }
    )


def _item(
    item: EvidenceItem,
    read: Mapping[str, str],
    shown_by: Mapping[str, Sequence[int]],
    calls: Sequence[ObservedCall],
    artifacts: Sequence[ArtifactEntry],
    processes: Sequence[ProcessRecord],
    workspace: WorkspaceRecord | None,
) -> ManifestItem:
    """Give an item its origin: *observed* only where the broker, the runtime or the store saw it, whatever the child
    says."""
    seen: list[int] = []
    origin = "claimed"
    if item.kind == "command":
        argv = item.data.get("argv") if isinstance(item.data, dict) else None
        if any(argv == record.argv for record in processes):
            origin = "observed"
            asked = json.dumps(argv, ensure_ascii=False)
            seen = [c.number for c in calls if c.ok and c.tool == "run_command" and c.arguments.get("command") == asked]
    if item.kind == "file" and workspace is not None and any(item.path == change.path for change in workspace.changes):
        origin = "observed"
    if item.kind == "citation" and item.path is not None and item.path in read:
        origin, seen = "observed", list(shown_by.get(item.path, ()))
    if item.kind == "file" and item.path is not None and item.path in read:
        # A search shows lines; only ``read_file`` serves the file.
        seen = [c.number for c in calls if c.ok and c.tool == "read_file" and c.arguments.get("path") == item.path]
        if seen and item.digest in (None, read[item.path]):
            origin = "observed"
    if item.kind == "artifact" and any(item.artifact == e.name or item.digest == e.digest for e in artifacts):
        origin = "observed"
    data = {key: well_formed(value) if isinstance(value, str) else value for key, value in item.model_dump().items()}
    return ManifestItem.model_validate({**data, "origin": origin, "seen_in_calls": seen[:20]})
