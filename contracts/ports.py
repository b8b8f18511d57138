"""The ports through which the rooms of the house meet. Each names what one room needs of another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from contracts.turns import CallRecord, FailedTry, ModelUsage, StoredTurn, ToolAnswer, TurnResponse

__all__ = [
    "ArtifactRef",
    "ArtifactStore",
    "CancelSignal",
    "ChildEnd",
    "Clock",
    "CommandRunner",
    "Delegator",
    "Inbox",
    "Journal",
    "Meter",
    "Operations",
    "Reserved",
    "SourceFile",
    "SourceReader",
    "Standing",
    "ToolCall",
    "Tools",
    "Worst",
]


Clock = Callable[[], datetime]
"""Wall clock: an aware UTC time."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One entry of a pinned tree. ``path`` uses ``/``; bytes that are not UTF-8 are surrogate escapes."""

    path: str
    mode: str
    size_bytes: int
    object_id: str


class SourceReader(Protocol):
    """Reads one pinned tree; what it returns can never change. Safe to use from several threads."""

    def files(self) -> Sequence[SourceFile]:
        """Every file of the tree, sorted by the bytes of its path. Directories are not listed."""
        ...

    def read_bytes(self, path: str) -> bytes:
        """Content of a file (for a symlink: its target). Raises ``FileNotFoundError``."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call as the broker saw it: the stuff that *observed* evidence is made of.

    ``result_digest`` is of the whole content (for ``read_file``: of the file's bytes).
    """

    number: int
    tool: str
    arguments: Mapping[str, Any]
    ok: bool
    at: datetime
    result_digest: str | None = None
    error: str | None = None


