from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event

from coordinator.store import TaskStore, Tick
from coordinator.store.records import Claim

COUNT = 10_000


@pytest.fixture
def large(sqlite_store: TaskStore, build: Any, sql: Any, sqlite_url: str) -> tuple[TaskStore, list[Claim]]:
    """A store with a few live claims, and ten thousand tasks: waiting for others, or ended long ago."""
    store = sqlite_store
    names = [f"t{n}" for n in range(8)]
    store.create_run(build.run(*names, build.task("last", needs=names), overlaps=[("t6", "t7")]))
    claims = store.claim("w", work=5)
    store.submit([build.submission(claim) for claim in claims[:3]])
    columns = "contract_version, is_current, delegation_id, terms_id, state, ready, row_version, generation, gate_tries"
    for state, is_current in (("pending", 1), ("accepted", 0)):
        sql(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count)"
            f" INSERT INTO task (orchestration_id, key, {columns})"
            f" SELECT 1, :state || i, 1, {is_current}, :state || i, terms_id, :state, 0, 0, 0, 0 FROM n, task"
            " WHERE task.id = 1",
            count=COUNT // 2, state=state,
        )  # fmt: skip
    assert sql("SELECT count(*) FROM task") == [(COUNT + 9,)]
    return store, claims


def test_hot_statements_find_their_rows_by_an_index(large: tuple[TaskStore, list[Claim]], build: Any) -> None:
    store, claims = large
    statements: list[tuple[str, Any]] = []

    @event.listens_for(store._db.engine, "before_cursor_execute")
    def note(conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        statements.append((statement, parameters[0] if many else parameters))

    for runs in (None, [1]):
        store.due(runs=runs)
        store.claim("w", work=2, gate=1, runs=runs, gone=["x", "y"])
    store.renew(claims[3:])
    (gate,) = store.claim("g", work=0, gate=1)
    store.tick("w", Tick(submissions=[build.submission(claims[3])], endings=[build.ending(claims[4])], work=1))
    store.decide([build.verdict(gate)])
    store.open_runs()
    store.claim_owners()

    def plans(tx: Any) -> list[tuple[str, str]]:
        found = []
        for statement, parameters in statements:
            if statement.startswith(("SELECT", "UPDATE", "INSERT")):
                for row in tx.conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters):
                    found.append((statement, row[3]))
        return found

    found = store.read_with(plans)
    assert len(found) > 40
    bad = [
        (statement, step)
        for statement, step in found
        if step.startswith("SCAN") and step not in ("SCAN CONSTANT ROW", "SCAN 1 CONSTANT ROW")
        and "task_eligible" not in step and "task_leases" not in step
    ]  # fmt: skip
    assert bad == []
    by_run = [(statement, step) for statement, step in found if "orchestration_id=?)" in step and "SEARCH task" in step]
    assert by_run == []  # that would be every task of the run
