"""What a provider sends is checked here, once: it can then be stored, sent back and acted on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from contracts.canonical import json_faults, well_formed
from contracts.turns import ModelCall, ModelUsage, TurnResponse

__all__ = ["CallReader", "json_arguments", "plain", "storable", "turn_response", "usage_of"]

DEPTH_MAX = 60
TOKENS_MAX = 10**9
"""More in one call is no count: sums of what is charged stay whole numbers that JSON can hold."""

QUOTED_CHARS_MAX = 200
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
CALL_ID = re.compile(r"[A-Za-z0-9_.:-]{1,200}")


def plain(model: Any) -> dict[str, Any]:
    """An object of an SDK as the JSON object that it was made from. Not all of it need be what the SDK's types say."""
    value: dict[str, Any] = model.model_dump(mode="python", exclude_unset=True, by_alias=True, warnings=False)
    return value


def turn_response(
    *, text: str, calls: list[ModelCall], stop: Any, model: object, request_id: object, raw: list[Any]
) -> TurnResponse:
    """A turn that can be stored, of what an adapter has read."""
    return TurnResponse(
        text=well_formed(text),
        calls=calls,
        stop=stop,
        model=well_formed(model) if isinstance(model, str) else "",
        provider_request_id=request_id if isinstance(request_id, str) else None,
        raw=storable(raw),
    )


def storable(value: Any) -> Any:
    """The same JSON value, or where canonical JSON cannot hold a part of it, with that part written as text."""
    return value if not json_faults(value, max_depth=DEPTH_MAX) else _mended(value, DEPTH_MAX)


def _mended(value: Any, levels_left: int) -> Any:
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, Mapping) and levels_left > 0:
        return {well_formed(str(key)): _mended(item, levels_left - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and levels_left > 0:
        return [_mended(item, levels_left - 1) for item in value]
    return f"[{_kind(value)} that cannot be stored]" if json_faults(value, max_depth=0) else value


def json_arguments(given: object) -> tuple[dict[str, Any] | None, str]:
    """(arguments, "") or (None, what is wrong). Nothing is mended: half an argument must not be acted on.

    Text is parsed strictly; an empty one and null are a call without arguments.
    """
    value = given if given != "" else None
    if isinstance(value, str):
        try:
            value = json.loads(value, object_pairs_hook=_without_doubles, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            return None, f"the arguments are not JSON ({_reason(error)}): {_quoted(str(given))}"
    if value is None:
        return {}, ""
    if not isinstance(value, dict):
        return None, f"the arguments are {_kind(value)}, they must be a JSON object: {_quoted(str(given))}"
    faults = json_faults(value, max_depth=DEPTH_MAX)
    if faults:
        return None, f"the arguments cannot be used: {'; '.join(str(fault) for fault in faults[:3])}"
    return value, ""


class CallReader:
    """Reads the calls of one turn. What their names and ids become is also what is sent back."""

    def __init__(self, used_ids: frozenset[str]) -> None:
        self._used = set(used_ids)
        self.calls: list[ModelCall] = []

    def read(self, call_id: object, name: object, arguments: object) -> tuple[ModelCall, str]:
        """The call, with an id that no other one has; and the name under which it can be sent back."""
        arguments_read, malformed = json_arguments(arguments)
        said = well_formed(name)[:100] if isinstance(name, str) else ""
        call = ModelCall(call_id=self._unique(call_id), name=said, arguments=arguments_read, malformed=malformed)
        self.calls.append(call)
        return call, said if NAME.fullmatch(said) else re.sub(r"[^A-Za-z0-9_-]", "_", said)[:64] or "unnamed"

    def _unique(self, call_id: object) -> str:
        wanted = call_id if isinstance(call_id, str) and CALL_ID.fullmatch(call_id) else ""
        number = len(self._used)
        while not wanted or wanted in self._used:
            number += 1
            wanted = f"call_{number}"
        self._used.add(wanted)
        return wanted


def usage_of(input_tokens: object, cached: object, cache_write: object, output_tokens: object) -> ModelUsage | None:
    """Usage as reported, all input counted in ``input_tokens``; None where a count is missing or cannot be one."""
    counts = [input_tokens, 0 if cached is None else cached, 0 if cache_write is None else cache_write, output_tokens]
    whole: list[int] = []
    for count in counts:
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= TOKENS_MAX:
            return None
        whole.append(count)
    if whole[1] + whole[2] > whole[0]:
        return None
    return ModelUsage(
        input_tokens=whole[0], cached_input_tokens=whole[1], cache_write_tokens=whole[2], output_tokens=whole[3]
    )


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def _reason(error: Exception) -> str:
    return "nested too deep" if isinstance(error, RecursionError) else well_formed(str(error))[:100]


def _kind(value: object) -> str:
    kinds = {list: "a list", str: "text", dict: "an object", bool: "a boolean", int: "a number", float: "a number"}
    return kinds.get(type(value), "no value")


def _quoted(text: str) -> str:
    clean = well_formed(text)
    return clean if len(clean) <= QUOTED_CHARS_MAX else f"{clean[:QUOTED_CHARS_MAX]} … ({len(clean):,} characters)"
