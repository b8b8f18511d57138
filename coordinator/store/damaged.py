"""Tasks whose stored terms are damaged: they wait for a person, and all others go on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, func, select

from contracts.terms import Terms
from coordinator.store import tables as t
from coordinator.store.asking import open_request
from coordinator.store.database import Damaged, Tx
from coordinator.store.issued import terms_of
from coordinator.store.records import Question
from coordinator.store.transitions import try_lock_orchestration

__all__ = ["terms_if_whole", "whole_ones"]

LOGGER = logging.getLogger("coordinator.store")


def terms_if_whole(digest: str, data: bytes | None) -> Terms | None:
    """The terms of a task; None: their stored bytes are damaged."""
    try:
        return terms_of(digest, data)
    except Damaged:
        return None


def whole_ones(tx: Tx, rows: Sequence[Row[Any]]) -> Sequence[Row[Any]]:
    """Those whose terms can be read. About each of the others, which can be neither worked on nor judged, a person is
    asked; it is then no candidate any more."""
    whole = []
    for row in rows:
        try:
            terms_of(row.digest, row.data)
        except Damaged as damage:
            if try_lock_orchestration(tx, row.orchestration_id):  # else a later tick asks
                LOGGER.error("%s/%s waits for a person, since its contract is damaged: %s", row.run_id, row.key, damage)
                open_request(tx, row.orchestration_id, row.id, _question(tx, row, damage))
        else:
            whole.append(row)
    return whole


def _question(tx: Tx, row: Row[Any], damage: Damaged) -> Question:
    text = (
        f"The task can be neither worked on nor judged, since its contract is damaged: {damage}. "
        "Put the right bytes back and approve to go on, or reject to cancel the task."
    )
    asked = select(func.count()).where(t.request.c.task_id == row.id, t.request.c.kind == "damaged")
    return Question("damaged", text, None, f"damaged:{row.id}:{tx.conn.execute(asked).scalar_one()}")
