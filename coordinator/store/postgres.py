"""Connections to PostgreSQL whose every wait has an end: a server that stands still says nothing, not even an error."""

from __future__ import annotations

from functools import cache
from typing import Any

from psycopg import Connection, OperationalError, errors
from psycopg.abc import RV, PQGen

__all__ = ["bounded"]


@cache
def bounded(answer_s: float) -> type[Connection[Any]]:
    """Connections that are closed, with ``OperationalError``, when the server has not answered for so long."""

    class BoundedConnection(Connection[Any]):
        def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
            if timeout is not None:
                return super().wait(gen, interval, timeout)
            try:
                return super().wait(gen, interval, answer_s)
            except errors._WaitTimeout:
                self.pgconn.finish()  # what it says later would be taken for the answer to something else
                raise OperationalError(f"the server has not answered for {answer_s:g} s") from None

    return BoundedConnection
