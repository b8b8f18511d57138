"""The Python face as its users type it."""

from __future__ import annotations

import asyncio
import signal
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from coordinator import AsyncCoordinator, BadInput, Coordinator, NotAccepted, Orchestration, Refused, Task

EXAMPLE = """
    from coordinator import Assignment, Coordinator, Orchestration, Result, Task

    def count(a: Assignment) -> Result:
        return a.completed({"files": len(a.tools.list_files("**/*.py"))})

    work = Orchestration(name="count", objective="Count the Python files.", source=".",
                         tasks={"count": Task(objective="Count.", agent=count, isolation="none",
                                             resources={"tools": ["list_files"]},
                                             acceptance=[{"cel": "output.files > 0"}])})
    with Coordinator("sqlite:///tasks.db") as coordinator:
        print(coordinator.run(work).tasks["count"].manifest)
"""

ASYNC_EXAMPLE = """
    import asyncio
    from coordinator import Assignment, AsyncCoordinator, Coordinator, Orchestration, Result, Task

    async def count(a: Assignment) -> Result:
        await asyncio.sleep(0)
        return a.completed({"files": len(a.tools.list_files("**/*.py"))})

    async def main() -> None:
        work = Orchestration(name="count", objective="Count the Python files.", source=".",
                             tasks={"count": Task(objective="Count.", agent=count, isolation="none",
                                                 resources={"tools": ["list_files"]},
                                                 acceptance=[{"cel": "output.files > 0"}])})
        async with AsyncCoordinator("sqlite:///tasks.db") as coordinator:
            print((await coordinator.run(work)).tasks["count"].output)
        with Coordinator("sqlite:///tasks.db") as coordinator:  # from inside a running loop
            result = coordinator.run(work)
            print(result.run_id, result.ok, result.tasks["count"].output)

    if __name__ == "__main__":
        asyncio.run(main())
"""


def run_script(place: Any, text: str) -> str:
    (place.folder / "code").mkdir(exist_ok=True)
    script: Path = place.folder / "code" / "script.py"
    script.write_text(textwrap.dedent(text))
    out, _ = place.ended(place.process(sys.executable, "-W", "error", "script.py", cwd=script.parent))
    return str(out)


def test_the_example_of_the_documentation_runs_in_a_folder_without_git_that_holds_its_store(place: Any) -> None:
    out = run_script(place, EXAMPLE)
    assert "'files': 1" in out
    assert (place.folder / "code" / "tasks.db").exists()
    assert "tasks.db" not in out  # the store is no part of the source
    assert "'files': 1" in run_script(place, EXAMPLE)


def test_the_same_with_await_and_from_inside_a_running_loop(place: Any) -> None:
    assert run_script(place, ASYNC_EXAMPLE).splitlines() == ["{'files': 1}", "count-2 True {'files': 1}"]


def orchestration(place: Any, tasks: dict[str, Any], **fields: Any) -> Orchestration:
    return Orchestration.model_validate(place.document(tasks, **fields))


def test_a_result_says_what_was_accepted_and_what_was_not(place: Any) -> None:
    tasks = {"good": place.task("quick"), "bad": place.task("raises", limits={"max_claims": 1})}
    with Coordinator(place.url, home=place.home) as coordinator:
        result = coordinator.run(orchestration(place, tasks))
        assert coordinator.result() == result
    assert not result.ok
    good, bad = result.tasks["good"], result.tasks["bad"]
    assert (good.outcome, good.accepted, good.output) == ("accepted", True, {"attempt": 1, "task": "good"})
    assert good.decision.decision == "accepted"
    assert good.decision.bound.manifest_digest == good.manifest.digest
    assert (bad.outcome, bad.accepted, bad.output, bad.decision, bad.manifest) == ("failed", False, None, None, None)
    with pytest.raises(NotAccepted, match="bad: failed .*the pump is broken"):
        result.raise_if_not_accepted()


def test_a_wholly_accepted_result_raises_nothing(place: Any) -> None:
    with Coordinator(place.url, home=place.home) as coordinator:
        result = coordinator.run(orchestration(place, {"one": place.task("quick"), "two": place.task("naps")}))
    assert result.ok
    result.raise_if_not_accepted()


def test_a_run_that_was_cut_off_is_continued_and_other_content_is_refused(place: Any) -> None:
    tasks = {"one": place.task("quick"), "two": place.task("quick", needs=["one"])}
    file = place.write(tasks)
    place.ended(place.worker("--fault", "claimed:two", file=file), -signal.SIGKILL)
    with Coordinator(place.url, home=place.home) as coordinator:
        other = {**tasks, "two": {**tasks["two"], "objective": "Something else."}}
        with pytest.raises(Refused, match=r"tasks.two.objective: .*Something else"):
            coordinator.run(orchestration(place, other))
        result = coordinator.run(Orchestration.from_file(file))
    assert result.run_id == "play"
    assert result.ok
    assert len(place.marks("start", "one")) == 1


def test_faults_are_raised_all_at_once_and_nothing_is_stored(place: Any) -> None:
    bad = {"one": place.task("quick", needs=["two"]), "three": place.task("no_such_function", acceptance=[])}
    with Coordinator(place.url, home=place.home) as coordinator:
        with pytest.raises(BadInput) as refused:
            coordinator.run(orchestration(place, bad))
        assert coordinator.store.newest_run() is None
    paths = {fault.path for fault in refused.value.faults}
    assert {"tasks.one.needs[0]", "tasks.three.acceptance", "tasks.three.agent.function"} <= paths


def test_a_cancelled_await_stops_in_order_and_gives_claims_back(place: Any, until: Any) -> None:
    async def program() -> None:
        async with AsyncCoordinator(place.url, home=place.home) as coordinator:
            running = asyncio.ensure_future(coordinator.run(orchestration(place, {"one": place.task("waits")})))
            await asyncio.to_thread(until, lambda: place.marks("start"))
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    asyncio.run(program())
    assert [line[4] for line in place.marks()] == ["start", "stopped:interrupted"]
    assert place.one("one").state == "pending"
    assert place.one("one").attempts[0].ended == "released"
    assert list((place.home / "locks").iterdir()) == []


def test_two_programs_with_one_store_share_a_run(place: Any) -> None:
    async def program() -> list[Any]:
        work = orchestration(place, {f"t{n}": place.task("naps") for n in range(12)})
        async with (
            AsyncCoordinator(place.url, home=place.home, workers=2) as one,
            AsyncCoordinator(place.url, home=place.home, workers=2) as other,
        ):
            return list(await asyncio.gather(one.run(work), other.run(work)))

    results = asyncio.run(program())
    assert [result.run_id for result in results] == ["play", "play"]
    assert all(result.ok for result in results)
    assert len(place.marks("start")) == 12


def test_a_coordinator_without_room_for_a_child_is_refused(place: Any) -> None:
    with pytest.raises(BadInput, match="workers=0"):
        Coordinator(place.url, workers=0)


def test_a_function_that_no_other_process_could_find_is_refused_by_name() -> None:
    def nested(a: Any) -> Any: ...

    with pytest.raises(BadInput, match="nested"):
        Task(objective="x", agent=nested, isolation="none")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="lambda"):
        Task(objective="x", agent=lambda a: a, isolation="none")  # type: ignore[arg-type]
