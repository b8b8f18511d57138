"""Takes secrets out of what a child hands in, before anything is hashed or stored.

Two kinds of secrets are known: the values of environment variables that look like one, and texts whose own shape says
what they are (keys of well-known services, private key blocks, JSON web tokens). Each becomes ``[redacted:NAME]``.

Redacting too much falsifies work, so a value counts only if its variable's *name* says that it is a secret (``KEY``,
``TOKEN``, ``PASSWORD`` …, and not ``…_FILE``, ``…_URL`` and the like, which say where one is) and it does not look like
ordinary text: at least 8 characters, not one or two plain words (``anonymous``, ``read-only``), not digits alone, not a
path that exists. Of a connection URL only the password is taken. The value of a credential that a contract names is
always taken, from 4 characters on. Not found: secrets that were cut in pieces, compressed, encrypted or hashed.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, cast
from urllib.parse import quote, quote_plus, unquote, urlsplit

from contracts.canonical import MAX_DEPTH
from contracts.errors import BadInput, Fault

__all__ = ["Redactor"]

MIN_LENGTH: Final = 8
MIN_LENGTH_GRANTED: Final = 4
MAX_PASSES: Final = 100

_SECRET_WORDS: Final = frozenset(
    {
        "AUTH",
        "AUTHORIZATION",
        "CREDENTIAL",
        "CREDENTIALS",
        "CREDS",
        "KEY",
        "KEYS",
        "OAUTH",
        "PASS",
        "PAT",
        "PRIVATE",
        "PWD",
    }
)
_SECRET_PARTS: Final = ("APIKEY", "ACCESSKEY", "PASSPHRASE", "PASSWD", "PASSWORD", "SECRET", "TOKEN")
_SAYS_WHERE: Final = frozenset(
    {"DIR", "ENDPOINT", "FILE", "HOST", "MODE", "NAME", "PATH", "SOCK", "TYPE", "URI", "URL", "USER", "USERNAME"}
)
_PLAIN_WORDS: Final = re.compile(r"(?=.{1,20}\Z)[A-Za-z][a-z]*(?:[ _-][A-Za-z][a-z]*)?|[A-Z]{1,20}|[0-9]+")

_SHAPES: Final = {
    "anthropic_key": r"(?<![A-Za-z0-9])sk-ant-[A-Za-z0-9_-]{16,}",
    # Three digits at least: `sk-` begins names of style classes, too.
    "api_key": r"(?<![A-Za-z0-9])sk-(?=(?:[A-Za-z_-]{0,80}[0-9]){3})[A-Za-z0-9_-]{20,}",
    "github_token": r"(?<![A-Za-z0-9])(?:gh[oprsu]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{22,})",
    "aws_key_id": r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])",
    "slack_token": r"(?<![A-Za-z0-9])xox[abeoprs]-(?=[A-Za-z-]{0,40}[0-9])[A-Za-z0-9-]{10,}",
    # A header of its token, then claims: both are base64 of '{"'.
    "jwt": r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{6,}\.eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{6,}",
    # With its end; or cut off, if what follows the head is long enough to be a key and not a mention of one.
    "private_key": (
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r"(?:(?:[^-]++|-(?!----))*+-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r"|(?=(?:[^-]|-(?!----)){0,120}?[A-Za-z0-9+/]{40})(?:[A-Za-z0-9+/=\s:,]|\\[nr]|-(?!----))*+)"
    ),
}
_SHAPE: Final = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _SHAPES.items()))
"""Each part is bounded or possessive, so that no text makes it slow."""


class Redactor:
    """Knows the secrets of one environment. Immutable: safe to share between threads.

    ``granted``: names of variables that contracts name as credentials. Redacting twice is the same as once.
    """

    def __init__(self, environ: Mapping[str, str], granted: Collection[str] = ()) -> None:
        secrets: dict[str, str] = {}
        for name in sorted(environ):
            for secret in _secrets_of(name, environ[name], name in granted):
                secrets.setdefault(secret, _mark(name))
        marks = {*secrets.values(), *(_mark(shape) for shape in _SHAPES)}
        self._marks: dict[str, str] = {}
        for secret, mark in secrets.items():
            for form in _forms(secret):
                self._marks.setdefault(form, mark)
        self._forms = sorted(self._marks, key=len, reverse=True)
        self._keep = "|".join(re.escape(mark) for mark in sorted(marks))

    def text(self, text: str) -> tuple[str, int]:
        """The text without secrets, and how many were found; the same object when there is none."""
        total = 0
        for _ in range(MAX_PASSES):
            text, count = self._once(text)
            total += count
            if not count:
                break
        return text, total

    def data(self, data: bytes) -> tuple[bytes, int]:
        """The same for bytes of any kind: what is not UTF-8 stays as it is."""
        text, count = self.text(data.decode("utf-8", "surrogateescape"))
        return (text.encode("utf-8", "surrogateescape"), count) if count else (data, 0)

    def value(self, value: Any) -> tuple[Any, int]:
        """The same for a JSON value: texts, keys, and integers that are a secret. Raises ``BadInput`` if too deep."""
        return self._value(value, 0)

    def _value(self, value: Any, depth: int) -> tuple[Any, int]:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, int) and not isinstance(value, bool):
            # Bounded: Python writes no integer of more than 4,300 digits.
            mark = self._marks.get(str(value)) if value.bit_length() < 1024 else None
            return (value, 0) if mark is None else (mark, 1)
        if not isinstance(value, (Mapping, list, tuple)):
            return value, 0
        if depth >= MAX_DEPTH:
            raise BadInput([Fault("", f"nested deeper than {MAX_DEPTH} levels", "flatten it")])
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        items = [self._value(item, depth + 1) for item in value]
        total = sum(count for _, count in items)
        return ([item for item, _ in items], total) if total else (value, 0)

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> tuple[Any, int]:
        clean: dict[Any, Any] = {}
        total = 0
        for key, item in value.items():
            new_key, in_key = self._value(key, depth + 1) if isinstance(key, str) else (key, 0)
            while in_key and (new_key in clean or new_key in value):
                new_key += "'"  # two secrets of one name: neither entry is lost
            clean[new_key], in_item = self._value(item, depth + 1)
            total += in_key + in_item
        return (clean, total) if total else (value, 0)

    def _once(self, text: str) -> tuple[str, int]:
        """One pass. It may bring out a token that was glued to another secret, so there may be a next."""
        found = [form for form in self._forms if form in text]
        count = 0

        def replace(match: re.Match[str]) -> str:
            nonlocal count
            if match.lastgroup == "kept":
                return match.group()
            count += 1
            return self._marks[match.group()]

        if found:
            forms = "|".join(re.escape(form) for form in found)
            text = re.sub(f"(?P<kept>{self._keep})|{forms}", replace, text)
        if not count and _SHAPE.search(text):
            return _SHAPE.subn(_shape_mark, text)
        return text, count


def _shape_mark(match: re.Match[str]) -> str:
    return _mark(cast(str, match.lastgroup))


def _mark(name: str) -> str:
    return f"[redacted:{re.sub('[^A-Za-z0-9_]', '_', name)}]"


def _secrets_of(name: str, value: str, granted: bool) -> Iterator[str]:
    """The secrets in the value of one variable: none, all of it, or the password in a URL."""
    value = value.strip()
    if granted:
        if len(value) >= MIN_LENGTH_GRANTED:
            yield value
    elif _named_secret(name) and not _looks_ordinary(value):
        yield value
    if "://" in value:
        try:
            password = urlsplit(value).password or ""
        except ValueError:
            return
        for written in {password, unquote(password)}:
            if not _looks_ordinary(written):
                yield written


def _named_secret(name: str) -> bool:
    words = [word for word in re.split(r"[^A-Z0-9]+", name.upper()) if word]
    # `PWD` and `OLDPWD` are where a shell stands.
    if not words or words[-1] in _SAYS_WHERE or words in (["PWD"], ["OLDPWD"]):
        return False
    return bool(_SECRET_WORDS & set(words)) or any(part in word for part in _SECRET_PARTS for word in words)


def _looks_ordinary(value: str) -> bool:
    if len(value) < MIN_LENGTH or _PLAIN_WORDS.fullmatch(value):
        return True
    return "\0" not in value and os.path.lexists(value)


def _forms(secret: str) -> Iterator[str]:
    """The secret as it is, and as it stands in JSON, in a URL and in base64."""
    yield secret
    data = secret.encode("utf-8", "surrogateescape")
    for ascii_only in (True, False):
        yield json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
    for encoded in (quote(data, safe=""), quote(data), quote_plus(data)):
        yield encoded
        yield re.sub("%[0-9A-F]{2}", lambda match: match.group().lower(), encoded)
    yield base64.b64encode(data).decode()
    yield base64.urlsafe_b64encode(data).decode()
    # Inside longer data it depends on what stands before: three ways, each without what it shares with neighbours.
    for before in range(3):
        bits_before, bits = before * 8, (before + len(data)) * 8
        coded = base64.b64encode(b"\0" * before + data).decode()[-(-bits_before // 6) : bits // 6]
        if len(coded) >= MIN_LENGTH:
            yield coded
            yield coded.replace("+", "-").replace("/", "_")
