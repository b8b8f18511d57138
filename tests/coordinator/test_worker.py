"""The worker: what it takes, when it leaves, and what it leaves behind."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import StoreUnavailable
from contracts.orchestration import Orchestration
from coordinator import Assignment, Result
from coordinator.home import Home, open_home
from coordinator.launch import launch, plan_launch
from coordinator.store import TaskStore
from coordinator.store.database import StoreBroken
from coordinator.store.records import NewChild
from coordinator.worker import Worker

go = threading.Event()
started = threading.Event()


def quick(a: Assignment) -> Result:
    return a.completed({"n": 1})


def logs(a: Assignment) -> Result:
    raise RuntimeError("it broke with " + os.environ["CANARY_TOKEN"])


def held(a: Assignment) -> Result:
    started.set()
    go.wait(60)
    return a.completed({"n": 1})


def stopped_by_signal(a: Assignment) -> Result:
    started.set()
    assert a.cancel.wait(60)
    return a.failed(f"told to stop: {a.cancel.reason}")


@pytest.fixture(autouse=True)
def _events() -> Any:
    go.clear()
    started.clear()
    yield
    go.set()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return open_home(str(tmp_path / "store.db"))


@pytest.fixture
def real_store(home: Home) -> Any:
    """With the real clock: a worker lives in real time."""
    store = TaskStore(home.url, home.folder)
    yield store
    store.close()


@pytest.fixture
def launched(home: Home, real_store: TaskStore) -> Callable[..., int]:
    def make(*functions: Any, **fields: Any) -> int:
        tasks = {
            f"t{number}": {
                "objective": "x", "agent": function, "isolation": "none", "acceptance": [{"cel": "output.n == 1"}],
                "limits": {"max_claims": 1, "lease_s": 10},
            }
            for number, function in enumerate(functions)
        }  # fmt: skip
        work = Orchestration.model_validate({"name": "run", "objective": "x", "tasks": tasks, **fields})
        return launch(real_store, home, plan_launch(work), new=True).row

    return make


def test_a_limited_worker_takes_no_claim_more(home: Home, real_store: TaskStore, launched: Any) -> None:
    row = launched(quick, quick, quick)
    worker = Worker(real_store, home, slots=8, claims_max=2)
    asyncio.run(worker.run())
    claims = [event for event in real_store.events(row) if event.verb in ("claimed", "gate_claimed")]
    assert len(claims) == 2
    assert real_store.run_state(row) == "open"
    asyncio.run(Worker(real_store, home).run())
    assert real_store.run(row).ok


def test_a_worker_of_one_run_leaves_others_alone(home: Home, real_store: TaskStore, launched: Any) -> None:
    mine, other = launched(quick), launched(quick)
    asyncio.run(Worker(real_store, home, runs=[mine]).run())
    assert real_store.run_state(mine) == "ended"
    assert real_store.run_state(other) == "open"
    assert [task.attempts for task in real_store.run(other).tasks] == [[]]


def test_a_worker_without_work_leaves_at_once_and_leaves_no_lock(home: Home, real_store: TaskStore) -> None:
    asyncio.run(Worker(real_store, home).run())
    assert list(home.locks.iterdir()) == []


def test_no_more_children_run_than_there_are_slots(home: Home, real_store: TaskStore, launched: Any) -> None:
    row = launched(held, quick, quick)

    async def play() -> None:
        worker = Worker(real_store, home, slots=1)
        running = asyncio.ensure_future(worker.run())
        assert await asyncio.to_thread(started.wait, 30)
        states = [task.state for task in real_store.run(row).tasks]
        assert states == ["running", "pending", "pending"]
        go.set()
        await running

    asyncio.run(play())
    assert real_store.run(row).ok


def damage(file: Path) -> None:
    file.rename(file.with_suffix(".away"))
    file.write_text("not a database " * 1000)


def test_a_worker_whose_store_is_broken_tells_its_children_leaves_and_keeps_its_lock(
    home: Home, real_store: TaskStore, launched: Any
) -> None:
    row = launched(stopped_by_signal)
    file = Path(home.url.removeprefix("sqlite:///"))

    async def play() -> None:
        worker = Worker(real_store, home, runs=[row])
        running = asyncio.ensure_future(worker.run())
        assert await asyncio.to_thread(started.wait, 30)
        real_store.close()
        damage(file)
        real_store.close()  # also what was opened in between, and would go on with the file as it was
        with pytest.raises(StoreBroken):
            await asyncio.wait_for(running, 60)

    asyncio.run(play())
    # Its child may still run: nobody may take its lock for free while this process lives.
    assert len(list(home.locks.iterdir())) == 1
    file.unlink()
    file.with_suffix(".away").rename(file)
    assert real_store.run(row).tasks[0].state == "running"


def test_every_log_line_of_a_child_names_its_attempt_and_holds_no_secret(
    home: Home, real_store: TaskStore, launched: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "cnry-77aa01-bb93")
    row = launched(quick, logs)
    asyncio.run(Worker(real_store, home, name="w").run())
    assert real_store.run_state(row) == "ended"
    (file,) = home.logs.iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    of_children = [line for line in lines if line["event"].startswith("child_")]
    assert {line["event"] for line in of_children} == {"child_started", "child_ended", "child_failed"}
    for line in of_children:
        assert (line["run"], line["attempt"], line["generation"]) == ("run", 1, 1)
        assert line["task"] in ("t0", "t1")
        assert line["owner"].startswith("w-")
        assert line["timestamp"]
        assert line["level"]
    assert "cnry" not in file.read_text()
    assert "[redacted:CANARY_TOKEN]" in file.read_text()


def test_a_function_that_outlives_its_worker_disturbs_nothing(
    home: Home, real_store: TaskStore, launched: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    row = launched(held, defaults={"limits": {"deadline_s": 0.3}})

    async def play() -> None:
        await Worker(real_store, home, runs=[row]).run()
        assert real_store.run(row).tasks[0].state == "failed"
        others = asyncio.all_tasks() - {asyncio.current_task()}
        go.set()
        await asyncio.wait(others, timeout=30)

    asyncio.run(play())
    assert capfd.readouterr().err == ""


class AwayOnce(TaskStore):
    """A store whose next tick is not answered."""

    away = True

    def tick(self, *args: Any, **more: Any) -> Any:
        if self.away:
            self.away = False
            raise StoreUnavailable("it is away")
        return super().tick(*args, **more)


def test_who_delegates_is_told_of_a_store_that_is_away_and_may_repeat_it_even_when_the_worker_has_ended(
    home: Home, build: Any
) -> None:
    store = AwayOnce(home.url, home.folder)
    store.create_run(build.run(closed=False))
    store.cancel(1, 1)
    goes_on = True
    worker = Worker(store, home, runs=[1], keep_going=lambda: goes_on)
    kid = NewChild(1, build.task("kid"))

    async def play() -> None:
        nonlocal goes_on
        working = asyncio.ensure_future(worker.run())
        with pytest.raises(StoreUnavailable, match="it is away"):
            await worker.delegate(kid)
        assert not (await worker.delegate(kid)).repeated
        goes_on = False
        worker.stop()
        await working
        assert (await worker.delegate(kid)).repeated

    try:
        asyncio.run(play())
        assert [task.task_id for task in store.run(1).tasks] == ["one", "kid"]
    finally:
        store.close()
