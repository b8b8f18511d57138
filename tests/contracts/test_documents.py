"""Strict YAML and JSON: what is read means one thing, and whatever is wrong has a file, a line and a column."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from yamlcore import CCoreDumper

from contracts.canonical import digest_of, json_faults
from contracts.documents import Document, dotted, load_document, parse_document, pydantic_faults, validate
from contracts.errors import BadInput, Fault

Format = Literal["yaml", "json"]
FORMATS: tuple[Format, ...] = ("yaml", "json")


def read_yaml(text: str | bytes) -> Any:
    return parse_document(text, file="c.yaml", format="yaml").value


def read_json(text: str | bytes) -> Any:
    return parse_document(text, file="c.json", format="json").value


def faults_of(text: str | bytes, format: Format) -> list[str]:  # noqa: A002
    with pytest.raises(BadInput) as refused:
        parse_document(text, file="c", format=format)
    return [str(fault) for fault in refused.value.faults]


# --- what values mean


def test_values_that_yaml_1_1_loaders_quietly_change_keep_their_meaning() -> None:
    text = """\
network: no
on: off
yes: y
at: 22:30
day: 2024-01-02
at_time: 2024-01-02T03:04:05Z
limit: 1e6
grouped: 1_000
octal_like: 0o14
branch: 012
version: 1.10
quoted: "1.10"
binary: 0b11
"<<": merge
tilde: ~
empty:
"""
    assert read_yaml(text) == {
        "network": "no",
        "on": "off",
        "yes": "y",
        "at": "22:30",
        "day": "2024-01-02",
        "at_time": "2024-01-02T03:04:05Z",
        "limit": 1_000_000.0,
        "grouped": "1_000",
        "octal_like": 12,
        "branch": 12,
        "version": 1.1,
        "quoted": "1.10",
        "binary": "0b11",
        "<<": "merge",
        "tilde": None,
        "empty": None,
    }


def test_a_number_where_text_is_wanted_is_refused_with_the_advice_to_quote_it() -> None:
    class Pin(BaseModel):
        model_config = ConfigDict(strict=True)
        version: str
        branch: str

    document = parse_document("version: 1.10\nbranch: 012\n", file="pin.yaml", format="yaml")
    with pytest.raises(BadInput) as refused:
        validate(Pin, document)
    assert str(refused.value).splitlines() == [
        "pin.yaml:1:10: version: 1.1 is not text, put it in quotes",
        "pin.yaml:2:9: branch: 12 is not text, put it in quotes",
    ]


def test_a_merge_key_is_an_ordinary_key() -> None:
    assert read_yaml("<<: {a: 1}\nb: 2\n") == {"<<": {"a": 1}, "b": 2}


@pytest.mark.parametrize(
    ("text", "value"),
    [("!!str 12", "12"), ("!!int '12'", 12), ("!!float 1", 1.0), ("!!bool true", True), ("!!null ''", None)],
)
def test_core_scalar_tags_are_allowed(text: str, value: object) -> None:
    assert read_yaml(f"a: {text}")["a"] == value


def test_a_byte_order_mark_of_utf_8_is_skipped_and_moves_no_column() -> None:
    for format in FORMATS:  # noqa: A001
        document = parse_document(b'\xef\xbb\xbf{"a": 1}', file="c", format=format)
        assert document.value == {"a": 1}
        assert document.place(("a",)) == (1, 7)


CONTRACT_JSON = """\
{"child_run_id": "child-204", "parent_run_id": "run-108", "delegation_id": "delegation-77", "contract_version": 3,
 "parent_state_version": 41, "task_id": "audit-webhook-mapping",
 "objective": "Find callers that depend on the legacy payment-state mapping.",
 "input_snapshot": {"repo_ref": "payments@a81c2f9", "spec_ref": "artifact://spec/payment-state-v2"},
 "resources": {"tools": ["read_file", "search_code"], "network": "deny", "write_scope": [], "delegation": "deny"},
 "budget": {"max_turns": 12, "max_cost_usd": 0.8},
 "required_evidence": ["caller inventory", "coverage gaps", "child trace ID"]}
