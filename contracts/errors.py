"""The typed errors of the house: one family for bad input, one for refused state changes.

``exit_code`` is what the command line ends with, so that the meaning stands in one place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

__all__ = [
    "BadInput",
    "BudgetExhausted",
    "CoordinatorError",
    "Fault",
    "NotFound",
    "OperationUnsettled",
    "Refused",
    "StaleClaim",
    "StoreUnavailable",
    "Unanswered",
    "VersionRefused",
    "WrongState",
]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with an input: where, what, and what would be right.

    ``path`` is dotted (``tasks.callers.acceptance[0]``); ``line`` and ``column`` count from 1.
    """

    path: str
    message: str
    hint: str = ""
    file: str | None = None
    line: int | None = None
    column: int | None = None

    def at(self, file: str | None, line: int | None, column: int | None) -> Fault:
        return replace(self, file=file, line=line, column=column)

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        what = f"{self.message}, {self.hint}" if self.hint else self.message
        return ": ".join(part for part in (place, self.path, what) if part)


class CoordinatorError(Exception):
    """Base of every error that a caller may handle."""

    exit_code = 70


class BadInput(CoordinatorError):
    """An input is wrong; nothing was changed. Carries every fault found, not only the first."""

    exit_code = 2

    def __init__(self, faults: Iterable[Fault] | str) -> None:
        self.faults: Sequence[Fault] = (Fault("", faults),) if isinstance(faults, str) else tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


class NotFound(BadInput):
    """An address, request or artifact that does not exist, or a prefix that is not unique."""


class Refused(CoordinatorError):
    """A state change was refused: the message names what was found and what was needed."""

    exit_code = 3


class WrongState(Refused):
    """The thing is not in a state from which this change is legal."""


class StaleClaim(Refused):
    """The claim has no authority any more: other generation or token, lease over, or task ended."""


class VersionRefused(Refused):
    """A database or document schema version that this program does not know; nothing was changed."""


class StoreUnavailable(Refused):
    """The store cannot be used now (disk full, read-only, unsafe file system, connection lost)."""


class BudgetExhausted(Refused):
    """The worst case of what comes next does not fit into a budget up the tree; nothing was charged."""


class OperationUnsettled(Refused):
    """A side effect was sent, and nobody knows what came of it: a person has to say."""


class Unanswered(CoordinatorError):
    """A person has to answer first: the attempt ends as blocked with this very question."""

    def __init__(self, question: str) -> None:
        super().__init__("nobody has answered yet; the work rests until somebody does")
        self.question = question
