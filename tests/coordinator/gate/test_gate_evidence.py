"""Required evidence: a claim alone is a claim, and what the gate read itself is verified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from contracts.canonical import sha256_digest
from contracts.results import Decision
from coordinator.gate import Case, judge

NOW = datetime(2026, 8, 1, tzinfo=UTC)
MakeCase = Callable[..., Case]
PAY = sha256_digest(b"def pay():\n    return legacy_state()\n")


def decide(case: Case) -> Decision:
    return judge(case, now=NOW).decision


def owed(kind: str, least: str, **more: Any) -> list[dict[str, Any]]:
    return [{"name": "proof", "kind": kind, "min_origin": least, **more}]


# --- must be accepted


@pytest.mark.parametrize("kind", ["output", "citation", "command", "file", "artifact", "note"])
def test_a_plain_name_is_met_by_an_item_of_any_kind(make_case: MakeCase, kind: str) -> None:
    case = make_case(required_evidence=["proof"], evidence=[{"name": "proof", "kind": kind}])
    decision = decide(case)
    assert decision.decision == "accepted"
    assert [(item.found_origin, item.ok) for item in decision.evidence] == [("claimed", True)]


def test_an_artifact_is_verified_by_hashing_its_bytes_again(make_case: MakeCase) -> None:
    for named in ({"artifact": "report.csv"}, {"digest": sha256_digest(b"a,b\n")}):
        case = make_case(
            required_evidence=owed("artifact", "verified"),
            artifacts={"report.csv": b"a,b\n"},
            evidence=[{"name": "proof", "kind": "artifact", **named}],
        )
        assert decide(case).evidence[0].found_origin == "verified"
        assert decide(case).decision == "accepted"


@pytest.mark.parametrize("digest", [PAY, PAY.removeprefix("sha256:"), None])
@pytest.mark.parametrize("observed", [PAY, PAY.removeprefix("sha256:"), None])
def test_a_file_is_verified_by_reading_it_again(make_case: MakeCase, digest: str | None, observed: str | None) -> None:
    case = make_case(
        required_evidence=owed("file", "verified"),
        evidence=[{"name": "proof", "kind": "file", "path": "src/pay.py", "digest": digest}],
        read_set={} if observed is None else {"src/pay.py": observed},
    )
    assert decide(case).decision == ("accepted" if digest or observed else "repair_required")


def test_a_citation_that_a_served_call_shows_is_observed_by_whatever_tool_it_was_found(make_case: MakeCase) -> None:
    for tool in ("read_file", "search_code"):
        case = make_case(
            required_evidence=owed("citation", "observed"),
            evidence=[{"name": "proof", "kind": "citation", "path": "src/pay.py", "line": 2, "origin": "observed",
                       "seen_in_calls": [1]}],
            calls=[{"tool": tool}],
        )  # fmt: skip
        assert decide(case).decision == "accepted", tool


def test_items_of_another_kind_under_the_same_name_are_an_extra(make_case: MakeCase) -> None:
    case = make_case(
        required_evidence=owed("artifact", "verified"),
        artifacts={"report.csv": b"a,b\n"},
        evidence=[{"name": "proof", "kind": "artifact", "artifact": "report.csv"}, {"name": "proof", "text": "see it"}],
    )
    assert decide(case).decision == "accepted"


def test_data_as_the_schema_asks_is_accepted_and_other_data_is_named(make_case: MakeCase) -> None:
    def case(data: Any) -> Case:
        return make_case(
            required_evidence=owed("note", "claimed", schema="gap.schema.json"),
            files={"gap.schema.json": b'{"type": "object", "required": ["path"]}'},
            evidence=[
                {"name": "proof", "text": "one", "data": {"path": "a"}},
                {"name": "proof", "text": "two", "data": data},
            ],
        )

    assert decide(case({"path": "b"})).decision == "accepted"
    assert decide(case({})).feedback[0].message == (
        "the data of evidence 'proof' is not as gap.schema.json asks: note two data: 'path' is a required property"
    )


# --- must not be accepted: the missing fact is named


def refused(case: Case) -> str:
    decision = decide(case)
    assert decision.decision == "repair_required"
    assert [item.ok for item in decision.evidence] == [False]
    assert [(finding.check, finding.place) for finding in decision.feedback] == [("required_evidence", "proof")]
    assert decision.feedback[0].message == decision.evidence[0].message
    return decision.feedback[0].message


def test_evidence_that_was_not_handed_in_is_named_beside_what_was(make_case: MakeCase) -> None:
    case = make_case(required_evidence=["proof"], evidence=[{"name": "a"}, {"name": "b"}, {"name": "a"}])
    assert refused(case) == "evidence 'proof' is missing: no item has that name (handed in: a, b)"
    case = make_case(required_evidence=owed("file", "claimed"), evidence=[{"name": "proof", "kind": "output"}])
    assert refused(case) == "evidence 'proof' is missing: no item of kind file has that name (of that name: output)"


def test_a_report_that_was_never_handed_in_is_a_claim_however_it_is_described(make_case: MakeCase) -> None:
    item = {
        "name": "proof",
        "kind": "artifact",
        "artifact": "report.csv",
        "origin": "verified",
        "text": "all tests pass",
    }
    case = make_case(required_evidence=owed("artifact", "observed"), evidence=[item], artifacts={"other.csv": b"x"})
    assert refused(case) == (
        "evidence 'proof' is not observed: artifact report.csv: no artifact 'report.csv' was handed in "
        "(handed in: other.csv)"
    )


def test_an_artifact_with_another_digest_or_with_nothing_in_it_verifies_nothing(make_case: MakeCase) -> None:
    item = {"name": "proof", "kind": "artifact", "artifact": "report.csv"}
    wrong = make_case(
        required_evidence=owed("artifact", "verified"),
        evidence=[item | {"digest": PAY}],
        artifacts={"report.csv": b"x"},
    )
    assert "its digest is not that of artifact 'report.csv', sha256:" in refused(wrong)
    empty = make_case(required_evidence=owed("artifact", "verified"), evidence=[item], artifacts={"report.csv": b""})
    assert "artifact 'report.csv' is empty, so it shows nothing" in refused(empty)


@pytest.mark.parametrize(
    ("item", "read_set", "fact"),
    [
        ({"path": "src/gone.py", "digest": PAY}, {}, "file src/gone.py: the judged tree has no such file"),
        ({"path": "../../../etc/passwd", "digest": PAY}, {}, "the judged tree has no such file"),
        (
            {"path": "src/pay.py", "digest": sha256_digest(b"else")},
            {},
            f"not that of the file in the judged tree, {PAY}",
        ),
        ({"path": "src/pay.py"}, {"src/pay.py": sha256_digest(b"else")}, f"not what the judged tree holds, {PAY}"),
        (
            {"path": "src/pay.py"},
            {},
            "it was neither read nor written in this attempt, and no digest of it was handed in",
        ),
        ({}, {}, "it names no path"),
    ],
)
def test_a_file_that_is_not_as_it_is_said_to_be_is_not_verified(
    make_case: MakeCase, item: dict[str, Any], read_set: dict[str, str], fact: str
) -> None:
    case = make_case(
        required_evidence=owed("file", "verified"),
        evidence=[{"name": "proof", "kind": "file", "origin": "observed", **item}],
        read_set=read_set,
    )
    assert fact in refused(case)


def test_a_file_outside_the_read_scope_is_not_confirmed(make_case: MakeCase) -> None:
    item = {"name": "proof", "kind": "file", "path": "secret/plan.md", "digest": sha256_digest(b"not for children\n")}
    case = make_case(required_evidence=owed("file", "verified"), evidence=[item], read_scope=["src/"])
    assert "its path is outside the read scope" in refused(case)


@pytest.mark.parametrize(
    ("calls", "seen"),
    [
        ([], [1]),
        ([{}], []),
        ([{}], [2]),
        ([{"ok": False}], [1]),
        ([{"tool": "list_files"}], [1]),
    ],
)
def test_observed_without_a_served_call_of_a_tool_that_shows_it_is_a_claim(
    make_case: MakeCase, calls: list[dict[str, Any]], seen: list[int]
) -> None:
    item = {"name": "proof", "kind": "citation", "path": "src/pay.py", "line": 1}
    case = make_case(
        required_evidence=owed("citation", "observed"),
        evidence=[item | {"origin": "observed", "seen_in_calls": seen}],
        calls=calls,
    )
    assert "no served call of read_file or search_code in this attempt shows it" in refused(case)


@pytest.mark.parametrize("kind", ["note", "output"])
def test_what_nobody_can_observe_stays_a_claim_whatever_the_manifest_says(make_case: MakeCase, kind: str) -> None:
    item = {"name": "proof", "kind": kind, "origin": "verified", "seen_in_calls": [1]}
    case = make_case(required_evidence=owed(kind, "observed"), evidence=[item], calls=[{}])
    assert f"{kind} evidence is the child's own word" in refused(case)


def test_every_item_of_the_name_must_reach_the_least_origin(make_case: MakeCase) -> None:
    good = {"name": "proof", "kind": "artifact", "artifact": "a"}
    case = make_case(
        required_evidence=owed("artifact", "verified"), artifacts={"a": b"x"}, evidence=[good, good | {"artifact": "b"}]
    )
    assert refused(case) == (
        "evidence 'proof' is not verified for 1 of 2 items: artifact b: no artifact 'b' was handed in (handed in: a)"
    )
    assert decide(case).evidence[0].found_origin == "claimed"


def test_a_thousand_bad_items_are_told_in_a_few_words(make_case: MakeCase) -> None:
    items = [{"name": "proof", "kind": "file", "path": f"x{number}" * 200} for number in range(1000)]
    message = refused(make_case(required_evidence=owed("file", "verified"), evidence=items))
    assert len(message) <= 600
    assert message.startswith("evidence 'proof' is not verified for 1000 of 1000 items: file x0x0")


# --- what the gate itself could not do is not the child's fault


def test_an_artifact_whose_bytes_are_gone_or_altered_is_not_judged(make_case: MakeCase) -> None:
    case = make_case(
        required_evidence=owed("artifact", "verified"),
        artifacts={"report.csv": b"a,b\n"},
        evidence=[{"name": "proof", "kind": "artifact", "artifact": "report.csv"}],
    )

    def altered(digest: str) -> bytes:
        raise ValueError(f"{digest} has other bytes now")

    for read, why in (
        ({}.__getitem__, "is not in the store"),
        (altered, "has other bytes now"),
        (lambda digest: b"other", "are no longer those of sha256:"),
    ):
        decision = decide(replace(case, read_artifact=read))
        assert decision.decision == "not_judged"
        assert why in decision.reason
        assert decision.feedback == []
        assert decision.evidence[0].message.startswith("could not be judged: evidence 'proof':")


def test_a_file_that_must_be_verified_where_there_is_no_source_is_not_judged(make_case: MakeCase) -> None:
    item = {"name": "proof", "kind": "file", "path": "src/pay.py", "origin": "observed", "seen_in_calls": [1]}
    case = make_case(required_evidence=owed("file", "verified"), evidence=[item], calls=[{}])
    assert decide(replace(case, judged=None)).decision == "not_judged"
    case = make_case(required_evidence=owed("file", "observed"), evidence=[item], calls=[{}])
    assert decide(replace(case, judged=None)).decision == "accepted"
