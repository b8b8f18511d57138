"""Accepted work comes together: judged on the head that it joins, in the head that dependents see, and never lost."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

BOTH = """
mark("ready")
wait_for("go")
open(P["task_id"] + ".txt", "w").write(P["task_id"])
hand_in(output=sorted(name for name in os.listdir() if name != ".git"))
"""


def side_by_side(bench: Any, until: Any, tasks: dict[str, Any], *words: str) -> Any:
    """Play tasks whose children all start on the same base."""
    worker = bench.start(tasks)
    until(lambda: len(bench.place.marks("ready")) >= len(words or tasks))
    bench.place.go()
    return worker


def test_changes_of_different_files_side_by_side_are_all_accepted_and_judged_on_the_merge(
    bench: Any, until: Any
) -> None:
    base = bench.commit({"a.txt": "a"})
    listing = ["python", "-c", "import os; print(sorted(os.listdir()))"]
    tasks = {
        name: bench.program(name, BOTH, write_scope=[f"{name}.txt"], acceptance=[{"command": listing}])
        for name in ("left", "right", "third")
    }
    bench.place.ended(side_by_side(bench, until, tasks))
    assert bench.head_files() == {"a.txt": b"a", "left.txt": b"left", "right.txt": b"right", "third.txt": b"third"}
    results = [bench.last(name) for name in tasks]
    assert all(one.manifest.workspace.base_commit == base for one in results)
    assert [one.output for one in results] == [["a.txt", f"{name}.txt"] for name in tasks]
    # Each was judged on the head before it: the last one's check saw all three.
    last = next(one for one in results if one.decision.new_head == bench.place.run().head)
    (record,) = last.decision.processes
    assert "['a.txt', 'left.txt', 'right.txt', 'third.txt']" in record.output_tail
    for one in results:
        assert one.decision.judged_tree
    heads = {one.decision.bound.head for one in results}
    assert len(heads) == 3
    assert base in heads


def test_a_head_that_moves_while_a_result_is_judged_has_it_judged_again(bench: Any, until: Any) -> None:
    bench.commit({"a.txt": "a"})
    waiting = (
        "import os, pathlib, time\n"
        "marks = pathlib.Path(os.environ['MARKS'])\n"
        "if not (marks / 'checking').exists():\n"
        "    (marks / 'checking').touch()\n"
        "    while not (marks / 'moved').exists(): time.sleep(0.01)\n"
        "print(sorted(os.listdir()))\n"
    )
    check = {"command": ["python", "-c", waiting], "env": {"MARKS": str(bench.folder)}}
    slow = bench.program("slow", "open('slow.txt', 'w').write('s')\nhand_in()\n", acceptance=[check])
    quick = bench.program("quick", "wait_for('checking')\nopen('quick.txt', 'w').write('q')\nhand_in()\n",
                          write_scope=["quick.txt"])  # fmt: skip
    slow["resources"]["write_scope"] = ["slow.txt"]
    worker = bench.start({"slow": slow, "quick": quick})
    until(lambda: bench.place.one("quick").state == "accepted")
    bench.place.go("moved")
    bench.place.ended(worker)
    released = next(event for event in bench.place.events("slow") if event.verb == "gate_released")
    assert released.data["reason"] == "the head moved on"
    assert bench.place.verbs("slow").count("accepted") == 1
    slow_result = bench.last("slow")
    assert slow_result.attempts == 1  # the child was not asked again
    assert "['a.txt', 'quick.txt', 'slow.txt']" in slow_result.decision.processes[0].output_tail
    assert sorted(bench.head_files()) == ["a.txt", "quick.txt", "slow.txt"]


FILE = """
mark("ready"); wait_for("go")
open("thing", "w").write("by file")
hand_in()
"""
FOLDER = """
mark("ready"); wait_for("go"); wait_for("first-accepted")
if P["feedback"] is None:
    os.mkdir("thing")
    open("thing/part", "w").write("by folder")
    hand_in()
else:
    os.mkdir("things")
    open("things/part", "w").write(open("thing").read() + ", by folder")
    hand_in(output=P["feedback"])
