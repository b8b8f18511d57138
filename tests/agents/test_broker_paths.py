"""Paths: nothing leads out of a workspace, whatever lies in it and however fast it changes; what is inside works."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.runtimes import load_agents

load_agents()
from agents.broker import Broker, ToolRefused  # noqa: E402 - found once it is loaded

MakeBroker = Callable[..., Broker]


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder beside the workspace whose one file must stay unread and unchanged."""
    folder = tmp_path / "outside"
    folder.mkdir()
    secret = folder / "f"
    secret.write_text("secret")
    yield folder
    assert secret.read_text() == "secret"
    assert sorted(path.name for path in folder.iterdir()) == ["f"]
    assert secret.stat().st_nlink <= 2


WAYS: dict[str, Callable[[Broker, str], Any]] = {
    "read": lambda broker, path: broker.read_file(path),
    "write": lambda broker, path: broker.write_file(path, "mine"),
    "edit": lambda broker, path: broker.edit_file(path, "secret", "mine"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "path",
    [
        "../outside/f", "../ws-evil/f", "a/../../outside/f", "a/../f", "..", ".", "", "/", "/etc/passwd",
        "//etc/passwd",
        "./f", "a//f", "a/", "a/./f", "a\\f", "..\\outside\\f", "f\0", "\0", "\ud800",
        ".git", ".git/config", ".GIT/config",
        "a/.Git/hooks/post-commit", "a/b/.git", "x" * 300, "/".join("a" * 200),
    ],
)  # fmt: skip
def test_what_is_no_path_from_the_top_is_refused(
    make_broker: MakeBroker, ws: Path, outside: Path, way: str, path: str
) -> None:
    (ws.parent / "ws-evil").mkdir()
    (ws.parent / "ws-evil" / "f").write_text("secret")
    (ws / "a").mkdir()
    (ws / ".git").mkdir()
    (ws / ".git" / "config").write_text("secret")
    broker = make_broker()
    with pytest.raises(ToolRefused):
        WAYS[way](broker, path)
    assert (ws.parent / "ws-evil" / "f").read_text() == "secret"
    assert (ws / ".git" / "config").read_text() == "secret"
    assert [call.ok for call in broker.calls()] == [False]
    assert broker.read_set() == {}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "path", ["l/f", "l/new/f", "deep/l/f", "f-link", "deep/self/l/f", "root/etc/hostname", "dangling"]
)
def test_no_link_is_followed_on_the_way_or_at_the_end(
    make_broker: MakeBroker, ws: Path, outside: Path, way: str, path: str
) -> None:
    (ws / "deep").mkdir()
    (ws / "l").symlink_to("../outside")
    (ws / "deep" / "l").symlink_to(outside)
    (ws / "deep" / "self").symlink_to(".")
    (ws / "f-link").symlink_to("../outside/f")
    (ws / "root").symlink_to("/proc/self/root")
    (ws / "dangling").symlink_to("../outside/absent")
    with pytest.raises(ToolRefused, match="links are not followed"):
        WAYS[way](make_broker(), path)
    assert (ws / "f-link").is_symlink()


def test_a_link_within_the_workspace_is_not_followed_either_and_stays_a_link(make_broker: MakeBroker, ws: Path) -> None:
    (ws / "real").write_text("text")
    (ws / "alias").symlink_to("real")
    broker = make_broker()
    for way in WAYS.values():
        with pytest.raises(ToolRefused, match="symbolic link"):
            way(broker, "alias")
    assert os.readlink(ws / "alias") == "real"
    assert broker.list_files() == ["alias", "real"]


def test_a_hard_link_can_be_read_and_never_written(make_broker: MakeBroker, ws: Path, outside: Path) -> None:
    os.link(outside / "f", ws / "h")
    broker = make_broker()
    with pytest.raises(ToolRefused, match="hard link"):
        broker.write_file("h", "mine")
    with pytest.raises(ToolRefused, match="hard link"):
        broker.edit_file("h", "secret", "mine")
    assert broker.read_file("h") == "secret"


