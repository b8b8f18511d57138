"""Folders without git as sources."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.canonical import digest_of
from contracts.errors import BadInput, CoordinatorError
from workspaces import SourcePin, TreeReader, fetch_source, pin_source

Git = Callable[..., str]
StateOf = Callable[[Path], dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    top = tmp_path / "notes"
    (top / "deep" / "er").mkdir(parents=True)
    (top / "a.txt").write_bytes(b"a\r\n")
    (top / "deep" / "er" / "b").write_bytes(bytes(range(256)))
    (top / "deep.txt").write_bytes(b"")
    return top


def contents(pin: SourcePin, git_dir: Path) -> dict[str, bytes]:
    fetch_source(pin, git_dir)
    with TreeReader(git_dir, pin.commit) as reader:
        return {file.path: reader.read_bytes(file.path) for file in reader.files()}


def test_a_folder_is_pinned_by_the_digests_of_its_files(folder: Path, tmp_path: Path, state_of: StateOf) -> None:
    before = state_of(folder)

    pin = pin_source(folder)
    found = contents(pin, tmp_path / "own")

    expected = {"a.txt": b"a\r\n", "deep.txt": b"", "deep/er/b": bytes(range(256))}
    assert found == expected
    assert pin.content_digest == digest_of({path: hashlib.sha256(data).hexdigest() for path, data in expected.items()})
    assert (pin.kind, pin.origin, pin.name, pin.ref, pin.dirty) == ("folder", str(folder), "notes", None, False)
    assert state_of(folder) == before
    assert SourcePin.from_json(pin.to_json()) == pin


def test_the_same_files_elsewhere_and_later_give_the_same_commit(folder: Path, tmp_path: Path) -> None:
    pin = pin_source(folder)
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))
    moved = pin_source(folder.rename(tmp_path / "moved"))

    assert (moved.commit, moved.tree, moved.content_digest) == (pin.commit, pin.tree, pin.content_digest)


def test_attributes_and_filters_in_the_folder_do_not_change_bytes(folder: Path, tmp_path: Path) -> None:
    (folder / ".gitattributes").write_bytes(b"* text eol=crlf ident working-tree-encoding=UTF-16\n")
    (folder / ".gitignore").write_bytes(b"*\n")
    (folder / "c").write_bytes(b"$Id$\nx\r\n")

    assert contents(pin_source(folder), tmp_path / "own")["c"] == b"$Id$\nx\r\n"


def test_own_folders_are_skipped_and_the_rest_of_nested_repositories_is_not(
    folder: Path, git: Git, tmp_path: Path
) -> None:
    (folder / ".coordinator").mkdir()
    (folder / ".coordinator" / "store.db").write_bytes(b"x")
    (folder / "deep" / ".coordinator").write_bytes(b"kept")
    git(folder, "init", "--quiet", "nested")
    (folder / "nested" / "code.py").write_bytes(b"1")

    found = contents(pin_source(folder), tmp_path / "own")

    assert sorted(found) == ["a.txt", "deep.txt", "deep/.coordinator", "deep/er/b", "nested/code.py"]


def test_links_are_stored_as_links_and_programs_as_programs(folder: Path, tmp_path: Path) -> None:
    (folder / "outside").symlink_to("/etc/passwd")
    (folder / "loop").symlink_to(".")
    (folder / "odd").symlink_to(os.fsdecode(b"caf\xe9\n"))
    (folder / "run").write_bytes(b"#!")
    (folder / "run").chmod(0o755)

    pin = pin_source(folder)
    found = contents(pin, tmp_path / "own")

    assert (found["outside"], found["loop"], found["odd"]) == (b"/etc/passwd", b".", b"caf\xe9\n")
    with TreeReader(tmp_path / "own", pin.commit) as reader:
        modes = {file.path: file.mode for file in reader.files()}
    assert (modes["outside"], modes["run"], modes["a.txt"]) == ("120000", "100755", "100644")


@pytest.mark.parametrize(
    "name",
    [
        b"caf\xe9",
        b" lead and trail ",
        b'"quoted"',
        b"'",
        b"line\nend",
        b"\\x",
        b"\x01\x7f",
        b"-n",
        "ü".encode(),
        b"a\tb",
    ],
)
def test_every_file_name_is_listed_and_readable(tmp_path: Path, name: bytes) -> None:
    top = tmp_path / "odd"
    top.mkdir()
    inside = os.path.join(os.fsencode(top), name)
    os.mkdir(inside)
    with open(os.path.join(inside, name), "wb") as out:
        out.write(name)

    assert contents(pin_source(top), tmp_path / "own") == {os.fsdecode(name + b"/" + name): name}


def test_a_name_that_is_not_utf8_never_has_the_digest_of_another(tmp_path: Path) -> None:
    digests = set()
    for number, name in enumerate([b"\xe9", b"\\udce9", b"e9", b"\xef\xbf\xbd"]):
        top = tmp_path / str(number)
        top.mkdir()
        with open(os.path.join(os.fsencode(top), name), "wb"):
            pass
        digests.add(pin_source(top).content_digest)

    assert len(digests) == 4


def test_an_empty_folder_is_a_source_without_files(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    assert contents(pin_source(tmp_path / "empty"), tmp_path / "own") == {}


def test_a_very_deep_folder_needs_no_recursion(tmp_path: Path) -> None:
    top = tmp_path / "deep"
    leaf = top.joinpath(*["d"] * 1500)
    os.makedirs(top)
    here = os.open(top, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    (leaf / "f").write_bytes(b"deep")

    try:
        assert list(contents(pin_source(top), tmp_path / "own").values()) == [b"deep"]
    finally:
        subprocess.run(["rm", "-rf", str(top)], check=True)  # deeper than shutil can remove


def test_what_is_no_file_is_refused_and_everything_is_named_at_once(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "sock"))
    (folder / ".GIT").write_bytes(b"")

    with pytest.raises(BadInput) as refusal:
        pin_source(folder)

    text = str(refusal.value)
    assert len(refusal.value.faults) == 3
    assert "pipe is a fifo" in text
    assert "sock is a socket" in text
    assert ".GIT: no tree may hold this name" in text


def test_an_unreadable_file_is_refused_by_name(folder: Path) -> None:
    (folder / "secret").write_bytes(b"x")
    (folder / "secret").chmod(0)
    if os.geteuid() == 0:  # root reads everything: become somebody else for the call
        for path in (folder, *folder.parents[:6]):
            if path.name.startswith(("pytest-", "popen-", "test_", "notes")):
                path.chmod(0o755)
        os.seteuid(65534)
    try:
        with pytest.raises(BadInput, match="secret cannot be read"):
            pin_source(folder)
    finally:
        if os.getuid() == 0:
            os.seteuid(0)


def test_a_folder_has_no_refs(folder: Path) -> None:
    with pytest.raises(BadInput, match="no ref 'main'"):
        pin_source(folder, "main")


@pytest.mark.parametrize("change", ["edit", "add", "remove", "mode", "fifo", "gone"])
def test_a_folder_changed_between_pin_and_fetch_is_refused_and_leaves_nothing(
    folder: Path, tmp_path: Path, change: str
) -> None:
    pin = pin_source(folder)
    target = folder / "a.txt"
    match change:
        case "edit":
            target.write_bytes(b"b\r\n")
        case "add":
            (folder / "new").write_bytes(b"")
        case "remove":
            target.unlink()
        case "mode":
            target.chmod(0o755)
        case "fifo":
            target.unlink()
            os.mkfifo(target)
        case "gone":
            folder.rename(tmp_path / "elsewhere")

    with pytest.raises(CoordinatorError, match=r"changed since|a\.txt is a fifo|is gone") as refusal:
        fetch_source(pin, tmp_path / "home" / "own")

    assert refusal.value.exit_code in (2, 3)
    assert os.listdir(tmp_path / "home") == [".own.lock"]


def test_a_file_that_grows_while_it_is_read_is_refused_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_read = os.read

    def read_and_grow(fd: int, size_bytes: int) -> bytes:
        with open(folder / "a.txt", "ab") as out:
            out.write(b"more")
        return real_read(fd, size_bytes)

    monkeypatch.setattr(os, "read", read_and_grow)
    with pytest.raises(BadInput, match=r"a\.txt changed while it was read"):
        pin_source(folder)


def test_a_file_replaced_by_a_link_before_it_is_opened_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open = os.open

    def swap_and_open(path: bytes | str, flags: int) -> int:
        if os.fsencode(path).endswith(b"/a.txt"):
            (folder / "a.txt").unlink()
            (folder / "a.txt").symlink_to("/etc/passwd")
        return real_open(path, flags)

    monkeypatch.setattr(os, "open", swap_and_open)
    with pytest.raises(BadInput, match=r"a\.txt"):
        pin_source(folder)


def test_a_large_file_passes_through(tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    data = os.urandom(5_000_001)
    (tmp_path / "big" / "data").write_bytes(data)

    assert contents(pin_source(tmp_path / "big"), tmp_path / "own") == {"data": data}
