"""Who may take over whose work: a live lease is never taken over, except where a kernel lock proves the owner gone."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest


@pytest.mark.parametrize("function", ["blocks_the_loop", "blocks_its_thread"])
def test_a_child_that_blocks_longer_than_the_lease_is_started_once(any_place: Any, function: str) -> None:
    place = any_place
    file = place.write({"slow": place.task(function, limits={"lease_s": 0.6})})
    first = place.worker("--name", "one", file=file)
    other = place.worker("--name", "two", file=file)
    place.ended(first)
    place.ended(other)
    assert len(place.marks("start")) == 1
    assert len(place.marks("end")) == 1
    assert place.verbs("slow") == ["issued", "claimed", "submitted", "gate_claimed", "accepted"]


def test_a_stalled_worker_that_wakes_after_its_lease_changes_nothing(any_place: Any, until: Any, overlaps: Any) -> None:
    place = any_place
    file = place.write({"one": place.task("deaf", limits={"lease_s": 1})})
    stalled = place.worker("--name", "same", file=file)
    until(lambda: place.marks("start"))
    os.kill(stalled.pid, signal.SIGSTOP)
    second = place.worker("--name", "same", file=file)
    place.ended(second)
    assert place.one("one").state == "accepted"
    accepted = place.one("one")
    place.go()
    os.kill(stalled.pid, signal.SIGCONT)
    place.ended(stalled)
    after = place.one("one")
    assert (after.state, after.generation) == (accepted.state, accepted.generation)
    assert [(attempt.number, attempt.ended, attempt.late) for attempt in after.attempts] == [
        (1, "lost", True),
        (2, "submitted", False),
    ]
    assert place.verbs("one").count("accepted") == 1
    assert place.verbs("one").count("submitted") == 1
    assert place.verbs("one")[-1] == "late_result"
    late = next(event for event in place.events("one") if event.verb == "late_result")
    assert late.data["late"] is True
    assert late.data["attempt"] == 1
    assert overlaps(place.events()) == []


def test_the_work_of_a_killed_worker_is_taken_over_at_once(any_place: Any, until: Any) -> None:
    place = any_place
    file = place.write({"one": place.task("deaf", limits={"lease_s": 30})})
    waiting = place.worker("--name", "heir", "--slots", "1", file=file)
    until(lambda: place.marks("start"))
    heir = place.worker("--name", "heir", file=file)
    assert heir.stdout is not None
    until(lambda: "ready" in heir.stdout.readline())
    os.kill(waiting.pid, signal.SIGKILL)
    killed_at = time.monotonic()
    until(lambda: len(place.marks("start")) == 2, timeout_s=25)
    assert time.monotonic() - killed_at < 3
    place.ended(heir)
    lost = next(event for event in place.events("one") if event.verb == "lost")
    assert "is gone (its lock is free)" in lost.data["reason"]


def test_a_process_left_behind_by_a_child_keeps_the_work_until_the_lease_is_over(place: Any, until: Any) -> None:
    file = place.write({"one": place.task("forks", limits={"lease_s": 4})})
    first = place.worker(file=file)
    until(lambda: place.marks("forked"))
    grandchild = int((place.folder / "grandchild").read_text())
    until(lambda: place.one("one").lease_until)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    lease_until = place.one("one").lease_until
    os.kill(grandchild, 0)  # it lives
    place.ended(place.worker(file=file))
    place.go("grandchild-may-go")
    claims = [event for event in place.events("one") if event.verb == "claimed"]
    assert claims[1].at >= lease_until
    lost = next(event for event in place.events("one") if event.verb == "lost")
    assert "lease" in lost.data["reason"]
    assert "lock" not in lost.data["reason"]


def test_a_stopped_worker_keeps_its_work_until_the_lease_is_over(place: Any, until: Any) -> None:
    file = place.write({"one": place.task("deaf", limits={"lease_s": 3})})
    stopped = place.worker(file=file)
    until(lambda: place.marks("start"))
    os.kill(stopped.pid, signal.SIGSTOP)
    lease_until = place.one("one").lease_until
    place.ended(place.worker(file=file))
    claims = [event for event in place.events("one") if event.verb == "claimed"]
    assert claims[1].at >= lease_until


def test_a_missing_lock_file_proves_nothing(place: Any, until: Any) -> None:
    file = place.write({"one": place.task("deaf", limits={"lease_s": 3})})
    first = place.worker(file=file)
    until(lambda: place.marks("start"))
    for lock in (place.home / "locks").iterdir():
        lock.unlink()
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    lease_until = place.one("one").lease_until
    place.ended(place.worker(file=file))
    claims = [event for event in place.events("one") if event.verb == "claimed"]
    assert claims[1].at >= lease_until


def test_a_restarted_worker_of_the_same_name_does_not_hide_what_its_predecessor_left(place: Any, until: Any) -> None:
    file = place.write({f"t{n}": place.task("deaf", limits={"lease_s": 30}) for n in range(5)})
    first = place.worker("--name", "w0", "--slots", "5", file=file)
    until(lambda: len(place.marks("start")) == 5)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    place.ended(place.worker("--name", "w0", file=file))
    assert place.run().ok
    owners = {attempt.owner for task in place.run().tasks for attempt in task.attempts}
    assert len(owners) == 2
    assert all(owner.startswith("w0-") for owner in owners)
