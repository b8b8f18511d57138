"""A store whose disk is full or read-only: a clear refusal, and work goes on when the fault is over."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest


def mounted(folder: Path, size: str) -> bool:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture
def small_disk(place: Any) -> Iterator[Path]:
    """A disk of its own, with the store on it; the marks of the children lie elsewhere."""
    disk = place.folder / "disk"
    if not mounted(disk, "3m"):
        pytest.skip("mounting is not permitted here")
    place.url = f"sqlite:///{disk / 'store.db'}"
    place.home = disk / "home"
    yield disk
    place.clean_up()
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return filler


def test_a_full_disk_at_the_start_is_said_and_the_same_command_goes_on(place: Any, small_disk: Path) -> None:
    file = place.write({"one": place.task("quick")})
    filler = fill(small_disk)
    _, err = place.ended(place.cli("run", str(file)), 3)
    assert "Traceback" not in err
    assert "disk" in err.lower() or "space" in err.lower()
    filler.unlink()
    place.ended(place.cli("run", str(file)))
    assert place.run().ok


@pytest.mark.parametrize("lease_s", [2, 60])
def test_a_disk_that_fills_up_in_the_middle_is_said_and_the_run_goes_on_when_there_is_space(
    place: Any, small_disk: Path, until: Any, overlaps: Any, lease_s: float
) -> None:
    limits = {"lease_s": lease_s}
    file = place.write({"one": place.task("quick"), "two": place.task("hands_in_much", needs=["one"], limits=limits)})
    run = place.listened("run", str(file))
    until(lambda: place.marks("start", "two"))
    place.store.close()
    filler = fill(small_disk)
    place.go()
    until(run.waits)
    assert "disk is full" in run.said
    until(lambda: lease_s > 2 or place.one("two").lease_until <= datetime.now(UTC))
    filler.unlink()
    run.ended()
    assert place.run().ok
    assert len(place.marks("start", "one")) == 1
    assert overlaps(place.events()) == []
    if lease_s > 2:
        assert [attempt.ended for attempt in place.one("two").attempts] == ["submitted"]


def test_an_artifact_that_does_not_fit_ends_the_attempt_and_names_the_disk(place: Any, small_disk: Path) -> None:
    file = place.write({"one": place.task("hands_in_too_much", limits={"max_claims": 1})})
    place.ended(place.cli("run", str(file)), 1)
    assert "No space left on device" in place.one("one").reason


def test_a_read_only_store_is_said_and_the_same_command_goes_on(place: Any, small_disk: Path) -> None:
    file = place.write({"one": place.task("waits")})
    place.ended(place.worker("--launch-only", file=file))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    _, err = place.ended(place.cli("run", str(file)), 3)
    assert "Traceback" not in err
    assert "read-only" in err.lower()
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    place.go()
    place.ended(place.cli("run", str(file)))
    assert place.run().ok


def test_a_full_disk_of_the_home_puts_children_off_and_is_held_against_nobody(
    place: Any, small_disk: Path, until: Any
) -> None:
    place.url = f"sqlite:///{place.folder / 'elsewhere.db'}"
    file = place.write({"one": place.task("quick", limits={"max_claims": 1})})
    place.ended(place.worker("--launch-only", file=file))
    filler = fill(small_disk)
    run = place.listened("run", str(file))
    until(lambda: "released" in place.verbs("one") or run.process.poll() is not None)
    filler.unlink()
    assert "No space left on device" in run.ended()
    assert place.run().ok
    *before, last = [attempt.ended for attempt in place.one("one").attempts]
    assert (set(before), last) == ({"released"}, "submitted")
