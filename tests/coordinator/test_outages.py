"""What people hear of a store that is away."""

from __future__ import annotations

import logging

import pytest

from contracts.errors import StoreUnavailable
from coordinator.outages import Outage


def test_a_cause_is_told_once_and_again_when_the_first_result_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage("w", lambda low, high: high)
    away, gone = StoreUnavailable("it is away"), StoreUnavailable("it is gone")
    with caplog.at_level(logging.WARNING, "coordinator.worker"):
        waits = [outage.failed(error, finished=finished)
                 for error, finished in ((away, 0), (away, 0), (away, 1), (away, 2), (gone, 2), (gone, 2))]  # fmt: skip
        outage.over()
        outage.over()
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    first, kept, other, back = caplog.messages
    assert first == "w waits, starts nothing new and tries again by itself: it is away"
    assert kept == "w waits, starts nothing new and tries again by itself; it keeps 1 finished for then: it is away"
    assert "it keeps 2 finished for then: it is gone" in other
    assert "w goes on: the store is back after" in back
