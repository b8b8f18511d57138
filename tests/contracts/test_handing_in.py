"""What a child hands in: its own words and nothing more, by the helpers of its assignment."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from contracts.assignment import Assignment, Feedback, NeededResult
from contracts.canonical import canonical_bytes
from contracts.evidence import EvidenceItem
from contracts.ports import ArtifactRef
from contracts.requests import Answer, Request
from contracts.results import Bound, Decision, Finding, Manifest, ManifestItem, Result
from contracts.states import Outcome


class Artifacts:
    """An artifact store that keeps bytes by digest in memory."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}

    def put(self, name: str, data: bytes, media_type: str) -> ArtifactRef:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.data[digest] = data
        return ArtifactRef(name, digest, len(data), media_type)

    def get(self, digest: str) -> bytes:
        return self.data[digest]


class NoTools:
    def list_files(self, pattern: str = "**") -> list[str]:
        raise NotImplementedError

    def read_file(self, path: str) -> str:
        raise NotImplementedError

    def search_code(self, pattern: str, glob: str = "**") -> list[dict[str, Any]]:
        raise NotImplementedError


class NeverCancelled:
    reason = ""

    def is_set(self) -> bool:
        return False

    def wait(self, timeout_s: float | None = None) -> bool:
        return False


@pytest.fixture
def a() -> Assignment:
    artifacts = Artifacts()
    kept = artifacts.put("facts.json", b"{}", "application/json")
    needed = NeededResult("facts", {"n": 1}, {"facts.json": kept.digest}, "sha256:00", partial=False)
    return Assignment(
        run_id="run",
        task_id="task",
        child_run_id="task-1",
        attempt=1,
        generation=1,
        contract={"objective": "Do it."},
        objective="Do it.",
        inputs={},
        needs={"facts": needed},
        feedback=None,
        answers=[],
        left_out=[],
        deadline_at=datetime(2030, 1, 1, tzinfo=UTC),
        tools=NoTools(),
        cancel=NeverCancelled(),
        artifacts=artifacts,
    )


ENDINGS: list[tuple[Outcome, Callable[[Assignment], Result]]] = [
    (Outcome.COMPLETED, lambda a: a.completed({"n": 1})),
    (Outcome.PARTIAL, lambda a: a.partial({"n": 1}, "half", next_action="the rest")),
    (Outcome.FAILED, lambda a: a.failed("no such symbol")),
    (Outcome.BLOCKED, lambda a: a.blocked("Which one?")),
    (Outcome.CANCELLED, lambda a: a.cancelled()),
]


@pytest.mark.parametrize(("outcome", "end"), ENDINGS)
def test_every_way_to_end_carries_evidence_gaps_assumptions_and_artifacts(
    a: Assignment, outcome: Outcome, end: Callable[[Assignment], Result]
) -> None:
    a.note("inventory", "three callers")
    a.cite("inventory", "src/a.py", 3, symbol="f")
    a.evidence("report", "artifact", artifact="report.md")
    a.gap("not parsed: b.js")
    a.assume("names are unique")
    a.artifact("report.md", "# Report\n")
    result = end(a)
    assert result.outcome is outcome
    assert [(item.kind, item.line) for item in result.evidence] == [("note", None), ("citation", 3), ("artifact", None)]
    assert (result.gaps, result.assumptions) == (["not parsed: b.js"], ["names are unique"])
    assert [(entry.name, entry.size_bytes) for entry in result.artifacts] == [("report.md", 9)]


def test_what_an_ending_says_is_in_the_result(a: Assignment) -> None:
    assert a.completed([1], "done", "deploy").next_action == "deploy"
    assert a.partial(next_action="the rest").next_action == "the rest"
    assert (a.failed("why").message, a.failed("why", {"tried": 1}).output) == ("why", {"tried": 1})
    assert (a.blocked("Which?").question, a.blocked("Which?").message) == ("Which?", "")
    assert a.cancelled().message == "stopped when told to"


