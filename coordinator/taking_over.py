"""Where an attempt begins: which turns, and which files, of those before it it takes over."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from contracts.model_specs import mcp_server_of
from contracts.terms import Terms
from contracts.turns import StoredTurn, turn_of_key
from coordinator.store import Damaged, TaskStore
from coordinator.store.journaling import BROKEN_OFF, Earlier, EndedAttempt, SentOperation
from coordinator.store.operating import may_leave_operations
from coordinator.store.records import Claim
from coordinator.store.views import TurnView

__all__ = ["Start", "read_turns", "start_of"]


@dataclass(frozen=True, slots=True)
class Start:
    """Where an attempt begins: the turns that it goes on from, and the tree its workspace gets; None: its base.

    ``conversation``: the number of the attempt in which it began.
    """

    conversation: int
    turns: Sequence[StoredTurn] = ()
    tree: str | None = None
    tree_of: int | None = None
    """The attempt that left it so."""
    files_missing: frozenset[str] = frozenset()
    """Keys of operations that succeeded, and what they may have written into a workspace is not in this tree."""
    may_have_written: frozenset[str] = frozenset()
    """Keys of all that succeeded and may have written into a workspace."""

    def without_files(self, attempt: int) -> Start:
        """It turned out that the tree cannot be had."""
        return Start(attempt, files_missing=self.may_have_written, may_have_written=self.may_have_written)


@dataclass(frozen=True, slots=True)
class _Left:
    """Files that an attempt left, and the keys of the operations that wrote into them since it began."""

    tree: str
    attempt: int
    holds: frozenset[str]


def start_of(store: TaskStore, claim: Claim) -> Start:
    """Where the attempts before this one were, if the contract says so and it can be had exactly; else the beginning.

    Another head is another base: then nothing of it is taken. A model that begins anew takes the files alone; so does
    another child that was asked a question after an operation, since it is answered of that one, and not run again.
    """
    agent = claim.terms.agent
    if claim.attempt == 1 or agent is None:
        return Start(claim.attempt)
    if agent.model is None:
        return _Programs(store, claim).anew() if _may_have_written(claim.terms) else Start(claim.attempt)
    models = _Models(store, claim)
    return (models.going_on() if claim.terms.on_takeover == "continue" else None) or models.anew()


def read_turns(store: TaskStore, turns: Sequence[TurnView]) -> list[StoredTurn]:
    """Turns with their bytes. Raises ``Damaged``, and ``ValueError`` for bytes that are no turn."""
    digests = [digest for turn in turns for digest in (turn.response_digest, turn.answers_digest) if digest is not None]
    stored = store.many_bytes_of(digests)
    return [
        StoredTurn.model_validate(
            {
                **json.loads(stored[turn.response_digest]),
                "answers": None if turn.answers_digest is None else json.loads(stored[turn.answers_digest]),
                "workspace_tree": turn.workspace_tree,
            }
        )
        for turn in turns
    ]


class _Past:
    """What the attempts before a claim's left."""

    def __init__(self, store: TaskStore, claim: Claim) -> None:
        self._store = store
        self._claim = claim
        earlier = store.earlier_of(claim) or Earlier((), (), ())
        self._attempts, self._turns = earlier.attempts, earlier.turns
        has_files = _may_have_written(claim.terms)
        self._operations: list[SentOperation] = [
            sent for sent in earlier.operations if has_files and _writes(claim.terms, sent.tool)
        ]

    def anew(self) -> Start:
        return self._start(self._claim.attempt, (), self._files_of(self._claim.attempt))

    def _files_of(self, attempt: int) -> Iterator[_Left]:
        """What an attempt that begins anew begins with; then what that was made from, and so on."""
        raise NotImplementedError

    def _start(self, conversation: int, turns: Sequence[StoredTurn], files: Iterable[_Left]) -> Start:
        needed = 0 if self._claim.terms.workspace == "none" else None if self._operations else 1
        left = list(islice(files, needed))
        written = frozenset(sent.key for sent in self._operations if sent.succeeded)
        missing = written.difference(*(item.holds for item in left))
        tree, tree_of = (left[0].tree, left[0].attempt) if left else (None, None)
        return Start(conversation, turns, tree, tree_of, missing, written)

    def _when_asked(self, attempt: EndedAttempt) -> str | None:
        """The files as they were when this attempt asked a person: the answer may be about just these."""
        assert attempt.manifest_digest is not None
        try:
            workspace = json.loads(self._store.bytes_of(attempt.manifest_digest)).get("workspace")
        except (Damaged, ValueError):
            return None
        if workspace is None or workspace["base_commit"] != self._claim.head:
            return None
        tree: str = workspace["candidate_tree"]
        return tree

    def _sent_by(self, attempt: int) -> frozenset[str]:
        return frozenset(sent.key for sent in self._operations if sent.attempt == attempt)


