"""One HTTP request by an SDK, plain or streamed: the same for every API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from agents.llm.failures import SdkErrors, failure_of
from agents.llm.received import plain
from contracts.turns import ModelUsage, TurnResponse

__all__ = ["ask_sdk"]

Told = tuple[TurnResponse, ModelUsage | None]


async def ask_sdk(
    create: Any,
    parameters: Mapping[str, Any],
    timeout_s: float,
    *,
    streamed: Mapping[str, Any] | None,
    whole: Callable[[Any], Awaitable[dict[str, Any]]],
    read: Callable[[dict[str, Any], object], Told],
    id_header: str,
    sdk: SdkErrors,
) -> Told:
    """``create``: the SDK's method. ``streamed``: what it is told besides for a streamed answer; None for a plain one.

    ``whole`` puts a stream together, ``read`` takes the answer as JSON with the provider's id of the request, which a
    stream has in ``id_header``. Raises ``CallFailed``, whatever goes wrong.
    """
    try:
        if streamed is None:
            answer = await create(**parameters, timeout=timeout_s)
            return read(plain(answer), answer._request_id)
        stream = await create(**parameters, timeout=timeout_s, stream=True, **streamed)
        async with stream:
            told = await whole(stream)
        return read(told, stream.response.headers.get(id_header))
    except Exception as error:
        raise failure_of(error, sdk) from error
