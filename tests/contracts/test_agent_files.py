"""Agents in Markdown files: what real ones hold is read, and what could silently change their reach is refused."""

from __future__ import annotations

import pytest

from contracts.agent_files import AgentFile, parse_agent_file
from contracts.errors import BadInput

REAL = """\
---
name: code-reviewer
description: Use this agent when code is there. Examples: <example>Context: user: "hi" # no\\nassistant: 'x'</example>
tools: Read, Grep, Glob, Bash, WebFetch, mcp__github__get_issue
model: inherit
color: red
permissionMode: acceptEdits
hooks: {PreToolUse: [{matcher: Bash}]}
---

You are a senior reviewer.

---
Be kind.
"""


def parse(text: str) -> AgentFile:
    return parse_agent_file(text.encode(), file="agents/a.md")


def refused(text: str) -> list[str]:
    with pytest.raises(BadInput) as wrong:
        parse(text)
    return [str(fault) for fault in wrong.value.faults]


def head(**fields: str) -> str:
    lines = {"name": "a", "description": "d", **fields}
    return "---\n" + "".join(f"{key}: {value}\n" for key, value in lines.items()) + "---\nDo it.\n"


def test_a_file_as_people_have_it_is_read() -> None:
    agent = parse(REAL)
    assert (agent.name, agent.model, agent.denied) == ("code-reviewer", None, [])
    assert agent.tools == ["Read", "Grep", "Glob", "Bash", "WebFetch", "mcp__github__get_issue"]
    assert agent.instructions == "You are a senior reviewer.\n\n---\nBe kind."
    assert agent.without_counterpart() == ["WebFetch"]
    assert agent.wanted() == ["read_file", "search_code", "list_files", "run_command"]


@pytest.mark.parametrize(
    ("tools", "allowed", "barred"),
    [
        ("Read", ["read_file"], ["search_code", "write_file", "run_command", "mcp__a__x", "delegate"]),
        ("[Grep, Glob]", ["search_code", "list_files"], ["read_file"]),
        ("Edit, Write", ["edit_file", "write_file", "git_diff"], ["read_file", "run_command"]),
        ("Bash", ["run_command"], ["write_file"]),
        ("Task", ["delegate"], ["run_command"]),
        ("'*'", ["read_file", "run_command", "mcp__a__x"], []),
        ("mcp__a__x", ["mcp__a__x"], ["mcp__a__xy", "mcp__b__x", "read_file"]),
        ("mcp__a", ["mcp__a__x", "mcp__a__y"], ["mcp__ab__x"]),
        ("mcp__a__*", ["mcp__a__x"], ["mcp__b__x"]),
        ("[]", [], ["read_file"]),
    ],
)
def test_its_tools_are_those_that_do_the_same_work_here(tools: str, allowed: list[str], barred: list[str]) -> None:
    agent = parse(head(tools=tools))
    assert [agent.allows(tool) for tool in allowed] == [True] * len(allowed)
    assert [agent.allows(tool) for tool in barred] == [False] * len(barred)


def test_without_a_list_it_has_all_tools_but_those_that_it_is_denied() -> None:
    agent = parse(head(disallowedTools="Write, Bash"))
    assert agent.tools is None
    assert [agent.allows(tool) for tool in ("read_file", "edit_file", "write_file", "run_command")] == [
        True, True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(("said", "model"), [("claude-x-1", "claude-x-1"), ("sonnet", None), ("inherit", None)])
def test_only_an_id_is_a_model(said: str, model: str | None) -> None:
    assert parse(head(model=said)).model == model
    assert parse(head()).model is None


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_files_of_other_systems_are_read(newline: str, mark: str) -> None:
    assert parse(mark + head().replace("\n", newline)).instructions == "Do it."


def test_a_description_over_several_lines_is_read() -> None:
    assert parse(head(description="|\n  one: two\n  three")).name == "a"
    assert parse(head(description=">-\n  one: two")).name == "a"
    assert parse(head(description="one\n  and two")).name == "a"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (head(tools="Raed"), "agents/a.md:4:8: tools: no tool is called 'Raed', did you mean 'Read'?"),
        (head(tools="read"), "agents/a.md:4:8: tools: no tool is called 'read', did you mean 'Read'?"),
        (head(tools="Read Grep"), "agents/a.md:4:8: tools: no tool is called 'Read Grep'"),
        (head(disallowedTools="Bahs"), "agents/a.md:4:18: disallowedTools: no tool is called 'Bahs'"),
        (head(tools="Bash(git diff:*)"), "agents/a.md:4:8: tools: 'Bash(git diff:*)' restricts a tool"),
        (head(tools="{Read: true}"), "agents/a.md:4:8: tools: "),
        (head(model="7"), "agents/a.md:4:8: model: 7 is not text"),
        ("---\nname: a\n---\nDo it.", "agents/a.md:2:1: description: required field is missing"),
        ("---\nname: a\nname: b\ndescription: d\n---\nDo it.", "agents/a.md:3:1: "),
        ("---\nname: *x\ndescription: d\n---\nDo it.", "agents/a.md:2:7: "),
        ("name: a\n", "agents/a.md:1:1: has no front matter"),
        ("---\nname: a\ndescription: d\n", "agents/a.md:1:1: has no front matter"),
        ("---\n---\nDo it.", "agents/a.md:"),
        ("", "agents/a.md:1:1: has no front matter"),
        ("---\nname: a\ndescription: d\n---\n\n", "agents/a.md: has no instructions"),
    ],
)
def test_what_cannot_be_meant_is_named_where_it_stands(text: str, fault: str) -> None:
    [found] = refused(text)
    assert found.startswith(fault), found


def test_every_misspelt_tool_is_named_at_once_and_bytes_that_are_no_text_are_refused() -> None:
    assert len(refused(head(tools="Raed, Grpe", disallowedTools="Wrtie"))) == 3
    with pytest.raises(BadInput, match="not UTF-8"):
        parse_agent_file(b"---\nname: \xff\n", file="a.md")