"""


def test_a_conflict_is_sent_back_with_its_paths_and_the_next_attempt_starts_from_the_new_base(
    bench: Any, until: Any
) -> None:
    """Tasks whose scopes meet are never at work at once; these two do not meet, and do not go together."""
    base = bench.commit({"a.txt": "a"})
    tasks = {
        "first": bench.program("first", FILE, write_scope=["thing"]),
        "second": bench.program("second", FOLDER, write_scope=["thing/", "things/"], limits={"max_repairs": 1}),
    }
    worker = bench.start(tasks)
    until(lambda: len(bench.place.marks("ready")) == 2)
    bench.place.go()
    until(lambda: bench.place.one("first").state == "accepted")
    bench.place.go("first-accepted")
    bench.place.ended(worker)
    second = bench.last("second")
    assert second.accepted
    told = second.output
    assert "thing" in told["reason"]
    assert f"since its base {base}" in told["reason"]
    assert "the next attempt starts from the new base" in told["reason"]
    assert any("thing" in finding["place"] for finding in told["findings"])
    assert [attempt.decision for attempt in bench.attempts("second")] == ["repair_required", "accepted"]
    assert second.manifest.workspace.base_commit == bench.last("first").decision.new_head != base
    assert bench.head_files() == {"a.txt": b"a", "thing": b"by file", "things/part": b"by file, by folder"}
    # What was sent back is lost to nobody.
    (rejected, _) = bench.attempts("second")
    assert "thing/part" in bench.files_of(f"refs/coordinator/candidates/{rejected.child_run_id}")


def test_tasks_whose_scopes_meet_work_one_after_the_other_on_each_others_work(bench: Any) -> None:
    bench.commit({"shared.txt": "old\n"})
    body = """
text = open("shared.txt").read()
open("shared.txt", "w").write(text + "more\\n")
hand_in(output=text)
"""
    check = {"command": ["python", "-c", "import time; time.sleep(0.2)"]}
    tasks = {name: bench.program(name, body, write_scope=["shared.txt"], acceptance=[check]) for name in "abc"}
    result = bench.run(tasks)
    assert result.ok
    assert sorted(one.output.count("more") for one in result.tasks.values()) == [0, 1, 2]
    assert bench.head_files() == {"shared.txt": b"old\nmore\nmore\nmore\n"}


def test_a_check_that_passes_alone_and_fails_on_the_merge_sends_back(bench: Any, until: Any) -> None:
    """Two changes that merge as texts, and do not go together."""
    bench.commit({"limit.txt": "3\n", "used.txt": "1\n"})
    check = {"command": ["python", "-c", "assert int(open('used.txt').read()) <= int(open('limit.txt').read())"]}
    lower = """
mark("ready"); wait_for("go")
open("limit.txt", "w").write("2\\n")
hand_in()
"""
    use = """
mark("ready"); wait_for("go")
limit = int(open("limit.txt").read())
if P["feedback"] is None:
    wait_for("lowered")
