"""What a program hands in is hostile: whole and valid, or no result; and only files of its own folder are read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agents.processes import ResultFile, read_artifact_file, read_result_file
from contracts.errors import BadInput
from contracts.results import ArtifactEntry

FULL = {
    "outcome": "partial",
    "output": {"n": [1, 2.5, None, "é"]},
    "evidence": [{"name": "places", "kind": "citation", "path": "a b.py", "line": 3, "symbol": "f", "text": "x"}],
    "artifacts": [{"name": "report", "path": "sub/report.xml", "media_type": "text/xml"}],
    "gaps": ["one"],
    "assumptions": ["two"],
    "message": "m",
    "next_action": "go on",
    "question": "",
}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "result.json"


def refusal(target: Path, content: bytes | str | dict[str, Any] | None = None) -> str:
    if isinstance(content, dict):
        content = json.dumps(content)
    if content is not None:
        target.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(BadInput) as caught:
        read_result_file(target)
    return str(caught.value)


def test_every_field_of_the_page_is_read(target: Path) -> None:
    target.write_text(json.dumps(FULL))

    handed_in = read_result_file(target)

    assert handed_in.model_dump(exclude_unset=True) == FULL
    stored = ArtifactEntry(name="report", digest="sha256:00", size_bytes=1, media_type="text/xml")
    result = handed_in.result([stored])
    assert (result.outcome, result.output, result.artifacts) == ("partial", FULL["output"], [stored])
    assert result.evidence[0].line == 3


@pytest.mark.parametrize("word", ["completed", "partial", "failed", "cancelled", "unknown"])
def test_an_outcome_alone_is_a_result(target: Path, word: str) -> None:
    target.write_bytes(b'\xef\xbb\xbf{"outcome": "' + word.encode() + b'"}\n')

    assert read_result_file(target) == ResultFile(outcome=word)  # type: ignore[arg-type]


def test_a_blocked_result_asks_something(target: Path) -> None:
    assert "asks nothing" in refusal(target, {"outcome": "blocked", "question": " "})
    target.write_text('{"outcome": "blocked", "question": "Which?"}')
    assert read_result_file(target).question == "Which?"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b'{"outcome": "completed", "output": {"a', "text without its end"),
        (b'{"outcome": "completed"', "was expected, found the end"),
        (b'{"outcome": "completed"}{"outcome": "completed"}', "something follows"),
        (b'{"outcome": "failed", "outcome": "completed"}', "stands twice"),
        (b'{"outcome": "completed", "output": {"a": 1, "a": 2}}', "stands twice"),
        (b'{"outcome": "completed", "output": NaN}', "not a JSON number"),
        (b'{"outcome": "completed", "output": 9007199254740993}', "beyond"),
        (b'{"outcome": "completed", "output": "\\ud800"}', "surrogate"),
        (b'{"outcome": "completed", "output": "\xff"}', "not UTF-8"),
        (b'{"outcome": "accepted"}', "outcome"),
        (b'{"output": 1}', "outcome"),
        (b'{"outcome": "completed", "origin": "verified"}', "origin"),
        (b'{"outcome": "completed", "evidence": [{"name": "x", "origin": "verified"}]}', "origin"),
        (b'{"outcome": "completed", "evidence": [{"name": "x", "line": 0}]}', "line"),
        (b'{"outcome": "completed", "gaps": "none"}', "gaps"),
        (b'{"outcome": "completed", "artifacts": [{"name": "a", "digest": "sha256:00"}]}', "artifacts[0]"),
        (b'{"outcome": "completed", "artifacts": [{"name":"a","path":"x"},{"name":"a","path":"y"}]}', "named twice"),
        (b'["completed"]', "no JSON object"),
        (b'{"outcome": "completed", "output": ' + b"[" * 3000 + b"]" * 3000 + b"}", "nested deeper"),
        (b'{"outcome": "completed", "output": "' + b"x" * 1024 * 1024 + b'"}', "more than 1048576 bytes"),
    ],
)  # fmt: skip
def test_what_is_not_whole_and_valid_is_no_result(target: Path, content: bytes, said: str) -> None:
    assert said in refusal(target, content)


def test_every_fault_is_named_with_its_line(target: Path) -> None:
    text = refusal(target, '{"outcome": "done",\n "gapps": []}')

    assert "result.json:1:13" in text
    assert "result.json:2:2" in text
    assert "gaps" in text


def test_a_result_of_exactly_the_limit_is_read(target: Path) -> None:
    frame = b'{"outcome": "completed", "output": "%s"}'
    target.write_bytes(frame % (b"x" * (1024 * 1024 - len(frame) + 2)))

    assert len(read_result_file(target).output) > 1_000_000
    with pytest.raises(BadInput, match="more than 1000 bytes"):
        read_result_file(target, max_bytes=1000)


def test_what_is_no_file_is_never_waited_for(target: Path, tmp_path: Path) -> None:
    assert "was not written" in refusal(target)
    os.mkfifo(target)
    assert "not a regular file" in refusal(target)
    target.unlink()
    target.symlink_to("/proc/self/environ")
    assert "cannot be read" in refusal(target)
    target.unlink()
    target.symlink_to("/dev/zero")
    assert "cannot be read" in refusal(target)
    target.unlink()
    target.mkdir()
    assert "not a regular file" in refusal(target)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("canary")
    folder = tmp_path / "artifacts"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a b.txt").write_bytes(b"\x00\xff")
    return folder


def test_an_artifact_is_read_byte_for_byte(folder: Path) -> None:
    assert read_artifact_file(folder, "sub/a b.txt", max_bytes=2) == b"\x00\xff"


@pytest.mark.parametrize(
    "path",
    ["../outside/secret", "sub/../../outside/secret", "/etc/passwd", "", ".", "sub/", "sub//a b.txt", "./sub", "a\0b"],
)
def test_a_path_that_is_not_plain_is_refused(folder: Path, path: str) -> None:
    with pytest.raises(BadInput, match="no plain path"):
        read_artifact_file(folder, path, max_bytes=100)


def test_no_link_leads_out_of_the_folder(folder: Path) -> None:
    (folder / "file").symlink_to("../outside/secret")
    (folder / "dir").symlink_to("../outside")
    (folder / "inside").symlink_to("sub")
    for path in ("file", "dir/secret", "inside/a b.txt"):
        with pytest.raises(BadInput, match="cannot be read"):
            read_artifact_file(folder, path, max_bytes=100)
    (folder.parent / "link").symlink_to("outside")
    with pytest.raises(BadInput, match="the artifacts folder"):
        read_artifact_file(folder.parent / "link", "secret", max_bytes=100)


def test_an_artifact_that_is_no_file_or_too_large_is_named(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    for path, said in [
        ("pipe", "not a regular file"),
        ("sub", "not a regular file"),
        ("sub/a b.txt", "more than 1 bytes"),
        ("nothing", "'nothing' was not written"),
        ("nothing/below", "is no folder"),
        ("sub/a b.txt/below", "is no folder"),
    ]:
        with pytest.raises(BadInput, match=said):
            read_artifact_file(folder, path, max_bytes=1)


def test_a_name_with_control_characters_reaches_no_terminal(folder: Path) -> None:
    with pytest.raises(BadInput) as caught:
        read_artifact_file(folder, "\x1b]52;c;x\x07", max_bytes=1)
    assert "\x1b" not in str(caught.value)


def test_a_folder_that_is_swapped_for_a_link_while_it_is_read_gives_nothing_away(folder: Path) -> None:
    import ctypes
    import threading

    (folder / "sub" / "secret").write_text("own")
    (folder / "evil").symlink_to("../outside")
    libc, over = ctypes.CDLL(None), threading.Event()
    sub, evil = bytes(folder / "sub"), bytes(folder / "evil")

    def swap() -> None:
        while not over.is_set():
            libc.renameat2(-100, sub, -100, evil, 2)  # RENAME_EXCHANGE

    racer = threading.Thread(target=swap)
    racer.start()
    try:
        seen = set()
        for _ in range(20_000):
            try:
                seen.add(read_artifact_file(folder, "sub/secret", max_bytes=100))
            except BadInput:
                seen.add(b"refused")
    finally:
        over.set()
        racer.join()
    assert seen == {b"own", b"refused"}
