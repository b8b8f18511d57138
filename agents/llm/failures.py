"""What went wrong with a call to a model, in one type: what it was, whether to try again, and who pays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal

from contracts.canonical import well_formed

__all__ = ["CallFailed", "SdkErrors", "failure_of", "one_line", "status_failure"]

Billed = Literal["no", "unknown"]

LINE_CHARS_MAX = 10_000

_WORDS = {
    400: "bad_request",
    401: "unauthorized",
    402: "unpaid",
    403: "forbidden",
    404: "not_found",
    408: "timeout",
    413: "too_large",
    429: "rate_limited",
    503: "overloaded",
    529: "overloaded",
}
_RETRYABLE = frozenset({408, 409, 425, 429})
"""Besides every 5xx but 501."""

_OVERLOADS = frozenset({429, 503, 529})

_HOPELESS_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
"""Said with 429, and waiting does not help."""


class CallFailed(Exception):
    """One try to reach a model failed.

    ``billed``: ``no`` when the provider has certainly not begun to work. ``retry_after_s``: how long it asks to wait.
    """

    def __init__(
        self,
        word: str,
        message: str,
        *,
        status: int | None = None,
        retryable: bool = False,
        retry_after_s: float | None = None,
        billed: Billed = "unknown",
    ) -> None:
        self.word = word
        self.message = one_line(message)
        self.status = status
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.billed: Billed = billed
        super().__init__(str(self))

    @property
    def overload(self) -> bool:
        """Whether the provider takes no request now, whoever asks."""
        return self.retryable and self.status in _OVERLOADS

    def __str__(self) -> str:
        what = self.word.replace("_", " ")
        return f"{what} (HTTP {self.status}): {self.message}" if self.status else f"{what}: {self.message}"


@dataclass(frozen=True, slots=True)
class SdkErrors:
    """The classes by which an SDK says what went wrong. Both SDKs have the same family."""

    status: type[Exception]
    timeout: type[Exception]
    connection: type[Exception]


def failure_of(error: Exception, sdk: SdkErrors) -> CallFailed:
    """What an exception of an SDK, or of what lies below it, means."""
    import httpx2

    if isinstance(error, CallFailed):
        return error
    if isinstance(error, sdk.status):
        return _of_status(error)
    below = error.__cause__ if isinstance(error, sdk.connection) and error.__cause__ is not None else error
    if isinstance(below, CallFailed):
        return below
    if isinstance(below, (httpx2.ConnectError, httpx2.ConnectTimeout)):
        return CallFailed("unreachable", str(below) or "no connection", retryable=True, billed="no")
    if isinstance(error, sdk.timeout) or isinstance(below, httpx2.TimeoutException):
        return CallFailed("timeout", "no answer in time", retryable=True)
    if isinstance(error, sdk.connection) or isinstance(below, httpx2.HTTPError):
        return CallFailed("dropped", str(below) or "the connection broke", retryable=True)
    # Text that is no JSON, JSON that is nothing which the SDK can read, and whatever else comes of hostile bytes.
    return CallFailed("unreadable", f"{type(error).__name__}: {error}", retryable=True)


def status_failure(status: int, message: str, code: str, headers: Mapping[str, str]) -> CallFailed:
    """What an HTTP status means. An error that comes instead of an answer is not billed."""
    word = _WORDS.get(status, "server_error" if status >= 500 else "redirected" if status < 400 else "refused")
    retryable = (status in _RETRYABLE or (status >= 500 and status != 501)) and code not in _HOPELESS_CODES
    return CallFailed(
        word, message, status=status, retryable=retryable, retry_after_s=_retry_after_s(headers), billed="no"
    )


def one_line(text: str) -> str:
    """A provider's words, for a log and a terminal; whoever keeps or shows them redacts first, and then cuts.

    A flood of them ends between two words: the half of a secret would not be found.
    """
    line = " ".join("".join(one if one.isprintable() else " " for one in well_formed(text)).split())
    return line if len(line) <= LINE_CHARS_MAX else f"{line[: LINE_CHARS_MAX - 1].rpartition(' ')[0]} …"


def _of_status(error: Any) -> CallFailed:
    body = error.body if isinstance(error.body, dict) else {}
    inner = body.get("error") if isinstance(body.get("error"), dict) else body
    assert isinstance(inner, dict)
    said = inner.get("message")
    code = inner.get("code") or inner.get("type")
    failed = status_failure(
        error.status_code,
        said if isinstance(said, str) and said.strip() else "the provider gave no reason",
        code if isinstance(code, str) else "",
        error.response.headers,
    )
    if error.status_code < 300:  # an error inside of a stream: the provider was at work already
        overloaded = code in ("overloaded_error", "rate_limit_error", "api_error", "timeout_error")
        return CallFailed("failed_midway", failed.message, retryable=overloaded)
    return failed


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """From ``retry-after-ms``, or ``Retry-After`` in seconds or as a date; what is neither, or past, says nothing."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1_000
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None or text is None:
        return seconds
    try:
        until = parsedate_to_datetime(text)
        left_s = (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    except (ValueError, OverflowError):
        return None
    return left_s if left_s >= 0 else None


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
