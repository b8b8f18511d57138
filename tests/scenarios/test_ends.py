"""How an attempt may end: a result that is none, a deadline, a cancel, an interruption."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from coordinator import Coordinator, Orchestration


def played(place: Any, tasks: dict[str, Any], **fields: Any) -> Any:
    """Play in this process."""
    with Coordinator(place.url, home=place.home) as coordinator:
        return coordinator.run(Orchestration.model_validate(place.document(tasks, **fields)))


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("returns_none", "the function returned nothing; it must return a.completed(…)"),
        ("returns_text", "the function returned a str; it must return a.completed(…)"),
        ("raises", "RuntimeError: the pump is broken"),
        ("exits", "the child raised SystemExit: 3"),
        ("exits_async", "the child raised SystemExit: 3"),
        ("stops_iterating", "the child raised StopIteration: nothing left"),
        ("returns_nan", "rate: nan is not a JSON number"),
        ("says_failed", "the child said: the source has no tests"),
    ],
)
def test_what_is_no_result_is_a_failure_that_says_what_came(place: Any, function: str, says: str) -> None:
    result = played(place, {"one": place.task(function, limits={"max_claims": 2}), "other": place.task("quick")})
    one = result.tasks["one"]
    assert one.state == "failed"
    assert one.attempts == 2
    assert one.reason.startswith("2 of 2 claims ended without a result; the last: ")
    assert says in one.reason
    assert one.output is None
    assert "accepted" not in place.verbs("one")
    assert result.tasks["other"].accepted  # the worker lives


def test_an_artifact_that_was_never_handed_over_is_a_gap_and_no_artifact(place: Any) -> None:
    result = played(place, {"one": place.task("names_a_missing_artifact")})
    manifest = result.tasks["one"].manifest
    assert manifest.artifacts == []
    assert manifest.gaps == ["artifact 'report.csv' was named but never handed over"]


def test_evidence_by_an_artifact_that_was_never_handed_over_is_not_accepted(place: Any) -> None:
    owed = [{"name": "report", "kind": "artifact", "min_origin": "observed"}]
    limits = {"max_repairs": 0}
    result = played(
        place, {"one": place.task("names_a_missing_artifact", required_evidence=owed, acceptance=[], limits=limits)}
    )
    assert result.tasks["one"].state == "failed"
    assert "report" in result.tasks["one"].reason


def test_a_thread_past_its_deadline_is_barred_and_its_late_result_is_kept(place: Any, until: Any) -> None:
    limits = {"deadline_s": 0.5, "max_claims": 2}
    file = place.write({"one": place.task("deaf", limits=limits), "holds": place.task("waits_for_end")})
    worker = place.worker(file=file)
    until(lambda: len(place.marks("end", "one")) == 1)
    until(lambda: place.one("one").state == "accepted")
    ended = [event for event in place.events("one") if event.verb == "ended"]
    assert "not done within its deadline of 0.5 s" in ended[0].data["reason"]
    assert "may still be running, its result is barred" in ended[0].data["reason"]
    assert place.one("one").attempts[0].ended_at is None  # nobody saw it stop
    place.go()
    until(lambda: place.one("one").attempts[0].late)
    place.go("end")
    place.ended(worker)
    first, second = place.one("one").attempts
    assert (first.ended, first.late, first.decision) == ("deadline", True, None)
    assert first.ended_at is not None
    assert (second.ended, second.decision) == ("submitted", "accepted")
    assert place.verbs("one").count("accepted") == 1


def test_the_status_of_a_thread_past_its_deadline_says_that_it_may_run_on(place: Any, until: Any) -> None:
    limits = {"deadline_s": 0.4, "max_claims": 1}
    file = place.write({"one": place.task("deaf_always", limits=limits)})
    place.ended(place.worker(file=file), 1)
    one = place.one("one")
    assert one.state == "failed"
    assert "1 of 1 claims ended without a result" in one.reason
    assert "may still be running" in one.reason


def test_an_async_child_past_its_deadline_is_really_cancelled(place: Any) -> None:
    result = played(place, {"one": place.task("waits_async", limits={"deadline_s": 0.4, "max_claims": 2})})
    assert result.tasks["one"].state == "failed"
    assert [line[4] for line in place.marks()] == ["start", "cancelled", "start", "cancelled"]
    assert "may still be running" not in result.tasks["one"].reason
    assert all(attempt.ended_at is not None for attempt in place.one("one").attempts)


def test_a_cancelled_run_reaches_a_working_child_within_a_third_of_its_lease(any_place: Any, until: Any) -> None:
    place = any_place
    file = place.write(
        {"one": place.task("waits", limits={"lease_s": 1.5}), "next": place.task("quick", needs=["one"])}
    )
    worker = place.worker(file=file)
    until(lambda: place.marks("start"))
    assert place.store.cancel(place.run().row, reason="changed my mind") == 2
    place.ended(worker, 1)
    assert [line[4] for line in place.marks()] == ["start", "stopped:lost"]
    one = place.one("one")
    assert one.state == "cancelled"
    cancelled_at = next(event.at for event in place.events("one") if event.verb == "cancelled")
    stopped_at = one.attempts[0].ended_at
    assert cancelled_at < stopped_at
    assert (stopped_at - cancelled_at).total_seconds() < 1.5
    assert place.verbs("one")[-1] == "late_result"
    assert place.one("next").attempts == []


def test_a_cancelled_child_that_does_not_stop_is_not_called_stopped_until_it_is(place: Any, until: Any) -> None:
    file = place.write(
        {"one": place.task("deaf_always", limits={"lease_s": 0.6}), "holds": place.task("waits_for_end")}
    )
    worker = place.worker(file=file)
    until(lambda: place.marks("start", "one"))
    place.store.cancel(place.run().row, place.one("one").row)
    one = place.one("one")
    assert (one.state, one.attempts[0].ended, one.attempts[0].ended_at) == ("cancelled", "cancelled", None)
    assert "not yet confirmed stopped" in one.why
    place.go()
    until(lambda: place.one("one").attempts[0].ended_at)
    after = place.one("one")
    assert after.state == "cancelled"
    assert after.attempts[0].late
    assert after.attempts[0].decision is None
    assert "late_result" in place.verbs("one")
    assert "not yet confirmed" not in after.why
    place.go("end")
    place.ended(worker, 1)


def test_a_cancel_after_the_acceptance_is_too_late_and_changes_nothing(place: Any) -> None:
    from contracts.errors import WrongState

    result = played(place, {"one": place.task("quick")})
    with pytest.raises(WrongState, match="too late to cancel"):
        place.store.cancel(place.run().row, place.one("one").row)
    with pytest.raises(WrongState, match="too late to cancel"):
        place.store.cancel(place.run().row)
    assert place.run(result.run_id).ok


def test_a_pinned_file_runs_as_it_was_when_the_run_was_made(place: Any) -> None:
    code = place.folder / "work.py"
    code.write_text("def child(a):\n    return a.completed('old')\n")
    task = {**place.task("quick"), "agent": {"function": "work.py:child"}}
    file = place.write({"one": task, "two": {**task, "needs": ["one"]}})
    place.ended(place.worker("--fault", "claimed:two", file=file), -signal.SIGKILL)
    code.write_text("def child(a):\n    return a.completed('new')\n")
    place.ended(place.worker())
    outputs = [manifest.output for manifest in manifests(place)]
    assert outputs == ["old", "old"]


def manifests(place: Any) -> list[Any]:
    from coordinator.results import run_result

    return [task.manifest for task in run_result(place.store, place.run().row).tasks.values()]


def test_a_module_that_changed_since_the_run_was_made_ends_the_attempt_by_name(place: Any) -> None:
    module = place.folder / "workmodule.py"
    module.write_text("def child(a):\n    return a.completed('old')\n")
    task = {**place.task("quick", limits={"max_claims": 1}), "agent": {"function": "workmodule:child"}}
    file = place.write({"one": task})
    place.ended(place.worker("--launch-only", file=file))
    module.write_text("def child(a):\n    return a.completed('new')\n")
    place.ended(place.worker(), 1)
    reason = place.one("one").reason
    assert "the source of workmodule changed since the contract was issued" in reason
    assert "launch a new version of the contract" in reason


def test_a_module_that_exits_when_it_is_imported_ends_the_attempt_and_not_the_worker(place: Any) -> None:
    (place.folder / "leaver.py").write_text("import sys\ndef child(a): ...\nsys.exit(5)\n")
    task = {**place.task("quick", limits={"max_claims": 1}), "agent": {"function": "leaver.py:child"}}
    place.ended(place.worker(file=place.write({"one": task, "other": place.task("quick")})), 1)
    assert "cannot load leaver.py:child: SystemExit: 5" in place.one("one").reason
    assert place.one("other").state == "accepted"


def test_a_blocked_child_asks_and_goes_on_with_the_answer(any_place: Any) -> None:
    place = any_place
    file = place.write({"one": place.task("asks", limits={"max_claims": 1})})
    place.ended(place.worker(file=file), 4)
    run = place.run()
    assert run.state == "waiting"
    request = place.one("one").requests[0]
    assert (request.kind, request.question, request.state) == ("input", "Which colour?", "open")
    place.ended(place.worker(file=file), 4)  # asking again would be of no use
    assert len(place.marks("start")) == 1
    place.store.answer(request.request_id, approved=True, message="blue")
    place.ended(place.worker(file=file))
    assert manifests(place)[0].output == {"question": "Which colour?", "approved": True, "message": "blue"}
    assert len(place.store.requests(run.row)) == 1


def test_feedback_reaches_the_next_attempt_and_can_be_acted_on(place: Any) -> None:
    checks = [{"cel": "output.files > 0"}]
    result = played(place, {"one": place.task("repairs", acceptance=checks)})
    one = result.tasks["one"]
    assert one.accepted
    assert one.attempts == 2
    assert one.output["of"] == 1
    assert "output.files > 0" in one.output["said"]
    assert len(place.marks("start")) == 2
    assert place.verbs("one").count("repair_required") == 1


def test_a_repair_that_changes_nothing_ends_as_no_progress(place: Any) -> None:
    limits = {"max_repairs": 10}
    task = place.task("never_mends", acceptance=[{"cel": "output.files > 0"}], limits=limits)
    one = played(place, {"one": task}).tasks["one"]
    assert one.state == "failed"
    assert one.attempts == 2
    assert one.reason.startswith("no progress: ")


@pytest.mark.parametrize("repairs", [0, 2])
def test_repairs_end_at_their_limit(place: Any, repairs: int) -> None:
    limits = {"max_repairs": repairs, "max_claims": 1}
    task = place.task("mends_in_vain", acceptance=[{"cel": "output.files > 0"}], limits=limits)
    one = played(place, {"one": task}).tasks["one"]
    assert one.state == "failed"
    assert one.attempts == repairs + 1
    assert one.reason.startswith(f"{repairs} of {repairs} repairs used")


def test_secrets_of_the_environment_reach_no_file_of_the_store(place: Any) -> None:
    canary = "cnry-5f3a9b1e77d0c2aa"
    place.env["CANARY_TOKEN"] = canary
    file = place.write({"one": place.task("leaks", limits={"max_claims": 5})})
    place.ended(place.worker(file=file), 4)
    request = place.store.requests(place.run().row)[0]
    assert "[redacted:CANARY_TOKEN]" in request.question
    place.store.answer(request.request_id, approved=True)
    place.ended(place.worker(file=file))
    assert [attempt.ended for attempt in place.one("one").attempts] == ["failed", "blocked", "failed", "submitted"]
    manifest = manifests(place)[0]
    assert manifest.redactions > 5
    assert manifest.output["env"] == "[redacted:CANARY_TOKEN]"
    large = next(entry for entry in manifest.artifacts if entry.name == "dump.txt")
    assert large.redacted
    exported = place.store.bytes_of(large.digest)
    assert exported.count(b"[redacted:CANARY_TOKEN]") == 3000
    assert found_in(place.folder, canary[:12]) == []
    assert found_in(place.folder, "[redacted:CANARY_TOKEN]") != []  # the search does find what is there


def found_in(folder: Path, text: str) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path) for path in files if text.encode() in path.read_bytes()]


def test_needs_arrive_as_data_with_their_digests_and_what_is_left_out_is_named(place: Any) -> None:
    task = place.task("sees", needs=["one"])
    result = played(place, {"one": place.task("quick"), "hidden": place.task("quick"), "two": task})
    seen = result.tasks["two"].output
    assert seen["one"]["output"] == {"attempt": 1, "task": "one"}
    assert seen["one"]["digest"] == result.tasks["one"].manifest.digest
    assert seen["left_out"] == ["result of hidden"]
    assert seen["binding"] == {"child": True, "generation": 1}
