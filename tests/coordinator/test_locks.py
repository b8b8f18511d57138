"""Kernel locks as proof that an owner is gone: only a free lock of an existing file proves anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.locks import OwnerLock, forget_owner, owner_is_gone

HOLDER = """
import os, sys
from pathlib import Path
from coordinator.locks import OwnerLock
OwnerLock(Path(sys.argv[1]), "w-1")
if "fork" in sys.argv and os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
if "program" in sys.argv:
    import subprocess
    subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], close_fds=False)
print("held", flush=True)
if "stay" in sys.argv:
    sys.stdin.read()
os._exit(0)
"""


def holder(folder: Path, *how: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), *how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.communicate("")


def test_an_owner_that_lives_is_not_gone_and_a_killed_one_is(tmp_path: Path) -> None:
    process = holder(tmp_path, "stay")
    assert not owner_is_gone(tmp_path, "w-1")
    assert not owner_is_gone(tmp_path, "w-1")  # asking takes nothing away
    process.kill()
    process.wait()
    assert owner_is_gone(tmp_path, "w-1")
    end(process)


def test_a_fork_that_lives_on_keeps_the_lock_held(tmp_path: Path) -> None:
    process = holder(tmp_path, "fork")
    process.wait()
    assert not owner_is_gone(tmp_path, "w-1")
    assert process.stdin is not None
    process.stdin.close()
    assert process.stdout is not None
    process.stdout.read()  # until the fork has ended too
    assert owner_is_gone(tmp_path, "w-1")
    process.stdout.close()


def test_a_program_that_a_child_started_does_not_get_the_lock(tmp_path: Path) -> None:
    process = holder(tmp_path, "program")
    process.wait()
    assert owner_is_gone(tmp_path, "w-1")
    end(process)


def test_an_absent_file_proves_nothing(tmp_path: Path) -> None:
    assert not owner_is_gone(tmp_path, "never-was")
    assert not owner_is_gone(tmp_path / "absent", "never-was")


def test_a_released_lock_leaves_no_file_and_so_no_proof(tmp_path: Path) -> None:
    lock = OwnerLock(tmp_path / "locks", "w-1")
    assert not owner_is_gone(tmp_path / "locks", "w-1")
    lock.release()
    assert not owner_is_gone(tmp_path / "locks", "w-1")
    assert os.listdir(tmp_path / "locks") == []


def test_two_owners_of_one_name_cannot_be(tmp_path: Path) -> None:
    lock = OwnerLock(tmp_path, "w-1")
    with pytest.raises(FileExistsError):
        OwnerLock(tmp_path, "w-1")
    lock.release()


def test_forgetting_is_repeatable(tmp_path: Path) -> None:
    process = holder(tmp_path)
    end(process)
    forget_owner(tmp_path, "w-1")
    forget_owner(tmp_path, "w-1")
    assert os.listdir(tmp_path) == []
