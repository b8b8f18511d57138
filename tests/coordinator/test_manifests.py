"""The manifest: what a child claimed stands beside what was observed, and it cannot say which is which."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from contracts.canonical import sha256_digest
from contracts.ports import ToolCall
from contracts.results import Manifest, PathChange, ProcessRecord, Result, WorkspaceRecord
from coordinator.manifests import ChildArtifacts, build_manifest
from coordinator.redaction import Redactor

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DIGEST = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64
SECRET = "hunter2-hunter2-7"


def call(number: int, tool: str, *, ok: bool = True, **arguments: str) -> ToolCall:
    return ToolCall(number, tool, arguments, ok, NOON, DIGEST if ok else None, None if ok else "ToolRefused: no")


Make = Callable[..., Manifest]


@pytest.fixture
def artifacts(sqlite_store: Any) -> ChildArtifacts:
    return ChildArtifacts(sqlite_store, Redactor({"SERVICE_TOKEN": SECRET}))


@pytest.fixture
def make(build: Any, sqlite_store: Any, artifacts: ChildArtifacts) -> Make:
    sqlite_store.create_run(build.run())
    (claim,) = sqlite_store.claim("w", work=1)

    def made(
        *, calls: Any = (), read: Any = None, shown: Any = None, processes: Any = (), workspace: Any = None,
        **result: Any,
    ) -> Manifest:  # fmt: skip
        return build_manifest(
            claim, Result.model_validate({"outcome": "completed", **result}), calls=calls, read_set=read or {},
            shown_by=shown or {}, artifacts=artifacts, redactor=Redactor({"SERVICE_TOKEN": SECRET}), started_at=NOON,
            finished_at=NOON, processes=processes, workspace=workspace,
        )  # fmt: skip

    return made


def test_evidence_is_only_claimed_while_nothing_was_served(make: Make) -> None:
    items = [
        {"name": "a", "kind": "citation", "path": "a.py", "line": 1},
        {"name": "b", "kind": "file", "path": "a.py", "digest": DIGEST},
        {"name": "c", "kind": "artifact", "artifact": "report.md"},
        {"name": "d", "kind": "command", "text": "12 passed"},
    ]
    manifest = make(evidence=items, calls=[call(1, "read_file", ok=False, path="a.py")])
    assert [item.origin for item in manifest.evidence] == ["claimed"] * 4
    assert [item.seen_in_calls for item in manifest.evidence] == [[]] * 4
    assert [(seen.ok, seen.error) for seen in manifest.observed_calls] == [(False, "ToolRefused: no")]


@pytest.mark.parametrize("tool", ["read_file", "search_code"])
def test_a_citation_of_what_was_served_is_observed_by_whatever_tool(make: Make, tool: str) -> None:
    items = [{"name": "a", "kind": "citation", "path": "a.py", "line": 1}]
    arguments = {"path": "a.py"} if tool == "read_file" else {"pattern": "x", "glob": "**"}
    manifest = make(evidence=items, calls=[call(1, tool, **arguments)], read={"a.py": DIGEST}, shown={"a.py": [1]})
    assert (manifest.evidence[0].origin, manifest.evidence[0].seen_in_calls) == ("observed", [1])


def test_a_file_is_observed_only_when_it_was_read_and_its_digest_is_not_contradicted(make: Make) -> None:
    items = [
        {"name": "read", "kind": "file", "path": "a.py"},
        {"name": "same", "kind": "file", "path": "a.py", "digest": DIGEST},
        {"name": "differs", "kind": "file", "path": "a.py", "digest": OTHER},
        {"name": "searched", "kind": "file", "path": "b.py"},
    ]
    calls = [call(1, "read_file", path="a.py"), call(2, "search_code", pattern="x", glob="**")]
    read = {"a.py": DIGEST, "b.py": DIGEST}
    manifest = make(evidence=items, calls=calls, read=read, shown={"a.py": [1], "b.py": [2]})
    origins = {item.name: item.origin for item in manifest.evidence}
    assert origins == {"read": "observed", "same": "observed", "differs": "claimed", "searched": "claimed"}


def test_a_child_cannot_say_the_origin_of_its_evidence(make: Make) -> None:
    from pydantic import ValidationError

    with pytest.raises(ValidationError):
        make(evidence=[{"name": "a", "kind": "citation", "path": "a.py", "line": 1, "origin": "verified"}])
    with pytest.raises(ValidationError):
        make(read_set={"a.py": DIGEST})


def test_an_artifact_counts_once_its_bytes_were_handed_over(make: Make, artifacts: ChildArtifacts) -> None:
    ref = artifacts.put("report.md", b"# Report\n", "text/markdown")
    entry = {"name": "report.md", "digest": ref.digest, "size_bytes": 9, "media_type": "text/markdown"}
    absent = {"name": "absent.md", "digest": OTHER, "size_bytes": 9, "media_type": "text/markdown"}
    items = [
        {"name": "r", "kind": "artifact", "artifact": "report.md"},
        {"name": "a", "kind": "artifact", "artifact": "absent.md"},
    ]
    manifest = make(artifacts=[entry, absent], evidence=items)
    assert [item.name for item in manifest.artifacts] == ["report.md"]
    assert manifest.gaps == ["artifact 'absent.md' was named but never handed over"]
    assert [item.origin for item in manifest.evidence] == ["observed", "claimed"]
    assert artifacts.get(ref.digest) == b"# Report\n"


def test_secrets_are_gone_from_every_word_and_every_byte(make: Make, artifacts: ChildArtifacts) -> None:
    ref = artifacts.put(f"env-{SECRET}", f"token={SECRET}".encode(), "text/plain")
    assert ref.redacted
    assert ref.digest == sha256_digest(b"token=[redacted:SERVICE_TOKEN]")
    entry = {
        "name": ref.name,
        "digest": ref.digest,
        "size_bytes": ref.size_bytes,
        "media_type": f"text/{SECRET}",
        "redacted": True,
    }
    manifest = make(
        output={"a": [SECRET], SECRET: 1}, message=SECRET,
        evidence=[{"name": "n", "text": SECRET, "data": {SECRET: SECRET}}], gaps=[SECRET],
        assumptions=[SECRET], next_action=SECRET, artifacts=[entry],
        calls=[call(1, "search_code", pattern=SECRET, glob="**")],
    )  # fmt: skip
    assert SECRET not in manifest.model_dump_json()
    assert manifest.redactions >= 10


def test_the_content_digest_tells_a_repair_that_changed_nothing(make: Make) -> None:
    one, same = make(output={"n": 1}, message="first try"), make(output={"n": 1}, message="second try")
    assert one.content_digest == same.content_digest
    assert make(output={"n": 2}).content_digest != one.content_digest
    assert make(output={"n": 1}, gaps=["half"]).content_digest != one.content_digest
    assert make(output={"n": 1}, evidence=[{"name": "x"}]).content_digest != one.content_digest


def test_a_manifest_says_what_nothing_enforced(make: Make) -> None:
    manifest = make()
    assert manifest.isolation == "none"
    assert manifest.unenforced.startswith("isolation: none. Nothing keeps a child from ")
    assert "run only code that you trust" in manifest.unenforced  # what to do about it
    assert "\n" not in manifest.unenforced


def test_texts_that_no_database_could_hold_are_made_well_formed(make: Make) -> None:
    manifest = make(message="half \ud800", gaps=["\udfff"], evidence=[{"name": "n", "text": "\ud800"}])
    assert Manifest.model_validate_json(manifest.model_dump_json(by_alias=True)) == manifest
    assert manifest.digest.startswith("sha256:")


def process(*argv: str, tail: str = "") -> ProcessRecord:
    return ProcessRecord(
        argv=list(argv), how="exited", exit_status=0, signal=None, all_gone=True, left_behind=0, started_at="t",
        elapsed_s=0.1, stdout_digest=DIGEST, stderr_digest=DIGEST, output_tail=tail,
    )  # fmt: skip


def candidate(*paths: str, tree: str = "1" * 40) -> WorkspaceRecord:
    changes = [PathChange(path=path, status="added", old_mode="000000", new_mode="100644") for path in paths]
    return WorkspaceRecord(
        kind="clone", base_commit="0" * 40, base_tree="0" * 40, candidate_commit="2" * 40, candidate_tree=tree,
        changes=changes, outside_scope=[], left_out=["run.log"],
    )  # fmt: skip


def test_a_command_is_observed_only_when_the_runtime_saw_that_one(make: Make) -> None:
    items = [
        {"name": "seen", "kind": "command", "data": {"argv": ["python", "child.py"]}},
        {"name": "other", "kind": "command", "data": {"argv": ["pytest"]}},
        {"name": "odd", "kind": "command", "data": {"argv": "python child.py"}},
    ]
    manifest = make(evidence=items, processes=[process("python", "child.py")])
    assert {item.name: item.origin for item in manifest.evidence} == {
        "seen": "observed", "other": "claimed", "odd": "claimed",
    }  # fmt: skip


def test_a_file_is_observed_when_the_candidate_changed_it(make: Make) -> None:
    items = [{"name": name, "kind": "file", "path": name} for name in ("made.txt", "said.txt")]
    manifest = make(evidence=items, workspace=candidate("made.txt"))
    assert [item.origin for item in manifest.evidence] == ["observed", "claimed"]
    assert manifest.workspace is not None
    assert manifest.workspace.left_out == ["run.log"]


def test_another_candidate_is_another_content(make: Make) -> None:
    one, same = make(workspace=candidate("a")), make(workspace=candidate("a"), message="again")
    assert one.content_digest == same.content_digest
    assert make(workspace=candidate("a", tree="3" * 40)).content_digest != one.content_digest
    assert make().content_digest != one.content_digest


def test_secrets_are_gone_from_what_programs_printed(make: Make) -> None:
    manifest = make(processes=[process("python", tail=f"token {SECRET}")])
    assert SECRET not in manifest.model_dump_json()
    assert manifest.redactions == 1
