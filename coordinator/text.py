"""Text from outside, made harmless for one-line columns and terminals."""

from __future__ import annotations

import re

from contracts.canonical import well_formed

__all__ = ["plain", "shown"]

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ufeff]")


def plain(text: str) -> str:
    """Without control characters and direction marks, which could hide or forge what a person reads; newlines stay."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", well_formed(text))


def shown(text: str, limit: int = 200) -> str:
    """One line of at most ``limit`` characters."""
    line = " ".join(plain(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
