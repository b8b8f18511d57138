"""Agents defined in Markdown files as Claude Code keeps them: front matter that says what, then the instructions."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict

from contracts.base import Name
from contracts.documents import parse_document, validate
from contracts.errors import BadInput, Fault

__all__ = ["AgentFile", "parse_agent_file"]

TOOLS_HERE: Final[dict[str, tuple[str, ...]]] = {
    "Read": ("read_file",),
    "Grep": ("search_code",),
    "Glob": ("list_files",),
    "LS": ("list_files",),
    "Edit": ("edit_file", "git_diff"),
    "MultiEdit": ("edit_file", "git_diff"),
    "Write": ("write_file", "git_diff"),
    "Bash": ("run_command", "git_diff"),
    "Agent": ("delegate",),
    "Task": ("delegate",),
    "AskUserQuestion": ("request_approval",),
}
"""Claude Code's tools and what does their work here."""

NOT_HERE: Final = frozenset(
    [
        "BashOutput",
        "CronCreate",
        "CronDelete",
        "CronList",
        "EnterPlanMode",
        "EnterWorktree",
        "ExitPlanMode",
        "ExitWorktree",
        "KillBash",
        "KillShell",
        "ListMcpResourcesTool",
        "LSP",
        "Monitor",
        "NotebookEdit",
        "NotebookRead",
        "PowerShell",
        "ReadMcpResourceTool",
        "SendMessage",
        "Skill",
        "SlashCommand",
        "TaskCreate",
        "TaskGet",
        "TaskList",
        "TaskOutput",
        "TaskStop",
        "TaskUpdate",
        "TodoRead",
        "TodoWrite",
        "ToolSearch",
        "WebFetch",
        "WebSearch",
    ]
)
"""Claude Code's tools that have no counterpart."""

ALIASES: Final = ("inherit", "sonnet", "opus", "haiku", "default", "best", "opusplan")
"""Models that depend on who reads the file: no id that could be pinned."""

_DESCRIPTION = re.compile(r"^description:[ \t]+(?![\"'|>\[{])(.*\S)[ \t]*$(?!\n[ \t]+\S)", re.MULTILINE)


def _listed(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


ToolList = Annotated[list[str] | None, BeforeValidator(_listed)]


class _Head(BaseModel):
    """What is read of the front matter; Claude Code ignores other keys too."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    name: Name
    description: str
    tools: ToolList = None
    disallowedTools: ToolList = None  # noqa: N815
    model: Name | None = None


class AgentFile(BaseModel):
    """``model``: an id, None where the file leaves that to its reader. ``tools``: by Claude Code's names; None: all."""

    model_config = ConfigDict(frozen=True)

    name: str
    model: str | None
    tools: list[str] | None
    denied: list[str]
    instructions: str

    def allows(self, tool: str) -> bool:
        """Whether a tool of the house, or of a server, is among the file's."""
        return (self.tools is None or _covers(self.tools, tool)) and not _covers(self.denied, tool)

    def without_counterpart(self) -> list[str]:
        """Tools that the file asks for and nobody has here."""
        return [name for name in self.tools or () if name in NOT_HERE]

    def wanted(self) -> list[str]:
        """The tools of the house that the file asks for by name."""
        return list(dict.fromkeys(TOOLS_HERE[name][0] for name in self.tools or () if name in TOOLS_HERE))


def _covers(names: Iterable[str], tool: str) -> bool:
    return any(
        name in ("*", tool) or tool in TOOLS_HERE.get(name, ()) or (name.startswith("mcp__") and _of_server(name, tool))
        for name in names
    )


def _of_server(name: str, tool: str) -> bool:
    """``mcp__server`` and ``mcp__server__*`` mean all tools of a server."""
    server = name.removesuffix("__*")
    return (server != name or name.count("__") == 1) and tool.startswith(f"{server}__")


def parse_agent_file(data: bytes, *, file: str) -> AgentFile:
    """Read an agent's file. Raises ``BadInput`` with every fault and its place.

    Strict but for one thing: a description on one line may hold what YAML would trip over, as many of these do.
    """
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise BadInput([Fault("", f"is not UTF-8: {error.reason}", "save it as UTF-8", file)]) from None
    match = re.match(r"---[ \t]*\n(.*?\n)?---[ \t]*(?:\n|\Z)", text, re.DOTALL)
    if match is None:
        hint = "begin it with '---', then name, description, tools and model, then '---' and the instructions"
        raise BadInput([Fault("", "has no front matter", hint, file, 1, 1)])
    head = _DESCRIPTION.sub(lambda found: f"description: {json.dumps(found[1], ensure_ascii=False)}", match[1] or "")
    # An empty line in place of the first '---' keeps the numbers of lines.
    document = parse_document("\n" + head, file=file, format="yaml")
    read = validate(_Head, document)
    faults = []
    for key, names in (("tools", read.tools), ("disallowedTools", read.disallowedTools)):
        faults += [document.locate(Fault(key, *wrong)) for name in names or () if (wrong := _tool_fault(name))]
    instructions = text[match.end() :].strip()
    if not instructions:
        faults.append(Fault("", "has no instructions after its front matter", "write what the agent shall do", file))
    if faults:
        raise BadInput(faults)
    model = None if read.model in ALIASES else read.model
    return AgentFile(
        name=read.name, model=model, tools=read.tools, denied=read.disallowedTools or [], instructions=instructions
    )


def _tool_fault(name: str) -> tuple[str, str] | None:
    """Why a tool's name in the file cannot be taken; a misspelt one must not silently leave the agent without it."""
    if name == "*" or name in TOOLS_HERE or name in NOT_HERE or re.fullmatch(r"mcp__[A-Za-z0-9_*-]+", name):
        return None
    plain, bracket, _ = name.partition("(")
    if bracket and plain in TOOLS_HERE:
        hint = f"write {plain}, and what it may do into the task's resources: commands, read_scope, write_scope"
        return f"{name[:80]!r} restricts a tool in a way that is not known here", hint
    known = {other.lower(): other for other in (*TOOLS_HERE, *NOT_HERE)}
    near = difflib.get_close_matches(name[:80].lower(), known, n=1, cutoff=0.5)
    hint = f"did you mean {known[near[0]]!r}?" if near else f"known: {', '.join(TOOLS_HERE)}"
    return f"no tool is called {name[:80]!r}", hint