"""
CONTRACT_YAML = """\
# The same, as people write it.
child_run_id: child-204
parent_run_id: run-108
delegation_id: delegation-77
contract_version: 3
parent_state_version: 41
task_id: audit-webhook-mapping
objective: >-
  Find callers that depend on
  the legacy payment-state mapping.
input_snapshot:
  repo_ref: payments@a81c2f9
  spec_ref: artifact://spec/payment-state-v2
resources: {tools: [read_file, search_code], network: deny, write_scope: [], delegation: deny}
budget: {max_turns: 12, max_cost_usd: 0.80}
required_evidence:
  - caller inventory
  - coverage gaps
  - child trace ID
"""


def test_the_same_contract_as_json_and_as_yaml_has_the_same_digest(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(CONTRACT_JSON)
    (tmp_path / "c.yaml").write_text(CONTRACT_YAML)
    (tmp_path / "pasted.yml").write_text(CONTRACT_JSON)
    digests = {digest_of(load_document(tmp_path / name).value) for name in ("c.json", "c.yaml", "pasted.yml")}
    assert len(digests) == 1


# --- what is refused, and where

REFUSED_YAML: dict[str, tuple[str | bytes, list[str]]] = {
    "equal keys": (
        "a: 1\nb: {c: 1, c: 2}\n",
        ["c:2:11: b: key 'c' stands twice, first in line 2, keep one of the two"],
    ),
    "three equal keys": (
        "a: 1\na: 2\na: 3\n",
        [f"c:{n}:1: key 'a' stands twice, first in line 1, keep one of the two" for n in (2, 3)],
    ),
    "keys equal after reading": (
        'a: 1\n"\\x61": 2\n',
        ["c:2:1: key 'a' stands twice, first in line 1, keep one of the two"],
    ),
    "anchor": ("a: &x 1", ["c:1:4: a: anchor '&x', leave it out; put text that begins with '&' in quotes"]),
    "alias": (
        "a: &x 1\nb: [0, *x]",
        [
            "c:1:4: a: anchor '&x', leave it out; put text that begins with '&' in quotes",
            "c:2:8: b[1]: alias '*x', write the value out; put text that begins with '*' in quotes",
        ],
    ),
    "glob taken for an alias": (
        "scope: [*.py]",
        [
            "c:1:9: scope[0]: not YAML: while scanning an alias did not find expected alphabetic or numeric character, "
            "put text that begins with '*' in quotes"
        ],
    ),
    "tag": ("a: !py 1", ["c:1:4: a: tag '!py', leave it out; put text that begins with '!' in quotes"]),
    "non-specific tag": ("a: ! 1", ["c:1:4: a: tag '!', leave it out; put text that begins with '!' in quotes"]),
    "tag of another schema": (
        "a: !!timestamp 2024-01-02",
        ["c:1:4: a: tag 'tag:yaml.org,2002:timestamp', leave it out; put text that begins with '!' in quotes"],
    ),
    "collection tag": (
        "!!map {a: 1}",
        ["c:1:1: tag 'tag:yaml.org,2002:map', leave it out; put text that begins with '!' in quotes"],
    ),
    "redefined tag prefix": (
        "%TAG !! tag:evil,1:\n---\n!!int 3",
        ["c:3:1: tag 'tag:evil,1:int', leave it out; put text that begins with '!' in quotes"],
    ),
    "scalar tag that does not fit": ("a: !!int no", ["c:1:4: a: 'no' is no int, leave the tag out"]),
    "second document": ("a: 1\n---\nb: 1\n", ["c:2:1: a second document begins, one file holds one document"]),
    "second empty document": ("a: 1\n---\n", ["c:2:1: a second document begins, one file holds one document"]),
    "other YAML version": ("%YAML 1.1\n---\na: no", ["c:1:1: YAML 1.1 was asked for, this is read as YAML 1.2"]),
    "number as key": ("1: a", ['c:1:1: key 1 is not text, put the key in quotes, "like this"']),
    "null as key": ("a: {~: 1}", ['c:1:5: a: key None is not text, put the key in quotes, "like this"']),
    "list as key": (
        "a:\n  ? [x, &b y]\n  : 1\n",
        [
            'c:2:5: a: key a list or mapping is not text, put the key in quotes, "like this"',
            "c:2:9: a[1]: anchor '&b', leave it out; put text that begins with '&' in quotes",
        ],
    ),
    "quotes left open": (
        "a: 'x\nb: 1\n",
        ["c:1:4: a: not YAML: while scanning a quoted scalar found unexpected end of stream, close the quotes"],
    ),
    "key without colon": (
        "a: 1\nb\nc: 2\n",
        [
            "c:2:1: not YAML: while scanning a simple key could not find expected ':', "
            "write key: value, or put text of several lines in quotes"
        ],
    ),
    "tab as indentation": ("a:\n\tb: 1", ["c:2:1: a: not YAML: a tab in the indentation, indent with spaces"]),
    "colon in text": (
        "a: b: c",
        [
            "c:1:5: not YAML: mapping values are not allowed in this context, "
            "put text that holds ': ' in quotes, and align the keys"
        ],
    ),
    "control character": ("a: b\x07c", ['c:1:5: character \\u0007 is not allowed, write "\\u0007" in double quotes']),
    "NUL": (b"a: \0", ['c:1:4: character \\u0000 is not allowed, write "\\u0000" in double quotes']),
    "line separator": (
        "a: 'x\u2028y'\nb: \u0085",
        [
            'c:1:6: character \\u2028 is not allowed, write "\\u2028" in double quotes',
            'c:2:4: character \\u0085 is not allowed, write "\\u0085" in double quotes',
        ],
    ),
    "byte-order mark inside": (
        "a: \ufeffb",
        ['c:1:4: character \\ufeff is not allowed, write "\\ufeff" in double quotes'],
    ),
    "infinity": ("a: [.inf, -.INF, .nan]", [
        "c:1:5: a[0]: .inf: inf is not a JSON number, use null or a string",
        "c:1:11: a[1]: -.INF: -inf is not a JSON number, use null or a string",
        "c:1:18: a[2]: .nan: nan is not a JSON number, use null or a string",
    ]),
    "float beyond range": ("a: 1e999", ["c:1:4: a: 1e999: inf is not a JSON number, use null or a string"]),
    "large integer": (
        "a: 9007199254740992\nb: -0x1\nc: 0x20000000000000",
        [
            "c:1:4: a: integer 9007199254740992 is beyond +-(2^53-1), write it as a string",
            "c:3:4: c: 0x20000000000000: integer 9007199254740992 is beyond +-(2^53-1), write it as a string",
        ],
    ),
    "very long integer": ("a: " + "9" * 5000, ["c:1:4: a: a number of 5000 characters, write it as a string"]),
    "half a surrogate pair": (
        'a: "\\ud83d"',
        [
            "c:1:7: a: not YAML: while parsing a quoted scalar found invalid Unicode character escape code, "
            "write the character itself, or all of it as \\U0001f600"
        ],
    ),
    "only a comment": ("# nothing\n", ["c:1:1: the document is empty, write a mapping of fields"]),
    "only a document start": ("---\n", ["c:2:1: the document is empty, write a mapping of fields"]),
}  # fmt: skip

REFUSED_JSON: dict[str, tuple[str, list[str]]] = {
    "equal keys": ('{"a": 1,\n "a": 2}', ["c:2:2: key 'a' stands twice, first in line 1, keep one of the two"]),
    "keys equal after reading": (
        '{"a": 1, "\\u0061": 2}',
        ["c:1:10: key 'a' stands twice, first in line 1, keep one of the two"],
    ),
    "not numbers": (
        '{"a": [NaN, Infinity,\n -Infinity, 1e999]}',
        [
            "c:1:8: a[0]: NaN: nan is not a JSON number, use null or a string",
            "c:1:13: a[1]: Infinity: inf is not a JSON number, use null or a string",
            "c:2:2: a[2]: -Infinity: -inf is not a JSON number, use null or a string",
            "c:2:13: a[3]: 1e999: inf is not a JSON number, use null or a string",
        ],
    ),
    "large integer": (
        '{"a": -9007199254740992}',
        ["c:1:7: a: integer -9007199254740992 is beyond +-(2^53-1), write it as a string"],
    ),
    "very long integer": ('{"a": ' + "9" * 5000 + "}", ["c:1:7: a: a number of 5000 characters, write it as a string"]),
    "half a surrogate pair": (
        '{"a": "\\ud83d", "\\ude00": 1}',
        [
            "c:1:7: a: text holds half a surrogate pair, use well-formed Unicode",
            "c:1:17: text holds half a surrogate pair, use well-formed Unicode",
        ],
    ),
    "comma at the end of a list": (
        "[1,\n]",
        ["c:2:1: [1]: a value was expected, found ']', write one, or remove what asks for it before"],
    ),
    "comma at the end of a mapping": (
        '{"a": 1,}',
        ["c:1:9: a key was expected, found '}', remove the comma before it"],
    ),
    "no comma": ("[1 2]", ["c:1:4: [1]: ',' or ']' was expected, found '2', put it there"]),
    "no colon": ('{"a" 1}', ["c:1:6: a: ':' was expected, found '1', write {\"key\": value}"]),
    "single quotes": ("{'a': 1}", ['c:1:2: a key was expected, found "\'", put keys in double quotes']),
    "more after the end": (
        "{}\n{}",
        ["c:2:1: something follows after the end of the value, one file holds one document"],
    ),
    "raw line break in text": (
        '["a\nb"]',
        ['c:1:4: [0]: not JSON: invalid control character, write it as an escape such as \\n, \\" or \\u00e9'],
    ),
    "text without end": ('["a]', ["c:1:2: [0]: text without its end, close it with a double quote"]),
}


@pytest.mark.parametrize("case", REFUSED_YAML)
def test_yaml_that_could_be_misread_is_refused_at_its_place(case: str) -> None:
    text, expected = REFUSED_YAML[case]
    assert faults_of(text, "yaml") == expected


@pytest.mark.parametrize("case", REFUSED_JSON)
def test_json_that_could_be_misread_is_refused_at_its_place(case: str) -> None:
    text, expected = REFUSED_JSON[case]
    assert faults_of(text, "json") == expected


@pytest.mark.parametrize(
    "text", ["01", "+1", "1.", ".5", "-", "1e", "0x1", "True", "nul", "undefined", "// c", "\xa01"]
)
def test_words_and_numbers_of_other_languages_are_not_json(text: str) -> None:
    (fault,) = faults_of(f'{{"a": {text}}}', "json")
    assert fault.startswith("c:1:7: a: a value was expected, found ")


@pytest.mark.parametrize("format", FORMATS)
class TestInBothFormats:
    def test_all_faults_are_reported_at_once(self, format: Format) -> None:  # noqa: A002
        faults = faults_of('{"a": 1, "a": 2,\n"b": 9007199254740993,\n"c": [1e400', format)
        assert [fault.split(": ")[0] for fault in faults] == ["c:1:10", "c:2:6", "c:3:7", "c:3:12"]

    @pytest.mark.parametrize("text", ["", " \n\t", b"\xef\xbb\xbf"])
    def test_an_empty_document_is_refused(self, format: Format, text: str | bytes) -> None:  # noqa: A002
        assert faults_of(text, format) == ["c:1:1: the document is empty, write a mapping of fields"]

    @pytest.mark.parametrize(
        ("data", "place"),
        [
            (b'{"a":\n "\xc3\xa9\xe9"}', "c:2:4: byte 0xe9"),
            ('{"a": 1}'.encode("utf-16"), "c:1:1: byte 0xff"),
            ('{"a": "\ud83d"}', "c:1:8: byte 0xed"),
        ],
    )
    def test_what_is_not_utf_8_is_refused_at_its_byte(self, format: Format, data: bytes | str, place: str) -> None:  # noqa: A002
        assert faults_of(data, format) == [f"{place} is not UTF-8, save the file as UTF-8"]

    def test_fifty_levels_are_read_and_one_more_is_refused(self, format: Format) -> None:  # noqa: A002
        deep = parse_document("[" * 50 + "]" * 50, file="c", format=format)
        assert json_faults(deep.value) == []
        (fault,) = faults_of("[" * 51 + "]" * 51, format)
        assert fault.startswith("c:1:51: [0][0]")
        assert fault.endswith(": nested deeper than 50 levels, flatten it")

    @pytest.mark.parametrize("text", ["[" * 500_000, '{"a":' * 100_000, "- " * 500_000, "[[]," * 200_000])
    def test_absurd_depth_is_refused_without_recursing(self, format: Format, text: str) -> None:  # noqa: A002
        assert len(faults_of(text, format)) == 1

    def test_one_mebibyte_is_read_and_one_byte_more_is_refused(self, format: Format) -> None:  # noqa: A002
        text = '"' + "x" * (1024 * 1024 - 2) + '"'
        assert len(parse_document(text, file="c", format=format).value) == 1024 * 1024 - 2
        assert faults_of(text + " ", format) == ["c:1:1: more than 1048576 bytes, keep large data in files of its own"]

    def test_faults_without_end_are_cut(self, format: Format) -> None:  # noqa: A002
        faults = faults_of("[" + "1e999," * 150_000 + "1]", format)
        assert len(faults) == 101
        assert faults[-1].endswith("more than 99 faults, the rest was not read, repair these first")

    def test_the_largest_safe_integers_are_read(self, format: Format) -> None:  # noqa: A002
        document = parse_document("[9007199254740991, -9007199254740991, 1e308]", file="c", format=format)
        assert document.value == [2**53 - 1, -(2**53 - 1), 1e308]

    def test_a_message_holds_no_control_characters_of_the_input(self, format: Format) -> None:  # noqa: A002
        key = '"\\u001b[31m"'
        (fault,) = faults_of(f'{{{key}: 1, {key}: {{"x": 1}}}}', format)
        assert fault.isprintable()


def test_a_yaml_only_escape_of_a_line_separator_is_text() -> None:
    assert read_yaml('a: "x\\u2028y\\0\\ufeff"')["a"] == "x\u2028y\0\ufeff"
    assert read_json('["x\u2028y\ufeff\u0085"]') == ["x\u2028y\ufeff\u0085"]


# --- files


def test_json_is_chosen_by_the_name_and_everything_else_is_yaml(tmp_path: Path) -> None:
    for name in ("a.json", "a.JSON"):
        (tmp_path / name).write_text("a: 1")
        with pytest.raises(BadInput, match=f"{name}:1:1: a value was expected, found 'a'"):
            load_document(tmp_path / name)
    for name in ("a.yaml", "a.yml", "noname"):
        (tmp_path / name).write_text("a: no")
        document = load_document(tmp_path / name)
        assert (document.value, document.file) == ({"a": "no"}, str(tmp_path / name))


def test_a_file_that_cannot_be_read_is_bad_input_with_its_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("a: 1")
    for name, why in {
        "missing.yaml": "cannot be read: No such file or directory",
        ".": "is not a regular file",
        "pipe": "is not a regular file",
        "loop": "cannot be read: Too many levels of symbolic links",
        "file/below": "cannot be read: Not a directory",
        "nul\0": "cannot be read: embedded null byte",
        "n" * 300: "cannot be read: File name too long",
    }.items():
        with pytest.raises(BadInput) as refused:
            load_document(tmp_path / name)
        (fault,) = refused.value.faults
        assert fault.message == why
        assert fault.file is not None
        assert fault.file.isprintable()


def test_a_file_without_read_permission_is_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "secret.yaml"
    path.write_text("a: 1")
    path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root reads everything
    try:
        with pytest.raises(BadInput, match="cannot be read: Permission denied"):
            load_document(path)
    finally:
        os.seteuid(user)


def test_an_endless_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "sparse.yaml"
    with path.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(BadInput, match="more than 1048576 bytes"):
        load_document(path)


# --- places

PLACED = """\
schema: coordinator/v1
tasks:
  callers:
    acceptance:
      - {cel: "true"}
      - sections: [Summary, "Täst", Risks]
  a.b:
    objective:
  "two words": {"x": 1}
