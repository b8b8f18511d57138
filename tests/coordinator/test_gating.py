"""Bringing results before the gate: the tree that is judged, and what keeps the gate from judging."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import StoreUnavailable
from contracts.states import ClaimKind
from coordinator.children import StopSignal
from coordinator.gating import GateEnvironment, is_quick, judge_claims
from coordinator.home import Home, open_home
from coordinator.redaction import Redactor
from coordinator.sources import Sources
from coordinator.store import TaskStore
from coordinator.store.database import Blob
from coordinator.store.records import Claim, NewRun, NewTask
from coordinator.workplaces import Workplaces
from workspaces import fetch_source, pin_source

SECRET = "hunter2-hunter2-7"


class Desk:
    """A run with one submitted candidate."""

    def __init__(self, store: TaskStore, build: Any, folder: Path) -> None:
        self.store, self.build, self.folder = store, build, folder
        self.home: Home = open_home(f"sqlite:///{folder / 'store' / 'store.db'}", folder / "home")
        self.sources = Sources(store, self.home)
        lock = folder / "lock"
        lock.touch()
        self.gate = GateEnvironment(
            store=store, sources=self.sources, home=self.home, clock=lambda: datetime(2026, 3, 1, tzinfo=UTC),
            redactor=Redactor({"SERVICE_TOKEN": SECRET}), lock_path=lock,
        )  # fmt: skip
        (folder / "source").mkdir()
        (folder / "source" / "a.txt").write_text("a")
        self.pin = pin_source(folder / "source")
        fetch_source(self.pin, self.home.git_dir("run.git"))

    def submitted(self, *checks: dict[str, Any], workspace: str = "clone", count: int = 1) -> list[Claim]:
        tasks = [
            NewTask(
                self.build.terms(
                    f"t{n}", workspace=workspace, write_scope=[f"t{n}.txt"], acceptance=list(checks),
                    input_snapshot={"repo_ref": self.pin.repo_ref()}, agent={"command": ["x"]},
                ),
                f"d-{n}",
            )
            for n in range(count)
        ]  # fmt: skip
        document = Blob.of(
            {"source": self.pin.to_json(), "git_dir": "run.git", "folder": str(self.folder), "objective": "x"}
        )
        self.store.create_run(NewRun("run", document, document.digest, self.pin.commit, True, tasks), beside_open=True)
        places = Workplaces(self.store, self.home, self.sources)
        for claim in self.store.claim("w", work=count):
            place = places.make(claim)
            record = None
            if place.workspace is not None:
                (place.working_folder / f"{claim.task_id}.txt").write_text("made")
                record = places.snapshot(claim, place, Redactor({}))
            self.store.submit([self.build.submission(claim, workspace=record)])
            places.leave(claim, place)
        claims = self.store.claim("w", work=0, gate=count)
        assert all(claim.kind is ClaimKind.GATE for claim in claims)
        return claims

    def judge(self, claims: list[Claim], signal: StopSignal | None = None) -> list[Any]:
        return [verdict.decision for verdict in judge_claims(self.gate, claims, signal or StopSignal())]


@pytest.fixture
def desk(sqlite_store: TaskStore, build: Any, tmp_path: Path) -> Any:
    made = Desk(sqlite_store, build, tmp_path)
    yield made
    made.sources.close()


def python(code: str) -> dict[str, Any]:
    return {"command": ["python", "-c", code]}


def test_a_check_runs_in_exactly_the_judged_tree_and_its_folder_is_gone_afterwards(desk: Desk) -> None:
    (decision,) = desk.judge(desk.submitted(python("import os; print(sorted(os.listdir()), os.getcwd())")))
    assert decision.decision == "accepted", decision.reason
    said = decision.processes[0].output_tail
    assert "['a.txt', 't0.txt']" in said
    assert str(desk.home.outside / "checks") in said
    assert list((desk.home.outside / "checks").iterdir()) == []
    assert decision.new_head


def test_what_is_accepted_moves_the_head_and_the_next_is_judged_on_it(desk: Desk) -> None:
    claims = desk.submitted(python("import os; print(sorted(os.listdir()))"), count=2)
    verdicts = judge_claims(desk.gate, claims, StopSignal())
    first, second = desk.store.decide(verdicts)
    assert str(first.state) == "accepted"  # type: ignore[union-attr]
    assert second.judged == desk.pin.commit  # type: ignore[union-attr]
    (again,) = desk.store.claim("w", work=0, gate=2)
    assert again.head == first_head(desk)
    (decision,) = desk.judge([again])
    assert "['a.txt', 't0.txt', 't1.txt']" in decision.processes[0].output_tail


def first_head(desk: Desk) -> str | None:
    return desk.store.run(desk.store.newest_run("run") or 0).head


def test_a_store_that_cannot_be_read_judges_nothing_and_holds_it_against_nobody(desk: Desk) -> None:
    claims = desk.submitted(count=2, workspace="none")

    def away(_: Callable[..., Any]) -> Any:
        raise StoreUnavailable("the store is away")

    desk.store.read_with = away  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable, match="the store is away"):
        desk.judge(claims)


def test_a_git_directory_that_is_gone_is_not_judged_with_its_cause(desk: Desk) -> None:
    claims = desk.submitted(python("pass"))
    subprocess.run(["rm", "-rf", str(desk.home.git_dir("run.git"))], check=True)
    (decision,) = desk.judge(claims)
    assert decision.decision == "not_judged"
    assert decision.reason


def test_one_result_that_breaks_the_gate_does_not_take_others_with_it(desk: Desk, sql: Any) -> None:
    claims = desk.submitted(count=2, workspace="none")
    bad = {"digest": claims[0].manifest_digest}
    sql("UPDATE document SET data = :data WHERE digest = :digest", data=b"{}", **bad)
    assert [decision.decision for decision in desk.judge(claims)] == ["not_judged", "accepted"]


def test_a_cancelled_judgement_ends_its_program_and_judges_nothing(desk: Desk) -> None:
    signal = StopSignal()
    signal.set("interrupted")
    (decision,) = desk.judge(desk.submitted(python("import time; time.sleep(600)")), signal)
    assert decision.decision == "not_judged"
    assert list((desk.home.outside / "checks").iterdir()) == []


def test_readers_are_given_back_after_judging(desk: Desk) -> None:
    desk.judge(desk.submitted(python("pass"), count=3))
    assert desk.sources._lent == {}


def test_only_what_needs_no_program_and_no_tree_is_quick(desk: Desk) -> None:
    assert is_quick(desk.submitted({"cel": "true"}, workspace="none")[0])
    assert not is_quick(desk.submitted(python("pass"), workspace="none")[0])
    assert not is_quick(desk.submitted({"cel": "true"})[0])


def test_checks_of_a_task_without_a_workspace_see_the_head(desk: Desk) -> None:
    check = python("import os; print(sorted(os.listdir()))")
    (decision,) = desk.judge(desk.submitted(check, workspace="none"))
    assert decision.decision == "accepted", decision.reason
    assert "['a.txt']" in decision.processes[0].output_tail
    assert decision.new_head is None


def test_what_a_check_prints_is_redacted_before_it_is_kept(desk: Desk) -> None:
    (decision,) = desk.judge(desk.submitted(python(f"print('{SECRET[:7]}' + '{SECRET[7:]}'); raise SystemExit(1)")))
    assert decision.decision == "repair_required"
    assert SECRET not in decision.model_dump_json()
    assert "[redacted:SERVICE_TOKEN]" in decision.processes[0].output_tail
