"""A candidate before the gate: where it wrote, whether it merges, what it must not touch, and what is bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from contracts.canonical import sha256_digest
from contracts.results import Decision
from coordinator.gate import Case, JudgedTree, judge

NOW = datetime(2026, 8, 1, tzinfo=UTC)
MakeCase = Callable[..., Case]
MakeCandidate = Callable[..., JudgedTree]
RUNS: dict[str, Any] = {"command": ["python", "-c", ""]}
TESTS = {"src/pay.py": b"x = 1\n", "tests/test_pay.py": b"assert 1\n", "conftest.py": b"", "a/b/c": b""}


def decide(case: Case) -> Decision:
    return judge(case, now=NOW).decision


def runs(case: Case) -> list[list[str]]:
    return case.judged.run_command.runs  # type: ignore[union-attr,attr-defined,no-any-return]


# --- the write scope


def test_a_change_outside_the_write_scope_is_rejected_with_the_list_and_nothing_is_run(
    make_case: MakeCase, make_candidate: MakeCandidate
) -> None:
    judged = make_candidate({"src/pay.py": b"", "secret/plan.md": None, "new\nfile": b"x"}, write_scope=["src/"])
    case = make_case(judged=judged, acceptance=[RUNS, {"approval": "Well?"}, {"cel": "output == 1"}])
    verdict = judge(case, now=NOW)
    decision = verdict.decision
    assert decision.decision == "rejected"
    assert decision.reason == ("changed outside the write scope: new file, secret/plan.md (write scope: src/)")
    (check,) = decision.checks
    assert (check.check, check.outcome) == ("write_scope", "refused")
    assert [(finding.place, finding.message) for finding in check.findings] == [
        ("new file", "new file is outside the write scope"),
        ("secret/plan.md", "secret/plan.md is outside the write scope"),
    ]
    assert (runs(case), decision.processes, verdict.questions) == ([], [], [])
    assert (decision.judged_tree, decision.new_head, decision.evidence) == (None, None, [])


def test_a_thousand_paths_outside_are_told_in_a_few(make_case: MakeCase, make_candidate: MakeCandidate) -> None:
    judged = make_candidate({f"out/{number}": b"" for number in range(200)}, write_scope=["src/"])
    decision = decide(make_case(judged=judged))
    assert decision.decision == "rejected"
    assert "and 192 more (write scope: src/)" in decision.reason
    assert len(decision.checks[0].findings) == 51


def test_a_change_within_the_write_scope_is_accepted(make_case: MakeCase, make_candidate: MakeCandidate) -> None:
    judged = make_candidate({"src/pay.py": b"", "src/new file": b"x"}, write_scope=["src/"])
    case = make_case(judged=judged, acceptance=[RUNS])
    assert decide(case).decision == "accepted"
    assert len(runs(case)) == 1


# --- the merge


def test_a_conflict_goes_back_with_its_paths_and_nothing_else_is_run(
    make_case: MakeCase, make_candidate: MakeCandidate
) -> None:
    judged = make_candidate({"src/pay.py": b"mine\n"}, head={"src/pay.py": b"theirs\n"})
    case = make_case(judged=judged, acceptance=[RUNS, {"cel": "output == 7"}])
    decision = decide(case)
    assert decision.decision == "repair_required"
    assert decision.reason.startswith(
        f"conflicts with what was accepted since its base {judged.base_commit}: src/pay.py; "
        "the next attempt starts from the new base"
    )
    assert [(finding.check, finding.place) for finding in decision.feedback] == [("merge", ""), ("merge", "src/pay.py")]
    assert [check.check for check in decision.checks] == ["merge"]
    assert (runs(case), decision.judged_tree, decision.new_head) == ([], None, None)


def test_what_goes_together_is_judged_as_merged(make_case: MakeCase, make_candidate: MakeCandidate) -> None:
    program = "import pathlib; print(pathlib.Path('src/pay.py').read_text(), pathlib.Path('a').read_text())"
    judged = make_candidate({"src/pay.py": b"mine\n"}, head={"a": b"theirs\n"})
    decision = decide(make_case(judged=judged, acceptance=[{"command": ["python", "-c", program]}]))
    assert decision.decision == "accepted"
    assert decision.processes[0].output_tail == "mine\n theirs\n\n"
    assert (decision.judged_tree, decision.new_head) == (judged.tree, judged.new_head)
    assert decision.bound.candidate_tree == judged.candidate_tree != judged.tree


# --- what is bound


def test_an_acceptance_moves_the_head_only_when_the_candidate_changes_something(
    make_case: MakeCase, make_candidate: MakeCandidate
) -> None:
    nothing = make_candidate({})
    decision = decide(make_case(judged=nothing))
    assert (decision.decision, decision.new_head) == ("accepted", None)
    refused = decide(make_case(judged=make_candidate({"src/pay.py": b""}), acceptance=[{"cel": "output == 1"}]))
    assert (refused.decision, refused.new_head) == ("repair_required", None)
    without = decide(make_case(acceptance=[RUNS]))
    assert (without.decision, without.bound.candidate_tree, without.new_head) == ("accepted", None, None)


def test_an_approval_of_one_candidate_is_none_of_another(make_case: MakeCase, make_candidate: MakeCandidate) -> None:
    ask = [{"approval": "Well?"}]
    case = make_case(judged=make_candidate({"src/pay.py": b"1"}), acceptance=ask)
    (question,) = judge(case, now=NOW).questions
    history = replace(case.history, answers={str(question.bound_digest): (True, "")})
    assert decide(replace(case, history=history)).decision == "accepted"
    other = make_case(judged=make_candidate({"src/pay.py": b"2"}), acceptance=ask, history=history)
    assert decide(other).decision == "waiting"
    # The same candidate on a head that moved on: what was approved is the same.
    moved = make_candidate({"src/pay.py": b"1"}, head={"a": b"new"})
    assert moved.tree != case.judged.tree  # type: ignore[union-attr]
    assert decide(replace(case, judged=moved, history=history)).decision == "accepted"


def test_another_candidate_than_the_one_handed_in_is_not_judged(
    make_case: MakeCase, make_candidate: MakeCandidate
) -> None:
    case = make_case(judged=make_candidate({"src/pay.py": b"1"}), acceptance=[RUNS])
    other = make_candidate({"src/pay.py": b"2"})
    for judged in (other, replace(other, candidate_tree=None), None):
        decision = decide(replace(case, judged=judged))
        assert decision.decision == "not_judged"
        assert "the manifest names" in decision.reason
        assert decision.processes == []
    # Nor a workspace out of which nothing came.
    terms = case.claim.terms.model_copy(update={"workspace": "clone"})
    empty = make_case()
    lost = decide(replace(empty, claim=replace(empty.claim, terms=terms)))
    assert (lost.decision, "no candidate was handed in" in lost.reason) == ("not_judged", True)


# --- paths_unchanged


def unchanged(*patterns: str) -> list[dict[str, Any]]:
    return [{"paths_unchanged": list(patterns)}]


@pytest.mark.parametrize(
    ("changed", "patterns", "touched"),
    [
        ({"tests/test_pay.py": b"assert 0\n"}, ["tests/"], ["tests/test_pay.py was changed"]),
        ({"tests/test_pay.py": None}, ["tests/"], ["tests/test_pay.py was deleted"]),
        ({"tests/conftest.py": b"x"}, ["tests/"], ["tests/conftest.py was added"]),
        ({"src/conftest.py": b"x"}, ["**/conftest.py"], ["src/conftest.py was added"]),
        ({"pytest.py": b"x"}, ["pytest.py", "tests/"], ["pytest.py was added"]),
        (
            {"tests/test_pay.py": None, "src/test_pay.py": b"assert 1\n"},
            ["tests/"],
            ["tests/test_pay.py was deleted"],
        ),
        ({"src/pay.py": None, "tests/pay.py": b"x = 1\n"}, ["tests/"], ["tests/pay.py was added"]),
        ({"conftest.py": None, "conftest.py@": b"evil.py"}, ["conftest.py"], ["conftest.py was made another kind"]),
        ({"a/b/c": None, "a@": b"evil"}, ["a/b/"], ["a was added", "a/b/c was deleted"]),
        ({"later@": b"evil"}, ["later/x.py"], ["later was added"]),
        ({"x\udcff": b""}, ["x?"], ["x\\udcff was added"]),
    ],
    ids=range(11),
)
def test_a_path_that_must_stay_is_named_whatever_was_done_to_it(
    make_case: MakeCase, make_candidate: MakeCandidate, changed: Any, patterns: list[str], touched: list[str]
) -> None:
    case = make_case(judged=make_candidate(changed, base=TESTS), acceptance=unchanged(*patterns))
    decision = decide(case)
    assert decision.decision == "repair_required"
    for finding, said in zip(decision.feedback, touched, strict=True):
        assert finding.message.startswith(said)
        assert finding.place == said.split(" was ")[0]


@pytest.mark.parametrize(
    ("changed", "patterns"),
    [
        ({}, ["**"]),
        ({"src/pay.py": b"x = 2\n", "testsuite.py": b""}, ["tests/", "conftest.py"]),
        ({"src/other@": b"pay.py"}, ["tests/", "**/conftest.py"]),
        ({"a/x": b""}, ["a/b/"]),
        ({"later": b""}, ["later-on/"]),
    ],
    ids=range(5),
)
def test_other_changes_are_left_alone(
    make_case: MakeCase, make_candidate: MakeCandidate, changed: Any, patterns: list[str]
) -> None:
    case = make_case(judged=make_candidate(changed, base=TESTS), acceptance=unchanged(*patterns))
    assert decide(case).decision == "accepted"


def test_what_was_accepted_meanwhile_is_not_held_against_the_child(
    make_case: MakeCase, make_candidate: MakeCandidate
) -> None:
    judged = make_candidate({"src/pay.py": b""}, base=TESTS, head={"tests/test_pay.py": b"assert 2\n"})
    assert decide(make_case(judged=judged, acceptance=unchanged("tests/"))).decision == "accepted"


def test_very_many_touched_paths_are_cut(make_case: MakeCase, make_candidate: MakeCandidate) -> None:
    judged = make_candidate({f"tests/{number}": b"" for number in range(30)})
    decision = decide(make_case(judged=judged, acceptance=unchanged("tests/")))
    assert len(decision.feedback) == 21
    assert decision.feedback[-1].message == "10 more paths were changed"


# --- what ``of`` names


SECTIONS: dict[str, Any] = {"sections": ["Risks"], "of": "report.md"}
GOOD, BAD = b"# Risks\nnone\n", b"# Other\nnone\n"


def test_a_file_of_the_judged_tree_can_be_what_is_judged(make_case: MakeCase, make_candidate: MakeCandidate) -> None:
    good, bad = make_candidate({"report.md": GOOD}), make_candidate({"report.md": BAD})
    assert decide(make_case(judged=good, acceptance=[SECTIONS])).decision == "accepted"
    decision = decide(make_case(judged=bad, acceptance=[SECTIONS]))
    assert [(finding.place, finding.message) for finding in decision.feedback] == [
        ("file report.md", "Missing required sections: Risks")
    ]
    # An artifact goes before the file, and the file before a key of the output.
    artifact = make_case(judged=bad, acceptance=[SECTIONS], artifacts={"report.md": GOOD})
    assert decide(artifact).decision == "accepted"
    output = {"report.md": BAD.decode()}
    assert decide(make_case(judged=good, acceptance=[SECTIONS], output=output)).decision == "accepted"
    assert (
        decide(make_case(judged=bad, acceptance=[SECTIONS], output={"report.md": GOOD.decode()}))
        .feedback[0]
        .place.startswith("file ")
    )
    assert decide(make_case(acceptance=[SECTIONS], output={"report.md": GOOD.decode()})).decision == "accepted"


def test_a_schema_judges_a_file_of_the_tree(make_case: MakeCase, make_candidate: MakeCandidate) -> None:
    check = {"json_schema": "s.json", "of": "out/data.json"}

    def word(data: bytes) -> list[str]:
        judged = make_candidate({"out/data.json": data})
        case = make_case(judged=judged, acceptance=[check], files={"s.json": b'{"required": ["n"]}'})
        return [f"{finding.place} {finding.message}" for finding in decide(case).feedback]

    assert word(b'{"n": 1}') == []
    assert word(b"{}") == ["file out/data.json: $ 'n' is a required property"]
    assert word(b"{")[0].startswith("file out/data.json not strict JSON: out/data.json:1:2")


def test_a_link_is_no_file_to_judge(make_case: MakeCase, make_candidate: MakeCandidate) -> None:
    judged = make_candidate({"report.md@": b"/etc/passwd"})
    decision = decide(make_case(judged=judged, acceptance=[SECTIONS]))
    assert decision.feedback[0].message == "'report.md' is a link, no file"


# --- file evidence


def evidence(judged: JudgedTree, make_case: MakeCase, least: str, item: dict[str, Any], **more: Any) -> Decision:
    owed = [{"name": "proof", "kind": "file", "min_origin": least}]
    items = [{"name": "proof", "kind": "file", **item}]
    return decide(make_case(judged=judged, required_evidence=owed, evidence=items, **more))


def test_a_file_that_the_child_wrote_is_verified_from_the_judged_tree(
    make_case: MakeCase, make_candidate: MakeCandidate
) -> None:
    judged = make_candidate({"src/new.py": b"n = 1\n", "src/pay.py": b"p = 1\n"})
    for item in (
        {"path": "src/new.py"},
        {"path": "src/new.py", "digest": sha256_digest(b"n = 1\n")},
        {"path": "src/pay.py"},
    ):
        for least in ("observed", "verified"):
            assert evidence(judged, make_case, least, item).evidence[0].found_origin == "verified"
    # It was read before it was changed, and what was written may lie outside what may be read.
    read = {"src/pay.py": sha256_digest(b"def pay():\n    return legacy_state()\n")}
    assert evidence(judged, make_case, "verified", {"path": "src/pay.py"}, read_set=read).decision == "accepted"
    elsewhere = evidence(judged, make_case, "verified", {"path": "src/new.py"}, read_scope=["docs/"])
    assert elsewhere.decision == "accepted"


@pytest.mark.parametrize(
    ("item", "fact"),
    [
        ({"path": "src/report.csv"}, "the judged tree has no such file"),
        ({"path": "src/pay.py"}, "the judged tree has no such file"),
        ({"path": "src/empty.py"}, "it was neither read nor written in this attempt"),
        ({"path": "src/new.py", "digest": sha256_digest(b"else")}, "its digest is not that of the file"),
    ],
)
def test_a_file_that_was_not_written_so_is_a_claim(
    make_case: MakeCase, make_candidate: MakeCandidate, item: dict[str, Any], fact: str
) -> None:
    judged = make_candidate({"src/new.py": b"n = 1\n", "src/pay.py": None})
    decision = evidence(judged, make_case, "observed", {"origin": "observed", **item})
    assert decision.decision == "repair_required"
    assert fact in decision.feedback[0].message


def test_evidence_of_a_file_that_was_overtaken_on_the_head_goes_back(
    make_case: MakeCase, make_candidate: MakeCandidate
) -> None:
    judged = make_candidate({"a": b""}, head={"src/pay.py": b"new\n"})
    read = {"src/pay.py": sha256_digest(b"def pay():\n    return legacy_state()\n")}
    decision = evidence(judged, make_case, "verified", {"path": "src/pay.py"}, read_set=read)
    assert "what was read is not what the judged tree holds" in decision.feedback[0].message
