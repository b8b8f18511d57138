"""What a child may do beyond its tree: run programs, ask people, delegate, call servers. Each goes through a port."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from agents.broker.errors import OutcomeUnknown, ToolRefused, Unanswered
from agents.broker.mcp_tools import ToolServers
from contracts.canonical import digest_of, sha256_digest, well_formed
from contracts.errors import OperationUnsettled
from contracts.ports import ChildEnd, Clock, CommandRunner, Delegator, Inbox, Operations, Standing
from contracts.results import ProcessRecord
from contracts.terms import Resources

__all__ = ["Outside"]

COMMAND_TIMEOUT_S = 600.0
COMMAND_WORDS_MAX = 1_000
COMMAND_CHARS_MAX = 100_000
QUESTION_CHARS_MAX = 4_000
TAIL_CHARS = 1_000
FILES_MISSING = "[done by an earlier attempt: what it wrote into the workspace is not here]"

T = TypeVar("T")


class Outside:
    """The bodies of these tools for one attempt; a tool without its port is refused by name. Safe from threads."""

    def __init__(
        self,
        resources: Resources,
        *,
        clock: Clock,
        runner: CommandRunner | None,
        operations: Operations | None,
        inbox: Inbox | None,
        delegator: Delegator | None,
        servers: ToolServers | None,
        standing: Callable[[], Standing] | None,
    ) -> None:
        """``standing``: how the workspace is now; None: there is none."""
        self._commands = resources.commands
        self._declared = resources.effects == "declared"
        self._needs_approval = frozenset(resources.needs_approval)
        self._standing = standing
        self._clock = clock
        self._runner = runner
        self._operations = operations
        self._inbox = inbox
        self._delegator = delegator
        self._servers = servers
        self._lock = threading.Lock()
        self._made: Counter[str] = Counter()
        self.since_attempt = 0
        """The attempt whose result was sent back last: what was done before it may be done again."""
        self.processes: list[ProcessRecord] = []
        self.time_left_s: Callable[[], float] = lambda: math.inf

    def run_command(
        self, key: str | None, command: Sequence[str], timeout_s: float = COMMAND_TIMEOUT_S
    ) -> tuple[int | None, str]:
        words = list(command)
        if not any(words[: len(granted)] == granted for granted in self._commands):
            granted = "; ".join(json.dumps(words) for words in self._commands) or "none"
            raise ToolRefused(f"no granted command begins as {json.dumps(words)[:500]} does (granted: {granted})")
        if len(words) > COMMAND_WORDS_MAX or sum(map(len, words)) > COMMAND_CHARS_MAX:
            raise ToolRefused(f"a command has at most {COMMAND_WORDS_MAX:,} words of {COMMAND_CHARS_MAX:,} characters")
        if any("\0" in word or well_formed(word) != word for word in words):
            raise ToolRefused("no argument can hold a zero byte or half a surrogate pair")
        runner = _present(self._runner, "run_command", "runs programs")
        _refuse_on_a_loop("run_command")
        time_left_s = self._time_for("run_command")

        def send() -> str:
            started_at, started_s = self._clock().isoformat(), time.monotonic()
            exit_status, output = runner(words, min(timeout_s, time_left_s))
            output = well_formed(output)
            record = ProcessRecord(
                argv=words, how="exited" if exit_status is not None else "killed", exit_status=exit_status,
                signal=None, all_gone=True, left_behind=0, started_at=started_at,
                elapsed_s=round(time.monotonic() - started_s, 3), stdout_digest=sha256_digest(output.encode()),
                stderr_digest=sha256_digest(b""), output_tail=output[-TAIL_CHARS:],
            )  # fmt: skip
            with self._lock:
                self.processes.append(record)
            return json.dumps([exit_status, output], ensure_ascii=False)

        said, note = self._done(key, "run_command", {"command": words, "timeout_s": timeout_s}, send)
        try:
            exit_status, output = json.loads(said)
        except (ValueError, TypeError):
            exit_status, output = None, said  # in the words of the person who settled it
        return exit_status, _noted(output, note)

    def request_approval(self, question: str) -> tuple[bool, str]:
        if not question.strip() or len(question) > QUESTION_CHARS_MAX or well_formed(question) != question:
            raise ToolRefused(f"a question is text of at most {QUESTION_CHARS_MAX:,} characters, and is not empty")
        answer = _present(self._inbox, "request_approval", "asks people").answer_to(question)
        if answer is None:
            raise Unanswered(question)
        return answer

    def delegate(self, delegation_id: str, objective: str, terms: Mapping[str, Any] | None = None) -> str:
        if terms is not None and "objective" in terms:
            raise ToolRefused("terms.objective: the objective is an argument of its own")
        delegator = _present(self._delegator, "delegate", "delegates")
        return delegator.delegate(delegation_id, {**(terms or {}), "objective": objective})

    def await_children(self, delegation_ids: Sequence[str]) -> list[ChildEnd]:
        delegator = _present(self._delegator, "await_children", "delegates")
        _refuse_on_a_loop("await_children")
        return list(delegator.wait(delegation_ids, self._time_for("await_children")))

    def call_server(self, key: str | None, name: str, arguments: Mapping[str, Any]) -> str:
        servers = self.servers_for(name)
        _refuse_on_a_loop(name)
        time_left_s = self._time_for(name)
        return _noted(*self._done(key, name, arguments, lambda: servers.call(name, arguments, time_left_s)))

    def servers_for(self, name: str) -> ToolServers:
        return _present(self._servers, name, "talks to servers of tools")

    def _time_for(self, tool: str) -> float:
        left_s = self.time_left_s()
        if left_s <= 0:
            raise ToolRefused(f"no time is left for {tool}: hand in what there is")
        return left_s

    def _done(
        self, key: str | None, tool: str, arguments: Mapping[str, Any], send: Callable[[], str]
    ) -> tuple[str, str]:
        """Sent at once; where effects are declared, as an operation, whose first outcome is found again by its key.

        With what has to be said about it.
        """
        if not self._declared and tool not in self._needs_approval:
            return send(), ""
        operations = _present(self._operations, tool, "records operations")

        def sent() -> str:
            try:
                return send()
            except OutcomeUnknown as error:
                raise OperationUnsettled(str(error)) from error

        key = key or self._key_of(tool, arguments)
        said = operations.run(key, tool, arguments, sent, self._standing)
        return said, FILES_MISSING if operations.files_are_missing(key) else ""

    def _key_of(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """For a program that begins anew in each attempt: the same call, the same time it is made.

        Not its number among all calls: an answer or another order would make that the number of some other call.
        """
        call = f"{self.since_attempt}:{digest_of([tool, dict(arguments)]).removeprefix('sha256:')[:32]}"
        with self._lock:
            self._made[call] += 1
            return f"{call}:{self._made[call]}"


def _noted(text: str, note: str) -> str:
    return "\n".join(part for part in (text.removesuffix("\n"), note) if part) if note else text


def _refuse_on_a_loop(tool: str) -> None:
    """What it waits for may need the very loop that it would hold up."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ToolRefused(f"{tool} takes its time: call it by 'await asyncio.to_thread(…)'")


def _present(port: T | None, tool: str, does: str) -> T:
    if port is None:
        raise ToolRefused(f"{tool} is granted, but nothing here {does} for this child")
    return port
