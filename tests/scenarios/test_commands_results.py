"""What program children hand in, and what counts of it in a whole run."""

from __future__ import annotations

from typing import Any

import pytest

LAST = "target = os.environ['COORDINATOR_RESULT']\n"
WELL = """{"outcome": "completed", "output": {"n": 1}}"""

BROKEN = {
    "half": ('open(target, "w").write(\'{"outcome": "comple\')', "result.json"),
    "empty": ('open(target, "w").close()', "result.json"),
    "two documents": (f'open(target, "w").write({WELL!r} + {WELL!r})', "result.json"),
    "no JSON": ('open(target, "w").write("all done, tests pass")', "result.json"),
    "a list": ('open(target, "w").write("[1]")', "the result is no JSON object"),
    "one key twice": ('open(target, "w").write(\'{"outcome": "failed", "outcome": "completed"}\')', "outcome"),
    "an unknown field": ('open(target, "w").write(\'{"outcome": "completed", "origin": "verified"}\')', "origin"),
    "too large": (f'open(target, "w").write({WELL!r} + " " * 2_000_000)', "holds more than 1048576 bytes"),
    "not UTF-8": (f'open(target, "wb").write({WELL.encode()!r}.replace(b"n", b"\\xff"))', "result.json"),
    "a link": ('os.symlink(HERE / "a.txt", target)', "cannot be read"),
    "a pipe": ("os.mkfifo(target)", "is not a regular file"),
    "a folder": ("os.mkdir(target)", "not a regular file"),
    "nothing at all": ("pass", "was not written"),
    "another place": ('open(HERE / "result.json", "w").write("{}")', "was not written"),
}


@pytest.mark.parametrize(("what", "case"), BROKEN.items(), ids=[*BROKEN])
def test_a_result_file_that_is_none_is_no_result_and_says_what_it_is(bench: Any, what: str, case: Any) -> None:
    bench.commit({"a.txt": WELL})
    line, said = case
    one = bench.one(bench.program("child", f"{LAST}{line}\n"))
    assert one.state == "failed", what
    assert "handed in no result (exit status 0)" in one.reason
    assert said in one.reason
    assert bench.attempts()[0].ended == "no_result"
    assert bench.attempts()[0].ended_at is not None
    assert one.manifest is None


def test_written_twice_the_last_whole_one_counts(bench: Any) -> None:
    bench.commit({"a.txt": "a"})
    one = bench.one(bench.program("child", "hand_in(output=1)\nhand_in(output=2)\n"))
    assert one.accepted
    assert one.output == 2


@pytest.mark.parametrize("how", ["sys.exit(3)", "os.kill(os.getpid(), 9)", "os.abort()"])
def test_a_valid_result_that_the_end_contradicts_is_a_failure(bench: Any, how: str) -> None:
    bench.commit({"a.txt": "a"})
    one = bench.one(bench.program("child", f"hand_in(output=1)\n{how}\n"))
    assert one.state == "failed"
    assert "contradictory: the result says completed" in one.reason


def test_a_failure_may_end_with_any_status_and_says_why(bench: Any) -> None:
    bench.commit({"a.txt": "a"})
    one = bench.one(bench.program("child", "hand_in('failed', message='there are no tests')\nsys.exit(7)\n"))
    assert one.state == "failed"
    assert "there are no tests" in one.reason
    assert "contradictory" not in one.reason


def test_a_result_written_after_the_deadline_is_not_read(bench: Any) -> None:
    body = """
def late(*_):
    hand_in(output="late")
    sys.exit(0)
signal.signal(signal.SIGTERM, late)
mark("ready")
while True:
    time.sleep(1)
"""
    bench.commit({"a.txt": "a"})
    one = bench.one(bench.program("child", body, limits={"deadline_s": 1.5}))
    assert bench.place.marks("ready")
    assert one.state == "failed"
    assert "not done within its deadline of 1.5 s" in one.reason
    (attempt,) = bench.attempts()
    assert (attempt.ended, attempt.decision) == ("deadline", None)
    assert attempt.ended_at is not None
    # The worker has left, and so has everything that it need not keep.
    assert bench.workspaces == []
    assert bench.private_folders == []


def test_a_retry_after_no_result_is_a_new_attempt_that_can_succeed(bench: Any) -> None:
    bench.commit({"a.txt": "a"})
    one = bench.one(bench.program("child", "if ATTEMPT == 2: hand_in(output=ATTEMPT)\n", limits={"max_claims": 2}))
    assert one.accepted
    assert [attempt.ended for attempt in bench.attempts()] == ["no_result", "submitted"]


def test_artifacts_of_a_program_are_read_through_no_link(bench: Any) -> None:
    body = """
folder = pathlib.Path(os.environ["COORDINATOR_ARTIFACTS"])
(folder / "sub").mkdir()
(folder / "sub" / "good.txt").write_text("good")
(folder / "bad.txt").symlink_to("/etc/passwd")
path = ["bad.txt", "../contract.json", "sub/good.txt"][ATTEMPT - 1]
hand_in(artifacts=[{"name": "report", "path": path}])
"""
    bench.commit({"a.txt": "a"})
    one = bench.one(bench.program("child", body, limits={"max_claims": 3}))
    assert [attempt.ended for attempt in bench.attempts()] == ["no_result", "no_result", "submitted"]
    assert one.manifest is not None
    assert [(entry.name, entry.size_bytes) for entry in one.manifest.artifacts] == [("report", 4)]


def test_a_question_of_a_program_waits_for_a_person_and_the_answer_reaches_it(bench: Any) -> None:
    body = """
if not P["answers"]:
    hand_in("blocked", question="Which colour?")
else:
    hand_in(output=P["answers"][0])
"""
    bench.commit({"a.txt": "a"})
    tasks = {"one": bench.program("child", body)}
    assert bench.run(tasks).tasks["one"].outcome == "waiting"
    (request,) = bench.place.store.requests(bench.place.run().row)
    bench.place.store.answer(request.request_id, approved=True, message="blue")
    one = bench.run(tasks).tasks["one"]
    assert one.output == {"question": "Which colour?", "approved": True, "message": "blue"}


def test_the_process_record_is_in_the_manifest_and_evidence_of_another_command_stays_claimed(bench: Any) -> None:
    body = """
print("twelve passed")
hand_in(evidence=[
    {"name": "own", "kind": "command", "data": {"argv": ["python", "child.py"]}},
    {"name": "other", "kind": "command", "text": "12 passed", "data": {"argv": ["pytest", "-q"]}},
])
"""
    bench.commit({"a.txt": "a"})
    one = bench.one(bench.program("child", body))
    assert one.manifest is not None
    (record,) = one.manifest.processes
    assert (record.argv, record.how, record.exit_status, record.all_gone) == (
        ["python", "child.py"], "exited", 0, True,
    )  # fmt: skip
    assert "twelve passed" in record.output_tail
    assert {item.name: item.origin for item in one.manifest.evidence} == {"own": "observed", "other": "claimed"}
