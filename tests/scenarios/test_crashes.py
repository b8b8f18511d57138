"""Processes that die at any moment: the run goes on, and nothing accepted is done twice or lost."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
from typing import Any

import pytest


@pytest.mark.parametrize("point", ["tool_call", "submitted", "judged"])
def test_a_worker_killed_at_a_task_s_named_point_is_followed_by_another(place: Any, overlaps: Any, point: str) -> None:
    (place.folder / "source").mkdir()
    (place.folder / "source" / "readme.md").write_text("hello\n")
    tools = {"resources": {"tools": ["list_files", "read_file"]}}
    file = place.write(
        {"first": place.task("reads", **tools), "second": place.task("reads_needed", needs=["first"])}, source="source"
    )
    killed = place.worker("--fault", f"{point}:first:1", file=file)
    place.ended(killed, -signal.SIGKILL)
    place.ended(place.worker())
    assert place.run().ok
    assert overlaps(place.events()) == []
    for task in place.run().tasks:
        assert place.verbs(task.task_id).count("accepted") == 1
    # What was handed in before the crash is not worked on again.
    assert len(place.one("first").attempts) == (2 if point == "tool_call" else 1)
    # What was decided before the crash is not judged again.
    # (One transaction may bring a submission and claim its judging.)
    judgings = {"judged": (2,), "submitted": (1, 2)}.get(point, (1,))
    assert place.verbs("first").count("gate_claimed") in judgings


def test_a_task_that_kills_every_worker_fails_after_exactly_max_claims(place: Any) -> None:
    file = place.write({"bomb": place.task("kills_its_worker", limits={"max_claims": 3}), "fine": place.task("quick")})
    place.ended(place.worker("--launch-only", file=file))
    for _ in range(3):
        place.ended(place.worker("--slots", "1"), 137)
    place.ended(place.worker(), 1)
    place.ended(place.worker())  # finds nothing to do
    assert len(place.marks("start", "bomb")) == 3
    assert place.verbs("bomb").count("claimed") == 3
    bomb = place.one("bomb")
    assert bomb.state == "failed"
    assert bomb.reason is not None
    assert bomb.reason.startswith("3 of 3 claims ended without a result; the last: worker ")
    assert place.one("fine").state == "accepted"


def test_one_death_more_or_less_than_the_limit_is_told_apart(place: Any) -> None:
    file = place.write({"one": place.task("quick", limits={"max_claims": 3})})
    place.ended(place.worker("--launch-only", file=file))
    for attempt in (1, 2):
        place.ended(place.worker("--fault", f"claimed:one:{attempt}"), -signal.SIGKILL)
    place.ended(place.worker())
    assert place.one("one").state == "accepted"
    assert len(place.one("one").attempts) == 3


@pytest.mark.slow
def test_thirty_kills_at_random_moments_lose_nothing_and_do_nothing_twice(
    place: Any, until: Any, overlaps: Any
) -> None:
    seed = int(os.environ.get("KILLS_SEED", "20260301"))
    chance = random.Random(seed)
    limits = {"max_claims": 100, "lease_s": 20}
    tasks: dict[str, Any] = {f"t{n}": place.task("naps", limits=limits) for n in range(60)}
    for n in range(20):
        tasks[f"sum{n}"] = place.task("reads_needed", needs=[f"t{n}", f"t{n + 20}", f"t{n + 40}"], limits=limits)
    place.ended(place.worker("--launch-only", file=place.write(tasks)))
    running = [place.worker("--slots", "3"), place.worker("--slots", "3")]
    accepted_before: dict[str, int] = {}
    kills = 0
    for _ in range(30):
        victim = running.pop(0)
        assert victim.stdout is not None
        until(lambda victim=victim: "ready" in victim.stdout.readline() or victim.poll() is not None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            victim.wait(chance.uniform(0, 0.5))  # a moment, not a condition: that is what is played
        kills += victim.poll() is None
        victim.kill()
        victim.wait()
        running.append(place.worker("--slots", "3"))
        now = {task.task_id: task.generation for task in place.run().tasks if task.state == "accepted"}
        assert {key: now[key] for key in accepted_before} == accepted_before, seed
        accepted_before = now
    assert kills == 30  # none had run out of work
    place.ended(place.worker("--slots", "8"))
    run = place.run()
    assert run.ok, seed
    assert overlaps(place.events()) == [], seed
    for task in run.tasks:
        assert place.verbs(task.task_id).count("accepted") == 1
        assert sum(attempt.decision == "accepted" for attempt in task.attempts) == 1
