"""How a child's run can end without a result."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from contracts.errors import CoordinatorError, Refused

__all__ = ["NoResult", "SourceChanged", "kept_in"]


class NoResult(CoordinatorError):
    """The child ended without handing in a result; the text names what came instead."""


class SourceChanged(Refused):
    """The code on disk is no longer what the contract pinned."""


@contextlib.contextmanager
def kept_in() -> Iterator[None]:
    """For code of the child: what would end the worker, such as ``SystemExit``, must not leave it."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise NoResult(f"the child raised {type(error).__name__}: {error}") from error
