"""How a child's run can end without a result."""

from __future__ import annotations

from contracts.errors import CoordinatorError, Refused

__all__ = ["NoResult", "SourceChanged"]


class NoResult(CoordinatorError):
    """The child ended without handing in a result; the text names what came instead."""


class SourceChanged(Refused):
    """The code on disk is no longer what the contract pinned."""
