"""Values that know where they stand in their text: the tree that both readers grow, and the reader of JSON.

YAML and JSON differ only in their words; what a document may hold is judged in one place, ``TreeBuilder``.
"""

from __future__ import annotations

import bisect
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from contracts.canonical import json_faults
from contracts.errors import BadInput, Fault

__all__ = ["Lines", "Location", "Place", "Positions", "TreeBuilder", "dotted", "printable", "read_json", "short"]

MAX_DEPTH: Final = 50
"""Containers within containers; authored documents need less than ten."""
MAX_FAULTS: Final = 100
"""A hostile megabyte can hold a fault for every second byte; nobody reads that many."""
MAX_NUMBER_LENGTH: Final = 100

Place = tuple[int, int]
"""Line and column, from 1; columns count characters."""
Location = tuple[str | int, ...]
"""The way to a value: keys and indexes from the root."""


@dataclass(slots=True, eq=False)
class Positions:
    """Where one value stands, and where what it holds stands. ``key``: where the key before it stands."""

    place: Place
    key: Place | None = None
    children: dict[str, Positions] | list[Positions] = field(default_factory=list)


class Lines:
    """Turns offsets in a text into places."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(match.end() for match in re.finditer(r"\r\n|\r|\n", text))]

    def place(self, offset: int) -> Place:
        line = bisect.bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1


def printable(text: str) -> str:
    """Text that may stand in a terminal and in every store: what is not printable becomes an escape."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def short(value: object, limit: int = 60) -> str:
    """How an offending value is shown: its ``repr``, cut."""
    try:
        text = printable(repr(value))
    except Exception:  # the repr of a caller's object may do anything; an integer of 5,000 digits has none
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def dotted(location: Location) -> str:
    """The path of a fault: ``tasks.callers.acceptance[0]``; a key that is no plain word as ``inputs['two words']``."""
    return "".join(path_part(part) for part in location).removeprefix(".")


def path_part(part: str | int) -> str:
    if isinstance(part, str) and len(part) <= 60 and re.fullmatch(r"[\w$@*/+-]+", part):
        return f".{part}"
    return f"[{short(part)}]"


@dataclass(slots=True)
class _Frame:
    """One container that is being filled. ``part``: the key or index at which it stands in the one around it."""

    value: dict[str, Any] | list[Any]
    node: Positions
    part: str | int | None = None
    key: str | None = None
    key_place: Place | None = None


