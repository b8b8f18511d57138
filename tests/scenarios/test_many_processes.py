"""Several programs on one store at once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest


def test_sixteen_programs_that_launch_the_same_run_at_once_make_one_run(any_place: Any) -> None:
    place = any_place
    (place.folder / "source").mkdir()
    (place.folder / "source" / "readme.md").write_text("hello\n")
    file = place.write({"one": place.task("quick")}, source="source")
    started = [place.worker("--launch-only", file=file) for _ in range(16)]
    said = [place.ended(process)[0].split() for process in started]
    assert {run_id for run_id, _ in said} == {"play"}
    assert Counter(how for _, how in said) == {"created": 1, "continued": 15}
    assert [run.run_id for run in map(place.store.run, place.store.open_runs())] == ["play"]
    assert place.verbs("one") == ["issued"]
    assert len([path for path in (place.home / "git").iterdir() if path.suffix == ".git"]) == 1


@pytest.mark.slow
def test_eight_workers_share_two_hundred_tasks_without_meeting(any_place: Any, overlaps: Any) -> None:
    place = any_place
    file = place.write({f"t{n}": place.task("naps") for n in range(200)})
    place.ended(place.worker("--launch-only", file=file))
    workers = [place.worker("--name", f"w{n}", "--slots", "2") for n in range(8)]
    for worker in workers:
        place.ended(worker)
    run = place.run()
    assert run.ok
    assert overlaps(place.events()) == []
    assert [len(task.attempts) for task in run.tasks] == [1] * 200
    assert len(place.marks("start")) == 200
    for task in run.tasks:
        assert place.verbs(task.task_id) == ["issued", "claimed", "submitted", "gate_claimed", "accepted"]
    shares = Counter(attempt.owner.split("-")[0] for task in run.tasks for attempt in task.attempts)
    assert len(shares) == 8, shares  # nobody was starved
