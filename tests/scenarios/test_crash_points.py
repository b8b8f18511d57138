"""A process dies by SIGKILL at every named point, and the run is completed by others with nothing broken."""

from __future__ import annotations

import ast
import dataclasses
import functools
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, inspect

from contracts.errors import BadInput
from coordinator import crash_points
from coordinator.crash_points import POINTS
from coordinator.store import TaskStore
from coordinator.store.database import parse_url
from tests.scenarios import bench as bench_module
from tests.scenarios import crash_models, crashing, losses
from tests.scenarios.crash_models import MODELS, Models
from tests.scenarios.crashing import Loss, Plan

TOP = Path(__file__).parents[2]

CLEANED = "workspace_removed.committed"
# The workspace is removed beside what follows the child; so that it is known how far that is, one waits for the other.
AT_MERGED = (("merged", CLEANED),)
AT_REMOVAL = (("workspace_renamed", "decided"),)
# Not before it is told, which it never is: nothing of the two is committed.
AT_RESULT = (("tick.commit", "workspace_deleted"), ("workspace_deleted", "submitted"))
WORK = [
    Plan("tick.commit of a claim", "tick.commit"),
    Plan("tick.committed of a claim", "tick.committed"),
    Plan("claimed", "claimed"),
    Plan("record_workspace.commit", "record_workspace.commit"),
    Plan("record_workspace.committed", "record_workspace.committed"),
    Plan("workspace_filled", "workspace_filled"),
    Plan("workspace_made", "workspace_made"),
    Plan("file_written of a pinned file", "file_written"),
    Plan("file_named of a pinned file", "file_named"),
    Plan("prepared", "prepared"),
    Plan("program_started", "program_started", hold=(("program_started", "start"),)),
    Plan("program_gone", "program_gone"),
    Plan("file_written of an artifact", "file_written", "program_gone"),
    Plan("file_named of an artifact", "file_named", "program_gone"),
    Plan("child_returned", "child_returned"),
    Plan("commit_imported", "commit_imported"),
    Plan("candidate_kept", "candidate_kept"),
    Plan("tick.commit of a result", "tick.commit", "child_returned", AT_RESULT),
    Plan("tick.committed of a result", "tick.committed", "child_returned", (("tick.committed", CLEANED),)),
    Plan("submitted", "submitted", hold=(("submitted", CLEANED),)),
    Plan("merged", "merged", hold=AT_MERGED),
    Plan("workspace_filled of a check", "workspace_filled", "merged", AT_MERGED),
    Plan("checkout_made", "checkout_made", hold=AT_MERGED),
    Plan("program_started of a check", "program_started", "merged", (*AT_MERGED, ("program_started", "checked"))),
    Plan("program_gone of a check", "program_gone", "merged", AT_MERGED),
    Plan("check_ran", "check_ran", hold=AT_MERGED),
    Plan("judged", "judged", hold=AT_MERGED),
    Plan("tick.commit of a decision", "tick.commit", "judged", (("judged", CLEANED),)),
    Plan("tick.committed of a decision", "tick.committed", "judged", (("judged", CLEANED),)),
    Plan("decided", "decided", hold=(("decided", CLEANED),)),
    # And when it dies in the removal itself, all else is over.
    Plan("workspace_renamed", "workspace_renamed", hold=AT_REMOVAL),
    Plan("workspace_deleted", "workspace_deleted", hold=AT_REMOVAL),
    Plan("workspace_removed.commit", "workspace_removed.commit", hold=AT_REMOVAL),
    Plan(CLEANED, CLEANED, hold=AT_REMOVAL),
]
RENEWALS = [Plan(f"renew.{when}", f"renew.{when}", "program_started", ((f"renew.{when}", "start"),))
            for when in ("commit", "committed")]  # fmt: skip
TOOLS = [Plan("tool_call", "tool_call")]
LAUNCHES = [Plan(p, p) for p in ("prepare.commit", "prepare.committed", "source_fetched", "create_run.commit",
                                 "create_run.committed")]  # fmt: skip


