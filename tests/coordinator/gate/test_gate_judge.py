"""What comes out of all checks together."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import coordinator
from contracts.canonical import canonical_bytes
from contracts.results import CheckOutcome
from coordinator.gate import Case, approval_key, judge, policy_version
from coordinator.store.records import RepairHistory, Verdict

NOTHING: dict[str, bytes] = {}
NOW = datetime(2026, 8, 1, 12, tzinfo=UTC)
MakeCase = Callable[..., Case]


def verdict(case: Case) -> Verdict:
    return judge(case, now=NOW)


def outcomes(case: Case) -> list[str]:
    return [check.outcome for check in verdict(case).decision.checks]


def word(case: Case) -> str:
    return verdict(case).decision.decision


TRUE, FALSE = {"cel": "output == 1"}, {"cel": "output == 2"}
ERRS = {"json_schema": "gone.schema.json"}
ASK = {"approval": "Is this good?"}


# --- decisions


def test_a_result_on_which_everything_holds_is_accepted_with_no_reason_and_nothing_to_mend(make_case: MakeCase) -> None:
    case = make_case(acceptance=[TRUE, TRUE], required_evidence=["a"], evidence=[{"name": "a"}], output=1)
    decision = verdict(case).decision
    assert (decision.decision, decision.partial, decision.reason, decision.feedback) == ("accepted", False, "", [])
    assert outcomes(case) == ["passed", "passed"]


def test_every_failure_goes_back_at_once_evidence_first_then_checks_in_their_order(make_case: MakeCase) -> None:
    case = make_case(acceptance=[FALSE, TRUE, {"sections": ["A"]}], required_evidence=["a", "b"], output=1)
    decision = verdict(case).decision
    assert decision.decision == "repair_required"
    assert [finding.check for finding in decision.feedback] == ["required_evidence"] * 2 + ["cel", "sections"]
    assert decision.reason.startswith("evidence 'a' is missing: no item has that name (handed in: none); evidence 'b'")
    assert len(decision.reason) <= 300
    assert "\n" not in decision.reason


def test_a_check_that_the_gate_could_not_make_is_never_a_repair_and_never_an_acceptance(make_case: MakeCase) -> None:
    decision = verdict(make_case(acceptance=[TRUE, ERRS], output=1)).decision
    assert decision.decision == "not_judged"
    assert decision.reason == "json_schema: the contract pins no file 'gone.schema.json'"
    assert decision.feedback == []


def test_a_failure_that_is_known_stands_beside_a_check_that_erred(make_case: MakeCase) -> None:
    case = make_case(acceptance=[ERRS, FALSE], output=1)
    decision = verdict(case).decision
    assert decision.decision == "repair_required"
    assert [finding.check for finding in decision.feedback] == ["cel"]
    assert outcomes(case) == ["errored", "failed"]


def test_a_pinned_file_that_is_gone_or_altered_is_not_judged(make_case: MakeCase) -> None:
    case = make_case(acceptance=[{"json_schema": "a.json"}], files={"a.json": b"{}"}, output=1)
    assert word(case) == "accepted"
    assert word(replace(case, read_file=NOTHING.__getitem__)) == "not_judged"
    assert word(replace(case, read_file=lambda name: b"true")) == "not_judged"


def test_what_the_manifest_says_is_not_enforced_is_in_the_decision(make_case: MakeCase) -> None:
    case = make_case(acceptance=[TRUE], output=1)
    assert verdict(case).decision.unenforced == case.manifest.unenforced != ""


def test_the_time_of_a_decision_is_utc(make_case: MakeCase) -> None:
    elsewhere = NOW.astimezone(timezone(timedelta(hours=5)))
    assert judge(make_case(), now=elsewhere).decision.decided_at == "2026-08-01T12:00:00+00:00"


# --- partial


def test_a_partial_result_is_spared_the_checks_for_the_end_and_nothing_else(make_case: MakeCase) -> None:
    at_end = [FALSE | {"when": "end"}, ASK | {"when": "end"}]
    case = make_case(acceptance=[TRUE, *at_end], output=1, outcome="partial")
    assert outcomes(case) == ["passed", "skipped", "skipped"]
    assert (word(case), verdict(case).decision.partial) == ("accepted", True)
    assert word(make_case(acceptance=[FALSE], output=1, outcome="partial")) == "repair_required"
    assert word(make_case(acceptance=[TRUE], required_evidence=["a"], output=1, outcome="partial")) == "repair_required"
    assert word(make_case(acceptance=[TRUE, *at_end], output=1)) == "repair_required"


# --- people


def answered(case: Case, **answers: tuple[bool, str]) -> Case:
    """The case as it comes back when its questions have these answers, by their texts."""
    asked = {question.text: question.bound_digest for question in verdict(case).questions}
    known = {str(asked[text.replace("_", " ") + "?"]): answer for text, answer in answers.items()}
    return replace(case, history=RepairHistory(repairs=0, last_content_digest=None, answers=known))


def test_a_person_is_asked_when_everything_else_holds_and_the_answer_decides(make_case: MakeCase) -> None:
    case = make_case(acceptance=[ASK, TRUE], output=1)
    first = verdict(case)
    (question,) = first.questions
    assert first.decision.decision == "waiting"
    assert first.decision.reason == "waits for a person: Is this good?"
    assert (question.kind, question.text) == ("approval", "Is this good?")
    assert question.bound_digest == approval_key(first.decision.bound, first.decision.checks[0].check_digest)
    assert question.dedupe_key == f"approval:7:{question.bound_digest}"
    assert outcomes(case) == ["waiting", "passed"]

    yes = verdict(answered(case, Is_this_good=(True, "")))
    assert (yes.decision.decision, yes.questions) == ("accepted", [])
    no = verdict(answered(case, Is_this_good=(False, "too\nlong\0")))
    assert (no.decision.decision, no.decision.reason, no.questions) == ("rejected", "too long\\x00", [])
    assert no.decision.feedback == []
    assert verdict(answered(case, Is_this_good=(False, ""))).decision.reason == "a person answered no: Is this good?"


@pytest.mark.parametrize(("other", "decided"), [(FALSE, "repair_required"), (ERRS, "not_judged")])
def test_nobody_is_asked_about_what_a_check_stands_against_and_a_yes_overrides_no_check(
    make_case: MakeCase, other: dict[str, Any], decided: str
) -> None:
    case = make_case(acceptance=[ASK, other], output=1)
    assert (word(case), verdict(case).questions, outcomes(case)[0]) == (decided, [], "skipped")

    check = verdict(case).decision.checks[0]
    key = approval_key(verdict(case).decision.bound, check.check_digest)
    approved = RepairHistory(repairs=0, last_content_digest=None, answers={key: (True, "go on")})
    assert word(replace(case, history=approved)) == decided


def test_an_approval_is_good_for_this_content_and_this_question_only(make_case: MakeCase) -> None:
    case = make_case(acceptance=[ASK], output=1)
    yes = answered(case, Is_this_good=(True, "")).history
    assert word(replace(case, history=yes)) == "accepted"
    assert word(replace(make_case(acceptance=[ASK], output=2), history=yes)) == "waiting"
    assert word(replace(make_case(acceptance=[ASK | {"approval": "Really?"}], output=1), history=yes)) == "waiting"
    assert word(replace(make_case(acceptance=[ASK, TRUE], output=1), history=yes)) == "waiting"
    another_judge = replace(case, claim=replace(case.claim, generation=9, token="x", owner="y"), history=yes)
    assert word(another_judge) == "accepted"


def test_all_persons_are_asked_at_once_and_one_no_is_enough(make_case: MakeCase) -> None:
    case = make_case(acceptance=[ASK, ASK | {"approval": "Is it legal?"}])
    assert [question.text for question in verdict(case).questions] == ["Is this good?", "Is it legal?"]
    half = answered(case, Is_this_good=(True, ""))
    assert (word(half), [question.text for question in verdict(half).questions]) == ("waiting", ["Is it legal?"])
    no = answered(case, Is_it_legal=(False, "no"))
    assert (word(no), verdict(no).questions, outcomes(no)) == ("rejected", [], ["skipped", "refused"])


# --- repairs without progress


def test_the_same_content_with_the_same_findings_is_no_progress(make_case: MakeCase) -> None:
    case = make_case(acceptance=[FALSE], output=1)
    first = verdict(case)
    assert not first.no_progress

    seen = RepairHistory(1, case.manifest.content_digest, first.decision.feedback)
    assert verdict(replace(case, history=seen)).no_progress
    assert not verdict(replace(make_case(acceptance=[FALSE], output=3), history=seen)).no_progress
    assert not verdict(replace(case, history=replace(seen, last_findings=[]))).no_progress
    good = make_case(acceptance=[TRUE], output=1)
    assert not verdict(replace(good, history=RepairHistory(1, good.manifest.content_digest, []))).no_progress


# --- whose result it is


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("terms_digest", "sha256:" + "0" * 64),
        ("run_id", "audit-2"),
        ("task_id", "other"),
        ("contract_version", 2),
        ("child_run_id", "audit-other-1"),
        ("claim_generation", 2),
    ],
)
def test_a_result_that_was_made_for_another_claim_is_foreign(make_case: MakeCase, field: str, value: Any) -> None:
    decision = verdict(make_case(acceptance=[TRUE], output=1, **{field: value})).decision
    assert decision.decision == "repair_required"
    assert [finding.message.partition(":")[0] for finding in decision.feedback] == ["foreign result"]
    assert str(value) in decision.reason


@pytest.mark.parametrize("outcome", ["failed", "cancelled", "blocked", "unknown"])
def test_a_result_that_says_it_is_none_is_not_accepted_even_without_checks(make_case: MakeCase, outcome: str) -> None:
    decision = verdict(make_case(outcome=outcome)).decision
    assert decision.decision == "repair_required"
    assert decision.reason == f"the child says {outcome}: only completed and partial results can be accepted"


def test_a_manifest_that_is_not_the_submitted_one_is_not_judged(make_case: MakeCase) -> None:
    case = make_case(acceptance=[TRUE], output=1)
    other = replace(case, manifest=case.manifest.model_copy(update={"message": "altered"}))
    assert word(other) == "not_judged"
    unwritable = replace(case, manifest=case.manifest.model_copy(update={"output": "\ud800"}))
    assert word(unwritable) == "not_judged"


# --- digests


def test_a_decision_is_bound_to_the_terms_the_manifest_the_rules_and_the_claim(make_case: MakeCase) -> None:
    case = make_case(acceptance=[TRUE], output=1)
    bound = verdict(replace(case, claim=replace(case.claim, head="abc"))).decision.bound
    assert bound.model_dump() == {
        "terms_digest": case.claim.terms.digest,
        "manifest_digest": case.manifest.digest,
        "candidate_tree": None,
        "policy_version": policy_version(),
        "head": "abc",
        "generation_submitted": 1,
        "generation_gated": 2,
    }


def test_a_check_is_named_by_its_rule_and_by_the_content_of_its_file(make_case: MakeCase) -> None:
    def check(schema: bytes, **more: Any) -> CheckOutcome:
        case = make_case(acceptance=[{"json_schema": "a.json", **more}], files={"a.json": schema}, output=1)
        return verdict(case).decision.checks[0]

    digests = {check(b"{}").check_digest, check(b"true").check_digest, check(b"{}", when="end").check_digest}
    assert len(digests) == 3
    assert check(b"{}").check_digest in digests
    case = make_case(acceptance=[TRUE], output=1)
    assert verdict(case).decision.checks[0].subject_digest == case.manifest.digest


@pytest.mark.slow
def test_the_policy_version_changes_with_the_code_of_the_gate(tmp_path: Path) -> None:
    assert re.fullmatch("sha256:[0-9a-f]{64}", policy_version())
    top = Path(coordinator.__file__).parents[1]
    for package in ("contracts", "coordinator"):
        shutil.copytree(top / package, tmp_path / package)
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from coordinator.gate import judge as j, policy_version;"
        "import coordinator; assert coordinator.__file__.startswith(sys.path[0]); print(policy_version())"
    )

    def version() -> str:
        return subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.strip()

    assert version() == policy_version()
    with (tmp_path / "coordinator" / "gate" / "sections.py").open("a") as file:
        file.write("# laxer\n")
    assert version() != policy_version()


# --- hostile results

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(-1e9, 1e9) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
EVERYTHING: list[dict[str, Any]] = [
    {"json_schema": "a.json"},
    {"json_schema": "a.json", "of": "text"},
    {"sections": ["Risks"]},
    {"sections": ["Risks"], "of": "text"},
    {"cel": "output.files > 0"},
    {"cel": "output == 1"},
    {"citations_resolve": "proof"},
    {"sections": ["Risks"], "of": "src/pay.py"},
]
STRICT = b'{"type": "object", "additionalProperties": false, "anyOf": [{"required": ["a"]}, {"maxProperties": 1}]}'


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(output=HOSTILE, text=st.binary() | st.text().map(lambda text: text.encode("utf-8", "replace")), names=st.data())
def test_no_result_brings_the_gate_down_and_each_is_judged(
    make_case: MakeCase, output: Any, text: bytes, names: st.DataObject
) -> None:
    item = st.fixed_dictionaries(
        {"name": st.just("proof"), "kind": st.sampled_from(["citation", "file", "artifact", "note", "command"])},
        optional={
            "path": TEXT | st.sampled_from(["src/pay.py", "src", "src/empty.py"]),
            "line": st.integers(1, 4) | st.integers(1, 2**53 - 1),
            "text": TEXT | st.just("    return legacy_state()"),
            "symbol": TEXT | st.just("pay"),
            "artifact": st.sampled_from(["text", "gone", ""]),
            "data": HOSTILE,
            "digest": TEXT,
        },
    )
    case = make_case(
        acceptance=EVERYTHING,
        files={"a.json": STRICT},
        required_evidence=[{"name": "proof", "kind": "file", "min_origin": "verified"}, {"name": "other"}],
        output=output,
        artifacts={"text": text},
        evidence=names.draw(st.lists(item, max_size=3)),
    )

    decision = verdict(case).decision

    assert decision.decision == "repair_required"
    assert "errored" not in [check.outcome for check in decision.checks], decision.checks
    assert decision.reason.isprintable()
    assert all(finding.message.isprintable() and finding.place.isprintable() for finding in decision.feedback)
    canonical_bytes(decision.canonical())


def test_a_huge_and_deep_result_is_judged(make_case: MakeCase) -> None:
    deep: Any = 1
    for _ in range(60):
        deep = {"a": deep}
    output = {"deep": deep, "wide": ["x" * 1000] * 5000, "n": {f"k{n}": n for n in range(20_000)}}
    schema = (
        b'{"$defs": {"n": {"additionalProperties": {"$ref": "#/$defs/n"}, "not": {"const": 1}}}, "$ref": "#/$defs/n"}'
    )
    acceptance = [*EVERYTHING, {"json_schema": "deep.json"}]
    case = make_case(acceptance=acceptance, files={"a.json": STRICT, "deep.json": schema}, output=output)
    decision = verdict(case).decision
    assert decision.decision == "repair_required"
    assert len(canonical_bytes(decision.canonical())) < 50_000


def test_a_check_that_breaks_down_is_not_judged_and_says_why(make_case: MakeCase) -> None:
    def broken(name: str) -> Any:
        return 7

    decision = verdict(
        replace(make_case(acceptance=[{"json_schema": "a"}], files={"a": b"{}"}), read_file=broken)
    ).decision
    assert decision.decision == "not_judged"
    assert "the check broke down: TypeError" in decision.reason
