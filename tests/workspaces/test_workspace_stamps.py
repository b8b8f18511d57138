"""What saves time when a workspace is taken: never at the price of a change."""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workspaces.checkout import Workspace
from workspaces.stamps import stamps_of
from workspaces.walk import holds, walk

Git = Callable[..., str]
NewRun = Callable[[Path], Any]


def stamped(workspace: Workspace, probe: Path) -> Workspace:
    """The workspace as if making it had taken longer than a tick of the file system's clock."""
    written = {
        entry.path: (workspace.folder / entry.path).lstat()
        for entry, _ in walk(workspace.folder)
        if not entry.is_folder
    }
    newest = max(status.st_ctime_ns for status in written.values())
    probe.write_bytes(b"")
    while probe.stat().st_ctime_ns <= newest:
        probe.write_bytes(b"x")
    stamps = stamps_of(workspace.folder, written)
    if not stamps:
        pytest.skip("the times of this file system are not trusted")
    return replace(workspace, stamps=stamps)


def read_in_taking(run: Any, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str]]:
    """The files that were compared by their bytes, and those that changed."""
    read: list[str] = []

    def noticed(entry: Any, *rest: Any) -> bool:
        read.append(entry.path)
        return holds(entry, *rest)

    monkeypatch.setattr("workspaces.candidate.holds", noticed)
    return read, [change.path for change in run.take(workspace).changes]


def written_back(path: Path) -> None:
    path.write_bytes(b"X" + path.read_bytes()[1:])


def mapped(path: Path) -> None:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[0:1] = b"X"


def replaced(path: Path) -> None:
    other = path.with_name("other")
    shutil.copy2(path, other)
    written_back(other)
    other.replace(path)


def twice_moved(path: Path) -> None:
    written_back(path)
    path.rename(path.with_name("other"))
    path.with_name("other").rename(path)


def by_an_old_link(path: Path) -> None:
    other = path.with_name("other")
    other.hardlink_to(path)
    written_back(other)
    other.unlink()


@pytest.mark.parametrize("change", [written_back, mapped, replaced, twice_moved, by_an_old_link])
def test_a_change_that_puts_size_and_times_back_is_found(
    repository: Path, new_run: NewRun, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    run = new_run(repository)
    workspace = stamped(run.workspace(), tmp_path / "probe")
    path = workspace.folder / "readme.md"
    before = path.stat()

    change(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    candidate = run.take(workspace)
    assert [item.path for item in candidate.changes] == ["readme.md"]
    assert run.files(candidate.tree)["readme.md"] == b"Xecond\r\n"


def test_what_was_not_written_to_is_not_read_again(
    repository: Path, new_run: NewRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(repository)
    workspace = stamped(run.workspace(), tmp_path / "probe")
    (workspace.folder / "src" / "run.sh").write_bytes(b"new")
    (workspace.folder / "src" / "more").write_bytes(b"new")

    read, changed = read_in_taking(run, workspace, monkeypatch)

    assert sorted(read) == ["link", "src/run.sh"]
    assert changed == ["src/more", "src/run.sh"]


def test_a_touched_file_is_read_and_found_unchanged(
    repository: Path, new_run: NewRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(repository)
    workspace = stamped(run.workspace(), tmp_path / "probe")
    (workspace.folder / "readme.md").touch()

    read, changed = read_in_taking(run, workspace, monkeypatch)

    assert "readme.md" in read
    assert changed == []


def test_a_workspace_from_its_record_is_read_whole(
    repository: Path, new_run: NewRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(repository)
    workspace = Workspace.from_json(stamped(run.workspace(), tmp_path / "probe").to_json())

    read, changed = read_in_taking(run, workspace, monkeypatch)

    assert (sorted(read), changed) == (["link", "readme.md", "src/run.sh"], [])


def test_a_file_of_the_last_tick_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x")
    status = path.stat()
    later = os.stat_result(tuple(status), {"st_ctime_ns": status.st_ctime_ns + 10**12, "st_mtime_ns": 0})

    assert "a" not in stamps_of(tmp_path, {"a": later})


def test_a_file_system_in_which_maps_are_written_without_a_time_is_not_trusted() -> None:
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or f" {memory} rw".encode() not in Path("/proc/self/mountinfo").read_bytes():
        pytest.skip("no file system in memory here")
    assert stamps_of(memory, {"a": Path("/proc/self/mountinfo").stat(), "b": Path(__file__).stat()}) == {}
