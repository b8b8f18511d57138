"""Results as they come to the gate, against a real pinned source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from contracts.canonical import digest_of, sha256_digest
from contracts.delegation import Binding, render_contract
from contracts.results import Manifest
from contracts.states import ClaimKind
from contracts.terms import Terms
from coordinator.gate import Case
from coordinator.store.records import Claim, RepairHistory
from workspaces import TreeReader, fetch_source, pin_source

SOURCE = {
    "src/pay.py": b"def pay():\n    return legacy_state()\n",
    "src/empty.py": b"",
    "secret/plan.md": b"not for children\n",
}
AT = "2026-08-01T00:00:00+00:00"


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TreeReader]:
    folder = tmp_path_factory.mktemp("source") / "payments"
    for path, data in SOURCE.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    pin = pin_source(folder)
    git_dir = tmp_path_factory.mktemp("git") / "source.git"
    fetch_source(pin, git_dir)
    made = TreeReader(git_dir, pin.commit)
    yield made
    made.close()


MakeCase = Callable[..., Case]


@pytest.fixture
def make_case(reader: TreeReader) -> MakeCase:
    """``make_case(acceptance=[...], output=...)``: a completed result of one task under its first claim.

    ``artifacts``: name -> bytes. ``files``: pinned name -> bytes. ``evidence``: manifest items (``origin`` defaults to
    claimed). ``calls``: observed calls. What is left over replaces fields of the manifest.
    """

    def make(
        *,
        acceptance: list[dict[str, Any]] | None = None,
        required_evidence: list[Any] | None = None,
        read_scope: list[str] | None = None,
        files: Mapping[str, bytes] | None = None,
        artifacts: Mapping[str, bytes] | None = None,
        evidence: list[dict[str, Any]] | None = None,
        calls: list[dict[str, Any]] | None = None,
        history: RepairHistory | None = None,
        **manifest: Any,
    ) -> Case:
        files, artifacts = dict(files or {}), dict(artifacts or {})
        terms = Terms.model_validate(
            {
                "task_id": "audit",
                "contract_version": 1,
                "objective": "Audit it.",
                "input_snapshot": {name: f"{name}@{sha256_digest(data)}" for name, data in files.items()},
                "resources": {"tools": ["read_file"], "read_scope": read_scope or ["**"]},
                "isolation": "none",
                "required_evidence": required_evidence or [],
                "acceptance": acceptance or [],
            }
        )
        stored = {sha256_digest(data): data for data in artifacts.values()}
        fields: dict[str, Any] = {
            "run_id": "audit",
            "task_id": "audit",
            "contract_version": 1,
            "child_run_id": "audit-audit-1",
            "attempt": 1,
            "claim_generation": 1,
            "terms_digest": terms.digest,
            "outcome": "completed",
            "output": None,
            "message": "",
            "evidence": [{"origin": "claimed", **item} for item in evidence or []],
            "artifacts": [
                {
                    "name": name,
                    "digest": sha256_digest(data),
                    "size_bytes": len(data),
                    "media_type": "text/markdown" if name.endswith(".md") else "application/octet-stream",
                }
                for name, data in artifacts.items()
            ],
            "gaps": [],
            "assumptions": [],
            "next_action": "",
            "observed_calls": [
                {"number": number, "tool": "read_file", "arguments": {}, "ok": True, "at": AT, **call}
                for number, call in enumerate(calls or [], 1)
            ],
            "read_set": {},
            "content_digest": digest_of([manifest.get("output"), sorted(stored)]),
            "isolation": "none",
            "unenforced": "isolation none: network and write scope were not enforced",
            "redactions": 0,
            "started_at": AT,
            "finished_at": AT,
        } | manifest  # fmt: skip
        made = Manifest.model_validate_json(
            Manifest.model_validate(fields, strict=False).model_dump_json(by_alias=True)
        )
        claim = Claim(
            orchestration_row=1, task_row=7, run_id="audit", task_id="audit", kind=ClaimKind.GATE, generation=2,
            token="t", owner="w", lease_until=2, claimed_at=1, delegation_id="audit", terms=terms,
            terms_digest=terms.digest, attempt_row=1, attempt=1, child_run_id="audit-audit-1", deadline_at=9,
            parent_state_version=3, head=None, manifest_digest=made.digest, generation_submitted=1,
        )  # fmt: skip
        binding = Binding(
            child_run_id="audit-audit-1", parent_run_id="audit", delegation_id="audit", parent_state_version=3
        )
        return Case(
            claim=claim,
            manifest=made,
            read_artifact=stored.__getitem__,
            read_file=files.__getitem__,
            reader=reader,
            history=history or RepairHistory(repairs=0, last_content_digest=None),
            contract=render_contract(terms, binding),
        )

    return make
