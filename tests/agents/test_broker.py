"""The broker: what is not granted is refused, everything is recorded, and only what was served counts as read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from contracts.canonical import sha256_digest
from contracts.ports import SourceFile, ToolCall
from contracts.terms import Resources
from coordinator.runtimes import load_agents

load_agents()
from agents.broker import Broker, ToolRefused  # noqa: E402 - found once it is loaded

FILES = {
    "docs/guide.md": b"# Guide\nsee pay()\n",
    "src/pay.py": b"def pay():\n    return legacy_state\n",
    "src/raw.bin": b"\0legacy_state\0",
    "src/odd.txt": b"caf\xe9 legacy_state\n",
    "secret/key.txt": b"legacy_state hidden\n",
}
ALL = ["list_files", "read_file", "search_code"]


class Reader:
    """A pinned tree in memory."""

    def files(self) -> Sequence[SourceFile]:
        return [SourceFile(path, "100644", len(data), "0" * 40) for path, data in sorted(FILES.items())]

    def read_bytes(self, path: str) -> bytes:
        try:
            return FILES[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def close(self) -> None: ...


def broker(tools: list[str], scope: list[str] | None = None, **more: Any) -> Broker:
    resources = Resources.model_validate({"tools": tools, "read_scope": scope or ["src/**", "docs/**"]})
    return Broker(resources, Reader(), clock=lambda: datetime(2026, 3, 1, tzinfo=UTC), **more)


CALLS: dict[str, Any] = {
    "list_files": lambda tools: tools.list_files(),
    "read_file": lambda tools: tools.read_file("src/pay.py"),
    "search_code": lambda tools: tools.search_code("legacy"),
}


@pytest.mark.parametrize("tool", ALL)
def test_a_tool_that_is_not_granted_is_refused_and_the_call_is_recorded(tool: str) -> None:
    tools = broker([other for other in ALL if other != tool])
    with pytest.raises(ToolRefused, match=f"does not grant the tool {tool}"):
        CALLS[tool](tools)
    (call,) = tools.calls()
    assert (call.number, call.tool, call.ok, call.result_digest) == (1, tool, False, None)
    assert "does not grant" in (call.error or "")
    assert tools.read_set() == {}


@pytest.mark.parametrize("tool", ALL)
def test_a_granted_tool_works_alone(tool: str) -> None:
    tools = broker([tool])
    assert CALLS[tool](tools)
    (call,) = tools.calls()
    assert (call.tool, call.ok, call.error) == (tool, True, None)
    assert call.result_digest is not None


def test_without_any_grant_the_refusal_says_so() -> None:
    with pytest.raises(ToolRefused, match=r"granted: none"):
        broker([]).list_files()


@pytest.mark.parametrize(
    "path",
    [
        "secret/key.txt", "src/../secret/key.txt", "../src/pay.py", "/etc/passwd", "/src/pay.py", "./src/pay.py",
        "src//pay.py", "src/pay.py/", "", ".", "..", "src", "src\\pay.py", "src/pay.py\0", "SRC/pay.py",
    ],
)  # fmt: skip
def test_what_is_not_exactly_a_path_in_the_read_scope_is_not_read(path: str) -> None:
    tools = broker(ALL)
    with pytest.raises((ToolRefused, FileNotFoundError)):
        tools.read_file(path)
    assert [call.ok for call in tools.calls()] == [False]
    assert tools.read_set() == {}


def test_lists_and_searches_stay_in_the_read_scope() -> None:
    tools = broker(ALL)
    assert tools.list_files() == ["docs/guide.md", "src/odd.txt", "src/pay.py", "src/raw.bin"]
    assert tools.list_files("secret/**") == []
    assert tools.list_files("**/*.py") == ["src/pay.py"]
    assert [found["path"] for found in tools.search_code("legacy_state")] == ["src/odd.txt", "src/pay.py"]
    assert tools.search_code("legacy_state", "secret/**") == []


def test_what_was_served_is_observed_with_the_digest_of_the_whole_file() -> None:
    tools = broker(ALL)
    assert tools.read_file("src/odd.txt") == "caf\N{REPLACEMENT CHARACTER} legacy_state\n"
    assert tools.search_code(r"\bpay\(") == [
        {"path": "docs/guide.md", "line": 2, "text": "see pay()"},
        {"path": "src/pay.py", "line": 1, "text": "def pay():"},
    ]
    assert tools.read_set() == {
        "src/odd.txt": sha256_digest(FILES["src/odd.txt"]),
        "docs/guide.md": sha256_digest(FILES["docs/guide.md"]),
        "src/pay.py": sha256_digest(FILES["src/pay.py"]),
    }
    assert tools.shown_by() == {"src/odd.txt": [1], "docs/guide.md": [2], "src/pay.py": [2]}
    assert tools.calls()[0].result_digest == sha256_digest(FILES["src/odd.txt"])


def test_a_list_of_names_is_not_a_reading() -> None:
    tools = broker(ALL)
    tools.list_files()
    assert tools.read_set() == {}


@pytest.mark.parametrize("pattern", ["(", "[a", "*"])
def test_what_is_no_regular_expression_is_refused_and_recorded(pattern: str) -> None:
    tools = broker(ALL)
    with pytest.raises(ToolRefused, match="not a regular expression"):
        tools.search_code(pattern)
    assert [call.ok for call in tools.calls()] == [False]


def test_reading_through_the_inner_parts_of_the_broker_makes_nothing_observed() -> None:
    tools = broker(["list_files"])
    tools._content("src/pay.py")
    with pytest.raises(ToolRefused):
        tools._content("secret/key.txt")
    assert tools._base is not None
    tools._base.read_bytes("secret/key.txt")
    assert re.search(b"hidden", FILES["secret/key.txt"])
    assert tools.read_set() == {}
    assert tools.shown_by() == {}
    assert tools.calls() == ()


def test_what_the_broker_gives_away_are_copies() -> None:
    tools = broker(ALL)
    tools.read_file("src/pay.py")
    tools.read_set()["secret/key.txt"] = "sha256:" + "0" * 64
    tools.shown_by()["src/pay.py"].append(99)
    assert list(tools.read_set()) == ["src/pay.py"]
    assert tools.shown_by() == {"src/pay.py": [1]}


def test_without_a_source_every_tool_says_what_is_missing() -> None:
    tools = Broker(Resources(tools=ALL), None, clock=lambda: datetime(2026, 3, 1, tzinfo=UTC))  # type: ignore[arg-type]
    for call in CALLS.values():
        with pytest.raises(ToolRefused, match="this run has no source to read"):
            call(tools)
    assert len(tools.calls()) == 3


def test_every_call_is_told_when_it_is_over_refused_or_not() -> None:
    told: list[ToolCall] = []
    tools = broker(["read_file"], on_call=told.append)
    tools.read_file("src/pay.py")
    with pytest.raises(ToolRefused):
        tools.list_files()
    with pytest.raises(FileNotFoundError):
        tools.read_file("src/absent.py")
    assert [(call.number, call.tool, call.ok) for call in told] == [
        (1, "read_file", True),
        (2, "list_files", False),
        (3, "read_file", False),
    ]
    assert list(tools.calls()) == told
