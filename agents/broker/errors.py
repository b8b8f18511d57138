"""What the broker answers when it does not do what was asked."""

from __future__ import annotations

from contracts.errors import CoordinatorError

__all__ = ["OutcomeUnknown", "ServerFailed", "ToolRefused", "Unanswered"]


class ToolRefused(CoordinatorError):
    """The call is not allowed, or makes no sense as it stands; the text says what would. Nothing was done."""


class OutcomeUnknown(CoordinatorError):
    """The call was sent, and nobody knows what came of it."""


class ServerFailed(CoordinatorError):
    """A server of tools cannot be used as the contract grants it: the attempt cannot go on."""


class Unanswered(CoordinatorError):
    """A person has to answer first: the attempt ends as blocked with this very question."""

    def __init__(self, question: str) -> None:
        super().__init__("nobody has answered yet; the work rests until somebody does")
        self.question = question
