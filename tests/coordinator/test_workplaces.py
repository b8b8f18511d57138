"""Workplaces: recorded before they are made, new for every attempt, and removed only when nothing is lost by it."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import Refused
from contracts.terms import Terms
from coordinator.home import Home, open_home
from coordinator.redaction import Redactor
from coordinator.sources import READERS_MAX, Sources
from coordinator.store import TaskStore
from coordinator.store.database import Blob
from coordinator.store.records import Claim, NewRun, NewTask
from coordinator.workplaces import Workplaces, deciding_above, refuse_unfit_place
from workspaces import fetch_source, pin_source


@pytest.fixture
def home(tmp_path: Path, sqlite_url: str) -> Home:
    return open_home(sqlite_url, tmp_path / "home")


@pytest.fixture
def claimed(sqlite_store: TaskStore, build: Any, home: Home, tmp_path: Path) -> Callable[..., Claim]:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.txt").write_text("a")
    pin = pin_source(source)
    fetch_source(pin, home.git_dir("run.git"))

    def make(kind: str = "clone", scope: tuple[str, ...] = ("b.txt",)) -> Claim:
        terms = build.terms(
            workspace=kind,
            write_scope=list(scope),
            input_snapshot={"repo_ref": pin.repo_ref()},
            agent={"command": ["x"]},
        )

        document = Blob.of(
            {"source": pin.to_json(), "git_dir": "run.git", "folder": str(tmp_path), "name": "run", "objective": "x"}
        )
        sqlite_store.create_run(
            NewRun("run", document, document.digest, pin.commit, True, [NewTask(terms, "d-one")]), beside_open=True
        )
        (claim,) = sqlite_store.claim("w", work=1)
        return claim

    return make


@pytest.fixture
def sources(sqlite_store: TaskStore, home: Home) -> Any:
    made = Sources(sqlite_store, home)
    yield made
    made.close()


@pytest.fixture
def places(sqlite_store: TaskStore, home: Home, sources: Sources) -> Workplaces:
    return Workplaces(sqlite_store, home, sources)


def recorded(store: TaskStore) -> str | None:
    return store.run(store.newest_run("run") or 0).tasks[0].attempts[0].workspace


@pytest.mark.parametrize("kind", ["clone", "directory"])
def test_what_was_made_is_taken_and_then_the_folder_goes(
    places: Workplaces, claimed: Any, sqlite_store: TaskStore, kind: str
) -> None:
    claim = claimed(kind)
    place = places.make(claim)
    assert place.workspace is not None
    assert recorded(sqlite_store) == str(place.workspace.folder)
    assert (place.working_folder / "a.txt").read_text() == "a"
    assert (place.working_folder / ".git").exists() == (kind == "clone")
    (place.working_folder / "b.txt").write_text("b")
    record = places.snapshot(claim, place, Redactor({}))
    assert record is not None
    assert [(change.path, change.status) for change in record.changes] == [("b.txt", "added")]
    assert record.outside_scope == []
    places.leave(claim, place)
    assert not place.scratch.exists()
    assert not place.workspace.folder.exists()
    assert recorded(sqlite_store) is None


def test_a_folder_with_work_that_was_not_taken_stays_and_stays_recorded(
    places: Workplaces, claimed: Any, sqlite_store: TaskStore
) -> None:
    claim = claimed()
    place = places.make(claim)
    assert place.workspace is not None
    (place.working_folder / "b.txt").write_text("b")
    places.leave(claim, place)
    assert (place.workspace.folder / "b.txt").read_text() == "b"
    assert recorded(sqlite_store) == str(place.workspace.folder)
    assert not place.scratch.exists()


def test_a_folder_in_which_nothing_was_done_goes(places: Workplaces, claimed: Any) -> None:
    claim = claimed()
    place = places.make(claim)
    places.leave(claim, place)
    assert place.workspace is not None
    assert not place.workspace.folder.exists()


def test_a_task_without_a_workspace_has_a_private_working_folder(places: Workplaces, claimed: Any) -> None:
    claim = claimed("none", ())
    place = places.make(claim)
    assert place.workspace is None
    assert place.working_folder.is_dir()
    assert place.working_folder.is_relative_to(place.scratch)
    assert places.snapshot(claim, place, Redactor({})) is None


def test_a_folder_that_is_there_already_is_never_entered(places: Workplaces, claimed: Any, home: Home) -> None:
    claim = claimed()
    taken = home.outside / "workspaces" / claim.child_run_id
    taken.mkdir(parents=True)
    (taken / "theirs.txt").write_text("t")
    with pytest.raises(Refused, match="exists already and was left as it is"):
        places.make(claim)
    assert [path.name for path in taken.iterdir()] == ["theirs.txt"]
    assert not (home.outside / "attempts" / claim.child_run_id).exists()


def test_the_folder_is_recorded_before_it_is_made(
    places: Workplaces, claimed: Any, sqlite_store: TaskStore, home: Home
) -> None:
    claim = claimed()
    subprocess.run(["rm", "-rf", str(home.git_dir("run.git"))], check=True)
    with pytest.raises(Refused):
        places.make(claim)
    assert recorded(sqlite_store) is not None


def test_a_home_in_a_repository_is_refused_only_for_what_works_there(tmp_path: Path, build: Any) -> None:
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    inside = open_home(str(tmp_path / "store.db"), tmp_path / "repo" / "home")
    beside = open_home(str(tmp_path / "store.db"), tmp_path / "home")
    function = {"agent": {"function": "m:f"}}
    needy: list[Terms] = [
        build.terms(agent={"command": ["sh"]}),
        build.terms(workspace="clone", **function),
        build.terms(acceptance=[{"command": ["true"]}], **function),
    ]
    for terms in needy:
        refuse_unfit_place(beside, [terms])
        with pytest.raises(Refused, match=f"lies in the repository {tmp_path}/repo; .* choose another --home"):
            refuse_unfit_place(inside, [build.terms(**function), terms])
    refuse_unfit_place(inside, [build.terms(**function)])


def test_a_reader_that_is_lent_stays_open_however_many_others_are_asked_for(
    claimed: Any, sources: Sources, home: Home
) -> None:
    claim = claimed()
    lent = sources.reader(claim)
    assert lent is not None
    assert lent.read_bytes("a.txt") == b"a"
    git_dir = home.git_dir("run.git")
    for number in range(READERS_MAX + 5):
        other = dataclasses.replace(claim, token=f"other-{number}")
        made = subprocess.run(
            ["git", f"--git-dir={git_dir}", "-c", "user.name=x", "-c", "user.email=x@localhost", "commit-tree",
             "-m", str(number), f"{claim.head}^{{tree}}"], capture_output=True, check=True, text=True,
        )  # fmt: skip
        reader = sources.reader_at(other, made.stdout.strip())
        assert reader.read_bytes("a.txt") == b"a"
        sources.give_back(other)
    assert lent.read_bytes("a.txt") == b"a"
    assert len(sources._readers) == READERS_MAX + 1
    sources.give_back(claim)
    assert len(sources._readers) == READERS_MAX
    with pytest.raises(ValueError, match="closed"):
        lent.read_bytes("a.txt")


def test_a_candidate_that_holds_a_secret_is_refused_and_stores_nothing_of_it(
    places: Workplaces, claimed: Callable[..., Claim], home: Home
) -> None:
    claim = claimed()
    place = places.make(claim)
    secret = "s3cr3t-canary-value-91"
    (place.working_folder / "b.txt").write_text(f"token={secret}\n")

    with pytest.raises(Refused, match=r"b\.txt holds a secret"):
        places.snapshot(claim, place, Redactor({"MY_TOKEN": secret}))

    stored = subprocess.run(
        ["git", "--git-dir", str(home.git_dir("run.git")), "rev-list", "--all", "--objects"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "b.txt" not in stored
    (place.working_folder / "b.txt").write_text("token=\n")
    assert places.snapshot(claim, place, Redactor({"MY_TOKEN": secret})) is not None


def test_a_workspace_in_which_something_still_runs_is_neither_taken_nor_removed(
    places: Workplaces, claimed: Callable[..., Claim]
) -> None:
    claim = claimed("directory")
    place = places.make(claim)
    with subprocess.Popen(["sleep", "60"], cwd=place.working_folder) as left:
        with pytest.raises(Refused, match="1 processes that the child started still run"):
            places.snapshot(claim, place, Redactor({}))
        places.leave(claim, place)
        assert place.working_folder.is_dir()
        left.kill()
    places.leave(claim, place)
    assert not place.working_folder.is_dir()


@pytest.mark.parametrize(("handed_in", "kept"), [(False, True), (True, False)])
def test_a_clone_with_commits_of_its_own_stays_unless_a_result_was_handed_in(
    places: Workplaces, claimed: Callable[..., Claim], handed_in: bool, kept: bool
) -> None:
    claim = claimed()
    place = places.make(claim)
    folder = place.working_folder
    for command in (["switch", "-qc", "wip"], ["commit", "-q", "--allow-empty", "-m", "wip"]):
        who = ["-c", "user.name=child", "-c", "user.email=child@example.org"]
        subprocess.run(["git", *who, *command], cwd=folder, check=True)
    places.snapshot(claim, place, Redactor({}))
    place.handed_in = handed_in

    places.leave(claim, place)

    assert folder.is_dir() == kept


@pytest.mark.parametrize("name", ["pytest.ini", "package.json", "pyproject.toml"])
def test_a_file_above_the_checkouts_that_would_decide_is_refused_by_name(
    claimed: Callable[..., Claim], home: Home, tmp_path: Path, name: str
) -> None:
    terms = claimed().terms
    refuse_unfit_place(home, [terms])
    (tmp_path / name).write_text("")

    assert deciding_above(home.outside / "checks") == tmp_path / name
    with pytest.raises(Refused, match=f"{name} lies above"):
        refuse_unfit_place(home, [terms])


def test_what_many_homes_hold_decides_nothing(home: Home, tmp_path: Path) -> None:
    for folder in (".cargo/bin", ".config", ".npm", ".cache"):
        (tmp_path / folder).mkdir(parents=True)

    assert deciding_above(home.outside) is None
