from __future__ import annotations

import hashlib
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, text

from contracts.errors import StoreUnavailable, VersionRefused
from coordinator.store import TaskStore, migrations
from coordinator.store import tables as t
from coordinator.store.database import KNOWN_VERSIONS, SCHEMA_VERSION, parse_url
from coordinator.store.migrations import upgrade


def migrated(url: str) -> Engine:
    engine = create_engine(parse_url(url))
    upgrade(engine)
    return engine


def schema_of(path: Path) -> dict[str, str]:
    """Every statement of an SQLite schema, with its white space evened out."""
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    connection.close()
    return {
        name: re.sub(r"\s+", " ", statement).replace("( ", "(").replace(" )", ")").strip() for name, statement in rows
    }


def parts(statement: str) -> tuple[str, list[str], str]:
    """Head, columns and constraints, tail: constraints may stand in another order."""
    head, _, rest = statement.partition("(")
    inner, _, tail = rest.rpartition(")")
    return head, sorted(inner.split(", ")), tail


def test_migrations_and_metadata_make_the_same_sqlite_schema(
    tmp_path: Path, open_store: Callable[..., TaskStore]
) -> None:
    open_store(f"sqlite:///{tmp_path / 'made.db'}")
    migrated(f"sqlite:///{tmp_path / 'migrated.db'}").dispose()

    made, moved = schema_of(tmp_path / "made.db"), schema_of(tmp_path / "migrated.db")

    assert set(made) == set(moved)
    assert set(t.metadata.tables) <= set(made)
    for name, statement in made.items():
        assert parts(moved[name]) == parts(statement), name
        if statement.startswith("CREATE TABLE") and name != "alembic_version":
            assert statement.endswith(") STRICT"), name
    assert "WHERE ready = 1" in moved["task_eligible"]


CONSTRAINTS = """
SELECT c.conrelid::regclass::text, c.conname, pg_get_constraintdef(c.oid) FROM pg_constraint c
JOIN pg_namespace n ON n.oid = c.connamespace WHERE n.nspname = 'public' ORDER BY 1, 2, 3
"""
INDEXES = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1"
COLUMNS = """
SELECT table_name, column_name, data_type, is_nullable FROM information_schema.columns
WHERE table_schema = 'public' ORDER BY 1, 2
"""


def test_migrations_and_metadata_make_the_same_postgres_schema(
    new_postgres_database: Callable[[], str], open_store: Callable[..., TaskStore]
) -> None:
    one, other = new_postgres_database(), new_postgres_database()
    open_store(one)
    made, moved = create_engine(parse_url(one)), migrated(other)

    with made.connect() as left, moved.connect() as right:
        differences = compare_metadata(MigrationContext.configure(right, opts={"compare_type": True}), t.metadata)
        assert differences == []
        for query in (CONSTRAINTS, INDEXES, COLUMNS):
            assert left.execute(text(query)).all() == right.execute(text(query)).all()
        assert any("task_claim_whole" in row for row in right.execute(text(CONSTRAINTS)))
    made.dispose()
    moved.dispose()


def test_the_schema_version_is_the_newest_revision() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    scripts = ScriptDirectory.from_config(config)

    assert scripts.get_current_head() == SCHEMA_VERSION
    assert {script.revision for script in scripts.walk_revisions()} == set(KNOWN_VERSIONS)


def test_a_migrated_database_opens_as_a_store(tmp_path: Path, open_store: Callable[..., TaskStore], build: Any) -> None:
    url = f"sqlite:///{tmp_path / 'migrated.db'}"
    migrated(url).dispose()

    assert open_store(url).create_run(build.run()) == "run"


@pytest.fixture(params=["sqlite", "postgres"])
def empty_database_url(
    request: pytest.FixtureRequest, new_postgres_database: Callable[[], str], sqlite_url: str
) -> str:
    return sqlite_url if request.param == "sqlite" else new_postgres_database()


def test_alembic_is_not_imported_when_versions_agree(empty_database_url: str, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from coordinator.store import TaskStore\n"
        "for _ in range(2): TaskStore(sys.argv[1], Path(sys.argv[2])).close()\n"
        "assert 'sqlalchemy' in sys.modules; sys.exit('alembic' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, empty_database_url, str(tmp_path)], capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr


def digest_of_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("version", ["0002", "0000", "", "9999"])
def test_an_unknown_version_is_refused_and_the_file_is_as_it_was(
    version: str, tmp_path: Path, open_store: Callable[..., TaskStore]
) -> None:
    path = tmp_path / "store.db"
    open_store(f"sqlite:///{path}").close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (version,))
    connection.close()
    before = digest_of_file(path)

    with pytest.raises(VersionRefused, match=f"schema version '{version}'.*nothing was changed"):
        open_store(f"sqlite:///{path}")

    assert digest_of_file(path) == before


def test_an_unknown_version_is_refused_on_postgres(
    new_postgres_database: Callable[[], str], open_store: Callable[..., TaskStore]
) -> None:
    url = new_postgres_database()
    open_store(url).close()
    engine = create_engine(parse_url(url))
    with engine.begin() as conn:
        conn.execute(text("UPDATE alembic_version SET version_num = '9999'"))

    with pytest.raises(VersionRefused, match="9999"):
        open_store(url)

    with engine.begin() as conn:
        assert conn.execute(text("SELECT version_num FROM alembic_version")).all() == [("9999",)]
    engine.dispose()


def test_a_database_of_another_program_is_refused_and_left_as_it_is(
    tmp_path: Path, open_store: Callable[..., TaskStore]
) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE task (id INTEGER PRIMARY KEY, title TEXT)")
    connection.close()
    before = digest_of_file(path)

    with pytest.raises(VersionRefused, match="tables named task but no schema version"):
        open_store(f"sqlite:///{path}")

    assert digest_of_file(path) == before


def test_a_version_number_of_another_program_does_not_make_a_store(
    tmp_path: Path, open_store: Callable[..., TaskStore]
) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        connection.execute("INSERT INTO alembic_version VALUES (?)", (SCHEMA_VERSION,))
        connection.execute("CREATE TABLE song (id INTEGER PRIMARY KEY)")
    connection.close()
    before = digest_of_file(path)

    with pytest.raises(VersionRefused, match="another program"):
        open_store(f"sqlite:///{path}")

    assert digest_of_file(path) == before


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(
    tmp_path: Path, open_store: Callable[..., TaskStore]
) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"Not a database at all.\n" * 100)
    before = digest_of_file(path)

    with pytest.raises(StoreUnavailable, match="not a database"):
        open_store(f"sqlite:///{path}")

    assert digest_of_file(path) == before


def test_many_programs_open_a_new_store_at_once(empty_database_url: str, tmp_path: Path) -> None:
    program = (
        "import sys, os; from pathlib import Path; from coordinator.store import TaskStore\n"
        "children = []\n"
        "for _ in range(8):\n"
        "    pid = os.fork()\n"
        "    if not pid:\n"
        "        TaskStore(sys.argv[1], Path(sys.argv[2])).close(); os._exit(0)\n"
        "    children.append(pid)\n"
        "sys.exit(any(os.waitpid(pid, 0)[1] for pid in children))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, empty_database_url, str(tmp_path)], capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
