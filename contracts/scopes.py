"""Path scopes: what a pattern matches, whether one scope covers another, whether two may meet.

A scope is a list of patterns over ``/``-separated paths from the top of the tree: ``report.md`` (one file),
``reports/`` (everything below), globs with ``*`` and ``?`` (within one part of a path) and ``**`` (any number of
whole parts).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

__all__ = ["covers", "in_scope", "literal_head", "matches", "pattern_fault", "scopes_overlap"]

MAX_STATES = 20_000
"""Hostile patterns could make the comparison of two scopes exponential; beyond this it answers on the safe side."""


def pattern_fault(pattern: str) -> str | None:
    """Why a pattern is not acceptable, or None."""
    if not pattern or pattern.startswith("/") or "\\" in pattern or "\0" in pattern:
        return "a path pattern is relative, with / between folders"
    parts = pattern.removesuffix("/").split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "a path pattern has no empty, . or .. part"
    if any("**" in part and part != "**" for part in parts):
        return "** stands for whole parts of a path: write src/**/*.py, not src/**.py"
    return None


def in_scope(scope: Sequence[str], path: str) -> bool:
    """Whether any pattern of the scope matches the path."""
    return any(matches(pattern, path) for pattern in scope)


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern matches a path; one with a fault may match nothing. Never slow, whoever wrote it."""
    return _compiled(pattern).fullmatch(path) is not None


def _parts(pattern: str) -> list[str]:
    return (pattern + "**" if pattern.endswith("/") else pattern).split("/")


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    """The pattern as an expression that never backtracks far.

    What stands between two wildcards may be matched as early as possible and then kept (an atomic group), since the
    wildcard after it takes whatever is left.
    """
    blocks: list[list[str]] = [[]]
    for part in _parts(pattern):
        if part == "**":
            blocks.append([])
        else:
            blocks[-1].append(_part_expression(part))
    first, rest = blocks[0], blocks[1:]
    if not rest:
        return re.compile("/".join(first), re.DOTALL)
    middle = ["(?>(?:[^/]+/)*?" + "".join(f"{part}/" for part in block) + ")" for block in rest[:-1] if block]
    last = "(?:[^/]+/)*" + "/".join(rest[-1]) if rest[-1] else ".+"
    return re.compile("".join([*(f"{part}/" for part in first), *middle, last]), re.DOTALL)


def _part_expression(part: str) -> str:
    chunks = [
        "".join("[^/]" if character == "?" else re.escape(character) for character in chunk)
        for chunk in re.split(r"\*+", part)
    ]
    first, rest = chunks[0], chunks[1:]
    if not rest:
        return first
    middle = [f"(?>[^/]*?{chunk})" for chunk in rest[:-1] if chunk]
    return "".join([first, *middle, "[^/]*", rest[-1]])


def covers(scope: Sequence[str], other: Sequence[str]) -> bool:
    """Whether every path that ``other`` can match is matched by ``scope``; False where that is too costly to tell."""
    rest = [pattern for pattern in other if pattern not in scope]
    if not rest or "**" in scope:
        return True
    steps = _joint_steps(rest, scope)
    return steps is not None and all(wide or not narrow for narrow, wide in steps)


def scopes_overlap(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether some path is in both; True where that is too costly to tell."""
    pairs = ((literal_head(a), literal_head(b)) for a in one for b in other)
    if not any(a.startswith(b) or b.startswith(a) for a, b in pairs):
        return False  # cheap, and nearly always enough
    steps = _joint_steps(one, other)
    return steps is None or any(a and b for a, b in steps)


def literal_head(pattern: str) -> str:
    """What every path that the pattern matches begins with."""
    found = re.search(r"[*?]", pattern)
    return pattern[: found.start()] if found else pattern


_OTHER = "\0"
"""Stands for every character that no pattern names."""
_State = frozenset[tuple[int, int]]


def _joint_steps(one: Sequence[str], other: Sequence[str]) -> list[tuple[bool, bool]] | None:
    """For every kind of path in ``one``: whether it is in ``one`` and whether it is in ``other``; None: too many kinds.

    Both scopes are read as automata over one alphabet and walked side by side.
    """
    scopes = (_Automaton(one), _Automaton(other))
    alphabet = {"/", _OTHER}.union(*one, *other) - {"*", "?"}
    start = (scopes[0].start(), scopes[1].start(), True)
    seen, todo = {start}, [start]
    found: list[tuple[bool, bool]] = []
    while todo:
        a, b, part_begins = todo.pop()
        if not part_begins:
            found.append((scopes[0].accepts(a), scopes[1].accepts(b)))
        for character in alphabet:
            if part_begins and character == "/":
                continue  # no path has an empty part
            step = (scopes[0].step(a, character), scopes[1].step(b, character), character == "/")
            if step[0] and step not in seen:
                if len(seen) >= MAX_STATES:
                    return None
                seen.add(step)
                todo.append(step)
    return found


class _Automaton:
    """Reads a path character by character. A state is the set of (pattern, sign) that may come next."""

    def __init__(self, scope: Sequence[str]) -> None:
        self._signs = [list(_signs(pattern)) for pattern in scope]

    def start(self) -> _State:
        return self._closed({(number, 0) for number in range(len(self._signs))})

    def accepts(self, state: _State) -> bool:
        return any(position == len(self._signs[number]) for number, position in state)

    def step(self, state: _State, character: str) -> _State:
        reached: set[tuple[int, int]] = set()
        for number, position in state:
            signs = self._signs[number]
            sign = signs[position] if position < len(signs) else ""
            if sign == "**" or (sign in ("*", "+/") and character != "/"):
                reached.add((number, position))
            elif sign == character or (sign == "?" and character != "/"):
                reached.add((number, position + 1))
            # Within the parts that ``**/`` takes: only a ``/`` brings back the choice to go on.
            if sign == "+/" and character == "/":
                reached.add((number, position - 1))
        return self._closed(reached)

    def _closed(self, state: set[tuple[int, int]]) -> _State:
        todo = list(state)
        while todo:
            number, position = todo.pop()
            signs = self._signs[number]
            sign = signs[position] if position < len(signs) else ""
            onward = {"*": (1,), "**": (1,), "**/": (1, 2)}.get(sign, ())
            for step in onward:
                if (number, position + step) not in state:
                    state.add((number, position + step))
                    todo.append((number, position + step))
        return frozenset(state)


def _signs(pattern: str) -> Iterator[str]:
    """Literal characters, ``?``, ``*``, ``**`` (at the end: all that is left), and ``**/`` before its loop ``+/``."""
    parts = _parts(pattern)
    for index, part in enumerate(parts):
        is_last = index == len(parts) - 1
        if part == "**":
            yield from ("**",) if is_last else ("**/", "+/")
        else:
            yield from re.sub(r"\*+", "*", part)
            if not is_last:
                yield "/"