class _Programs(_Past):
    """Functions and scripts: they begin anew each time, and what they did outside is not done again."""

    def _files_of(self, attempt: int) -> Iterator[_Left]:
        since = min((ended.number for ended in self._attempts), default=attempt)
        done = [sent.attempt for sent in self._operations if sent.succeeded and sent.attempt >= since]
        for ended in self._attempts:
            if ended.number < attempt and _is_blocked(ended) and min(done, default=attempt) <= ended.number:
                tree = self._when_asked(ended)
                if tree is None:
                    return
                yield _Left(tree, ended.number, self._sent_by(ended.number))


class _Models(_Past):
    def going_on(self) -> Start | None:
        """In the last conversation, from its last finished turn; None where that cannot be had.

        A turn in which an operation was sent is not made again: that would be answered, and its files not be there.
        """
        if not self._turns:
            return None
        spoke = self._turns[-1].attempt
        turns = self._conversation(self._turns[-1].conversation)
        done = _finished(turns)
        if not self._is_of_this_head(turns) or done != turns[: len(done)] or len(turns) - len(done) > 1:
            return None
        left = self._left_after(done)
        if done and left is None and self._claim.terms.workspace != "none":
            return None
        if len(done) < len(turns) and self._sent_in(turns[-1:]):
            return None
        try:
            stored = read_turns(self._store, turns)
        except (Damaged, ValueError, KeyError):
            return None
        # What a model has ended by its own word it would end again.
        broken_off = any(ended.number == spoke and ended.word in BROKEN_OFF for ended in self._attempts)
        if broken_off and not _underway(stored[-1]):
            return None
        conversation = turns[0].conversation
        files = chain([left] if left is not None else [], self._files_of(conversation))
        return self._start(conversation, stored, files)

    def _files_of(self, attempt: int) -> Iterator[_Left]:
        while True:
            before = [turn for turn in self._turns if turn.attempt < attempt]
            turns = self._conversation(before[-1].conversation) if before else []
            if not turns or not self._is_of_this_head(turns):
                return
            done = _finished(turns)
            left = None
            # Under ``continue`` what was asked in a turn that is finished by now was asked in older files.
            if len(done) < len(turns) or self._claim.terms.on_takeover == "fresh":
                left = self._left_when_asked(range(before[-1].attempt, attempt), done)
            left = left or self._left_after(done)
            if left is not None:
                yield left
            elif done:
                return  # it could not be recorded
            attempt = turns[0].conversation

    def _left_when_asked(self, attempts: range, done: Sequence[TurnView]) -> _Left | None:
        """By the last of these that ended with a question: one that goes on with another's turn has none of its
        own."""
        asked = next((ended for ended in self._attempts if ended.number in attempts and _is_blocked(ended)), None)
        tree = self._when_asked(asked) if asked is not None else None
        if asked is None or tree is None:
            return None
        return _Left(tree, asked.number, self._sent_by(asked.number) | self._sent_in(done))

    def _left_after(self, done: Sequence[TurnView]) -> _Left | None:
        tree = done[-1].workspace_tree if done else None
        return None if tree is None else _Left(tree, done[-1].attempt, self._sent_in(done))

    def _conversation(self, number: int) -> list[TurnView]:
        return [turn for turn in self._turns if turn.conversation == number]

    def _is_of_this_head(self, turns: Sequence[TurnView]) -> bool:
        return all(turn.base_commit == self._claim.head for turn in turns)

    def _sent_in(self, turns: Sequence[TurnView]) -> frozenset[str]:
        places = {(turn.conversation, turn.number) for turn in turns}
        return frozenset(sent.key for sent in self._operations if turn_of_key(sent.key) in places)


def _may_have_written(terms: Terms) -> bool:
    """Whether there can be operations that have written into a workspace."""
    return may_leave_operations(terms) and terms.workspace != "none"


def _writes(terms: Terms, tool: str) -> bool:
    """Whether it may write into the workspace: a server that is reached by its address is elsewhere."""
    server = mcp_server_of(tool)
    return server is None or server not in terms.mcp_servers or terms.mcp_servers[server].command is not None


def _is_blocked(attempt: EndedAttempt) -> bool:
    return attempt.word == "blocked" and attempt.manifest_digest is not None


def _finished(turns: Sequence[TurnView]) -> list[TurnView]:
    return [turn for turn in turns if turn.answers_digest is not None]


def _underway(turn: StoredTurn) -> bool:
    names = {call.name for call in turn.response.calls}
    return bool(names) and "submit_result" not in names
