"""What the broker answers when it does not do what was asked."""

from __future__ import annotations

from contracts.errors import CoordinatorError

__all__ = ["ToolRefused"]


class ToolRefused(CoordinatorError):
    """The call is not allowed, or makes no sense as it stands; the text says what would. Nothing was done."""
