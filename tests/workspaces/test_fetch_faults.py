"""Fetching in many processes at once, and in processes that die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from workspaces import SourcePin, TreeReader, fetch_source, pin_source

Git = Callable[..., str]
ROOT = Path(__file__).parents[2]

FETCH = """
import json, os, signal, sys
from pathlib import Path
from workspaces import SourcePin, fetch_source

function, calls_left = sys.argv[3], int(sys.argv[4])
if function:
    real = getattr(os, function)
    def counted(*args, **options):
        global calls_left
        calls_left -= 1
        if calls_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **options)
    setattr(os, function, counted)
sys.stdin.read()
fetch_source(SourcePin.from_json(json.loads(sys.argv[1])), Path(sys.argv[2]))
"""


def start(pin: SourcePin, git_dir: Path, function: str = "", calls: int = 0) -> subprocess.Popen[bytes]:
    """A process that fetches as soon as its input ends, and kills itself at the given call of ``os.<function>``."""
    arguments = [json.dumps(pin.to_json()), str(git_dir), function, str(calls)]
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, *arguments], cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.fixture(params=["git", "folder"])
def pin(request: pytest.FixtureRequest, repository: Path, tmp_path: Path) -> SourcePin:
    if request.param == "git":
        return pin_source(repository)
    folder = tmp_path / "folder"
    folder.mkdir()
    for number in range(300):
        (folder / f"f{number}").write_bytes(b"%d" % number)
    return pin_source(folder)


def check_whole(pin: SourcePin, git_dir: Path) -> None:
    with TreeReader(git_dir, pin.commit) as reader:
        assert [reader.read_bytes(file.path) for file in reader.files()]
    assert sorted(os.listdir(git_dir.parent)) == sorted([git_dir.name, f".{git_dir.name}.lock"])


def test_sixteen_fetches_at_once_all_succeed(pin: SourcePin, tmp_path: Path) -> None:
    git_dir = tmp_path / "home" / "git" / "run"
    processes = [start(pin, git_dir) for _ in range(16)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    for process in processes:
        with process:
            assert process.stderr is not None
            assert process.stderr.read() == b""
        assert process.returncode == 0

    check_whole(pin, git_dir)


POINTS = [
    *[
        ("git", function, calls)
        for function, calls in [("mkdir", 1), ("link", 1), ("link", 5), ("fsync", 8), ("rename", 1)]
    ],
    *[("folder", function, calls) for function, calls in [("read", 1), ("read", 50), ("fsync", 8), ("rename", 1)]],
]


@pytest.mark.parametrize(("pin", "function", "calls"), POINTS, indirect=["pin"])
def test_a_fetch_killed_at_any_point_is_made_whole_by_the_next(
    pin: SourcePin, tmp_path: Path, function: str, calls: int
) -> None:
    git_dir = tmp_path / "home" / "run"
    with start(pin, git_dir, function, calls) as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not git_dir.exists()
    if function != "mkdir":
        assert any(name.startswith(".run.partial-") for name in os.listdir(git_dir.parent))

    fetch_source(pin, git_dir)

    check_whole(pin, git_dir)


def test_a_fetch_killed_after_the_rename_is_found_whole(pin: SourcePin, tmp_path: Path) -> None:
    git_dir = tmp_path / "run"
    with start(pin, tmp_path / "twin", "", 0) as process:
        process.communicate()
    names = [path for path in (tmp_path / "twin").rglob("*") if path.is_file() or path.is_dir()]
    with start(pin, git_dir, "fsync", len(names) + 2) as process:  # one for each, one for the top, then the parent
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert git_dir.exists()

    fetch_source(pin, git_dir)

    with TreeReader(git_dir, pin.commit) as reader:
        assert reader.files()


def test_every_file_and_folder_is_flushed_before_the_name_appears(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    at_rename: list[set[str]] = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(fd: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{fd}"))
        real_fsync(fd)

    def rename(source: Path, target: Path) -> None:
        everything = {str(path) for path in [source, *source.rglob("*")]}
        at_rename.append(everything - set(flushed))
        real_rename(source, target)
        flushed.clear()

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    fetch_source(pin_source(repository), tmp_path / "own")

    assert at_rename == [set()]
    assert flushed == [str(tmp_path)]


def test_a_source_repacked_while_it_is_fetched_is_still_fetched_whole(
    repository: Path, git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(repository, "gc", "--quiet")
    pin = pin_source(repository)
    git(repository, "commit", "--quiet", "--allow-empty", "-m", "so that the next pack is another one")
    real_link = os.link
    repacked: list[bool] = []

    def link(source: str, target: str) -> None:
        if "/pack/" in source and not repacked:
            repacked.append(True)
            git(repository, "gc", "--quiet")
        real_link(source, target)

    monkeypatch.setattr(os, "link", link)
    fetch_source(pin, tmp_path / "own")

    assert repacked
    with TreeReader(tmp_path / "own", pin.commit) as reader:
        assert reader.read_bytes("readme.md") == b"second\r\n"
