"""Every call of a child is checked against its grant here, run, observed and recorded."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from agents.broker.arguments import argument_faults
from agents.broker.diffs import changed_paths, workspace_diff
from agents.broker.editing import edited
from agents.broker.errors import ToolRefused
from agents.broker.folder import LINK, Folder
from agents.broker.mcp_tools import ToolServers
from agents.broker.outside import COMMAND_TIMEOUT_S, Outside
from agents.broker.searching import Expression
from contracts.canonical import digest_of, sha256_digest, well_formed
from contracts.model_specs import mcp_server_of
from contracts.ports import (
    ChildEnd,
    Clock,
    CommandRunner,
    Delegator,
    Inbox,
    Operations,
    SourceFile,
    SourceReader,
    Standing,
    ToolCall,
)
from contracts.results import ProcessRecord
from contracts.scopes import in_scope, matches
from contracts.terms import Resources
from contracts.tools import AWAIT_CHILDREN, TOOLS, Tool, arguments_of

__all__ = ["Broker", "Seen"]

SEARCHED_FILE_BYTES_MAX = 1_000_000
MATCHES_MAX = 10_000
RECORDED_CHARS_MAX = 1_000
NEEDS_APPROVAL = (
    " [each call needs a person's yes to exactly that call with the files as they are: the work rests until it is "
    "answered, then make the same call again]"
)


@dataclass(slots=True)
class Seen:
    """What a call that went well has shown: ``digest`` of its result, and path -> digest of the files it served.

    ``key``: names the call for ever, where the caller knows a name.
    """

    key: str | None = None
    digest: str | None = None
    served: dict[str, str] = field(default_factory=dict)


class _Tree(Protocol):
    def files(self) -> Sequence[SourceFile]: ...
    def read_bytes(self, path: str) -> bytes: ...


class Broker:
    """Implements ``contracts.ports.Tools`` for one attempt.

    Without a ``workspace`` the reading tools show the pinned tree of ``reader``. With one they show it as it is now,
    the child's own changes included, and ``reader`` is the base that ``git_diff`` compares with.

    ``on_call`` is told of each call when it is over. Calls that are refused or fail are recorded too.
    """

    def __init__(
        self,
        resources: Resources,
        reader: SourceReader | None,
        *,
        clock: Clock,
        workspace: Path | None = None,
        on_call: Callable[[ToolCall], None] = lambda call: None,
        runner: CommandRunner | None = None,
        operations: Operations | None = None,
        inbox: Inbox | None = None,
        delegator: Delegator | None = None,
        servers: ToolServers | None = None,
    ) -> None:
        """Raises ``ToolRefused`` when ``workspace`` is not a folder."""
        house = {name: tool for name, tool in TOOLS.items() if name in resources.tools}
        if "delegate" in house:
            house[AWAIT_CHILDREN.name] = AWAIT_CHILDREN
        if "run_command" in house:
            house["run_command"] = _with_commands(house["run_command"], resources.commands)
        self._granted: Mapping[str, Tool | None] = {
            **house,
            **{name: None for name in resources.tools if mcp_server_of(name)},  # their servers know the rest
        }
        self._outside = Outside(
            resources, clock=clock, runner=runner, operations=operations, inbox=inbox, delegator=delegator,
            servers=servers, standing=self._standing if workspace is not None else None,
        )  # fmt: skip
        self._needs_approval = frozenset(resources.needs_approval)
        self._read_scope = resources.read_scope
        self._write_scope = resources.write_scope
        self._base = reader
        self._folder = Folder(workspace) if workspace is not None else None
        self._clock = clock
        self._on_call = on_call
        self._lock = threading.Lock()
        self._calls: list[ToolCall] = []
        self._read: dict[str, str] = {}
        self._shown_by: dict[str, list[int]] = {}
        self._bodies: Mapping[str, Callable[..., Any]] = {
            "list_files": self._list_files,
            "read_file": self._read_file,
            "search_code": self._search_code,
            "write_file": self._write_file,
            "edit_file": self._edit_file,
            "git_diff": self._git_diff,
            "run_command": self._run_command,
            "request_approval": self._request_approval,
            "delegate": self._delegate,
            "await_children": self._await_children,
        }

    def start_calls_anew(self, since_attempt: int) -> None:
        """The result of this attempt was sent back: what was done outside until then may be done again."""
        self._outside.since_attempt = since_attempt

    def limit_time(self, time_left_s: Callable[[], float]) -> None:
        """Programs and servers are waited for no longer than this says, whatever a call asks for."""
        self._outside.time_left_s = time_left_s

    def offered(self) -> list[dict[str, Any]]:
        """``[{name, description, input_schema}]`` of the granted tools. Starts the servers that some of them need.

        Raises ``ServerFailed``, or ``ToolRefused`` where servers cannot be used at all.
        """
        offered = [
            {"name": name, "description": tool.summary, "input_schema": arguments_of(tool)}
            if tool is not None
            else self._outside.servers_for(name).tools()[name].document()
            for name, tool in self._granted.items()
        ]
        for tool in offered:
            if tool["name"] in self._needs_approval:
                tool["description"] = f"{tool['description']}{NEEDS_APPROVAL}"
        return offered

    def processes(self) -> Sequence[ProcessRecord]:
        """The programs that ``run_command`` ran, and saw the end of."""
        return tuple(self._outside.processes)

    def calls(self) -> Sequence[ToolCall]:
        with self._lock:
            return tuple(self._calls)

    def read_set(self) -> dict[str, str]:
        """path -> digest of every file whose content was served, as it was when it was last served."""
        with self._lock:
            return dict(self._read)

    def shown_by(self) -> dict[str, list[int]]:
        """path -> numbers of the calls that served content of it."""
        with self._lock:
            return {path: list(numbers) for path, numbers in self._shown_by.items()}

    def list_files(self, pattern: str = "**") -> list[str]:
        paths: list[str] = self.call("list_files", {"pattern": pattern})
        return paths

    def read_file(self, path: str) -> str:
        text: str = self.call("read_file", {"path": path})
        return text

    def search_code(self, pattern: str, glob: str = "**") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("search_code", {"pattern": pattern, "glob": glob})
        return found

    def write_file(self, path: str, text: str) -> None:
        self.call("write_file", {"path": path, "text": text})

    def edit_file(self, path: str, old: str, new: str) -> None:
        self.call("edit_file", {"path": path, "old": old, "new": new})

    def git_diff(self) -> str:
        diff: str = self.call("git_diff", {})
        return diff

    def run_command(self, command: Sequence[str], timeout_s: float | None = None) -> tuple[int | None, str]:
        limit = {} if timeout_s is None else {"timeout_s": timeout_s}
        end: tuple[int | None, str] = self.call("run_command", {"command": list(command), **limit})
        return end

    def request_approval(self, question: str) -> tuple[bool, str]:
        answer: tuple[bool, str] = self.call("request_approval", {"question": question})
        return answer

    def delegate(self, delegation_id: str, objective: str, terms: Mapping[str, Any] | None = None) -> str:
        said = {"delegation_id": delegation_id, "objective": objective}
        task_id: str = self.call("delegate", said if terms is None else {**said, "terms": dict(terms)})
        return task_id

    def await_children(self, delegation_ids: Sequence[str]) -> list[ChildEnd]:
        ends: list[ChildEnd] = self.call("await_children", {"delegation_ids": list(delegation_ids)})
        return ends

    def call_tool(self, name: str, arguments: Mapping[str, Any]) -> str:
        if not mcp_server_of(name):
            raise ToolRefused(f"{name!r:.100} names no tool of a server: mcp__SERVER__TOOL does")
        text: str = self.call(name, arguments)
        return text

    def call(self, name: str, arguments: Mapping[str, Any], key: str | None = None) -> Any:
        """A tool by its name, as a model calls it. Neither the name nor the arguments need make sense.

        ``key`` names this very call of the task for ever, for a caller that makes it again after a takeover.

        Raises ``ToolRefused``, or ``OSError`` where a file is missing or cannot be used; ``Unanswered``,
        ``ServerFailed``, ``OutcomeUnknown``, and what the ports raise.
        """
        with self.recorded(name, arguments) as seen:
            seen.key = key
            if name not in self._granted:
                granted = ", ".join(self._granted) or "none"
                if name in TOOLS or name == AWAIT_CHILDREN.name:
                    raise ToolRefused(f"the contract does not grant the tool {name} (granted: {granted})")
                raise ToolRefused(f"no tool is called {name!r:.100} (granted: {granted})")
            tool = self._granted[name]
            if tool is None:
                return self._call_server(seen, name, arguments)
            faults = argument_faults(arguments_of(tool), arguments)
            if faults:
                raise ToolRefused(f"the arguments of {name} are wrong: {'; '.join(faults)}")
            return self._bodies[name](seen, **arguments)

    @contextmanager
    def recorded(self, tool: str, arguments: object) -> Iterator[Seen]:
        """Record what happens inside as one call. This is the one place that does.

        Only what a call has served that went well counts as read.
        """
        seen = Seen()
        error: str | None = None
        try:
            yield seen
        except BaseException as problem:
            error = well_formed(f"{type(problem).__name__}: {problem}")[:500]
            raise
        finally:
            name = well_formed(tool)[:100]
            with self._lock:
                number = len(self._calls) + 1
                digest = seen.digest if error is None else None
                call = ToolCall(number, name, _recordable(arguments), error is None, self._clock(), digest, error)
                self._calls.append(call)
                if error is None:
                    for path, read_digest in seen.served.items():
                        self._read[path] = read_digest
                        self._shown_by.setdefault(path, []).append(number)
            self._on_call(call)

    def _list_files(self, seen: Seen, pattern: str = "**") -> list[str]:
        paths = [file.path for file in self._files() if matches(pattern, file.path)]
        seen.digest = digest_of([well_formed(path) for path in paths])
        return paths

    def _read_file(self, seen: Seen, path: str) -> str:
        data = self._content(path)
        seen.digest = sha256_digest(data)
        seen.served[path] = seen.digest
        return data.decode("utf-8", "replace")

    def _search_code(self, seen: Seen, pattern: str, glob: str = "**") -> list[dict[str, Any]]:
        wanted = Expression(pattern)
        found: list[dict[str, Any]] = []
        for file in self._files():
            if not matches(glob, file.path) or file.mode == LINK or file.size_bytes > SEARCHED_FILE_BYTES_MAX:
                continue
            try:
                data = self._content(file.path)
            except FileNotFoundError:
                continue  # removed from the workspace meanwhile
            lines = wanted.matching_lines(file.path, data)
            if lines:
                found += lines
                seen.served[file.path] = sha256_digest(data)
            if len(found) > MATCHES_MAX:
                raise ToolRefused(f"search_code: more than {MATCHES_MAX} matches; narrow the pattern or the glob")
        seen.digest = digest_of(found)
        return found

    def _write_file(self, seen: Seen, path: str, text: str) -> None:
        folder = self._writable("write_file", path)
        try:
            data = text.encode()
        except UnicodeEncodeError:
            raise ToolRefused("the text holds half a surrogate pair, which no file can hold") from None
        folder.write(path, data)
        seen.digest = sha256_digest(data)

    def _edit_file(self, seen: Seen, path: str, old: str, new: str) -> None:
        folder = self._writable("edit_file", path)
        # Whether a text is there tells what is there.
        data = edited(self._content(path), old, new)
        folder.write(path, data)
        seen.digest = sha256_digest(data)

    def _git_diff(self, seen: Seen) -> str:
        folder = self._workspace("git_diff")
        if self._base is None:
            raise ToolRefused("this workspace has no base to compare with")
        diff = workspace_diff(self._base, folder, lambda path: in_scope(self._read_scope, path))
        seen.digest = sha256_digest(diff.encode())
        return diff

    def _run_command(
        self, seen: Seen, command: Sequence[str], timeout_s: float = COMMAND_TIMEOUT_S
    ) -> tuple[int | None, str]:
        self._workspace("run_command")
        end = self._outside.run_command(seen.key, command, timeout_s)
        seen.digest = sha256_digest(end[1].encode())
        return end

    def _request_approval(self, seen: Seen, question: str) -> tuple[bool, str]:
        approved, message = self._outside.request_approval(question)
        seen.digest = digest_of([approved, well_formed(message)])
        return approved, message

    def _delegate(self, seen: Seen, delegation_id: str, objective: str, terms: Mapping[str, Any] | None = None) -> str:
        task_id = self._outside.delegate(delegation_id, objective, terms)
        seen.digest = digest_of(task_id)
        return task_id

    def _await_children(self, seen: Seen, delegation_ids: Sequence[str]) -> list[ChildEnd]:
        ends = self._outside.await_children(delegation_ids)
        seen.digest = digest_of([asdict(end) for end in ends])
        return ends

    def _call_server(self, seen: Seen, name: str, arguments: object) -> str:
        faults = argument_faults(self._outside.servers_for(name).tools()[name].checked_schema, arguments)
        if faults:
            raise ToolRefused(f"the arguments of {name} are wrong: {'; '.join(faults)}")
        assert isinstance(arguments, Mapping)
        text = self._outside.call_server(seen.key, name, arguments)
        seen.digest = sha256_digest(text.encode())
        return text

    def _standing(self) -> Standing:
        assert self._folder is not None
        changed = changed_paths(self._base, self._folder) if self._base is not None else []
        return Standing(self._folder.digest(), [well_formed(path) for path in changed])

    def _tree(self) -> _Tree:
        tree = self._folder or self._base
        if tree is None:
            raise ToolRefused("this run has no source to read: give the orchestration a 'source'")
        return tree

    def _files(self) -> list[SourceFile]:
        return [file for file in self._tree().files() if in_scope(self._read_scope, file.path)]

    def _content(self, path: str) -> bytes:
        tree = self._tree()
        if not in_scope(self._read_scope, path):
            raise ToolRefused(f"{path!r:.300} is outside the read scope {self._read_scope}")
        return tree.read_bytes(path)

    def _workspace(self, tool: str) -> Folder:
        if self._folder is None:
            raise ToolRefused(f"{tool} needs a workspace, and this task has none: write 'workspace: clone'")
        return self._folder

    def _writable(self, tool: str, path: str) -> Folder:
        folder = self._workspace(tool)
        if not in_scope(self._write_scope, path):
            raise ToolRefused(f"{path!r:.300} is outside the write scope {self._write_scope}")
        return folder


def _with_commands(tool: Tool, commands: Sequence[Sequence[str]]) -> Tool:
    """What a model has to know to call it right."""
    granted = "; ".join(json.dumps(words) for words in commands)
    return tool._replace(summary=f"{tool.summary}; a command begins with exactly the words of one of these: {granted}")


def _recordable(arguments: object) -> dict[str, Any]:
    """Arguments as the record keeps them.

    A long one becomes its digest, never a piece of it: half a secret would not be found, and so not be redacted.
    """
    if not isinstance(arguments, Mapping):
        return {"arguments": _short(arguments)}
    return {well_formed(str(key))[:100]: _short(value) for key, value in arguments.items()}


def _short(value: object) -> str:
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return f"[a {type(value).__name__} that is not JSON]"
    text = well_formed(text)
    if len(text) <= RECORDED_CHARS_MAX:
        return text
    return f"[{len(text)} characters, {sha256_digest(text.encode())}]"