def test_a_second_artifact_with_a_name_replaces_the_first(a: Assignment) -> None:
    first = a.artifact("report.md", "one")
    a.artifact("raw", b"\x00")
    second = a.artifact("report.md", "two")
    (report, raw) = a.completed().artifacts
    assert first.digest != second.digest == report.digest
    assert (report.media_type, raw.media_type) == ("text/plain; charset=utf-8", "application/octet-stream")


def test_a_result_does_not_change_with_what_the_child_does_after_it(a: Assignment) -> None:
    result = a.completed()
    a.note("late", "too late")
    a.artifact("late", "too late")
    assert (result.evidence, result.artifacts) == ([], [])


def test_an_artifact_of_a_needed_task_is_read_by_its_name(a: Assignment) -> None:
    assert a.read_needed("facts", "facts.json") == b"{}"
    with pytest.raises(KeyError):
        a.read_needed("facts", "other")


def test_text_with_half_a_surrogate_pair_becomes_an_artifact_with_a_visible_escape(a: Assignment) -> None:
    ref = a.artifact("names.txt", "caf\udce9\n")
    assert a.artifacts.get(ref.digest) == b"caf\\udce9\n"


def test_an_assignment_is_read_as_its_contract_and_feedback_as_a_list_to_mend(a: Assignment) -> None:
    assert json.loads(str(a)) == {"objective": "Do it."}
    findings = [Finding(check="sections", message="Missing required sections: Risks")]
    feedback = Feedback(1, "repair required", findings, "sha256:00")
    assert str(feedback) == "repair required\n- sections: Missing required sections: Risks"


