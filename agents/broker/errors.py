"""What the broker answers when it does not do what was asked."""

from __future__ import annotations

from contracts.errors import CoordinatorError, Unanswered

__all__ = ["OutcomeUnknown", "ServerFailed", "ToolRefused", "Unanswered"]


class ToolRefused(CoordinatorError):
    """The call is not allowed, or makes no sense as it stands; the text says what would. Nothing was done."""


class OutcomeUnknown(CoordinatorError):
    """The call was sent, and nobody knows what came of it."""


class ServerFailed(CoordinatorError):
    """A server of tools cannot be used as the contract grants it: the attempt cannot go on."""
