"""Searching lines by an expression that may come from anybody: RE2 takes time in proportion to the text, always."""

from __future__ import annotations

import re
from typing import Any

import re2

from agents.broker.errors import ToolRefused
from contracts.canonical import well_formed

__all__ = ["Expression"]

PATTERN_CHARS_MAX = 10_000
LINE_CHARS_MAX = 1_000
_LINE_END = re.compile(rb"\r\n|\r|\n")


class Expression:
    """A regular expression in RE2's syntax: no look-around, no backreferences, ASCII ``\\d``, ``\\w``, ``\\s``."""

    def __init__(self, pattern: str) -> None:
        """Raises ``ToolRefused`` for what RE2 does not know; nothing else is tried in its place."""
        if len(pattern) > PATTERN_CHARS_MAX:
            raise ToolRefused(f"search_code: the pattern is longer than {PATTERN_CHARS_MAX:,} characters")
        options = re2.Options()
        options.log_errors = False
        try:
            self._wanted = re2.compile(pattern.encode(), options)
        except (re2.error, UnicodeEncodeError) as error:
            said = error.args[0]
            reason = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(error)
            raise ToolRefused(
                f"search_code: {pattern!r:.300} is not a regular expression in RE2's syntax, which has no look-around, "
                f"no backreferences and no possessive or atomic groups: {reason:.300}"
            ) from None

    def matching_lines(self, path: str, data: bytes) -> list[dict[str, Any]]:
        """``[{path, line, text}]``, lines from 1; long lines are cut; what holds zero bytes has no lines."""
        if b"\0" in data:
            return []
        # RE2 takes a byte that is not UTF-8 for no character at all: "." would not match it.
        lines = _LINE_END.split(data.decode("utf-8", "replace").encode())
        if not lines[-1]:
            lines.pop()
        return [
            {"path": well_formed(path), "line": number, "text": line.decode()[:LINE_CHARS_MAX]}
            for number, line in enumerate(lines, 1)
            if self._wanted.search(line)
        ]
