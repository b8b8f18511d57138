"""The broker over a workspace: the child's own changes are seen, and grants and scopes hold for each tool."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.canonical import sha256_digest
from contracts.tools import TOOLS
from coordinator.runtimes import load_agents

load_agents()
from agents.broker import Broker, ToolRefused  # noqa: E402 - found once it is loaded

MakeBroker = Callable[..., Broker]

CALLS: dict[str, Callable[[Broker], Any]] = {
    "list_files": lambda tools: tools.list_files(),
    "read_file": lambda tools: tools.read_file("f"),
    "search_code": lambda tools: tools.search_code("text"),
    "write_file": lambda tools: tools.write_file("f", "new"),
    "edit_file": lambda tools: tools.edit_file("f", "text", "new"),
    "git_diff": lambda tools: tools.git_diff(),
    "run_command": lambda tools: tools.run_command(["true"]),
    "request_approval": lambda tools: tools.request_approval("Well?"),
    "delegate": lambda tools: tools.delegate("part", "Do a part."),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_each_tool_works_when_it_alone_is_granted_and_is_refused_when_it_alone_is_not(
    make_broker: MakeBroker, ws: Path, tool: str
) -> None:
    (ws / "f").write_text("text")
    ports: dict[str, Any] = {
        "grant": {"commands": [["true"]]},
        "runner": lambda argv, timeout_s: (0, ""),
        "inbox": SimpleNamespace(answer_to=lambda question: (True, "")),
        "delegator": SimpleNamespace(delegate=lambda delegation_id, terms: "task"),
    }
    without = make_broker(*(other for other in TOOLS if other != tool), **ports)
    with pytest.raises(ToolRefused, match=f"does not grant the tool {tool} "):
        CALLS[tool](without)
    assert (ws / "f").read_text() == "text"
    alone = make_broker(tool, **ports)
    CALLS[tool](alone)
    assert [(call.tool, call.ok) for broker in (without, alone) for call in broker.calls()] == [
        (tool, False),
        (tool, True),
    ]
    assert (alone.calls()[0].result_digest or "").startswith("sha256:")


@pytest.mark.parametrize("tool", ["write_file", "edit_file", "git_diff", "run_command"])
def test_without_a_workspace_nothing_is_written(make_broker: MakeBroker, tool: str) -> None:
    with pytest.raises(ToolRefused, match=f"{tool} needs a workspace"):
        CALLS[tool](make_broker(base={"f": b"text"}, workspace=False))


def test_what_the_child_and_its_programs_did_is_what_it_reads(make_broker: MakeBroker, ws: Path) -> None:
    (ws / "old").write_text("text one")
    broker = make_broker(base={"old": b"text one", "gone": b"text"})
    broker.write_file("new", "text two")
    (ws / "by-a-program").write_text("text three")
    broker.edit_file("old", "one", "1")
    assert broker.list_files() == ["by-a-program", "new", "old"]
    assert broker.read_file("old") == "text 1"
    assert [found["path"] for found in broker.search_code("text")] == ["by-a-program", "new", "old"]
    with pytest.raises(FileNotFoundError):
        broker.read_file("gone")
    assert broker.read_set()["old"] == sha256_digest(b"text 1")


def test_writing_is_no_reading(make_broker: MakeBroker, ws: Path) -> None:
    (ws / "f").write_text("text")
    broker = make_broker()
    broker.write_file("g", "text")
    broker.edit_file("f", "text", "new")
    broker.git_diff()
    assert broker.read_set() == {}
    assert broker.shown_by() == {}
    digests = [call.result_digest for call in broker.calls()[:2]]
    assert digests == [sha256_digest(b"text"), sha256_digest(b"new")]


def test_scopes_hold_for_reading_writing_and_editing(make_broker: MakeBroker, ws: Path) -> None:
    for name in ("both", "read", "write", "none"):
        (ws / name).mkdir()
        (ws / name / "f").write_text("text")
    broker = make_broker(read=["both/", "read/"], write=["both/", "write/"], base={})
    served = {}
    for name in ("both", "read", "write", "none"):
        for tool, call in {
            "read": lambda path: broker.read_file(path),
            "write": lambda path: broker.write_file(path, "text"),
            "edit": lambda path: broker.edit_file(path, "text", "text"),
        }.items():
            try:
                call(f"{name}/f")
                served[name, tool] = ""
            except ToolRefused as refused:
                served[name, tool] = str(refused)
    assert [key for key, why in served.items() if not why] == [
        ("both", "read"),
        ("both", "write"),
        ("read", "read"),
        ("write", "write"),
    ]
    assert "nothing to change" in served["both", "edit"]
    assert "outside the write scope" in served["read", "edit"]
    assert "outside the read scope" in served["write", "edit"]
    assert broker.list_files() == ["both/f", "read/f"]
    assert {found["path"] for found in broker.search_code("text")} == {"both/f", "read/f"}
    assert re.findall(r"^diff --git a/(\S+)", broker.git_diff(), re.M) == ["both/f", "read/f"]


def test_a_call_by_name_is_the_same_call(make_broker: MakeBroker, ws: Path) -> None:
    broker = make_broker()
    broker.call("write_file", {"path": "f", "text": "text"})
    assert broker.call("read_file", {"path": "f"}) == "text"
    assert broker.call("list_files", {}) == ["f"]
    assert [call.tool for call in broker.calls()] == ["write_file", "read_file", "list_files"]


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("read_file", {}, "'path' is a required property"),
        ("read_file", {"path": 3}, "path: 3 is not of type 'string'"),
        ("read_file", {"path": None}, "None is not of type 'string'"),
        ("read_file", {"path": ["f"]}, "is not of type 'string'"),
        ("read_file", {"path": "f", "encoding": "utf-8"}, "'encoding' was unexpected"),
        ("read_file", ["f"], "is not of type 'object'"),
        ("read_file", "f", "is not of type 'object'"),
        ("read_file", None, "is not of type 'object'"),
        ("git_diff", {"path": "f"}, "unexpected"),
        ("rm_rf", {}, "no tool is called 'rm_rf'"),
        ("__init__", {}, "no tool is called"),
        ("calls", {}, "no tool is called"),
        ("submit_result", {}, "no tool is called"),
        ("", {}, "no tool is called"),
        ("\ud800", {}, "no tool is called"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused_and_recorded(
    make_broker: MakeBroker, name: str, arguments: Any, says: str
) -> None:
    broker = make_broker(base={"f": b"text"}, workspace=False)
    with pytest.raises(ToolRefused, match=says):
        broker.call(name, arguments)
    (call,) = broker.calls()
    assert not call.ok
    assert call.tool.encode().decode() == call.tool


def test_long_arguments_are_recorded_by_digest_and_never_in_part(make_broker: MakeBroker) -> None:
    broker = make_broker()
    text = "s3cret " * 1000
    broker.write_file("f", text)
    broker.call("write_file", {"path": "g", "text": "short"})
    long, short = (call.arguments["text"] for call in broker.calls())
    assert long == f"[7000 characters, {sha256_digest(text.encode())}]"
    assert short == "short"


@pytest.mark.parametrize(
    "pattern", [r"(a+)+$", r"(x+x+)+y", r"(a|aa)+$", r"(.*a){20}", r"(?:a?){500}a{500}", r"(([a-z])+.)+[A-Z]([a-z])+$"]
)
def test_a_pattern_that_was_made_to_be_slow_is_not(make_broker: MakeBroker, pattern: str) -> None:
    line = b"a" * 900 + b"x" * 99 + b"!\n"
    broker = make_broker(base={f"f{number}": line * 20 for number in range(5)}, workspace=False)
    began = time.monotonic()
    broker.search_code(pattern)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "pattern",
    [r"(?=a)", r"(?<!a)b", r"(a)\1", r"(?>a)", r"a++", r"a\Z", "(", "[a", "*", "a{5000}", "\ud800", "a" * 10_001],
)
def test_what_re2_does_not_know_is_refused_by_name(make_broker: MakeBroker, capfd: Any, pattern: str) -> None:
    with pytest.raises(ToolRefused, match="search_code: "):
        make_broker(base={"f": b"a"}, workspace=False).search_code(pattern)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("pattern", "lines"),
    [
        (r"def \w+\(", [1]), (r"^\s+return", [2]), (r"(?i)RETURN", [2]), (r"\bpay\b", [1, 4]), ("caf\xe9", [5]),
        (r"x{2,3}", [6]), (r"(?P<name>pay)", [1, 4]), (r"^$", [3]), (r"end$", [7]), ("\ufffd", [8]),
        ("cafe|pay", [1, 4]), ("zzz", []), ("", [1, 2, 3, 4, 5, 6, 7, 8]), (r"\pL\x{e9}", [5]),
    ],
)  # fmt: skip
def test_usual_patterns_find_their_lines(make_broker: MakeBroker, pattern: str, lines: list[int]) -> None:
    data = "def pay():\n    return 1\n\n# pay\rcaf\xe9\r\nwxxx\x0cy\u2028z\nthe end\n".encode() + b"odd \xff\n"
    broker = make_broker(base={"f": data, "binary": b"\0" + data}, workspace=False)
    assert [found["line"] for found in broker.search_code(pattern)] == lines


def test_long_lines_are_found_and_cut(make_broker: MakeBroker) -> None:
    broker = make_broker(base={"f": b"x" * 5000 + b"needle\n"}, workspace=False)
    assert broker.search_code("needle") == [{"path": "f", "line": 1, "text": "x" * 1000}]


def test_a_search_that_finds_too_much_says_so(make_broker: MakeBroker) -> None:
    broker = make_broker(base={"f": b"a\n" * 10_001}, workspace=False)
    with pytest.raises(ToolRefused, match="more than 10000 matches"):
        broker.search_code("a")
    assert broker.read_set() == {}


def apply(tmp_path: Path, base: dict[str, bytes], diff: str) -> dict[str, bytes]:
    """What git makes of the base with this diff: an independent reader of it."""
    folder = tmp_path / "applied"
    folder.mkdir()
    for path, data in base.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    if diff:
        subprocess.run(["git", "apply", "--whitespace=nowarn", "-"], input=diff.encode(), cwd=folder, check=True)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


LONG = b"".join(b"line %d\n" % number for number in range(3000))
CHANGES: dict[str, tuple[dict[str, bytes], dict[str, bytes | None]]] = {
    "nothing": ({"f": b"a\n", "g/h": b"b"}, {}),
    "one word": ({"f": b"a\nb\nc\n"}, {"f": b"a\nB\nc\n"}),
    "new file": ({"f": b"a\n"}, {"g/h/new": b"x\ny\n"}),
    "deleted file": ({"f": b"a\n", "g": b"x\ny\n"}, {"g": None}),
    "emptied and filled": ({"f": b"a\n", "g": b""}, {"f": b"", "g": b"x\n"}),
    "final newline lost": ({"f": b"a\nb\n"}, {"f": b"a\nb"}),
    "final newline won": ({"f": b"a\nb"}, {"f": b"a\nb\n"}),
    "both without": ({"f": b"a\nb"}, {"f": b"a\nc"}),
    "line ends": ({"f": b"a\r\nb\r\nc\r\n"}, {"f": b"a\r\nb\nc\r\n"}),
    "at the beginning": ({"f": LONG}, {"f": b"new\n" + LONG}),
    "at the end": ({"f": LONG}, {"f": LONG + b"new\n"}),
    "far apart": ({"f": LONG}, {"f": LONG.replace(b"line 700\n", b"").replace(b"line 1500\n", b"x\ny\n")}),
    "cut in half": ({"f": LONG}, {"f": LONG[: LONG.index(b"line 1500")]}),
    "repeated lines": ({"f": b"a\n" * 50}, {"f": b"a\n" * 40 + b"b\n" + b"a\n" * 11}),
    "many": ({f"f{n}": b"a\n" for n in range(50)}, {f"f{n}": b"b\n" for n in range(0, 50, 3)}),
    "strange separators": ({"f": "a\x0bb\u2028c\x85d\n".encode()}, {"f": "a\x0bb\u2028c\x85e\n".encode()}),
    "lines like a diff": ({"f": b"--- a\n+++ b\n@@ -1 +1 @@\n"}, {"f": b"--- a\n-++ b\n@@ -1 +1 @@\n\\ No newline\n"}),
}


@pytest.mark.parametrize("case", CHANGES.values(), ids=CHANGES)
def test_git_reads_the_diff_and_comes_to_the_same_files(
    make_broker: MakeBroker, ws: Path, tmp_path: Path, case: tuple[dict[str, bytes], dict[str, bytes | None]]
) -> None:
    base, changes = case
    now = {path: data for path, data in {**base, **changes}.items() if data is not None}
    for path, data in now.items():
        (ws / path).parent.mkdir(parents=True, exist_ok=True)
        (ws / path).write_bytes(data)
    assert apply(tmp_path, base, make_broker(base=base).git_diff()) == now


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "d"]), max_size=30).map("".join)


@pytest.mark.slow
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=LINES, after=LINES)
def test_git_reads_any_diff(make_broker: MakeBroker, ws: Path, before: str, after: str) -> None:
    (ws / "f").write_text(after)
    base = {"f": before.encode()}
    with tempfile.TemporaryDirectory() as folder:
        assert apply(Path(folder), base, make_broker(base=base).git_diff()) == {"f": after.encode()}


def test_modes_links_binaries_and_large_files_are_named(make_broker: MakeBroker, ws: Path) -> None:
    base = {"program": b"x\n", "link": b"old", "same": b"here", "binary": b"\0a", "large": b"x" * 300_000}
    modes = {"link": "120000", "same": "120000"}
    (ws / "program").write_bytes(b"x\n")
    (ws / "program").chmod(0o755)
    (ws / "link").symlink_to("new")
    (ws / "same").symlink_to("here")
    (ws / "binary").write_bytes(b"\0b")
    (ws / "large").write_bytes(b"y" * 300_000)
    (ws / "odd \x1b[31m\nname").write_bytes(b"caf\xe9\n")
    diff = make_broker(base=base, modes=modes).git_diff()
    assert "old mode 100644\nnew mode 100755\n" in diff
    assert "--- a/link\n+++ b/link\n@@ -1 +1 @@\n-old\n" in diff
    assert "a/same" not in diff
    assert "Binary files a/binary and b/binary differ" in diff
    assert "Large files a/large and b/large differ" in diff
    assert r'+++ "b/odd \u001b[31m\nname"' in diff
    assert r"+caf\xe9" in diff
    assert "\x1b" not in diff


def test_a_diff_is_never_endless_nor_slow(make_broker: MakeBroker, ws: Path) -> None:
    alike = [b"a\n", b"b\n", b"c\n"]
    base = {"alike": b"".join(alike[n % 3] for n in range(60_000))}
    (ws / "alike").write_bytes(b"".join(alike[n % 2] for n in range(60_000)))
    for number in range(20):
        (ws / f"new{number:02}").write_bytes(b"line\n" * 10_000)
    began = time.monotonic()
    diff = make_broker(base=base).git_diff()
    assert time.monotonic() - began < 10
    assert len(diff) < 500_000
    assert "[too much was changed to be shown: " in diff
    assert "more changed files are not shown:]" in diff
    assert "[  new19]" in diff


def test_no_git_is_run_in_the_folder(
    make_broker: MakeBroker, ws: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", str(ws)], check=True)
    marker = tmp_path / "marker"
    with (ws / ".git" / "config").open("a") as config:
        config.write(f'[core]\n\tfsmonitor = "touch {marker}"\n[diff]\n\texternal = "touch {marker}"\n')
    (ws / "f").write_text("new\n")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "git").write_text(f"#!/bin/sh\ntouch {marker}\n")
    (bin_folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:/usr/bin:/bin")
    assert "+new" in make_broker(base={"f": b"old\n"}).git_diff()
    assert not marker.exists()
