"""Canonical JSON: one form for each value, and a place for whatever has none."""

from __future__ import annotations

import enum
import json
import math
import struct
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from contracts.canonical import (
    MAX_SAFE_INTEGER,
    canonical_bytes,
    canonical_object,
    digest_of,
    json_faults,
    sha256_digest,
    well_formed,
)
from contracts.errors import BadInput

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


def nested(levels: int) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = [value]
    return value


# RFC 8785, appendix B: the bits of a double, and its only text.
@pytest.mark.parametrize(
    ("bits", "text"),
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_numbers_are_written_as_rfc_8785_says(bits: str, text: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_bytes(number) == text.encode()


def test_keys_are_sorted_by_their_utf_16_units_and_nothing_is_escaped_without_need() -> None:
    # RFC 8785, 3.2.3: U+1F600 is a surrogate pair, and so stands before U+FB33.
    value = {
        "\u20ac": "Euro",
        "\r": "CR",
        "\ufb33": "Dalet",
        "1": "One",
        "\U0001f600": "Smile",
        "\x80": "C",
        "\xf6": "o",
    }
    keys = list(json.loads(canonical_bytes(value)))
    assert keys == ["\r", "1", "\x80", "\xf6", "\u20ac", "\U0001f600", "\ufb33"]
    assert canonical_bytes({"s": '\u20ac$\x0f\nA\'B"\\\\"/'}) == '{"s":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'.encode()


@given(VALUES)
def test_canonical_bytes_are_json_and_the_same_whatever_the_order_of_keys(value: Any) -> None:
    def turned(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: turned(item[key]) for key in reversed(item)}
        return [turned(part) for part in item] if isinstance(item, list) else item

    data = canonical_bytes(value)
    assert json.loads(data, parse_int=float) == value  # RFC 8785 writes 1e20 as an integer
    assert canonical_bytes(turned(value)) == data
    assert digest_of(value) == sha256_digest(data)


def test_a_digest_names_its_algorithm() -> None:
    assert sha256_digest(b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_the_largest_safe_integers_are_accepted() -> None:
    assert canonical_bytes([MAX_SAFE_INTEGER, -MAX_SAFE_INTEGER]) == b"[9007199254740991,-9007199254740991]"


@pytest.mark.parametrize(
    ("value", "path", "message"),
    [
        ({"a": [1, 2**53]}, "$.a[1]", "integer 9007199254740992 is beyond +-(2^53-1)"),
        ({"a": [1, -(2**53)]}, "$.a[1]", "integer -9007199254740992 is beyond +-(2^53-1)"),
        ([10**5000], "$[0]", "integer of 16610 bits is beyond +-(2^53-1)"),
        ({"a": {"b": math.nan}}, "$.a.b", "nan is not a JSON number"),
        ([math.inf], "$[0]", "inf is not a JSON number"),
        ([-math.inf], "$[0]", "-inf is not a JSON number"),
        ({"a": "\udce9"}, "$.a", "text holds half a surrogate pair"),
        ({"\ud800": 1}, "$['\\ud800']", "text holds half a surrogate pair"),
        ({"a": {1: 2}}, "$.a", "key 1 is not a string"),
        ({None: 2}, "$", "key None is not a string"),
        ({"a": {1, 2}}, "$.a", "set is not a JSON value"),
        ([b"x"], "$[0]", "bytes is not a JSON value"),
        (nested(101), "$" + "[0]" * 101, "nested too deep"),
    ],
)
def test_what_has_no_canonical_form_is_refused_with_its_place(value: Any, path: str, message: str) -> None:
    with pytest.raises(BadInput) as refused:
        canonical_bytes(value)
    assert [(fault.path, fault.message) for fault in refused.value.faults] == [(path, message)]


def test_every_fault_is_named_at_once() -> None:
    assert [fault.path for fault in json_faults({"a": math.nan, "b": [2**60, {"c": "\udc00"}]})] == [
        "$.a",
        "$.b[0]",
        "$.b[1].c",
    ]


def test_a_hundred_levels_are_accepted() -> None:
    assert canonical_bytes(nested(100)).count(b"[") == 100


def test_a_hostile_key_reaches_no_terminal_as_it_is() -> None:
    (fault,) = json_faults({"\x1b[31m" + "x" * 1000: math.nan})
    assert str(fault).isprintable()
    assert len(fault.path) < 80


def test_tuples_and_enumerations_are_what_they_stand_for() -> None:
    class Number(enum.IntEnum):
        ONE = 1

    class Word(enum.StrEnum):
        A = "a"

    assert canonical_bytes((Number.ONE, Word.A)) == b'[1,"a"]'


@given(st.text(st.characters(), max_size=20) | st.sampled_from(["\udce9", "a\ud800b"]))
def test_well_formed_text_is_what_every_store_can_hold_and_is_its_own_form(text: str) -> None:
    formed = well_formed(text)
    assert json_faults(formed) == []
    assert well_formed(formed) == formed
    assert formed == text or json_faults(text)


@given(st.dictionaries(st.text(st.characters(max_codepoint=127)), st.lists(st.floats(-1e20, 1e20) | st.text())))
def test_an_object_may_be_put_together_from_the_canonical_forms_of_its_members(value: dict[str, Any]) -> None:
    assert canonical_object({key: canonical_bytes(item) for key, item in value.items()}) == canonical_bytes(value)


ODD_KEYS = st.text() | st.integers() | st.booleans() | st.none()
ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**55), 2**55) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD_KEYS, inner, max_size=3),
    max_leaves=10,
)


@given(ODD)
def test_the_quick_way_to_the_canonical_form_is_taken_only_where_it_leads_there(value: Any) -> None:
    if json_faults(value):
        with pytest.raises(BadInput):
            canonical_bytes(value)
    else:
        assert canonical_bytes(value) == rfc8785.dumps(value)


@pytest.mark.parametrize("value", [{1: "a"}, {"a": {True: 1}}, [9007199254740993], nested(101), {"\U00010000": 1.5}])
def test_what_a_json_encoder_would_bend_is_not_bent(value: Any) -> None:
    if json_faults(value):
        with pytest.raises(BadInput):
            canonical_bytes(value)
    else:
        assert canonical_bytes(value) == rfc8785.dumps(value)
