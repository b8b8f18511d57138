"""What a server may answer over HTTP: so many bytes, as they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import httpx2

from agents.llm.failures import CallFailed
from contracts.terms import ModelSpec

__all__ = ["client_settings"]

BODY_BYTES_MAX = 16 * 1024 * 1024
TOKEN_BYTES_MAX = 1024
"""Of a streamed token with what is around it: long answers take more than the bytes above."""


def client_settings(spec: ModelSpec) -> Mapping[str, Any]:
    """For the HTTP client of either SDK, which makes the same kind. Proxies of the environment are used all the same.

    A larger answer ends in ``CallFailed`` where it is read, and a packed one before: a few bytes can hold a flood.
    Redirects are not followed: the key would go along.
    """
    streamed_bytes = TOKEN_BYTES_MAX * spec.max_output_tokens if spec.stream else 0
    return {
        "follow_redirects": False,
        "timeout": spec.timeout_s,
        "headers": {"Accept-Encoding": "identity"},
        "event_hooks": {"response": [_bounded(BODY_BYTES_MAX + streamed_bytes)]},
    }


def _bounded(bytes_max: int) -> Callable[[httpx2.Response], Awaitable[None]]:
    async def bound(response: httpx2.Response) -> None:
        packed = response.headers.get("content-encoding", "identity").strip().lower()
        if packed not in ("", "identity"):
            raise CallFailed("unreadable", f"the answer is packed ({packed}), which was not asked for")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Counted(response.stream, bytes_max)

    return bound


class _Counted(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, bytes_max: int) -> None:
        self._stream = stream
        self._bytes_max = bytes_max

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._bytes_max
        async for piece in self._stream:
            left -= len(piece)
            if left < 0:
                raise CallFailed("unreadable", f"the answer is larger than {self._bytes_max:,} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