"""


@pytest.fixture
def placed() -> Document:
    return parse_document(PLACED, file="o.yaml", format="yaml")


def test_values_and_keys_have_places(placed: Document) -> None:
    assert placed.place(()) == (1, 1)
    assert placed.place(("schema",)) == (1, 9)
    assert placed.key_place(("schema",)) == (1, 1)
    assert placed.place(("tasks",)) == (3, 3)
    assert placed.key_place(("tasks",)) == (2, 1)
    assert placed.place(("tasks", "callers", "acceptance", 1, "sections", 2)) == (6, 37)
    assert placed.key_place(("tasks", "callers", "acceptance", 1, "sections")) == (6, 9)
    assert placed.key_place(("tasks", "callers", "acceptance", 0)) == (5, 9)
    assert placed.place(("tasks", "a.b", "objective")) == (8, 15)


@pytest.mark.parametrize(
    "location",
    [
        ("tasks", "callers", "objective"),
        ("tasks", "callers", "objective", "deeper", 0),
        ("tasks", "callers", 0),
        ("tasks", "callers", "0"),
    ],
)
def test_what_is_missing_has_the_place_of_its_nearest_parent(placed: Document, location: tuple[str | int, ...]) -> None:
    assert placed.place(location) == (4, 5)
    assert placed.key_place(location) == (3, 3)


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("", (1, 1)),
        ("schema", (1, 9)),
        ("$.schema", (1, 9)),
        ("tasks.callers.acceptance[1].sections[2]", (6, 37)),
        ("tasks.callers.acceptance[7].sections", (5, 7)),
        ("tasks.callers.nothing.there", (4, 5)),
        ("tasks.a.b.objective", (8, 15)),
        ("tasks['a.b'].objective", (8, 15)),
        ("tasks['two words'].x", (9, 22)),
        ("$.tasks.two words.x", (9, 22)),
        ("tasks.call", (3, 3)),
        ("[0]", (1, 1)),
        ("nonsense[", (1, 1)),
    ],
)
def test_a_fault_is_located_by_its_path(placed: Document, path: str, place: tuple[int, int]) -> None:
    fault = Fault(path, "is wrong")
    assert placed.locate(fault) == fault.at("o.yaml", *place)


def test_every_location_is_found_again_by_its_dotted_path() -> None:
    key = "odd.[0]['x'] \"key\"\n\x1b"
    document = parse_document(json.dumps({"a": {key: [0, {key: 1}]}, "a.b": 2}), file="c", format="json")
    for location in [("a", key), ("a", key, 1), ("a", key, 1, key), ("a.b",)]:
        fault = Fault(dotted(location), "")
        assert fault.path.isprintable()
        assert document.locate(fault) == fault.at("c", *document.place(location))


# --- validation


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class FunctionAgent(Strict):
    function: str


class CommandAgent(Strict):
    command: list[str]


class Limits(Strict):
    lease_s: float = Field(default=1.0, gt=0)


class Step(Strict):
    objective: str
    agent: FunctionAgent | CommandAgent | None = None
    evidence: list[Limits | str] = []
    limits: Limits = Limits()

    @field_validator("objective")
    @classmethod
    def _says_something(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("says nothing, in any language")
        return value


class Work(Strict):
    schema_version: str = Field(alias="schema")
    tasks: dict[str, Step]


def refused_work(text: str) -> list[str]:
    with pytest.raises(BadInput) as refused:
        validate(Work, parse_document(text, file="w.yaml", format="yaml"))
    return [str(fault) for fault in refused.value.faults]


def test_a_valid_document_becomes_a_model() -> None:
    text = "schema: v1\ntasks: {a: {objective: b, agent: {command: [x]}, evidence: [x, {lease_s: 2}]}}\n"
    work = validate(Work, parse_document(text, file="w.yaml", format="yaml"))
    assert work.tasks["a"].agent == CommandAgent(command=["x"])


def test_every_error_of_validation_is_a_fault_at_its_place_in_the_order_of_the_text() -> None:
    text = """\