class TreeBuilder:
    """Grows a value and its positions, and collects every fault on the way.

    A reader calls ``add`` for scalars, ``open`` and ``close`` for containers, in the order of the text; in a mapping,
    keys and values take turns.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._root = _Frame([], Positions((1, 1)))
        self._stack = [self._root]
        self.faults: list[Fault] = []

    def fault(self, message: str, hint: str, place: Place) -> None:
        self._report(Fault(self._path(), message, hint), place)

    def fail(self, message: str, hint: str, place: Place) -> BadInput:
        """The error to raise where reading cannot go on: this fault after those already found."""
        self.fault(message, hint, place)
        return BadInput(self.faults)

    def add(self, value: Any, place: Place, written: str | None = None) -> None:
        """A scalar. ``written``: the characters of a number, for its message."""
        for fault in json_faults(value):
            said = fault.message if written in (None, str(value)) else f"{written}: {fault.message}"
            self._report(replace(fault, path=self._path(), message=said), place)
        self._put(value, Positions(place))

    def add_number(self, text: str, place: Place, parse: Callable[[str], float]) -> None:
        """A number by its characters; ``parse`` makes it an integer or a float."""
        if len(text) > MAX_NUMBER_LENGTH:  # Python converts no integer of more than 4,300 digits
            self.fault(f"a number of {len(text)} characters", "write it as a string", place)
            self._put(0, Positions(place))
        else:
            self.add(parse(text), place, text)

    def open(self, value: dict[str, Any] | list[Any], place: Place) -> None:
        """Start ``value``, an empty mapping or list. Raises ``BadInput`` where the nesting is too deep."""
        if len(self._stack) > MAX_DEPTH:
            raise self.fail(f"nested deeper than {MAX_DEPTH} levels", "flatten it", place)
        node = Positions(place, children={} if isinstance(value, dict) else [])
        frame = _Frame(value, node, self._part())
        self._put(value, node)
        self._stack.append(frame)

    def close(self) -> None:
        self._stack.pop()

    def finish(self) -> tuple[Any, Positions]:
        """The value and its positions. Raises ``BadInput`` with all faults, in the order of the text."""
        if self.faults:
            raise BadInput(self.faults)
        node = self._root.node.children
        assert isinstance(self._root.value, list)
        assert isinstance(node, list)
        return self._root.value[0], node[0]

    def _put(self, value: Any, node: Positions) -> None:
        top = self._stack[-1]
        if isinstance(top.value, list):
            assert isinstance(top.node.children, list)
            top.value.append(value)
            top.node.children.append(node)
        elif top.key is None:
            self._key(value, node.place, top)
        else:
            assert isinstance(top.node.children, dict)
            node.key = top.key_place
            top.value[top.key] = value
            top.node.children.setdefault(top.key, node)
            top.key = None

    def _key(self, key: Any, place: Place, top: _Frame) -> None:
        assert isinstance(top.node.children, dict)
        if not isinstance(key, str):
            what = "a list or mapping" if isinstance(key, (dict, list)) else short(key)
            self.fault(f"key {what} is not text", 'put the key in quotes, "like this"', place)
            key = short(key)
        elif key in top.value:
            first = top.node.children[key].key
            assert first is not None
            self.fault(f"key {short(key)} stands twice, first in line {first[0]}", "keep one of the two", place)
        top.key, top.key_place = key, place

    def _part(self) -> str | int | None:
        """The key or index of what comes next; none for a key, and for the root."""
        top = self._stack[-1]
        if top is self._root:
            return None
        return len(top.value) if isinstance(top.value, list) else top.key

    def _path(self) -> str:
        parts = [*(frame.part for frame in self._stack), self._part()]
        return dotted(tuple(part for part in parts if part is not None))

    def _report(self, fault: Fault, place: Place) -> None:
        self.faults.append(fault.at(self._file, *place))
        if len(self.faults) == MAX_FAULTS:
            more = Fault("", f"more than {MAX_FAULTS - 1} faults, the rest was not read", "repair these first")
            raise BadInput([*self.faults, more.at(self._file, *place)])


_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![0-9A-Za-z.+_-])")
_WORD = re.compile(r"-?[A-Za-z_][A-Za-z_0-9]*|-?[0-9.+][0-9A-Za-z.+_-]*")
_LITERALS: Final = {"null": None, "true": True, "false": False}
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def read_json(text: str, tree: TreeBuilder) -> None:
    """Read exactly one JSON value (RFC 8259) into ``tree``. Raises ``BadInput`` where the text is no JSON."""
    reader = _JsonReader(text, tree)
    end = reader.value(reader.after_space(0))
    if end < len(text):
        raise reader.error(end, "something follows after the end of the value", "one file holds one document")


class _JsonReader:
    """Recursive descent; ``TreeBuilder.open`` bounds the depth. Methods take and return offsets."""

    def __init__(self, text: str, tree: TreeBuilder) -> None:
        self._text = text
        self._tree = tree
        self._lines = Lines(text)

    def error(self, offset: int, message: str, hint: str) -> BadInput:
        return self._tree.fail(message, hint, self._lines.place(offset))

    def after_space(self, offset: int) -> int:
        match = _SPACE.match(self._text, offset)
        assert match is not None
        return match.end()

    def value(self, start: int) -> int:
        """The offset of what follows the value at ``start`` and the space after it."""
        char = self._text[start : start + 1]
        if char == "{":
            return self._members(start)
        if char == "[":
            return self._items(start)
        if char == '"':
            return self._string(start)
        return self._word(start)

    def _members(self, start: int) -> int:
        self._tree.open({}, self._lines.place(start))
        at = self.after_space(start + 1)
        if not self._text.startswith("}", at):
            while True:
                if not self._text.startswith('"', at):
                    raise self.error(at, f"a key was expected, found {self._found(at)}", self._key_hint(at))
                at = self._string(at)
                if not self._text.startswith(":", at):
                    raise self.error(at, f"':' was expected, found {self._found(at)}", 'write {"key": value}')
                at = self.value(self.after_space(at + 1))
                if not self._text.startswith(",", at):
                    break
                at = self.after_space(at + 1)
        return self._end(at, "}")

    def _items(self, start: int) -> int:
        self._tree.open([], self._lines.place(start))
        at = self.after_space(start + 1)
        if not self._text.startswith("]", at):
            while True:
                at = self.value(at)
                if not self._text.startswith(",", at):
                    break
                at = self.after_space(at + 1)
        return self._end(at, "]")

    def _end(self, at: int, bracket: str) -> int:
        if not self._text.startswith(bracket, at):
            raise self.error(at, f"',' or '{bracket}' was expected, found {self._found(at)}", "put it there")
        self._tree.close()
        return self.after_space(at + 1)

    def _string(self, start: int) -> int:
        try:
            value, end = _DECODER.raw_decode(self._text, start)
        except json.JSONDecodeError as error:
            if error.msg.startswith("Unterminated"):
                raise self.error(start, "text without its end", "close it with a double quote") from None
            what = f"not JSON: {error.msg[0].lower()}{error.msg[1:].removesuffix(' at')}"
            raise self.error(error.pos, what, 'write it as an escape such as \\n, \\" or \\u00e9') from None
        self._tree.add(value, self._lines.place(start))
        return self.after_space(end)

    def _word(self, start: int) -> int:
        place = self._lines.place(start)
        number = _NUMBER.match(self._text, start)
        word = number or _WORD.match(self._text, start)
        text = word.group() if word else ""
        if number:
            self._tree.add_number(text, place, int if text.lstrip("-").isdigit() else float)
        elif text in _LITERALS:
            self._tree.add(_LITERALS[text], place)
        elif text in _NOT_FINITE:
            self._tree.add(_NOT_FINITE[text], place, text)
        else:
            hint = "put text in double quotes; the words are true, false and null; numbers are like -1.5e3"
            if self._text[start : start + 1] in ("]", "}"):
                hint = "write one, or remove what asks for it before"
            raise self.error(start, f"a value was expected, found {short(text) if text else self._found(start)}", hint)
        assert word is not None
        return self.after_space(word.end())

    def _found(self, offset: int) -> str:
        return short(self._text[offset]) if offset < len(self._text) else "the end of the file"

    def _key_hint(self, offset: int) -> str:
        if self._text.startswith("}", offset):
            return "remove the comma before it"
        return "put keys in double quotes"