open("used.txt", "w").write(f"{limit}\\n")
hand_in(output=P["feedback"])
"""
    tasks = {
        "lower": bench.program("lower", lower, write_scope=["limit.txt"], acceptance=[check]),
        "use": bench.program("use", use, write_scope=["used.txt"], acceptance=[check], limits={"max_repairs": 1}),
    }
    worker = bench.start(tasks)
    until(lambda: len(bench.place.marks("ready")) == 2)
    bench.place.go()
    until(lambda: bench.place.one("lower").state == "accepted")
    bench.place.go("lowered")
    bench.place.ended(worker)
    use_result = bench.last("use")
    assert use_result.accepted
    assert "AssertionError" in use_result.output["reason"]
    assert bench.head_files() == {"limit.txt": b"2\n", "used.txt": b"2\n"}


def test_dependents_see_what_was_accepted_and_only_that(bench: Any) -> None:
    bench.commit({"a.txt": "a"})
    see = "hand_in(output=sorted(name for name in os.listdir() if name != '.git'))\n"
    make = "open('{0}.txt', 'w').write('{0}')\nhand_in('{1}', message='no')\n"
    tasks = {
        "good": bench.program("good", make.format("good", "completed"), write_scope=["good.txt"]),
        "bad": bench.program("bad", make.format("bad", "failed"), write_scope=["bad.txt"]),
        "sees": bench.program("sees", see, needs=["good"], write_scope=[]),
        "reads": bench.task({"function": f"{Path(__file__).parent / 'children.py'}:reads_tree"}, needs=["good"],
                            workspace="none", resources={"tools": ["list_files"], "write_scope": []}),
    }  # fmt: skip
    result = bench.run(tasks)
    assert result.tasks["bad"].state == "failed"
    assert result.tasks["sees"].output == ["a.txt", "good.txt"]
    assert result.tasks["reads"].output == ["a.txt", "good.txt"]


@pytest.mark.parametrize("when", ["half", "taken"])
def test_a_worker_killed_while_it_takes_a_candidate_loses_nothing(bench: Any, until: Any, when: str) -> None:
    bench.commit({"a.txt": "a"})
    body = "open('b.txt', 'w').write(f'by {ATTEMPT}')\nmark('ran')\nhand_in()\n"
    tasks = {"one": bench.program("child", body, limits={"max_claims": 2})}
    killed = bench.start(tasks, "--die-in-snapshot", when)
    bench.place.ended(killed, -signal.SIGKILL)
    (before,) = bench.workspaces
    bench.place.ended(bench.place.worker())
    assert bench.last().accepted
    assert bench.head_files() == {"a.txt": b"a", "b.txt": b"by 2"}
    assert [attempt.ended for attempt in bench.attempts()] == ["lost", "submitted"]
    assert (before / "b.txt").read_text() == "by 1"


def test_a_worker_killed_while_a_check_runs_leaves_no_program_and_another_judges(
    bench: Any, until: Any, is_alive: Any
) -> None:
    bench.commit({"a.txt": "a"})
    waits = (
        "import os, pathlib, signal\n"
        "marks = pathlib.Path(os.environ['MARKS'])\n"
        "if not (marks / 'go').exists():\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    if os.fork() == 0: os.setsid()\n"
        "    with open(marks / 'pids', 'a') as file: file.write(f'{os.getpid()}\\n')\n"
        "    while True: signal.pause()\n"
    )
    check = {"command": ["python", "-c", waits], "env": {"MARKS": str(bench.folder)}}
    body = "mark('ran')\nopen('b.txt', 'w').write('b')\nhand_in()\n"
    worker = bench.start({"one": bench.program("child", body, acceptance=[check])})
    pids = bench.folder / "pids"
    until(lambda: pids.exists() and pids.read_text().count("\n") == 2)
    worker.kill()
    worker.wait()
    bench.place.go()
    bench.place.ended(bench.place.worker())
    assert not any(is_alive(int(pid)) for pid in pids.read_text().split())
    assert len(bench.place.marks("ran")) == 1  # the child is not asked again
    assert bench.place.verbs("one").count("gate_claimed") == 2
    assert bench.head_files()["b.txt"] == b"b"


def test_a_check_that_is_running_when_the_worker_is_told_to_stop_is_ended_and_costs_no_try(
    bench: Any, until: Any, is_alive: Any
) -> None:
    bench.commit({"a.txt": "a"})
    waits = (
        "import os, pathlib, signal\n"
        "marks = pathlib.Path(os.environ['MARKS'])\n"
        "if not (marks / 'go').exists():\n"
        "    (marks / 'pid').write_text(str(os.getpid()))\n"
        "    while True: signal.pause()\n"
    )
    check = {"command": ["python", "-c", waits], "env": {"MARKS": str(bench.folder)}}
    file = bench.file({"one": bench.program("child", "hand_in()\n", acceptance=[check])})
    run = bench.place.cli("run", str(file))
    pid = bench.folder / "pid"
    until(lambda: pid.exists() and pid.read_text())
    run.send_signal(signal.SIGINT)
    bench.place.ended(run, 130)
    assert not is_alive(int(pid.read_text()))
    one = bench.place.one("one")
    assert (one.state, one.owner) == ("submitted", None)
    bench.place.go()
    bench.place.ended(bench.place.cli("run", str(file)))
    assert bench.last().accepted


def test_more_checks_than_threads_run_at_once_and_hold_up_no_child(bench: Any, until: Any) -> None:
    """Programs that run for long leave the worker free: a child's deadline is kept meanwhile."""
    bench.commit({"a.txt": "a"})
    waits = "import os, pathlib, time\nwhile not (pathlib.Path(os.environ['MARKS']) / 'go').exists(): time.sleep(0.02)"
    check = {"command": ["python", "-c", waits], "env": {"MARKS": str(bench.folder)}}
    tasks = {
        f"t{n}": bench.program(f"t{n}", "mark('ready')\nhand_in()\n", acceptance=[check], workspace="none",
                               write_scope=[]) for n in range(12)
    }  # fmt: skip
    late = bench.program("late", "wait_for('judging')\nwhile True: time.sleep(1)\n", workspace="none", write_scope=[],
                         limits={"deadline_s": 8}, objective="z")  # fmt: skip
    worker = bench.start({**tasks, "late": late}, "--slots", "16")
    until(lambda: sum(event.verb == "gate_claimed" for event in bench.place.events()) == 12)
    bench.place.go("judging")
    until(lambda: bench.place.one("late").state == "failed", timeout_s=40)
    assert all(bench.place.one(name).state == "submitted" for name in tasks)
    bench.place.go()
    bench.place.ended(worker, 1)
    assert all(bench.place.one(name).state == "accepted" for name in tasks)
