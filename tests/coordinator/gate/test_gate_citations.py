"""Citations: looked up again in the judged tree, line by line; what resolves is verified, and nothing else is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from contracts.canonical import sha256_digest
from contracts.results import Decision, EvidenceVerdict
from coordinator.gate import Case, JudgedTree, judge

NOW = datetime(2026, 8, 1, tzinfo=UTC)
MakeCase = Callable[..., Case]
MakeCandidate = Callable[..., JudgedTree]
CODE = b"""\
import legacy

STATE = legacy.state()


class Pay:
    @legacy.mark
    def pay(self, state=legacy.state()):
        def inner():
            return legacy.state()

        return inner

    async def later(self): return legacy.state()
"""
BASE = {
    "pay.py": CODE,
    "dos.py": b"a = 1\r\nb = 2\r\n",
    "bom.py": b"\xef\xbb\xbfa = 1\n",
    "latin.py": b"a = '\xe9'\n",
    "notes.md": b"# Notes\n\nCall `state`.\n",
    "broken.py": b"def f(:\n  '''\n",
    "nul.py": b"def f():\n    a\0b\n",
    "blank.py": b"\n\nx\n",
    "feed.py": b"a = 1\n\x0c\nb = '\xe2\x80\xa8'\nc = 3",
    "link@": b"pay.py",
    "private/key.py": b"k = 1\n",
    "empty.py": b"",
}
OWED = [{"name": "callers", "kind": "citation", "min_origin": "verified"}]
CHECK = [{"citations_resolve": "callers"}]


@pytest.fixture
def cited(make_case: MakeCase, make_candidate: MakeCandidate) -> Callable[..., Case]:
    judged = make_candidate({}, base=BASE)

    def make(*items: dict[str, Any], **more: Any) -> Case:
        evidence = [{"name": "callers", "kind": "citation", **item} for item in items]
        return make_case(
            **{"judged": judged, "acceptance": CHECK, "required_evidence": OWED, "evidence": evidence, **more}
        )

    return make


def decide(case: Case) -> Decision:
    return judge(case, now=NOW).decision


def verdict(case: Case) -> EvidenceVerdict:
    decision = decide(case)
    assert decision.decision == "accepted", decision.reason
    return decision.evidence[0]


def at(path: str, line: int, text: str | None = None, symbol: str | None = None, **more: Any) -> dict[str, Any]:
    """A citation as an honest child makes it."""
    if text is None:
        text = BASE[path].decode("utf-8", "replace").split("\n")[line - 1].removesuffix("\r").removeprefix("\ufeff")
    return {"path": path, "line": line, "text": text, "symbol": symbol, **more}


# --- must be accepted


@pytest.mark.parametrize(
    "item",
    [
        at("pay.py", 3),
        at("pay.py", 3, symbol="<module>"),
        at("pay.py", 3, symbol=""),
        at("pay.py", 10, symbol="Pay.pay.inner"),
        at("pay.py", 10, symbol="Pay.pay.<locals>.inner"),
        at("pay.py", 12, symbol="Pay.pay"),
        at("pay.py", 14, symbol="Pay.later"),
        at("pay.py", 14, symbol="Pay"),
        at("pay.py", 6, symbol="Pay"),
        at("pay.py", 7, symbol="Pay"),
        at("pay.py", 8, symbol="Pay"),
        at("pay.py", 8, symbol="Pay.pay"),
        at("pay.py", 3, "STATE = legacy.state()\n"),
        at("pay.py", 3, "STATE = legacy.state()\r\n"),
        at("pay.py", 3, "", digest=sha256_digest(b"STATE = legacy.state()")),
        at("pay.py", 3, digest=sha256_digest(b"STATE = legacy.state()").removeprefix("sha256:")),
        at("dos.py", 2, "b = 2", digest=sha256_digest(b"b = 2")),
        at("bom.py", 1, "a = 1", digest=sha256_digest(b"a = 1")),
        at("latin.py", 1, "a = '\ufffd'", digest=sha256_digest(b"a = '\xe9'")),
        at("blank.py", 2, "", digest=sha256_digest(b"")),
        at("feed.py", 3, "b = '\u2028'"),
        at("feed.py", 4, "c = 3", symbol="<module>"),
        at("notes.md", 3),
    ],
    ids=range(23),
)
def test_a_line_that_is_there_as_cited_is_verified(cited: Callable[..., Case], item: dict[str, Any]) -> None:
    found = verdict(cited(item))
    assert (found.found_origin, found.message) == ("verified", "")


def test_the_same_line_twice_and_very_many_lines_are_fine(cited: Callable[..., Case]) -> None:
    assert verdict(cited(*[at("pay.py", 3)] * 2, *[at("pay.py", 12, symbol="Pay.pay")] * 3000)).ok


def test_what_cannot_be_compared_is_never_verified(cited: Callable[..., Case]) -> None:
    decision = decide(cited(at("notes.md", 3, symbol="Notes"), at("pay.py", 3)))
    assert decision.decision == "repair_required"
    assert "symbol 'Notes' cannot be checked: only Python is read that closely" in decision.reason
    assert verdict(cited(at("notes.md", 3), at("pay.py", 3))).found_origin == "verified"


def test_a_line_that_the_child_wrote_itself_can_be_cited(make_case: MakeCase, make_candidate: MakeCandidate) -> None:
    judged = make_candidate({"src/new.py": b"def f():\n    g()\n"})
    item = {"name": "callers", "kind": "citation", "path": "src/new.py", "line": 2, "text": "    g()", "symbol": "f"}
    case = make_case(judged=judged, acceptance=CHECK, required_evidence=OWED, evidence=[item], read_scope=["docs/"])
    assert verdict(case).found_origin == "verified"


def test_without_a_workspace_the_source_itself_is_looked_at(make_case: MakeCase) -> None:
    item = {"name": "callers", "kind": "citation", "path": "src/pay.py", "line": 2, "text": "    return legacy_state()"}
    assert verdict(make_case(acceptance=CHECK, required_evidence=OWED, evidence=[item])).found_origin == "verified"


def test_items_of_another_kind_or_name_are_no_citations(cited: Callable[..., Case]) -> None:
    case = cited(at("pay.py", 3), {"kind": "note", "text": "1 call"}, {"name": "other", "path": "gone", "line": 1})
    assert verdict(case).ok


# --- must not be accepted


@pytest.mark.parametrize(
    ("item", "fact"),
    [
        (at("gone.py", 1, "x"), "the judged tree has no file 'gone.py'"),
        (at("../run.git/HEAD", 1, "x"), "the judged tree has no file"),
        (at("link", 1, "import legacy"), "'link' is a link, no file"),
        (at("pay.py", 15, "x"), "there is no line 15: 'pay.py' has 14 lines"),
        (at("empty.py", 1, "x"), "there is no line 1: 'empty.py' has 0 lines"),
        (at("pay.py", 10**15, "x"), "there is no line 1000000000000000"),
        ({"path": "pay.py", "text": "x"}, "it names no line"),
        ({"line": 1, "text": "x"}, "it names no path"),
        ({"path": "", "line": 1, "text": "x"}, "it names no path"),
        (at("pay.py", 3, ""), "there is nothing to compare: hand in the text of the line, or its digest"),
        (
            at("pay.py", 3, "STATE = legacy.other()"),
            "line 3 reads 'STATE = legacy.state()', not 'STATE = legacy.other()'",
        ),
        (at("pay.py", 10, "return legacy.state()"), "line 10 has other white space: hand it in as it stands"),
        (at("pay.py", 3, "STATE = legacy.state()\n\n"), "line 3 has other white space"),
        (at("pay.py", 3, digest=sha256_digest(b"STATE = legacy.state()\n")), "its digest is not that of line 3"),
        (at("pay.py", 3, digest="nonsense"), "its digest is not that of line 3"),
        (at("pay.py", 3, symbol="Pay"), "line 3 stands at the top of the file, not in Pay"),
        (at("pay.py", 10, symbol="Pay.pay"), "line 10 stands in Pay.pay.inner, not in Pay.pay"),
        (at("pay.py", 10, symbol="inner"), "line 10 stands in Pay.pay.inner, not in inner"),
        (at("pay.py", 10, symbol="<module>"), "line 10 stands in Pay.pay.inner, not in <module>"),
        (at("pay.py", 8, symbol="Pay.later"), "line 8 stands in Pay.pay or Pay, not in Pay.later"),
        (at("broken.py", 1, symbol="f"), "symbol 'f' cannot be checked in 'broken.py': it is no Python"),
        (at("nul.py", 2, "    a\0b", symbol="f"), "symbol 'f' cannot be checked in 'nul.py': it holds a NUL"),
    ],
    ids=range(22),
)
def test_a_citation_that_does_not_resolve_is_named_with_the_fact(
    cited: Callable[..., Case], item: dict[str, Any], fact: str
) -> None:
    decision = decide(cited(at("pay.py", 3), item))
    assert decision.decision == "repair_required"
    owed, finding = decision.feedback
    assert (owed.check, finding.check) == ("required_evidence", "citations_resolve of callers")
    assert finding.message.startswith(fact)
    assert finding.place == (item.get("path") or "") + (f":{item['line']}" if item.get("line") else "")
    assert decision.evidence[0].found_origin == "claimed"
    assert "is not verified for 1 of 2 items" in decision.evidence[0].message


def test_no_citation_at_all_fails(cited: Callable[..., Case]) -> None:
    for items in ([], [{"kind": "note", "text": "none"}], [{"name": "other", "path": "pay.py", "line": 1}]):
        decision = decide(cited(*items, required_evidence=["other"] if items[1:] else []))
        assert decision.decision == "repair_required"
        assert decision.feedback[-1].message == "no citation was handed in as evidence 'callers'"


def test_a_file_outside_the_read_scope_is_not_confirmed(cited: Callable[..., Case]) -> None:
    for text in ("k = 1", "k = 2"):
        decision = decide(cited(at("private/key.py", 1, text), read_scope=["*.py"]))
        assert decision.feedback[-1].message == "'private/key.py' is outside the read scope"


def test_very_many_that_do_not_resolve_are_cut_and_counted(cited: Callable[..., Case]) -> None:
    decision = decide(cited(*[at("pay.py", 100 + number, "x" * 5000) for number in range(1000)]))
    findings = decision.checks[0].findings
    assert len(findings) == 21
    assert findings[-1].message == "980 more citations do not resolve, of 1000 in all"
    assert max(len(finding.message) for finding in decision.feedback) <= 600


def test_a_citation_that_a_call_showed_is_observed_when_the_gate_was_not_asked_to_look(
    cited: Callable[..., Case],
) -> None:
    observed = [{"name": "callers", "kind": "citation", "min_origin": "observed"}]
    wrong = at("pay.py", 3, "something else", origin="observed", seen_in_calls=[1])
    case = cited(wrong, acceptance=[], required_evidence=observed, calls=[{}])
    assert verdict(case).found_origin == "observed"
    # Asked to look, the gate lets nothing pass that it did not find.
    assert decide(cited(wrong, required_evidence=observed, calls=[{}])).decision == "repair_required"


def test_what_the_child_says_is_verified_is_not(cited: Callable[..., Case]) -> None:
    case = cited(at("pay.py", 3, origin="verified"), acceptance=[{"citations_resolve": "other"}],
                 required_evidence=[*OWED, {"name": "other"}])  # fmt: skip
    assert decide(case).evidence[0].ok is False


def test_a_part_is_looked_up_although_its_check_waits_for_the_end(cited: Callable[..., Case]) -> None:
    acceptance = [{"citations_resolve": "callers", "when": "end"}]
    assert verdict(cited(at("pay.py", 3), acceptance=acceptance, outcome="partial")).found_origin == "verified"


# --- what the gate itself could not do


def test_without_a_source_citations_are_not_judged(make_case: MakeCase) -> None:
    item = {"name": "callers", "kind": "citation", "path": "pay.py", "line": 1, "text": "x"}
    case = make_case(acceptance=CHECK, required_evidence=OWED, evidence=[item])
    decision = decide(replace(case, judged=None))
    assert (decision.decision, decision.feedback) == ("not_judged", [])


def test_a_source_that_cannot_be_read_is_not_the_childs_fault(
    make_case: MakeCase, make_candidate: MakeCandidate
) -> None:
    judged = make_candidate({}, base=BASE)
    item = {"name": "callers", "kind": "citation", **at("pay.py", 3)}
    case = make_case(judged=judged, acceptance=CHECK, required_evidence=OWED, evidence=[item])
    judged.reader.close()
    decision = decide(case)
    assert (decision.decision, decision.feedback) == ("not_judged", [])
    assert "the judged tree cannot be listed: ValueError: the source was closed" in decision.reason


def test_many_results_can_be_judged_at_once(cited: Callable[..., Case]) -> None:
    case = cited(*[at("pay.py", 10, symbol="Pay.pay.inner"), at("pay.py", 14, symbol="Pay.later")] * 50)
    words: list[str] = []

    def work() -> None:
        words.extend(decide(case).decision for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert words == ["accepted"] * 40
