"""The deterministic checks as a whole decision sees them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from contracts.errors import BadInput
from contracts.results import Decision
from coordinator.gate import Case, judge, load_schema

NOW = datetime(2026, 8, 1, tzinfo=UTC)
MakeCase = Callable[..., Case]
SCHEMA = json.dumps(
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"callers": {"type": "array", "items": {"$ref": "#/$defs/caller"}}},
        "required": ["callers"],
        "$defs": {"caller": {"type": "object", "properties": {"line": {"type": "integer"}}, "required": ["line"]}},
    }
).encode()
CALLERS: list[dict[str, Any]] = [{"json_schema": "callers.schema.json"}]


def decide(case: Case) -> Decision:
    return judge(case, now=NOW).decision


def found(case: Case) -> list[tuple[str, str, str]]:
    decision = decide(case)
    assert decision.decision == "repair_required"
    return [(finding.check, finding.place, finding.message) for finding in decision.feedback]


# --- json_schema


def test_an_output_on_its_schema_is_accepted_and_each_fault_off_it_has_its_place(make_case: MakeCase) -> None:
    def case(output: Any) -> Case:
        return make_case(acceptance=CALLERS, files={"callers.schema.json": SCHEMA}, output=output)

    assert decide(case({"callers": [{"line": 3}]})).decision == "accepted"
    assert found(case({"callers": [{"line": 3}, {}, {"line": "three"}]})) == [
        ("json_schema", "$.callers[1]", "'line' is a required property"),
        ("json_schema", "$.callers[2].line", "'three' is not of type 'integer'"),
    ]
    assert found(case(None)) == [("json_schema", "$", "None is not of type 'object'")]


def test_at_most_twenty_findings_come_back_and_no_value_fills_them(make_case: MakeCase) -> None:
    output = {"callers": [{"line": "x" * 10_000} for _ in range(1000)]}
    findings = found(make_case(acceptance=CALLERS, files={"callers.schema.json": SCHEMA}, output=output))
    assert len(findings) == 20
    assert findings[0][2] == "'" + "x" * 56 + "... is not of type 'integer'"


def test_of_alternatives_the_nearest_is_told(make_case: MakeCase) -> None:
    schema = b'{"oneOf": [{"type": "string"}, {"type": "object", "properties": {"n": {"type": "integer"}}}]}'
    case = make_case(acceptance=CALLERS, files={"callers.schema.json": schema}, output={"n": "x"})
    ((_, _, message),) = found(case)
    assert (
        message
        == "{'n': 'x'} is not valid under any of the given schemas (nearest at $.n: 'x' is not of type 'integer')"
    )


def test_an_artifact_or_a_key_of_the_output_can_be_what_a_schema_judges(make_case: MakeCase) -> None:
    def case(**handed_in: Any) -> Case:
        check = {"json_schema": "callers.schema.json", "of": "callers.json"}
        return make_case(acceptance=[check], files={"callers.schema.json": SCHEMA}, **handed_in)

    good, bad = {"callers": []}, {"callers": [{}]}
    label = "json_schema of callers.json"
    assert decide(case(artifacts={"callers.json": json.dumps(good).encode()})).decision == "accepted"
    assert decide(case(output={"callers.json": good})).decision == "accepted"
    assert (
        decide(case(output={"callers.json": bad}, artifacts={"callers.json": b'{"callers": []}'})).decision
        == "accepted"
    )
    assert found(case(artifacts={"callers.json": json.dumps(bad).encode()})) == [
        (label, "artifact callers.json: $.callers[0]", "'line' is a required property")
    ]
    assert found(case(output={"callers.json": bad}))[0][1] == "$['callers.json'].callers[0]"
    assert found(case(artifacts={"other.json": b"{}"}, output={"a": 1, "b": 2})) == [
        (label, "", "'callers.json' was not handed in: no artifact, no file of the judged tree and no key "
                    "of the output has that name (artifacts: other.json; keys: a, b)")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"callers": [],}', "not strict JSON: callers.json:1:16: "),
        (b'{"callers": [], "callers": []}', "not strict JSON: callers.json:1:17: key 'callers' stands twice"),
        (b'{"callers": NaN}', "not strict JSON: callers.json:1:13: callers: "),
        (b"\xff", "not strict JSON: callers.json:1:1: byte 0xff is not UTF-8"),
        (b"", "not strict JSON: callers.json:1:1: the document is empty"),
        (b"[" * 100_000, "not strict JSON: callers.json:1:"),
    ],
    ids=range(6),
)
def test_an_artifact_that_is_no_strict_json_is_sent_back_with_the_place(
    make_case: MakeCase, data: bytes, message: str
) -> None:
    check = {"json_schema": "callers.schema.json", "of": "callers.json"}
    case = make_case(acceptance=[check], files={"callers.schema.json": SCHEMA}, artifacts={"callers.json": data})
    assert found(case)[0][2].startswith(message)


@pytest.mark.parametrize(
    ("schema", "cause"),
    [
        (b'{"$ref": "https://example.com/callers.json"}', "refers to 'https://example.com/callers.json'"),
        (b'{"$ref": "other.schema.json"}', "refers to 'other.schema.json'"),
        (b'{"type": "strang"}', "no JSON Schema"),
        (b"{type: object}", "the schema cannot be used: callers.schema.json:1:2"),
        (b'{"$schema": "http://json-schema.org/draft-07/schema#"}', "another draft"),
    ],
)
def test_a_schema_that_cannot_be_used_is_not_the_childs_fault(make_case: MakeCase, schema: bytes, cause: str) -> None:
    decision = decide(make_case(acceptance=CALLERS, files={"callers.schema.json": schema}, output={"callers": []}))
    assert decision.decision == "not_judged"
    assert cause in decision.reason
    assert decision.checks[0].outcome == "errored"


def test_nothing_is_fetched_that_a_schema_refers_to(make_case: MakeCase) -> None:
    asked: list[str] = []

    class Schemas(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Schemas) as server:
        threading.Thread(target=server.serve_forever).start()
        schema = json.dumps({"$ref": f"http://127.0.0.1:{server.server_port}/callers.json"}).encode()
        decision = decide(make_case(acceptance=CALLERS, files={"callers.schema.json": schema}, output={}))
        server.shutdown()
    assert (decision.decision, asked) == ("not_judged", [])


def test_a_schema_can_be_looked_at_before_anything_starts() -> None:
    assert load_schema("a.json", b'{"$schema": "https://json-schema.org/draft/2020-12/schema#"}').is_valid(1)
    with pytest.raises(BadInput, match=r"a.json:1:31: properties.n.type: no JSON Schema: 7 is not valid"):
        load_schema("a.json", b'{"properties": {"n": {"type": 7}}}')


# --- sections

SECTIONS: list[dict[str, Any]] = [{"sections": ["Background", "Risks"]}]
DRAFT = b"# Background\nx\n"
FINAL = b"# Background\nx\n# Risks\ny\n"


def test_the_text_is_the_output_or_the_only_text_artifact_or_what_of_names(make_case: MakeCase) -> None:
    def word(of: str | None = None, **handed_in: Any) -> str:
        check: dict[str, Any] = SECTIONS[0] | ({"of": of} if of else {})
        return decide(make_case(acceptance=[check], **handed_in)).decision

    assert word(output=FINAL.decode()) == "accepted"
    assert word(output={"n": 1}, artifacts={"report.md": FINAL, "data.bin": b"\xff"}) == "accepted"
    assert word(output=" ", artifacts={"report.md": FINAL}) == "accepted"
    assert (
        word("report.md", output="done, see report.md", artifacts={"report.md": FINAL, "old.md": DRAFT}) == "accepted"
    )
    assert word("text", output={"text": FINAL.decode()}) == "accepted"
    assert word(output=DRAFT.decode(), artifacts={"report.md": FINAL}) == "repair_required"
    assert word("old.md", artifacts={"report.md": FINAL, "old.md": DRAFT}) == "repair_required"


def test_a_draft_without_risks_comes_back_with_the_exact_finding(make_case: MakeCase) -> None:
    case = make_case(acceptance=[SECTIONS[0] | {"of": "report.md"}], artifacts={"report.md": DRAFT})
    assert found(case) == [("sections of report.md", "artifact report.md", "Missing required sections: Risks")]
    assert decide(case).reason == "Missing required sections: Risks"


@pytest.mark.parametrize(
    "handed_in",
    [
        {"output": None},
        {"output": ""},
        {"output": {"text": FINAL.decode()}},
        {"artifacts": {"a.md": FINAL, "b.md": FINAL}},
        {"artifacts": {"a.bin": FINAL}},
    ],
    ids=range(5),
)
def test_work_that_was_done_but_not_handed_in_is_asked_for(make_case: MakeCase, handed_in: dict[str, Any]) -> None:
    ((_, _, message),) = found(make_case(acceptance=SECTIONS, **handed_in))
    assert message.startswith("no single text to judge: hand in the text as the output, or as the only text artifact")


def test_text_that_is_no_text_is_a_finding(make_case: MakeCase) -> None:
    assert found(make_case(acceptance=SECTIONS, artifacts={"a.md": b"# \xff"}))[0][2] == (
        "artifact a.md is not UTF-8 text (byte 2)"
    )
    case = make_case(acceptance=[SECTIONS[0] | {"of": "n"}], output={"n": 7})
    assert found(case)[0][2] == "output key n is not text but 7"


# --- cel


@pytest.mark.parametrize(
    "expression",
    [
        "output.files > 0",
        "output.files == 2.0",
        "size(evidence) == 1 && evidence[0].origin == 'claimed'",
        "observed.exists(call, call.tool == 'read_file' && call.ok)",
        "contract.task_id == 'audit' && contract.resources.network == 'deny'",
        "has(output.missing) == false",
    ],
)
def test_an_expression_that_is_true_of_the_result_is_accepted(make_case: MakeCase, expression: str) -> None:
    case = make_case(acceptance=[{"cel": expression}], output={"files": 2}, evidence=[{"name": "a"}], calls=[{}])
    assert decide(case).decision == "accepted", decide(case).reason


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"files": 0}, "not true: output.files > 0"),
        ({}, 'no answer on this result: Key not found in map : "files"; the expression is output.files > 0'),
        ({"files": "many"}, "no answer on this result: No matching overloads"),
        (None, "no answer on this result: "),
        ("true", "no answer on this result: "),
    ],
)
def test_false_and_no_answer_are_both_sent_back_although_the_library_says_errors_in_texts_that_python_takes_for_true(
    make_case: MakeCase, output: Any, message: str
) -> None:
    assert found(make_case(acceptance=[{"cel": "output.files > 0"}], output=output))[0][2].startswith(message)


def test_what_stands_after_a_nul_is_judged_too(make_case: MakeCase) -> None:
    case = make_case(acceptance=[{"cel": "!output.text.contains('refund')"}], output={"text": "ok\0we refund"})
    assert decide(case).decision == "repair_required"
    case = make_case(acceptance=[{"cel": "!has(output.ok)"}], output={"ok\0": True})
    assert decide(case).decision == "accepted"


def test_an_expression_that_cannot_be_computed_is_not_judged(make_case: MakeCase) -> None:
    for expression in ("output.n +", "nothing == 1", "output.n"):
        decision = decide(make_case(acceptance=[{"cel": expression}], output={"n": 1}))
        assert decision.decision == "not_judged", expression


def test_an_expression_that_takes_too_long_on_this_result_has_no_answer(make_case: MakeCase) -> None:
    endless = "output.all(a, output.all(b, output.all(c, a == b || b == c)))"
    message = found(make_case(acceptance=[{"cel": endless}], output=["x"] * 3000))[0][2]
    assert message.startswith("no answer on this result: ")
    assert "budget exceeded" in message