@pytest.mark.parametrize("way", WAYS)
def test_pipes_sockets_devices_and_folders_are_no_files_and_hold_nobody_up(
    make_broker: MakeBroker, ws: Path, way: str
) -> None:
    os.mkfifo(ws / "pipe")
    (ws / "folder").mkdir()
    names = ["pipe", "folder"]
    if os.geteuid() == 0:
        try:
            os.mknod(ws / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
            names.append("zero")
        except PermissionError:
            pass
    began = time.monotonic()
    for name in names:
        with pytest.raises(ToolRefused, match=f"'{name}' is "):
            WAYS[way](make_broker(), name)
    assert time.monotonic() - began < 5
    assert make_broker().list_files() == []


@pytest.mark.parametrize("is_link", [True, False])
def test_a_workspace_that_is_no_folder_is_refused_before_anything_starts(
    make_broker: MakeBroker, tmp_path: Path, outside: Path, is_link: bool
) -> None:
    top = tmp_path / "top"
    if is_link:
        top.symlink_to(outside)
    with pytest.raises(ToolRefused, match="workspace cannot be entered"):
        make_broker(workspace=top)


def test_another_folder_in_place_of_the_workspace_is_not_worked_in(make_broker: MakeBroker, ws: Path) -> None:
    (ws / "f").write_text("secret")
    broker = make_broker()
    ws.rename(ws.parent / "moved")
    ws.mkdir()
    for way in WAYS.values():
        with pytest.raises(ToolRefused, match="another folder"):
            way(broker, "f")
    ws.rmdir()
    for way in WAYS.values():
        with pytest.raises(ToolRefused, match="cannot be entered"):
            way(broker, "f")
    assert not ws.exists()


def test_a_write_scope_that_is_a_link_gives_nothing_away(make_broker: MakeBroker, ws: Path, outside: Path) -> None:
    (ws / "out").symlink_to(outside)
    with pytest.raises(ToolRefused, match="links are not followed"):
        make_broker(write=["out/"]).write_file("out/new", "mine")


@pytest.mark.parametrize(
    "path",
    [
        "a", "a b.txt", "new/deep/er/f", 'q"uote', "tab\tand\nnewline", "caf\xe9", "...",
        "..a", ".gitignore", ".github/workflows/ci.yml", "a.git/config", "-rf", "~", "$HOME", "x" * 200,
        "*.py", "\udce9.txt",
    ],
)  # fmt: skip
def test_every_other_name_is_written_listed_read_and_edited(make_broker: MakeBroker, ws: Path, path: str) -> None:
    broker = make_broker()
    broker.write_file(path, "one\n")
    assert broker.list_files() == [path]
    assert broker.read_file(path) == "one\n"
    broker.edit_file(path, "one", "two")
    assert (ws / path).read_bytes() == b"two\n"
    assert [child.name for child in (ws / path).parent.iterdir()] == [(ws / path).name]


def test_new_files_and_folders_get_the_usual_permissions_and_old_files_keep_theirs(
    make_broker: MakeBroker, ws: Path
) -> None:
    (ws / "run.sh").write_text("old")
    (ws / "run.sh").chmod(0o750)
    (ws / "fixed").write_text("old")
    (ws / "fixed").chmod(0o444)
    umask = os.umask(0o022)
    try:
        broker = make_broker()
        broker.write_file("run.sh", "new")
        broker.write_file("fixed", "new")
        broker.write_file("folder/new", "new")
    finally:
        os.umask(umask)
    modes = {path: stat.S_IMODE((ws / path).stat().st_mode) for path in ("run.sh", "fixed", "folder/new", "folder")}
    assert modes == {"run.sh": 0o750, "fixed": 0o444, "folder/new": 0o644, "folder": 0o755}


def test_a_file_is_replaced_at_once_so_that_who_has_it_open_sees_the_old_one_whole(
    make_broker: MakeBroker, ws: Path
) -> None:
    (ws / "f").write_text("old")
    with (ws / "f").open() as before:
        make_broker().write_file("f", "new and longer")
        assert before.read() == "old"
    assert (ws / "f").read_text() == "new and longer"


def test_a_write_that_fails_leaves_no_trace(make_broker: MakeBroker, ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    (ws / "f").write_text("old")
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(ToolRefused, match="No space left"):
        make_broker().write_file("f", "new")
    assert {path.name: path.read_text() for path in ws.iterdir()} == {"f": "old"}


def test_what_is_too_large_is_neither_read_nor_written(make_broker: MakeBroker, ws: Path) -> None:
    with (ws / "huge").open("wb") as file:
        file.truncate(50_000_001)
    broker = make_broker()
    with pytest.raises(ToolRefused, match="larger than"):
        broker.read_file("huge")
    with pytest.raises(ToolRefused, match="would be larger than"):
        broker.write_file("other", "x" * 50_000_001)
    assert not (ws / "other").exists()


def test_a_tree_without_end_is_not_listed_for_ever(make_broker: MakeBroker, ws: Path) -> None:
    here = os.open(ws, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d", dir_fd=here)
        there = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = there
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    with pytest.raises(ToolRefused, match="cannot be listed"):
        make_broker().list_files()


def test_no_descriptor_stays_open(make_broker: MakeBroker, ws: Path) -> None:
    (ws / "l").symlink_to("..")
    broker = make_broker()
    before = len(os.listdir("/proc/self/fd"))
    broker.write_file("a/b/c", "x")
    for path in ("a/b/c", "a", "l/f", "none", "a/none/f"):
        for way in WAYS.values():
            with contextlib.suppress(ToolRefused, FileNotFoundError):
                way(broker, path)
    broker.list_files()
    broker.git_diff()
    assert len(os.listdir("/proc/self/fd")) == before


SWAPPING = """
import ctypes, os, sys
one, other = (os.fsencode(path) for path in sys.argv[1:])
swap = ctypes.CDLL(None, use_errno=True).renameat2
AT_FDCWD, RENAME_EXCHANGE = -100, 2
if swap(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE):
    sys.exit("cannot swap: " + os.strerror(ctypes.get_errno()))
print("swapping", flush=True)
while os.getppid() != 1:
    swap(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE)
"""


@pytest.fixture
def swapping() -> Iterator[Callable[[Path, Path], None]]:
    """Another process that exchanges two names without a pause."""
    processes: list[subprocess.Popen[str]] = []

    def start(one: Path, other: Path) -> None:
        process = subprocess.Popen(
            [sys.executable, "-c", SWAPPING, str(one), str(other)], stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        assert process.stdout is not None
        if not process.stdout.readline():
            pytest.skip("this file system cannot exchange two names at once")

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def naive_read(top: Path, path: str) -> str:
    """What a check of the path's text amounts to: the control, which does get out."""
    real = os.path.realpath(top / path)
    if not real.startswith(f"{top}/"):
        raise PermissionError(path)
    return (top / path).read_text()


def naive_write(top: Path, path: str) -> None:
    real = os.path.realpath((top / path).parent)
    if real != str(top) and not real.startswith(f"{top}/"):
        raise PermissionError(path)
    (top / path).write_text("mine")


def escapes(
    attempt: Callable[[], object], escaped: Callable[[object], bool], *, at_least_s: float, until_one: bool
) -> tuple[int, int]:
    """(how often it got out, how often it was tried)."""
    count = tries = 0
    end = time.monotonic() + at_least_s
    while time.monotonic() < end and not (until_one and count):
        tries += 1
        try:
            value = attempt()
        except (ToolRefused, OSError):
            value = None
        count += escaped(value)
    return count, tries


@pytest.mark.slow
@pytest.mark.parametrize("swapped", ["folder", "file"])
def test_a_folder_or_file_that_is_swapped_for_a_link_all_the_time_lets_nothing_out(
    make_broker: MakeBroker, ws: Path, outside: Path, swapping: Callable[[Path, Path], None], swapped: str
) -> None:
    (ws / "d").mkdir()
    (ws / "d" / "f").write_text("own")
    if swapped == "folder":
        (ws / "link").symlink_to(outside)
        swapping(ws / "d", ws / "link")
    else:
        (ws / "d" / "link").symlink_to(outside / "f")
        swapping(ws / "d" / "f", ws / "d" / "link")
    broker = make_broker()

    def is_secret(text: object) -> bool:
        return text == "secret"

    got_out, _ = escapes(lambda: naive_read(ws, "d/f"), is_secret, at_least_s=30, until_one=True)
    assert got_out, "the control must get out, or this test shows nothing"
    served: list[str] = []

    def read() -> str:
        served.append(broker.read_file("d/f"))
        return served[-1]

    got_out, tries = escapes(read, is_secret, at_least_s=1, until_one=False)
    assert got_out == 0
    assert 0 < served.count("own") == len(served) < tries
    found = {line["text"] for _ in range(50) for line in tried(lambda: broker.search_code("secret|own"))}
    assert found <= {"own"}
    assert "secret" not in "".join("".join(tried(broker.git_diff)) for _ in range(50))


def tried(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except ToolRefused:
        return ()


@pytest.mark.slow
def test_a_write_through_a_folder_that_is_swapped_for_a_link_changes_nothing_outside(
    make_broker: MakeBroker, ws: Path, tmp_path: Path, swapping: Callable[[Path, Path], None]
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "f").write_text("secret")
    (ws / "d").mkdir()
    (ws / "link").symlink_to(victim)
    swapping(ws / "d", ws / "link")
    broker = make_broker()

    def was_changed(_: object) -> bool:
        changed = sorted(path.name for path in victim.iterdir()) != ["f"] or (victim / "f").read_text() != "secret"
        for path in victim.iterdir():
            path.unlink()
        (victim / "f").write_text("secret")
        return changed

    got_out, _ = escapes(lambda: naive_write(ws, "d/f"), was_changed, at_least_s=30, until_one=True)
    assert got_out, "the control must get out, or this test shows nothing"
    got_out, tries = escapes(lambda: broker.write_file("d/f", "mine"), was_changed, at_least_s=1, until_one=False)
    assert got_out == 0
    written = sum(call.ok for call in broker.calls())
    assert 0 < written < tries