class Tools(Protocol):
    """What a child may call. Every call is checked against the grant, and recorded."""

    def list_files(self, pattern: str = "**") -> list[str]:
        """Paths in the read scope that match a glob (``*`` stays within a folder, ``**`` crosses them)."""
        ...

    def read_file(self, path: str) -> str:
        """Text of one file; bytes that are not UTF-8 become U+FFFD."""
        ...

    def search_code(self, pattern: str, glob: str = "**") -> list[dict[str, Any]]:
        """Lines that match a regular expression: ``[{path, line, text}]``, lines from 1."""
        ...

    def write_file(self, path: str, text: str) -> None:
        """Make or replace a file within the write scope."""
        ...

    def edit_file(self, path: str, old: str, new: str) -> None:
        """Replace a piece of text that is there exactly once; every other byte stays as it is."""
        ...

    def git_diff(self) -> str:
        """What has been changed in the workspace so far, as a diff against its base."""
        ...

    def run_command(self, command: Sequence[str], timeout_s: float | None = None) -> tuple[int | None, str]:
        """Run a granted command in the workspace: (exit status, None when it was killed; its output)."""
        ...

    def request_approval(self, question: str) -> tuple[bool, str]:
        """(approved, message) of a person. Not answered yet: this attempt ends as blocked with the question, and the
        same call gives the answer in the next one."""
        ...

    def delegate(self, delegation_id: str, objective: str, terms: Mapping[str, Any] | None = None) -> str:
        """Hand a part of the work to a child of its own, within this child's grant; the task id."""
        ...

    def await_children(self, delegation_ids: Sequence[str]) -> Sequence[ChildEnd]:
        """Wait for the ends of delegated children."""
        ...

    def call_tool(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool of a server, by its granted name ``mcp__SERVER__TOOL``; what the server said, as text."""
        ...


@dataclass(frozen=True, slots=True)
class ArtifactRef:
    """An artifact that is durable already: immutable bytes and their name."""

    name: str
    digest: str
    size_bytes: int
    media_type: str = "application/octet-stream"
    redacted: bool = False


class ArtifactStore(Protocol):
    """Makes bytes durable before anything names them."""

    def put(self, name: str, data: bytes, media_type: str) -> ArtifactRef: ...

    def get(self, digest: str) -> bytes:
        """The bytes; raises ``KeyError`` if unknown, ``ValueError`` if they no longer have this digest."""
        ...


class CancelSignal(Protocol):
    """Tells a child to stop. ``reason`` is for people."""

    @property
    def reason(self) -> str: ...

    def is_set(self) -> bool: ...

    def wait(self, timeout_s: float | None = None) -> bool: ...


class Journal(Protocol):
    """The stored turns of one model child. What a method has returned from is durable."""

    @property
    def conversation(self) -> int:
        """Which conversation of its task the turns belong to: its number stays when a later attempt continues it."""
        ...

    def turns(self) -> Sequence[StoredTurn]:
        """What to continue from, in order: finished turns, and at most one more whose tools are to be run again.

        Empty when the conversation starts anew.
        """
        ...

    def answered(
        self,
        number: int,
        request_digest: str,
        response: TurnResponse,
        usage: ModelUsage | None,
        cost_micro_usd: int | None,
        tries: Sequence[CallRecord],
    ) -> None:
        """The model has answered: stored before any of its tools runs, and never paid for again."""
        ...

    def finished(self, number: int, answers: Sequence[ToolAnswer]) -> None:
        """Every call of the turn is answered; the workspace is recorded as it is now."""
        ...


@dataclass(frozen=True, slots=True)
class Worst:
    """The most that one model call can cost. ``micro_usd``: at the contract's price."""

    micro_usd: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """A charge that stands in every budget up the tree until it is settled."""

    number: int


class Meter(Protocol):
    """Charge, then spend. Money is integer micro-USD."""

    def reserve(self, worst: Worst) -> Reserved:
        """Charge the worst case in every budget up the tree. Raises ``BudgetExhausted``, naming the budget, or
        ``StaleClaim``; then nothing is charged."""
        ...

    def settle(self, reserved: Reserved, spent: Worst) -> None:
        """Replace the worst case by what it was. What is never settled stays charged. Taken from a stale holder too."""
        ...

    def failed(self, reserved: Reserved, tried: FailedTry) -> None:
        """Record that the call brought no answer. Its charge stands where it may have been billed, and is taken back
        where not. Taken from a stale holder too."""
        ...

    def left(self) -> Worst:
        """The least that is left in any budget up the tree; a budget without a limit counts as 2**53 - 1."""
        ...


@dataclass(frozen=True, slots=True)
class Standing:
    """A workspace as it is at one moment: the digest of all its files, and what differs from its base."""

    tree_digest: str
    changed: Sequence[str]


class Operations(Protocol):
    """Side effects outside, each one recorded before it happens."""

    def run(
        self,
        key: str,
        tool: str,
        arguments: Mapping[str, Any],
        send: Callable[[], str],
        standing: Callable[[], Standing] | None = None,
    ) -> str:
        """Record the call as prepared, then as sent, then call ``send`` and record what came of it.

        ``key`` names the call within the task for ever: one that has succeeded or failed before is not sent again, and
        gives its first outcome. Raises ``OperationUnsettled`` for one that was sent and whose end nobody knows, and
        what ``send`` raises: when that is ``OperationUnsettled`` it stays sent, else it has failed with these words,
        and is refused with them from then on.

        A call that needs a person's yes is sent once for each yes to exactly this call in exactly these files
        (``standing``; None: there is no workspace). Raises ``Unanswered`` with the question, ``Refused`` with the words
        of the person who said no.
        """
        ...

    def files_are_missing(self, key: str) -> bool:
        """Whether an earlier attempt has done it, and what it may have written into the workspace is not in this
        one."""
        ...


class Inbox(Protocol):
    """Questions to people."""

    def answer_to(self, question: str) -> tuple[bool, str] | None:
        """(approved, message) of this very question of this task; None: it was not answered, or never asked."""
        ...


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How a delegated child ended: data, whatever it says. ``word``: accepted, partial, failed, blocked …; of one that
    was not waited for to its end, how it stands: pending, running, submitted …"""

    delegation_id: str
    word: str
    reason: str
    output: Any
    artifacts: Mapping[str, str]
    gaps: Sequence[str] = ()


class Delegator(Protocol):
    """Children of this child."""

    def delegate(self, delegation_id: str, terms: Mapping[str, Any]) -> str:
        """Delegate within this child's own grant; the task id. The same id with the same terms is the same child.

        Raises ``BadInput`` with every fault, ``Refused``, ``StaleClaim``.
        """
        ...

    def wait(self, delegation_ids: Sequence[str], time_left_s: float) -> Sequence[ChildEnd]:
        """Wait for the ends of these; meanwhile this child holds no slot of its worker. Once all that are left can go
        on only when a person answers, these are ``blocked``. Of the time that is left to it, some is kept for handing
        in: those that have not ended by then are told as they stand. Raises ``Refused`` when told to stop."""
        ...


class CommandRunner(Protocol):
    """Runs a program in the workspace, as a ``command`` child would be run."""

    def __call__(self, argv: Sequence[str], timeout_s: float) -> tuple[int | None, str]:
        """(exit status, None when it was killed; output). The program and all it started are gone by then."""
        ...
