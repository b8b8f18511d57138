"""Canonical JSON (RFC 8785) and the digests made from it.

A digest is written ``sha256:<64 hex>``. Numbers follow I-JSON (RFC 7493): integers beyond
+-(2**53 - 1), NaN and infinities have no canonical form and are refused with their place.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import rfc8785

from contracts.errors import BadInput, Fault

__all__ = [
    "MAX_SAFE_INTEGER",
    "canonical_bytes",
    "canonical_object",
    "digest_of",
    "is_plain",
    "json_faults",
    "sha256_digest",
    "well_formed",
]

MAX_SAFE_INTEGER = 2**53 - 1
MAX_DEPTH = 100
"""Deeper values are refused: every reader behind us would have to recurse as deep."""


def sha256_digest(data: bytes) -> str:
    """Name of immutable bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def canonical_bytes(value: Any) -> bytes:
    """The one serialisation that is hashed and stored. Raises ``BadInput`` with the place of what has none."""
    plain = _plain_bytes(value, MAX_DEPTH)
    if plain is not None:
        return plain
    faults = json_faults(value)
    if faults:
        raise BadInput(faults)
    return rfc8785.dumps(value)


def is_plain(value: Any, *, max_depth: int) -> bool:
    """Whether this is surely the same after it was stored and read back; if not, ``json_faults`` says what it is."""
    return _plain_bytes(value, max_depth) is not None


def _plain_bytes(value: Any, max_depth: int) -> bytes | None:
    """The canonical form by way of the standard library, whose encoder is in C, where both are the same.

    They are for text, numbers that are not written with an exponent, lists and objects, as long as no key needs the
    order of UTF-16. What was read back and compared holds nothing that was turned into something else. None: not such
    a value, or not canonical.
    """
    try:
        text = _ENCODER.encode(value)
        if (not text.isascii() and _BEYOND_SURROGATES.search(text)) or text.count("[") + text.count("{") > max_depth:
            return None
        read = _DECODER.decode(text)
        if read != value:
            return None
        return (_ENCODER.encode(read) if ".0" in text else text).encode()
    except (TypeError, ValueError, RecursionError):
        return None


def _plain_float(text: str) -> float:
    """A whole number as such: it is written without a point."""
    value = float(text)
    if abs(value) > MAX_SAFE_INTEGER or 0 < abs(value) < 1e-4:
        raise ValueError(text)
    return int(value) if value.is_integer() else value


def _safe_integer(text: str) -> int:
    value = int(text)
    if abs(value) > MAX_SAFE_INTEGER:
        raise ValueError(text)
    return value


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
_DECODER = json.JSONDecoder(parse_float=_plain_float, parse_int=_safe_integer)
_BEYOND_SURROGATES = re.compile("[\ue000-\U0010ffff]")


def digest_of(value: Any) -> str:
    """Digest of the canonical form of a JSON value."""
    return sha256_digest(canonical_bytes(value))


def canonical_object(members: Mapping[str, bytes]) -> bytes:
    """The canonical form of an object, from those of its members. The keys are ASCII: others have another order."""
    return b"{" + b",".join(canonical_bytes(key) + b":" + members[key] for key in sorted(members)) + b"}"


def well_formed(text: str) -> str:
    """Text that every store can hold: lone surrogates become a visible escape, e.g. ``\\udce9``."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def json_faults(value: Any, *, max_depth: int = MAX_DEPTH) -> list[Fault]:
    """Everything in ``value`` that canonical JSON cannot carry, each with its place."""
    faults: list[Fault] = []
    _collect(value, "$", max_depth, faults.append)
    return faults


def _collect(value: Any, path: str, levels_left: int, report: Callable[[Fault], None]) -> None:
    if levels_left < 0:
        report(Fault(path, "nested too deep", "flatten it"))
    elif value is None or isinstance(value, bool):
        return
    elif isinstance(value, str):
        if well_formed(value) != value:
            report(Fault(path, "text holds half a surrogate pair", "use well-formed Unicode"))
    elif isinstance(value, int):
        if abs(value) > MAX_SAFE_INTEGER:
            # Python writes no integer of more than 4,300 digits.
            shown = value if value.bit_length() <= 200 else f"of {value.bit_length()} bits"
            report(Fault(path, f"integer {shown} is beyond +-(2^53-1)", "write it as a string"))
    elif isinstance(value, float):
        if not math.isfinite(value):
            report(Fault(path, f"{value} is not a JSON number", "use null or a string"))
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                report(Fault(path, f"key {key!r:.60} is not a string", "use string keys"))
            else:
                # A hostile key must not reach a terminal as it is.
                place = f"{path}.{key}" if key.isidentifier() and len(key) <= 60 else f"{path}[{key!r:.60}]"
                _collect(key, place, levels_left, report)
                _collect(item, place, levels_left - 1, report)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _collect(item, f"{path}[{index}]", levels_left - 1, report)
    else:
        report(Fault(path, f"{type(value).__name__} is not a JSON value", "use text, numbers, lists and objects"))