@pytest.mark.parametrize("more", [{"origin": "verified"}, {"origin": "observed"}, {"seen_in_calls": [1]}, {"x": 1}])
def test_a_child_cannot_say_how_far_its_evidence_is_to_be_trusted(a: Assignment, more: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        a.evidence("x", "file", path="a.py", **more)
    with pytest.raises(ValidationError):
        Result.model_validate({"outcome": "completed", "evidence": [{"name": "x", **more}]})
    assert a.completed().evidence == []


def test_only_the_runtime_makes_items_with_an_origin() -> None:
    item = ManifestItem(name="x", origin="observed", seen_in_calls=[1])
    assert item.origin == "observed"
    with pytest.raises(ValidationError):
        ManifestItem.model_validate({"name": "x"})
    with pytest.raises(ValidationError):
        ManifestItem.model_validate({"name": "x", "origin": "proved"})


@pytest.mark.parametrize("output", [None, 0, False, "", [], {"a": [1.5, None, "é", True]}])
def test_any_json_value_may_be_the_output_and_comes_back_the_same(a: Assignment, output: Any) -> None:
    result = a.completed(output)
    again = Result.model_validate(json.loads(canonical_bytes(result.model_dump(mode="json"))))
    assert again == result
    assert type(again.output) is type(output)


def deep(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = {"in": value}
    return value


@pytest.mark.parametrize(
    "output",
    [math.nan, -math.inf, 2**53, 1e20, {1: 2}, {"a": {1}}, b"x", "\ud800", deep(70), Outcome],
    ids=lambda value: ascii(value)[:20],
)
def test_an_output_that_could_not_be_stored_or_read_again_is_refused_where_it_is_handed_in(
    a: Assignment, output: Any
) -> None:
    with pytest.raises(ValidationError, match="output"):
        a.completed({"x": [output]})
    with pytest.raises(ValidationError, match="data"):
        a.evidence("x", data=output)


def test_the_deepest_output_that_is_accepted_fits_into_a_manifest(a: Assignment) -> None:
    result = a.completed(deep(64))
    assert manifest(output=result.output).digest.startswith("sha256:")


def manifest(**more: Any) -> Manifest:
    return Manifest.model_validate(
        {
            "run_id": "r",
            "task_id": "t",
            "contract_version": 1,
            "child_run_id": "t-1",
            "attempt": 1,
            "claim_generation": 1,
            "terms_digest": "sha256:00",
            "outcome": "partial",
            "output": None,
            "message": "",
            "evidence": [],
            "artifacts": [],
            "gaps": [],
            "assumptions": [],
            "next_action": "",
            "observed_calls": [],
            "read_set": {},
            "content_digest": "sha256:00",
            "isolation": "none",
            "unenforced": "",
            "redactions": 0,
            "started_at": "2030",
            "finished_at": "2030",
            **more,
        }
    )


def test_a_manifest_comes_back_from_its_canonical_form_with_the_same_digest() -> None:
    own = manifest(evidence=[{"name": "x", "kind": "file", "path": "a", "origin": "observed", "data": {"n": 1}}])
    again = Manifest.model_validate(json.loads(canonical_bytes(own.canonical())))
    assert again == own
    assert again.digest == own.digest != manifest().digest
    with pytest.raises(ValidationError, match="coordinator/manifest/v1"):
        manifest(schema="coordinator/manifest/v2")


@pytest.mark.parametrize(
    ("model", "value"),
    [
        (Result, {"outcome": "done"}),
        (Result, {"outcome": 0}),
        (Result, {"outcome": "completed", "gaps": "none"}),
        (Result, {"outcome": "completed", "message": 1}),
        (Result, {"outcome": "completed", "accepted": True}),
        (EvidenceItem, {"name": "x", "line": True}),
        (EvidenceItem, {"name": "x", "line": 0}),
        (EvidenceItem, {"name": "x", "line": "3"}),
        (EvidenceItem, {"name": "", "line": 1}),
        (EvidenceItem, {"name": "two\nlines"}),
        (EvidenceItem, {"name": "x", "kind": "proof"}),
        (Answer, {"approved": 1}),
        (Answer, {"approved": "yes"}),
        (Answer, {}),
    ],
)
def test_nothing_is_coerced(model: type[Any], value: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(value)


REQUEST = {
    "request_id": "r-1",
    "run_id": "run",
    "task_id": "task",
    "kind": "approval",
    "question": "Well?",
    "bound_digest": None,
    "sequence": 1,
    "state": "open",
}


def test_a_request_is_strict() -> None:
    assert Request.model_validate(REQUEST).answer is None
    for wrong in (
        {"sequence": True},
        {"sequence": 1.0},
        {"kind": "order"},
        {"state": "closed"},
        {"answer": "yes"},
        {"to": 1},
    ):
        with pytest.raises(ValidationError):
            Request.model_validate(REQUEST | wrong)


BOUND = {
    "terms_digest": "t",
    "manifest_digest": "m",
    "candidate_tree": "c",
    "policy_version": "p",
    "head": "h",
    "generation_submitted": 1,
    "generation_gated": 2,
}


def test_an_approval_is_void_when_content_changes_and_not_when_the_holder_does() -> None:
    digest = Bound.model_validate(BOUND).content_digest()
    for content in ("terms_digest", "manifest_digest", "candidate_tree", "policy_version"):
        assert Bound.model_validate(BOUND | {content: "other"}).content_digest() != digest
    for holder in ({"generation_submitted": 3}, {"generation_gated": 3}, {"head": None}):
        assert Bound.model_validate(BOUND | holder).content_digest() == digest


def test_a_decision_comes_back_from_its_canonical_form() -> None:
    own = Decision.model_validate(
        {
            "decision": "repair_required",
            "checks": [],
            "evidence": [],
            "feedback": [{"check": "sections", "message": "Missing"}],
            "bound": BOUND,
            "unenforced": "",
            "decided_at": "2030",
        }
    )
    assert Decision.model_validate(json.loads(canonical_bytes(own.canonical()))) == own
    with pytest.raises(ValidationError):
        Decision.model_validate(own.canonical() | {"decision": "approved"})
