"""What the simulator has found, as short as it can be said."""

from __future__ import annotations

from typing import Any

from coordinator.store import TaskStore


def amend(store: TaskStore, build: Any, run: int, **change: Any) -> None:
    document = build.run().document
    store.amend(
        run,
        **{
            "expected_version": 1, "document": document, "authored_digest": "x", "replaced": [], "removed": [],
            "overlaps": [], "files": [], "head": None, **change,
        },
    )  # fmt: skip


def test_a_new_version_keeps_the_head_that_moved_while_it_was_prepared(sqlite_store: TaskStore, build: Any) -> None:
    sqlite_store.create_run(build.run("a", head="1" * 40))
    row = sqlite_store.find_run()
    (claim,) = sqlite_store.claim("w", work=1)
    sqlite_store.submit([build.submission(claim)])
    (gate,) = sqlite_store.claim("w", work=0, gate=1)
    verdict = build.verdict(gate, head="1" * 40)
    moved = verdict.decision.model_copy(update={"new_head": "2" * 40})
    sqlite_store.decide([type(verdict)(gate, moved)])

    amend(sqlite_store, build, row, head="1" * 40, keeps_head=True, replaced=[build.task("b")])

    assert sqlite_store.run(row).head == "2" * 40


def test_a_new_version_keeps_apart_what_a_program_delegated_while_it_was_prepared(
    sqlite_store: TaskStore, build: Any
) -> None:
    kept, replaced = build.task("kept", write_scope=["a/"]), build.task("old", write_scope=["b/"])
    sqlite_store.create_run(build.run(kept, replaced, closed=False))
    row = sqlite_store.find_run()
    for name, scope in (("one", "a/"), ("two", "b/")):
        sqlite_store.delegate(row, [build.task(name, write_scope=[scope])])

    amend(sqlite_store, build, row, replaced=[build.task("old", version=2, write_scope=["b/"])])

    assert [claim.task_id for claim in sqlite_store.claim("w", work=9)] == ["kept", "two"]
