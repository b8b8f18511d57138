"""Delegation as one goes, from programs that may die at any point."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from contracts.attenuation import Grant
from contracts.terms import Resources
from coordinator import AsyncCoordinator, BadInput, Coordinator, Refused, Task

HERE = Path(__file__).parent
POINTS = [
    "started", "first delegated", "in first", "first decided", "all delegated", "in second", "in third", "all decided",
]  # fmt: skip


@pytest.fixture
def program(place: Any) -> Any:
    def start(*arguments: str) -> Any:
        script = str(HERE / "delegating.py")
        return place.process(sys.executable, script, place.url, str(place.home), str(place.folder), *arguments)

    return start


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_program_goes_on_where_it_was(place: Any, program: Any, point: str) -> None:
    place.ended(program(point), -signal.SIGKILL)
    accepted = {task.task_id for task in place.run().tasks if task.state == "accepted"}
    out, _ = place.ended(program())
    assert out.splitlines() == [
        "program first accepted",
        "program third accepted {'after': ['second'], 'task': 'third'} accepted",
        "closed True",
    ]
    assert len(place.run().tasks) == 3
    assert place.run().run_id == "program"
    for name in ("first", "second", "third"):
        starts = len(place.marks("start", name))
        # What was accepted is not done again; what the death met halfway is. The worker may have been that quick.
        may_be_redone = name not in accepted and point in ("first delegated", "all delegated")
        expected = {2} if point == f"in {name}" else {1, 2} if may_be_redone else {1}
        assert starts in expected, f"{name} (accepted before: {accepted})"


def test_a_program_that_ended_well_is_a_new_run_the_next_time(place: Any, program: Any) -> None:
    place.ended(program())
    out, _ = place.ended(program())
    assert out.splitlines()[0] == "program-2 first accepted"
    assert [place.run(name).state for name in ("program", "program-2")] == ["ended", "ended"]


# -- within this process


def of(place: Any, function: str, **fields: Any) -> Task:
    return Task.model_validate(place.task(function, **fields))


def test_leaving_by_an_exception_leaves_the_run_open_and_gives_claims_back(place: Any, until: Any) -> None:
    async def program(*, fails: bool) -> str:
        async with AsyncCoordinator(place.url, home=place.home) as coordinator:
            async with coordinator.start("p", objective="Try.", inputs={"marks": str(place.folder)}) as run:
                child = await run.delegate(of(place, "waits"), delegation_id="one")
                if fails:
                    await asyncio.to_thread(until, lambda: place.marks("start"))
                    raise ZeroDivisionError
                place.go()
                assert (await child.decided()).accepted
            return run.run_id

    with pytest.raises(ZeroDivisionError):
        asyncio.run(program(fails=True))
    assert place.run().state == "open"
    assert place.run().closed_at is None
    assert place.one("one").state == "pending"
    assert place.one("one").attempts[0].ended == "released"
    assert asyncio.run(program(fails=False)) == "p"
    assert place.run().ok
    assert asyncio.run(program(fails=False)) == "p-2"


def test_the_same_id_with_other_terms_is_refused_and_says_what_differs(place: Any) -> None:
    with (
        Coordinator(place.url, home=place.home) as coordinator,
        coordinator.start("p", objective="Try.", inputs={"marks": str(place.folder)}) as run,
    ):
        first = run.delegate(of(place, "quick"), delegation_id="one")
        again = run.delegate(of(place, "quick"), delegation_id="one")
        assert first.decided().accepted
        assert again.decided().accepted
        with pytest.raises(Refused) as refused:
            run.delegate(of(place, "quick", limits={"max_claims": 7}), delegation_id="one")
        assert "delegation 'one' of p was issued with other terms" in str(refused.value)
        assert "limits.max_claims: 3 -> 7" in str(refused.value)
        assert "Use a new delegation_id" in str(refused.value)
    assert len(place.run().tasks) == 1
    assert len(place.marks("start")) == 1


def test_a_grant_bounds_every_child_of_a_program(place: Any) -> None:
    (place.folder / "source").mkdir()
    (place.folder / "source" / "readme.md").write_text("hello\n")
    grant = Grant(resources=Resources(tools=["read_file"], read_scope=["docs/**"]), isolation="none")
    with (
        Coordinator(place.url, home=place.home) as coordinator,
        coordinator.start(
            "p", objective="Try.", inputs={"marks": str(place.folder)}, source=str(place.folder / "source"), grant=grant
        ) as run,
    ):
        with pytest.raises(BadInput) as refused:
            run.delegate(
                of(place, "quick", resources={"tools": ["read_file", "search_code"], "read_scope": ["**"]}),
                delegation_id="wide",
            )
        assert {fault.path for fault in refused.value.faults} == {"resources.tools", "resources.read_scope"}
        narrow = of(place, "quick", resources={"tools": ["read_file"], "read_scope": ["docs/a/*"]})
        assert run.delegate(narrow, delegation_id="narrow").decided().accepted
    assert [task.task_id for task in place.run().tasks] == ["narrow"]


def test_faulty_terms_are_refused_all_at_once_and_nothing_is_delegated(place: Any) -> None:
    with Coordinator(place.url, home=place.home) as coordinator, coordinator.start("p", objective="Try.") as run:
        bad = of(place, "quick", needs=["absent"], acceptance=[{"cel": "output +"}], resources={"tools": ["read_file"]})
        with pytest.raises(BadInput) as refused:
            run.delegate(bad, delegation_id="one")
        paths = " ".join(fault.path for fault in refused.value.faults)
        assert "needs[0]" in paths
        assert "acceptance[0].cel" in paths
        assert "resources.tools" in paths
    assert place.run().tasks == []


def test_a_timeout_of_decided_ends_only_the_wait(place: Any) -> None:
    with (
        Coordinator(place.url, home=place.home) as coordinator,
        coordinator.start("p", objective="Try.", inputs={"marks": str(place.folder)}) as run,
    ):
        child = run.delegate(of(place, "waits"), delegation_id="one")
        with pytest.raises(TimeoutError):
            child.decided(timeout_s=0.3)
        place.go()
        assert child.decided().accepted
    assert len(place.one("one").attempts) == 1


def test_a_child_whose_need_failed_is_decided_as_blocked(place: Any) -> None:
    with (
        Coordinator(place.url, home=place.home) as coordinator,
        coordinator.start("p", objective="Try.", inputs={"marks": str(place.folder)}) as run,
    ):
        failing = run.delegate(of(place, "raises", limits={"max_claims": 1}), delegation_id="one")
        below = run.delegate(of(place, "quick", needs=["one"]), delegation_id="two")
        far_below = run.delegate(of(place, "quick", needs=["two"]), delegation_id="three")
        for child in (below, far_below):
            result = child.decided(timeout_s=30)
            assert (result.outcome, result.accepted) == ("blocked", False)
        assert "needs one (failed)" in below.decided().reason
        assert failing.decided().outcome == "failed"
    assert place.run().state == "ended"


def test_a_child_that_waits_for_a_person_is_decided_as_waiting(place: Any) -> None:
    with (
        Coordinator(place.url, home=place.home) as coordinator,
        coordinator.start("p", objective="Try.", inputs={"marks": str(place.folder)}) as run,
    ):
        child = run.delegate(of(place, "asks"), delegation_id="one")
        assert child.decided(timeout_s=30).outcome == "waiting"
        (request,) = coordinator.requests()
        coordinator.answer(request.request_id, approve=True, message="green")
        assert child.decided(timeout_s=30).output["message"] == "green"


def test_ctrl_c_in_a_synchronous_program_ends_it_and_leaves_the_run_open(place: Any, until: Any) -> None:
    script = place.folder / "program.py"
    script.write_text(
        "import sys\n"
        "from coordinator import Coordinator, Task\n"
        "store, home, marks, child = sys.argv[1:]\n"
        "task = Task(objective='x', agent={'function': child}, isolation='none', acceptance=[{'cel': 'true'}])\n"
        "with Coordinator(store, home=home) as coordinator:\n"
        "    with coordinator.start('p', objective='Try.', inputs={'marks': marks}) as run:\n"
        "        print(run.delegate(task, delegation_id='one').decided().outcome)\n"
    )
    child = place.child("waits")["function"]
    command = (sys.executable, str(script), place.url, str(place.home), str(place.folder), child)
    program = place.process(*command)
    until(lambda: place.marks("start"))
    program.send_signal(signal.SIGINT)
    _, err = place.ended(program, None)
    assert program.returncode in (130, -signal.SIGINT), err
    assert "KeyboardInterrupt" in err
    assert place.run().state == "open"
    assert place.one("one").attempts[0].ended == "released"
    place.go()
    assert place.ended(place.process(*command))[0] == "accepted\n"
