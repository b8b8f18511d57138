"""Ctrl-C and its kin on the command line: an orderly way out, and a way back in."""

from __future__ import annotations

import signal
from typing import Any

import pytest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_reaches_a_safe_point_and_can_be_continued(place: Any, until: Any, number: int) -> None:
    file = place.write(
        {"one": place.task("waits", limits={"max_claims": 1}), "two": place.task("quick", needs=["one"])}
    )
    run = place.cli("run", str(file))
    until(lambda: place.marks("start"))
    run.send_signal(number)
    _, err = place.ended(run, 130)
    assert "stopping: children may reach a safe point" in err
    assert "claims were given back and nothing is lost; the same command goes on" in err
    assert [line[4] for line in place.marks()] == ["start", "stopped:interrupted"]
    one = place.one("one")
    assert (one.state, one.owner, one.attempts[0].ended) == ("pending", None, "released")
    assert one.attempts[0].ended_at is not None
    assert list((place.home / "locks").iterdir()) == []
    place.go()
    place.ended(place.cli("run", str(file)))
    assert place.run().run_id == "play"
    assert place.run().ok
    assert [attempt.ended for attempt in place.one("one").attempts] == ["released", "submitted"]


def test_an_interrupted_worker_says_how_to_go_on(place: Any, until: Any) -> None:
    place.ended(place.worker("--launch-only", file=place.write({"one": place.task("waits")})))
    worker = place.cli("worker")
    until(lambda: place.marks("start"))
    worker.send_signal(signal.SIGINT)
    _, err = place.ended(worker, 130)
    assert "coordinator worker goes on" in err


def test_a_second_interrupt_leaves_at_once_and_loses_nothing(place: Any, until: Any) -> None:
    file = place.write({"one": place.task("deaf", limits={"lease_s": 30})})
    run = place.cli("run", str(file))
    until(lambda: place.marks("start"))
    run.send_signal(signal.SIGINT)
    assert run.stderr is not None
    until(lambda: "stopping" in run.stderr.readline())
    run.send_signal(signal.SIGINT)
    _, err = place.ended(run, 130)
    assert "left at once; what was committed is kept, and the same command goes on" in err
    assert "Traceback" not in err
    assert not place.marks("end")
    place.ended(place.cli("run", str(file)))  # the lock shows that the first is gone: no wait for its lease
    assert place.run().ok


def test_an_interrupted_child_that_does_not_stop_is_given_back_and_not_called_stopped(place: Any, until: Any) -> None:
    file = place.write({"one": place.task("deaf_always")})
    run = place.cli("run", str(file))
    until(lambda: place.marks("start"))
    run.send_signal(signal.SIGINT)
    place.ended(run, 130)
    attempt = place.one("one").attempts[0]
    assert (attempt.ended, attempt.ended_at) == ("released", None)
    assert place.one("one").state == "pending"


def test_a_run_that_waits_for_an_answer_ends_with_four(place: Any) -> None:
    file = place.write({"one": place.task("asks")})
    place.ended(place.cli("run", str(file)), 4)
    request = place.store.requests(place.run().row)[0]
    place.ended(place.cli("answer", request.request_id, "--approve", "-m", "blue"))
    place.ended(place.cli("run", str(file)))
    assert place.run().ok


def test_a_run_that_ends_with_something_not_accepted_ends_with_one(place: Any) -> None:
    file = place.write({"one": place.task("raises", limits={"max_claims": 1})})
    out, _ = place.ended(place.cli("run", str(file)), 1)
    assert "the pump is broken" in out
