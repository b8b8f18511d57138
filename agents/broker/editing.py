"""Replacing a piece of text in a file's bytes, so that every other byte stays as it is."""

from __future__ import annotations

import codecs
from typing import NamedTuple

from agents.broker.errors import ToolRefused

__all__ = ["edited"]


class _Encoding(NamedTuple):
    name: str
    mark: bytes
    unit_bytes: int


_MARKED = (
    # The longer first: one mark begins as another does.
    _Encoding("utf-32-le", codecs.BOM_UTF32_LE, 4),
    _Encoding("utf-32-be", codecs.BOM_UTF32_BE, 4),
    _Encoding("utf-16-le", codecs.BOM_UTF16_LE, 2),
    _Encoding("utf-16-be", codecs.BOM_UTF16_BE, 2),
)
_UTF8 = _Encoding("utf-8", b"", 1)
_UNKNOWN = _Encoding("ascii", b"", 1)


def edited(data: bytes, old: str, new: str) -> bytes:
    """``data`` with ``old``, which must be there exactly once, replaced by ``new``.

    UTF-8, and UTF-16 and UTF-32 with a byte order mark, are edited as what they are; in any other text only ASCII can
    be replaced, and only where no byte of unknown meaning comes right before it. Raises ``ToolRefused``: for what
    holds zero bytes and no mark, and when ``old`` is not there, or more than once.
    """
    if not old:
        raise ToolRefused("the text to replace is empty; to write a whole file use write_file")
    if old == new:
        raise ToolRefused("old and new are the same: there is nothing to change")
    encoding = _encoding_of(data)
    wanted, put = _encoded(old, encoding), _encoded(new, encoding)
    places = _places(data, wanted, encoding.unit_bytes, most=2)
    if not places:
        raise ToolRefused(f"the text to replace is not in the file{_hint(data, old, encoding)}")
    if len(places) > 1:
        raise ToolRefused("the text to replace is in the file more than once; take in more of what stands around it")
    (place,) = places
    if encoding is _UNKNOWN and place and data[place - 1] >= 0x80:
        raise ToolRefused(
            "the file is not UTF-8, and a byte of unknown meaning comes right before the text to replace: it may be "
            "the first half of a character; begin further on, after an ASCII character"
        )
    return data[:place] + put + data[place + len(wanted) :]


def _encoding_of(data: bytes) -> _Encoding:
    for encoding in _MARKED:
        if data.startswith(encoding.mark):
            if _decodes(data, encoding.name):
                return encoding
            raise ToolRefused(f"the file begins as {encoding.name} does and goes on as something else")
    if b"\0" in data:
        raise ToolRefused("the file holds zero bytes and no byte order mark: it is not text that could be edited")
    return _UTF8 if _decodes(data, "utf-8") else _UNKNOWN


def _decodes(data: bytes, name: str) -> bool:
    try:
        data.decode(name)
    except UnicodeDecodeError:
        return False
    return True


def _encoded(text: str, encoding: _Encoding) -> bytes:
    try:
        return text.encode(encoding.name)
    except UnicodeEncodeError:
        if encoding is _UNKNOWN:
            what = "the file is not UTF-8 and its encoding is unknown: only ASCII text can be replaced, by ASCII text"
        else:
            what = "the text holds half a surrogate pair, which no file can hold"
        raise ToolRefused(what) from None


def _places(data: bytes, wanted: bytes, unit_bytes: int, *, most: int) -> list[int]:
    """Where ``wanted`` begins, also where it overlaps with itself, and only at the beginning of a character's unit."""
    found: list[int] = []
    place = data.find(wanted)
    while place >= 0 and len(found) < most:
        if place % unit_bytes == 0:
            found.append(place)
        place = data.find(wanted, place + 1)
    return found


def _hint(data: bytes, old: str, encoding: _Encoding) -> str:
    """Models tend to write plain line ends whatever the file has."""
    if "\n" not in old:
        return ""
    plain = old.replace("\r\n", "\n").replace("\r", "\n")
    for end, shown in (("\r\n", r"\r\n"), ("\r", r"\r"), ("\n", r"\n")):
        if _places(data, plain.replace("\n", end).encode(encoding.name), encoding.unit_bytes, most=1):
            return f"; with {shown} as line ends it is: write old and new with those"
    return ""