shema: v1
tasks:
  a:
    objective: [1]
    limits: {lease_s: -1, lease: 2}
  b:
    objective: "  "
    lease_s: 3
    zzz: 4
  c: 5
  d: {}
"""
    assert refused_work(text) == [
        "w.yaml:1:1: schema: required field is missing, add 'schema'",
        "w.yaml:1:1: shema: unknown field 'shema', did you mean 'schema'?",
        "w.yaml:4:16: tasks.a.objective: [1] is not accepted, should be a valid string",
        "w.yaml:5:23: tasks.a.limits.lease_s: -1 is not accepted, should be greater than 0",
        "w.yaml:5:27: tasks.a.limits.lease: unknown field 'lease', did you mean 'lease_s'?",
        "w.yaml:7:16: tasks.b.objective: '  ': says nothing, in any language",
        "w.yaml:8:5: tasks.b.lease_s: unknown field 'lease_s', it is known elsewhere, not here",
        "w.yaml:9:5: tasks.b.zzz: unknown field 'zzz', remove it",
        "w.yaml:10:6: tasks.c: 5 is not accepted, should be a mapping of fields",
        "w.yaml:11:6: tasks.d.objective: required field is missing, add 'objective'",
    ]


def test_the_names_of_union_members_are_not_part_of_a_path() -> None:
    text = "schema: v1\ntasks:\n  a:\n    objective: b\n    agent: {comand: [x]}\n    evidence: [x, 7]\n"
    assert refused_work(text) == [
        "w.yaml:5:12: tasks.a.agent.function: required field is missing, add 'function'",
        "w.yaml:5:12: tasks.a.agent.command: required field is missing, add 'command'",
        "w.yaml:5:13: tasks.a.agent.comand: unknown field 'comand', did you mean 'command'?",
        "w.yaml:6:19: tasks.a.evidence[1]: 7 is not accepted, should be a mapping of fields",
        "w.yaml:6:19: tasks.a.evidence[1]: 7 is not text, put it in quotes",
    ]


def test_a_union_member_named_like_a_key_does_not_lead_astray() -> None:
    class Holder(Strict):
        value: dict[str, int] | int

    text = "value: {int: {}, 'dict[str,int]': 1}\n"
    document = parse_document(text, file="h.yaml", format="yaml")
    with pytest.raises(BadInput) as refused:
        validate(Holder, document)
    assert [str(fault) for fault in refused.value.faults] == [
        "h.yaml:1:8: value: {'int': {}, 'dict[str,int]': 1} is not accepted, should be a valid integer",
        "h.yaml:1:14: value.int: {} is not accepted, should be a valid integer",
    ]


def test_a_field_that_only_code_sets_is_not_suggested() -> None:
    class Placed(Strict):
        folder: str = Field(default=".", exclude=True)
        inputs: dict[str, int] = {}

    with pytest.raises(BadInput, match=r"^p:1:1: foldr: unknown field 'foldr', remove it$"):
        validate(Placed, parse_document("foldr: x", file="p", format="yaml"))


def test_a_wrong_key_is_placed_at_the_key() -> None:
    class Ids(Strict):
        ids: dict[Literal["a", "b"], int]

    with pytest.raises(BadInput, match=r"^i:1:13: ids\.c: 'c' is not accepted, should be 'a' or 'b'$"):
        validate(Ids, parse_document("ids: {a: 1, c: 2}", file="i", format="yaml"))


def test_a_long_value_is_cut_and_a_hostile_one_is_escaped() -> None:
    class Count(Strict):
        count: int

    for value in ("x" * 100_000, "\x1b[31m\u202e"):
        with pytest.raises(BadInput) as refused:
            validate(Count, parse_document(json.dumps({"count": value}), file="c", format="json"))
        (fault,) = refused.value.faults
        assert str(fault).isprintable()
        assert len(fault.message) < 90


def test_very_many_errors_are_cut() -> None:
    class Counts(Strict):
        counts: list[int]

    document = parse_document(json.dumps({"counts": ["x"] * 5000}), file="c", format="json")
    with pytest.raises(BadInput) as refused:
        validate(Counts, document)
    assert len(refused.value.faults) == 101
    assert str(refused.value.faults[-1]) == "c: 4900 more faults, repair these first"


def test_errors_of_a_value_made_by_code_have_paths_without_places() -> None:
    with pytest.raises(ValidationError) as wrong:
        Work.model_validate({"schema": "v1", "tasks": {"a": {"objective": 1}, 5: {"objective": "x", "agnt": 1}}})
    faults = pydantic_faults(wrong.value, None, ["agent"])
    assert [str(fault) for fault in faults] == [
        "tasks.a.objective: 1 is not text, put it in quotes",
        "tasks[5]: 5 is not text, put it in quotes",
        "tasks[5].agnt: unknown field 'agnt', did you mean 'agent'?",
    ]


# --- properties

SAFE = 2**53 - 1
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-SAFE, SAFE)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(["no", "on", "~", "1.10", "012", "1e6", "0x1", ".inf", "<<", "*a", "&a", "!a", "-", "#", "a:"])
)
KEYS = st.text(max_size=20) | st.sampled_from(["1", "null", "~", "<<", "true", "? a", "a.b", "[0]"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=15
)


class _NoAliases(CCoreDumper):  # type: ignore[misc]
    def ignore_aliases(self, data: object) -> bool:
        return True


class _Quoting(_NoAliases):
    """Unquoted, raw line separators would be written as they are, and those are refused."""


_Quoting.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
@example({"\u2028": "\x85\ufeff\U0001f600\0\x7f"}, True, None)
@example([-0.0, 1e17, 5e-324, 1.7976931348623157e308], False, None)
def test_any_value_is_the_same_through_json_and_through_yaml(value: Any, raw: bool, indent: int | None) -> None:
    as_json = json.dumps(value, ensure_ascii=not raw, indent=indent)
    dumper = _Quoting if raw else _NoAliases
    flow = indent is None
    as_yaml = yaml.dump(value, Dumper=dumper, default_flow_style=flow, allow_unicode=raw, sort_keys=False)
    from_json, from_yaml = read_json(as_json), read_yaml(as_yaml)
    assert from_json == value
    assert json.dumps(from_json) == json.dumps(value)  # true is not 1, and 1 not 1.0
    assert json.dumps(from_yaml) == json.dumps(value)
    assert digest_of(from_json) == digest_of(from_yaml)


PLAIN_TEXT = st.text(st.characters(codec="ascii"), max_size=10) | st.text("äß漢\n", max_size=5)
PLAIN = st.recursive(
    st.booleans() | st.integers(-SAFE, SAFE) | PLAIN_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(PLAIN_TEXT, inner, max_size=4),
    max_leaves=15,
)


def _leaves(value: Any, location: tuple[str | int, ...]) -> list[tuple[tuple[str | int, ...], Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        return [(location, value)]
    return [leaf for key, item in items for leaf in _leaves(item, (*location, key))]


@given(PLAIN, st.sampled_from([None, 0, 2]), st.booleans())
def test_places_point_at_the_text_of_values_and_keys_in_both_formats(value: Any, indent: int | None, raw: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=not raw).replace("\x7f", "\\u007f")
    lines = text.split("\n")
    for format in FORMATS:  # noqa: A001
        document = parse_document(text, file="c", format=format)
        assert document.value == value
        for location, leaf in _leaves(value, ()):
            line, column = document.place(location)
            written = json.dumps(leaf, ensure_ascii=not raw).replace("\x7f", "\\u007f")
            assert lines[line - 1][column - 1 :].startswith(written)
            if location and isinstance(location[-1], str):
                line, column = document.key_place(location)
                written = json.dumps(location[-1], ensure_ascii=not raw).replace("\x7f", "\\u007f")
                assert lines[line - 1][column - 1 :].startswith(written + ":")


SOUP = st.lists(
    st.sampled_from(
        [*"{}[],:?-|>&*!%@`'\"#~ab01.e+\t \n\r\\", "\n  ", "- ", ": ", "---\n", "...\n", "!!int ", "!<x> ", "&a ", "*a",
         "%YAML 1.2\n", "%TAG ! x\n", '"a": ', "\\u", "\\ud83d", "\\x", "null", "NaN", ".inf", "1e999", "9" * 20,
         "<<: ", "\ufeff", "\u2028", "\x00", "ä"]
    ),
    max_size=40,
).map("".join)  # fmt: skip


@given(st.text() | st.binary() | SOUP | SOUP.map(lambda text: text.encode()[:-1]), st.sampled_from(FORMATS))
@example("[" * 30_000, "yaml")
@example("[" * 30_000, "json")
@example('!<%ff%fe> "', "yaml")
def test_no_input_raises_anything_but_bad_input(text: str | bytes, format: Format) -> None:  # noqa: A002
    faults: Sequence[Fault] = ()
    try:
        document = parse_document(text, file="c", format=format)
    except BadInput as refused:
        faults = refused.faults
    else:
        assert json_faults(document.value) == []
        return
    assert faults
    for fault in faults:
        assert fault.file == "c"
        assert min(fault.line or 0, fault.column or 0) >= 1
        assert str(fault).isprintable()
