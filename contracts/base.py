"""What every document model shares."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints

from contracts.canonical import canonical_bytes, is_plain, json_faults
from contracts.scopes import pattern_fault

__all__ = ["JSON", "Argument", "Identifier", "Name", "PathPattern", "StrictModel"]


class StrictModel(BaseModel):
    """Nothing is guessed: no unknown keys, no coercion, no change after validation."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, ser_json_inf_nan="constants")


Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
"""An id that is safe in an address, a file name and a terminal."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""A name for people, one line."""

Argument = Annotated[str, StringConstraints(max_length=100_000, pattern=r"^[^\x00]*$")]
"""One argument of a program; no shell ever sees it."""


def _pattern(value: str) -> str:
    fault = pattern_fault(value)
    if fault:
        raise ValueError(fault)
    return value


PathPattern = Annotated[str, AfterValidator(_pattern)]

MAX_VALUE_DEPTH = 64
"""Less than canonical JSON allows, since the documents that hold a value add levels of their own."""


def _json(value: Any) -> Any:
    if is_plain(value, max_depth=MAX_VALUE_DEPTH):
        return value
    faults = json_faults(value, max_depth=MAX_VALUE_DEPTH)
    if not faults:
        # A float such as 1e20 is written as an integer that nobody may read again.
        faults = json_faults(json.loads(canonical_bytes(value)))
    if faults:
        raise ValueError("; ".join(f"{fault.path.removeprefix('$.')}: {fault.message}" for fault in faults[:5]))
    return value


JSON = Annotated[Any, AfterValidator(_json)]
"""A JSON value that is the same after it was stored; lone surrogates, NaN and the like are refused with their place."""