def both(*verbs: str) -> list[Any]:
    return [Plan(f"{verb}.{when}", f"{verb}.{when}") for verb in verbs for when in ("commit", "committed")]


DELEGATIONS = [Plan(f"tick.{when} of a delegation", f"tick.{when}") for when in ("commit", "committed")]
EXPORTS = [Plan(point, point) for point in ("export_written", "export_named")]


# -- who plays


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    made = crashing.Server()
    yield made
    made.close()


@pytest.fixture
def player(server: Any, any_place: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    models = functools.partial(request.getfixturevalue, "fake_model")
    made = crashing.Player(server, bench_module.Bench(any_place), models)
    yield made
    made.clean_up()


@pytest.fixture
def empty_database(request: pytest.FixtureRequest, any_place: Any) -> None:
    """For the points of making the tables: a PostgreSQL database of the tests has them already."""
    if "prepare" in request.node.name and any_place.url.startswith("postgres"):
        any_place.url = request.getfixturevalue("new_postgres_database")()


# -- what is played: each kills one process at the plan's point, lets others go on, and says what that cost


def play_work(player: Any, plan: Any) -> Any:
    player.play("begin", file=str(player.bench.file({"one": player.program("one")})), amend=False)
    player.work(plan)
    player.work()
    return player.loss_of_work()


def play_renewal(player: Any, plan: Any) -> Any:
    task = player.program("one", limits={"lease_s": 3})
    file = player.bench.file({"one": task}, inputs={"marks": str(player.bench.folder), "hold": [plan.label]})
    player.play("begin", file=str(file), amend=False)
    player.work(plan)
    player.work()
    return player.loss_of_work()


def play_tools(player: Any, plan: Any) -> Any:
    player.play("begin", file=str(player.bench.file({"one": player.function()})), amend=False)
    player.work(plan)
    player.work()
    return player.loss_of_work()


def call_lost(player: Any, was_lost: bool) -> Any:
    return Loss.of(
        lost={"the call": was_lost},
        repeated={"the call": was_lost},
        unknown={"to the caller, whether it was done": True},
        left=player.left(),
    )


def play_launch(player: Any, plan: Any) -> Any:
    file = str(player.bench.file({"one": player.program("one")}))
    player.play("begin", plan, file=file, amend=False)
    engine = create_engine(parse_url(player.place.url))
    has_tables = inspect(engine).has_table("task")
    engine.dispose()
    lost = not has_tables if plan.point.startswith("prepare") else player.place.store.newest_run() is None
    player.play("begin", file=file, amend=False)
    player.work()
    return call_lost(player, lost)


def play_amendment(player: Any, plan: Any) -> Any:
    player.play("begin", file=str(player.bench.file({"one": player.program("one")})), amend=False)
    file = str(player.bench.file({"one": player.program("one", objective="Do it well.")}))
    player.play("begin", plan, file=file, amend=True)
    lost = player.place.run().orchestration_version == 1
    player.play("begin", file=file, amend=True)
    assert player.place.run().orchestration_version == 2
    player.work()
    return call_lost(player, lost)


def play_delegation(player: Any, plan: Any) -> Any:
    player.play("delegate", plan)
    run = player.place.run()
    lost = run.closed_at is None if plan.point.startswith("close_run") else not run.tasks
    player.play("delegate")
    assert player.place.run().closed_at is not None
    (one,) = player.place.run().tasks
    found = call_lost(player, lost)
    claim_lost = any(attempt.ended == "lost" for attempt in one.attempts)  # which came with the delegation
    return dataclasses.replace(found, lost=(*found.lost, *crashing.listed({"the claim": claim_lost})))


def play_answer(player: Any, plan: Any) -> Any:
    player.play("begin", file=str(player.bench.file({"one": player.function("asks")})), amend=False)
    player.work(code=4)
    (request,) = player.place.store.requests(player.place.run().row)
    words = ["answer", request.request_id, "--approve", "-m", "blue"]
    player.play("command", plan, words=words)
    (request,) = player.place.store.requests(player.place.run().row)
    lost = request.answer is None
    player.play("command", words=words)
    player.work()
    return call_lost(player, lost)


def play_cancel(player: Any, plan: Any) -> Any:
    tasks = {"one": player.program("one"), "two": player.program("two")}
    player.play("begin", file=str(player.bench.file(tasks)), amend=False)
    player.play("command", plan, words=["cancel", "play/two"])
    lost = player.place.one("two").state != "cancelled"
    player.play("command", words=["cancel", "play/two"])
    assert player.place.one("two").state == "cancelled"
    player.work(code=1)
    assert player.place.marks("start", "two") == []
    return call_lost(player, lost)


def play_single_calls(player: Any, plan: Any) -> Any:
    player.play("single_calls", plan)
    tasks = {task.task_id: task for task in player.place.run().tasks}
    (two,) = tasks["two"].attempts
    lost = {
        "delegate": "three" not in tasks,
        "submit": tasks["one"].state == "running",
        "end": two.ended is None,
        "confirm_stopped": two.ended_at is None,
        "decide": tasks["one"].state != "accepted",
    }[plan.point.partition(".")[0]]
    player.play("single_calls")
    assert player.place.one("one").state == "accepted"
    player.place.store.cancel(player.place.run().row)  # the other task only ended one attempt
    return call_lost(player, lost)


def play_export(player: Any, plan: Any) -> Any:
    player.play("begin", file=str(player.bench.file({"one": player.program("one")})), amend=False)
    player.work()
    target = player.bench.folder / "exported" / "big.txt"
    target.parent.mkdir()
    words = ["export", "play/one", "-o", str(target)]
    player.play("command", plan, words=words)
    lost = not target.exists()
    player.play("command", words=words, code=0 if lost else 3)
    assert target.read_text() == "one" * 20_000
    loss = call_lost(player, lost)
    return dataclasses.replace(loss, left=crashing.listed(player.left(target)))


PLAYS: list[tuple[Callable[[Any, Any], Any], list[Any]]] = [
    (play_launch, LAUNCHES),
    (play_work, WORK),
    (play_renewal, RENEWALS),
    (play_tools, TOOLS),
    (play_single_calls, both("delegate", "submit", "end", "decide", "confirm_stopped")),
    (play_delegation, [*DELEGATIONS, *both("close_run")]),
    (play_amendment, both("amend")),
    (play_answer, both("answer")),
    (play_cancel, both("cancel")),
    (play_export, EXPORTS),
    (crash_models.play_model, MODELS),
]
ALL = [(play, plan) for play, plans in PLAYS for plan in plans]
ORDINARY = {"file_written of an artifact", "candidate_kept", "tick.commit of a result", "tick.committed of a decision",
            "check_ran", "export_written", "model_answered", "operation_done"}  # fmt: skip
"""For every day; all the others are marked slow."""


def params() -> list[Any]:
    """Every point on both databases."""
    found = []
    for database in ("sqlite", "postgres"):
        for play, plan in ALL:
            daily = database == "sqlite" and plan.label in ORDINARY
            marks = () if daily else (pytest.mark.slow,)
            found.append(pytest.param(database, play, plan, id=f"{database}-{plan.label}", marks=marks))
    return found


@pytest.mark.usefixtures("empty_database")
@pytest.mark.parametrize(("database_url", "play", "plan"), params(), indirect=["database_url"])
def test_one_death_at_a_point_costs_what_the_table_says_and_breaks_nothing(
    player: Any, overlaps: Any, request: pytest.FixtureRequest, play: Any, plan: Any
) -> None:
    found = play(player, plan)
    run = player.place.run()
    assert run.state == "ended"
    assert all(task.state in ("accepted", "cancelled") for task in run.tasks)
    assert player.broken() == []
    assert overlaps(player.place.events()) == []
    losses.compare(request.node.callspec.params["database_url"], plan.label, found)


class Crew:
    """Three workers. One that dies is replaced."""

    def __init__(self, player: Any, plans: list[Any], *, slots: int = 2) -> None:
        self._player = player
        self._plans = plans
        self._slots = slots
        self._workers = {self._start() for _ in range(3)}

    def _start(self) -> int:
        return int(self._player.start("work", self._plans, slots=self._slots))

    def until(self, condition: Callable[[], Any]) -> Any:
        while not (value := condition()):
            assert self.ended(wait=False) == (0, 0), self._player.log
            time.sleep(0.02)
        return value

    def ended(self, *, wait: bool = True) -> tuple[int, int]:
        """The next process that is no worker of ours, or a worker that has ended in order."""
        while True:
            pid, code = self._player.ended(wait=wait)
            if pid in self._workers:
                self._workers.remove(pid)
                if code == -signal.SIGKILL:
                    self._workers.add(self._start())
                    continue
            return pid, code

    def meanwhile(self, do: str, plans: list[Any], **told: Any) -> None:
        """Something else, which dies at each plan, and then is done."""
        for plan in (*plans, None):
            pid = self._player.start(do, [plan] if plan else [], **told)
            assert self.ended() == (pid, -signal.SIGKILL if plan else 0), self._player.log

    def finish(self, *codes: int) -> None:
        while self._workers:
            _, found = self.ended()
            assert found in codes, self._player.log


@pytest.mark.slow
def test_three_workers_that_die_at_every_point_between_them_complete_the_run(player: Any, overlaps: Any) -> None:
    place, folder = player.place, player.bench.folder
    tasks = {"reads": player.function(), "asks": player.function("asks")}
    tasks |= {f"p{n}": player.program(f"p{n}", limits={"lease_s": 3}) for n in range(6)}
    tasks |= {name: player.function("quick") | {"needs": ["asks"]} for name in ("amended", "cancelled")}
    # Programs wait until leases had to be renewed, and so that no worker finds that all has been done but the asking.
    inputs = {"marks": str(folder), "hold": ["renew.committed", "answered"]}
    file = str(player.bench.file(tasks, inputs=inputs))
    for launch in (*(plan for plan in LAUNCHES if not plan.point.startswith("prepare")), None):
        player.play("begin", launch, file=file, amend=False)
    plans = {plan.point: Plan(plan.point, plan.point) for plan in (*WORK, *RENEWALS, *TOOLS)}
    crew = Crew(player, list(plans.values()))
    (request,) = crew.until(lambda: place.store.requests(place.run().row))
    tasks["amended"] |= {"objective": "Do it well."}
    file = str(player.bench.file(tasks, inputs=inputs))
    crew.meanwhile("begin", both("amend"), file=file, amend=True)
    crew.meanwhile("command", both("cancel"), words=["cancel", "play/cancelled"])
    crew.meanwhile("command", both("answer"), words=["answer", request.request_id, "--approve", "-m", "blue"])
    (player.fired / "answered").touch()
    crew.finish(1)  # since one was cancelled
    export = ["export", "play/p0", "-o", str(folder / "big.txt")]
    player.play("command", EXPORTS[0], words=export)
    player.play("command", EXPORTS[1], words=export)
    assert (folder / "big.txt").read_text() == "p0" * 20_000
    assert [point for point, plan in plans.items() if not player.has_fired(plan)] == []
    run = place.run()
    others = {task.task_id: (task.state, task.reason) for task in run.tasks if task.state != "accepted"}
    assert others == {"cancelled": ("cancelled", None)}
    assert player.broken() == []
    assert overlaps(place.events()) == []
    assert {f"p{n}.txt" for n in range(6)} < player.head_paths()


@pytest.mark.slow
def test_three_workers_with_models_die_at_every_point_of_theirs_and_nothing_is_paid_or_done_twice(
    player: Any, overlaps: Any
) -> None:
    models = Models(player, player.fake_model())
    names = [f"m{number}" for number in range(8)]
    models.launch({name: models.task(name, fresh=number % 2 == 1) for number, name in enumerate(names)})
    plans = {plan.point: Plan(plan.point, plan.point) for plan in MODELS}
    while True:
        Crew(player, list(plans.values()), slots=1).finish(0, 4)
        if not models.answer_for_people():
            break
    assert [point for point, plan in plans.items() if not player.has_fired(plan)] == []
    assert player.place.run().ok
    assert player.broken() == []
    assert overlaps(player.place.events()) == []
    assert [models.calls(name) for name in names] == [1] * len(names)
    assert {f"out/{name}.txt" for name in names} < player.head_paths()
    assert any(map(models.files_lost, names))
    # Each of these deaths was of one call: between the answer and its turn, between the charge and its settlement.
    assert models.unstored == 4
    assert models.unsettled_charges() == 4


# -- what keeps the points, the tests and the table together


def scanned() -> set[str]:
    """The points in the code of the four packages: what is named in a call, and two for each verb of the store."""
    found = set()
    for package in ("contracts", "workspaces", "agents", "coordinator"):
        for file in (TOP / package).rglob("*.py"):
            for method in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                    found |= points_in(method)
    return found


def points_in(method: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    found = set()
    for call in ast.walk(method):
        if not isinstance(call, ast.Call):
            continue
        called = ast.unparse(call.func)
        if called.rpartition(".")[2] == "reached" and method.name != "at_commit":
            assert isinstance(call.args[0], ast.Constant), f"{method.name}: a point is named where it is"
            found.add(str(call.args[0].value))
        # Of the verbs of the store, and of the one that makes its tables.
        if called.endswith("_db.write") or (called == "self.write" and method.name == "_prepare"):
            verb = method.name.lstrip("_")
            found |= {f"{verb}.commit", f"{verb}.committed"}
    return found


def test_every_point_in_the_code_is_described_and_somebody_dies_there() -> None:
    assert scanned() == set(POINTS)
    assert {plan.point for _, plan in ALL} == set(POINTS)


def test_every_verb_reaches_its_two_points(sqlite_url: str, tmp_path: Path) -> None:
    seen: list[str] = []
    with crash_points.armed(lambda point, _task, _attempt: seen.append(point)):
        TaskStore(sqlite_url, tmp_path).close_run(1)
    assert seen == ["prepare.commit", "prepare.committed", "close_run.commit", "close_run.committed"]
    crash_points.reached("claimed", "one", 1)
    assert len(seen) == 4


def test_nothing_is_committed_when_it_ends_at_the_commit(sqlite_url: str, tmp_path: Path, build: Any) -> None:
    class Crash(BaseException):
        pass

    def crash(point: str, _task: str | None, _attempt: int | None) -> None:
        if point in ("create_run.commit", "close_run.committed"):
            raise Crash

    store = TaskStore(sqlite_url, tmp_path)
    with crash_points.armed(crash), pytest.raises(Crash):
        store.create_run(build.run(closed=False))
    assert store.newest_run() is None
    store.create_run(build.run(closed=False))
    with crash_points.armed(crash), pytest.raises(Crash):
        store.close_run(1)
    assert store.run(1).closed_at is not None
    store.close()


@pytest.mark.parametrize("text", ["nowhere:one", "claimed:one:first", "claimed:one:1:2", "", ":one"])
def test_a_fault_that_names_no_point_or_no_attempt_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="write POINT, POINT:TASK or POINT:TASK:ATTEMPT"):
        crash_points.Fault.parse(text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("tick.commit", ("tick.commit", None, None)),
        ("claimed:one", ("claimed", "one", None)),
        ("claimed:one:12", ("claimed", "one", 12)),
    ],
)
def test_a_fault_names_a_point_and_perhaps_a_task_and_an_attempt(text: str, fault: tuple[str, Any, Any]) -> None:
    assert crash_points.Fault.parse(text) == crash_points.Fault(*fault)


def test_the_loss_table_of_the_readme_says_what_the_tests_found() -> None:
    assert set(losses.known()) == {plan.label for _, plan in ALL}
    assert all(found.keys() == losses.DATABASES.keys() for found in losses.known().values())
    assert losses.in_readme() == losses.table()
