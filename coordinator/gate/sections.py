"""Which headings a Markdown text has, and under which of them nothing stands.

Read by the rules of CommonMark as far as headings need them: what only looks like a heading (in a fenced code block, a
comment, a quotation, a list) is none. Every line is looked at once, so that no text can make this slow.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["section_messages"]

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)", re.DOTALL)
_ATX = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*))?", re.DOTALL)
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*")
_COMMENT = re.compile(r" {0,3}<!--")
_INDENTED = re.compile(r" {4}| {0,3}\t")
_QUOTE_OR_ITEM = re.compile(r" {0,3}(?:>|(?:[-+*]|[0-9]{1,9}[.)])(?:[ \t]|$))")
_NUMBER = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4}){0,5}[.)]? +")
_ONLY_MARKS = frozenset("-*_=#>|:+`~")


@dataclass(slots=True, eq=False)
class _Heading:
    level: int
    title: str
    has_text: bool = False


def section_messages(text: str, required: Sequence[str]) -> list[str]:
    """What is wrong with the sections of a text: nothing, or which are missing and which are empty.

    Upper and lower case, emphasis, a colon at the end and a number before a title do not matter.
    """
    reader = _Reader()
    for line in re.split(r"\r\n|\r|\n", text.removeprefix("\ufeff")):
        reader.read(line)
    reader.end_paragraph()
    found: dict[str, bool] = {}
    for heading in reader.headings:
        for title in {_plain(heading.title), _plain(_NUMBER.sub("", heading.title.strip(), count=1))}:
            found[title] = found.get(title, False) or heading.has_text
    missing = [name for name in required if _plain(name) not in found]
    empty = [name for name in required if not found.get(_plain(name), True)]
    messages = []
    if missing:
        messages.append(f"Missing required sections: {', '.join(missing)}")
    if empty:
        messages.append(f"Empty required sections: {', '.join(empty)}")
    return messages


class _Reader:
    """Reads a text line by line. A heading knows whether text stands in its section, sub-sections included."""

    def __init__(self) -> None:
        self.headings: list[_Heading] = []
        self._open: list[_Heading] = []
        self._paragraph: list[str] = []
        self._fence = ""
        self._in_comment = False
        self._in_quote_or_item = False

    def read(self, line: str) -> None:
        if self._fence:
            self._read_fenced(line)
            return
        if self._in_comment:
            _, ended, rest = line.partition("-->")
            self._in_comment = not ended
            self._text(rest)
            return
        if self._paragraph and (underline := _UNDERLINE.fullmatch(line)):
            title, self._paragraph = " ".join(self._paragraph), []
            self._heading(1 if underline[1][0] == "=" else 2, title)
            return
        fence = _FENCE.fullmatch(line)
        if fence and not (fence[1][0] == "`" and "`" in fence[2]):
            self.end_paragraph()
            self._fence = fence[1]
        elif atx := _ATX.fullmatch(line):
            self.end_paragraph()
            self._heading(len(atx[1]), _without_closing_marks(atx[2] or ""))
        elif _COMMENT.match(line):
            self.end_paragraph()
            self._in_comment = "-->" not in line
            self._text("" if self._in_comment else line)
        elif not line.strip():
            self.end_paragraph()
        elif _QUOTE_OR_ITEM.match(line):
            self.end_paragraph()
            self._in_quote_or_item = True
            self._text(line)
        elif self._in_quote_or_item or (not self._paragraph and _INDENTED.match(line)):
            self._text(line)
        else:
            # Text or a title: the line that ends the paragraph tells.
            self._paragraph.append(line.strip())

    def end_paragraph(self) -> None:
        for line in self._paragraph:
            self._text(line)
        self._paragraph = []
        self._in_quote_or_item = False

    def _read_fenced(self, line: str) -> None:
        marks = line.strip(" \t")
        if len(marks) >= len(self._fence) and set(marks) == {self._fence[0]} and not _INDENTED.match(line):
            self._fence = ""
        else:
            self._text(line)

    def _heading(self, level: int, title: str) -> None:
        while self._open and self._open[-1].level >= level:
            self._open.pop()
        heading = _Heading(level, title)
        self.headings.append(heading)
        self._open.append(heading)

    def _text(self, line: str) -> None:
        if self._open and not self._open[-1].has_text and _says_something(_without_comments(line)):
            for heading in self._open:
                heading.has_text = True


def _says_something(line: str) -> bool:
    """Whether more stands there than rules, bullets and characters that nobody sees."""
    return any(c not in _ONLY_MARKS and unicodedata.category(c)[0] not in "CZ" for c in line)


def _without_comments(line: str) -> str:
    kept, position = [], 0
    while (start := line.find("<!--", position)) >= 0 and (end := line.find("-->", start + 4)) >= 0:
        kept.append(line[position:start])
        position = end + 3
    return "".join([*kept, line[position:]])


def _without_closing_marks(title: str) -> str:
    title = title.strip(" \t")
    shorter = title.rstrip("#")
    return shorter if not shorter or shorter[-1] in " \t" else title


def _plain(title: str) -> str:
    words = " ".join(_without_comments(title).split())
    return unicodedata.normalize("NFC", words.strip("*_`: ")).casefold()
