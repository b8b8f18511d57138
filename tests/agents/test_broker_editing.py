"""Edits: the named text changes, and not one other byte, whatever the encoding and the line ends."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.canonical import sha256_digest
from coordinator.runtimes import load_agents

load_agents()
from agents.broker import Broker, ToolRefused  # noqa: E402 - found once it is loaded
from agents.broker.editing import edited  # noqa: E402

MakeBroker = Callable[..., Broker]

KEPT = {
    "crlf": b"one\r\nword\r\nthree\r\n",
    "mixed ends": b"one\r\nword\nthree\rfour\n\r",
    "lone cr": b"one\rword\rthree\r",
    "utf-8 mark": codecs.BOM_UTF8 + b"one\nword\n",
    "no final newline": b"one\nword",
    "latin-1": "caf\xe9\nword \xfc\n".encode("latin-1"),
    "shift-jis": "\u65e5\u672c\nword\n".encode("shift-jis"),
    "other separators": "a\x0bb\x0cc\x85d\u2028e\nword\x1c\n".encode(),
    "control characters": b"\x01\x02word\x7f",
    "only the word": b"word",
}


@pytest.mark.parametrize("data", KEPT.values(), ids=KEPT)
def test_every_byte_outside_the_edit_stays(make_broker: MakeBroker, ws: Path, data: bytes) -> None:
    (ws / "f").write_bytes(data)
    broker = make_broker()
    broker.edit_file("f", "word", "other")
    assert (ws / "f").read_bytes() == data.replace(b"word", b"other")
    assert broker.calls()[-1].result_digest == sha256_digest((ws / "f").read_bytes())


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_wide_encodings_with_a_mark_are_edited_as_what_they_are(encoding: str) -> None:
    mark = "\ufeff".encode(encoding)
    before = "one\r\nw\xf6rd \U0001f600\r\nthree"
    data = mark + before.encode(encoding)
    assert edited(data, "w\xf6rd \U0001f600", "\u4e2d") == mark + "one\r\n\u4e2d\r\nthree".encode(encoding)
    assert edited(data, "one", "") == mark + before.replace("one", "").encode(encoding)


def test_the_halves_of_two_characters_are_not_taken_for_one() -> None:
    data = codecs.BOM_UTF16_LE + "\u6100\u0062ab".encode("utf-16-le")  # 00 61 62 00 61 00 62 00
    with pytest.raises(ToolRefused, match="not in the file"):
        edited(data, "\u6261", "x")
    assert edited(data, "ab", "x") == codecs.BOM_UTF16_LE + "\u6100\u0062x".encode("utf-16-le")


@pytest.mark.parametrize(
    ("data", "old", "new", "says"),
    [
        (b"abc", "", "x", "empty"),
        (b"abc", "b", "b", "nothing to change"),
        (b"abc", "d", "x", "not in the file"),
        (b"abc abc", "abc", "x", "more than once"),
        (b"aaa", "aa", "x", "more than once"),
        (b"one\r\ntwo\r\n", "one\ntwo", "x", r"with \\r\\n as line ends"),
        (b"one\ntwo\n", "one\r\ntwo", "x", r"with \\n as line ends"),
        (b"one\rtwo\r", "one\ntwo", "x", r"with \\r as line ends"),
        (b"one\n", "two\nthree", "x", r"not in the file$"),
        (b"\0one", "one", "x", "zero bytes"),
        ("one".encode("utf-16-le"), "one", "x", "zero bytes"),
        (codecs.BOM_UTF16_LE + b"odd", "o", "x", "begins as utf-16-le"),
        ("caf\xe9 one".encode("latin-1"), "caf\xe9", "x", "only ASCII text"),
        ("caf\xe9 one".encode("latin-1"), "one", "\xe9", "only ASCII text"),
        ("caf\xe9 one".encode("latin-1"), "caf\ufffd", "x", "only ASCII text"),
        ("\u30bd5".encode("shift-jis"), "\\", "x", "first half of a character"),
        (b"one", "one", "\ud800", "half a surrogate pair"),
    ],
)
def test_what_cannot_be_edited_safely_is_refused_by_name(data: bytes, old: str, new: str, says: str) -> None:
    with pytest.raises(ToolRefused, match=says):
        edited(data, old, new)


def test_a_refused_edit_leaves_the_file_alone(make_broker: MakeBroker, ws: Path) -> None:
    (ws / "f").write_bytes(b"abc abc\r\n")
    before = (ws / "f").stat()
    broker = make_broker()
    for old, new in (("abc", "x"), ("none", "x"), ("", "x"), ("abc abc", "abc abc")):
        with pytest.raises(ToolRefused):
            broker.edit_file("f", old, new)
    assert (ws / "f").read_bytes() == b"abc abc\r\n"
    assert (ws / "f").stat().st_ino == before.st_ino
    assert [call.ok for call in broker.calls()] == [False] * 4


TEXT = st.text(st.sampled_from("ab\r\n\xe9\u4e2d\U0001f600\ufeff\u2028 "), max_size=12)


@settings(deadline=None)
@given(head=TEXT, tail=TEXT, new=TEXT, encoding=st.sampled_from(["utf-8", "utf-16-le", "utf-16-be", "utf-32-be"]))
def test_an_edit_is_the_replacement_of_one_stretch_of_bytes(head: str, tail: str, new: str, encoding: str) -> None:
    mark = b"" if encoding == "utf-8" else "\ufeff".encode(encoding)
    data = mark + f"{head}word{tail}".encode(encoding)
    assert edited(data, "word", new) == mark + f"{head}{new}{tail}".encode(encoding)


def test_a_written_text_is_utf_8_as_it_is_given(make_broker: MakeBroker, ws: Path) -> None:
    text = "\ufeffone\r\ntw\xf6\rthree\n\nend"
    make_broker().write_file("f", text)
    assert (ws / "f").read_bytes() == text.encode()
    make_broker().write_file("f", "")
    assert (ws / "f").read_bytes() == b""
    with pytest.raises(ToolRefused, match="half a surrogate pair"):
        make_broker().write_file("f", "\ud800")
    assert (ws / "f").read_bytes() == b""


def test_an_edit_and_a_write_leave_a_diff_of_the_edit_only(make_broker: MakeBroker, ws: Path) -> None:
    data = b"".join(b"line %d\r\n" % number for number in range(100))
    (ws / "f").write_bytes(data)
    broker = make_broker(base={"f": data})
    broker.edit_file("f", "line 50\r", "line fifty\r")
    changed = [
        line for line in broker.git_diff().split("\n") if line[:1] in ("+", "-") and line[:3] not in ("+++", "---")
    ]
    assert changed == ["-line 50\r", "+line fifty\r"]
