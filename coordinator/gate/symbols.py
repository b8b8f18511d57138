"""Which function or class a line of Python stands in, told by tokens alone.

A syntax tree would need more: one lock for all threads of the process (CPython 3.11), hundreds of bytes for every byte
of a hostile file, and a source without a syntax error.
"""

from __future__ import annotations

import io
import re
import tokenize
from typing import Final

__all__ = ["MODULE", "line_texts", "symbols_by_line"]

MODULE: Final = "<module>"
MAX_CHARACTERS: Final = 4_000_000
LINE_END = re.compile(r"\r\n|\r|\n")
_SILENT = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.TYPE_COMMENT})


def line_texts(text: str) -> list[str]:
    """The lines of a text without their ends; what Python, editors and git count as lines."""
    lines = LINE_END.split(text)
    return lines[:-1] if lines[-1] == "" else lines


def symbols_by_line(text: str) -> list[tuple[str, ...]]:
    """For each line (from 0) the qualified names that it can be said to stand in, the innermost first.

    There is more than one name where a definition begins: decorators, defaults and annotations belong to what is around
    it. Names are those of functions and classes, ``Outer.method``; at the top it is ``<module>``.
    Raises ``ValueError`` with the reason when the text cannot be read as Python.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"it has more than {MAX_CHARACTERS} characters")
    if "\0" in text:
        raise ValueError("it holds a NUL")
    lines = line_texts(text)
    inside: list[tuple[str, ...]] = [(MODULE,)] * len(lines)
    for name, outer, first, body, last in _definitions("\n".join(lines) + "\n"):
        inside[first - 1 : body - 1] = [(name, outer)] * (min(body - 1, len(lines)) - first + 1)
        inside[body - 1 : last] = [(name,)] * (min(last, len(lines)) - body + 1)
    return inside


_Definition = tuple[str, str, int, int, int]
"""(name, what it stands in, first line with its decorators, first line of the body, last line)."""


def _definitions(text: str) -> list[_Definition]:
    """Each definition before those that it holds."""
    found: list[_Definition] = []
    blocks: list[int | None] = []  # for each open block the definition whose body it is
    names: list[str] = []
    statement: list[tokenize.TokenInfo] = []
    decorated_from: int | None = None
    headed: int | None = None
    last = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in _SILENT:
                continue
            if token.type == tokenize.ERRORTOKEN:
                raise SyntaxError(f"line {token.start[0]} holds {token.string[:20]!r}")
            if token.type == tokenize.INDENT:
                blocks.append(headed)
                if headed is not None:
                    names.append(found[headed][0])
                headed = None
            elif token.type == tokenize.DEDENT:
                closed = blocks.pop() if blocks else None
                if closed is not None:
                    names.pop()
                    found[closed] = (*found[closed][:4], last)
            elif token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
                headed = None
                if statement:
                    first, last = statement[0].start[0], statement[-1].end[0]
                    name = _defined(statement)
                    if name:
                        outer = names[-1] if names else ""
                        headed = len(found)
                        whole = f"{outer}.{name}" if outer else name
                        found.append((whole, outer or MODULE, decorated_from or first, last + 1, last))
                    is_decorator = statement[0].string == "@"
                    decorated_from = (decorated_from or first) if is_decorator else None
                statement = []
            else:
                statement.append(token)
    except (SyntaxError, tokenize.TokenError) as error:
        what = error.msg if isinstance(error, SyntaxError) else error.args[0]
        raise ValueError(f"it is no Python that can be read: {what}") from None
    if blocks:
        raise ValueError("it is no Python that can be read: it ends within a block")
    return found


def _defined(statement: list[tokenize.TokenInfo]) -> str | None:
    """The name that a statement defines as a function or class."""
    words = [token.string for token in statement[:3]]
    if words[0] == "async":
        words = words[1:]
    return words[1] if len(words) > 1 and words[0] in ("def", "class") else None
