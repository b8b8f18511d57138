"""The limits of one attempt that are counted here: turns, tool calls and time. Money is counted by the meter."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from contracts.assignment import Assignment
from contracts.ports import Worst
from contracts.tools import CONTROL_TOOLS
from contracts.turns import StoredTurn

__all__ = ["Limits"]

HANDING_IN_S_MAX = 5.0
HANDING_IN_PART = 0.2
"""Of the time until the deadline, what is kept for handing in."""

Monotonic = Callable[[], float]


class Limits:
    """What is used, and what is left. Turns of an earlier attempt that this one continues from count."""

    def __init__(self, assignment: Assignment, monotonic: Monotonic = time.monotonic) -> None:
        budget: Mapping[str, Any] = assignment.contract["budget"]
        self._max_turns: int | None = budget.get("max_turns")
        self._max_tool_calls: int | None = budget.get("max_tool_calls")
        self._max_wall_s: float | None = budget.get("max_wall_s")
        self._monotonic = monotonic
        self._started_s = monotonic()
        deadline_left_s = (assignment.deadline_at - datetime.now(UTC)).total_seconds()
        # At the deadline itself the attempt is ended from outside, and nothing more is taken from it.
        margin_s = min(HANDING_IN_S_MAX, HANDING_IN_PART * max(deadline_left_s, 0.0))
        self._deadline_s = self._started_s + deadline_left_s - margin_s
        self._earlier_s = 0.0
        self._turn_s = 0.0
        self._spent = Worst(0, 0)
        self.turns = 0
        self.tool_calls = 0

    def count_earlier(self, turn: StoredTurn) -> None:
        self.turns = turn.number
        self._earlier_s += sum(record.waited_s + record.elapsed_s for record in turn.tries)

    def count_turn(self, began_s: float, spent: Worst) -> None:
        """A turn is over that began at this reading of the monotonic clock."""
        self.turns += 1
        self._turn_s = self._monotonic() - began_s
        self._spent = spent

    def takes_call(self, name: str) -> bool:
        """Whether one more call of this tool may be made; it is then counted. What only says something is free."""
        if name in CONTROL_TOOLS:
            return True
        if self.tool_calls == self._max_tool_calls:
            return False
        self.tool_calls += 1
        return True

    def count_call(self, name: str) -> None:
        """A call that an earlier attempt made."""
        self.tool_calls += name not in CONTROL_TOOLS

    def time_left_s(self) -> float:
        now_s = self._monotonic()
        left_s = self._deadline_s - now_s
        if self._max_wall_s is not None:
            left_s = min(left_s, self._wall_left_s(self._max_wall_s, now_s))
        return left_s

    def used_up(self) -> str | None:
        """Which limit allows no further turn, for people."""
        if self._max_turns is not None and self.turns >= self._max_turns:
            return f"the budget of {self._max_turns} turns was used up"
        now_s = self._monotonic()
        if self._max_wall_s is not None and self._wall_left_s(self._max_wall_s, now_s) <= 0:
            return f"the budget of {self._max_wall_s:g} s was used up"
        if self._deadline_s <= now_s:
            return "the deadline was reached"
        return None

    def allows_one_more(self, worst: Worst, left: Worst) -> str | None:
        """Which limit will allow no further turn after the next one, as far as the last one tells."""
        if self._max_turns is not None and self.turns + 1 >= self._max_turns:
            return f"the budget of {self._max_turns} turns was used up"
        if self._max_tool_calls is not None and self.tool_calls >= self._max_tool_calls:
            return f"the budget of {self._max_tool_calls} tool calls was used up"
        if self.turns and self.time_left_s() < 2 * self._turn_s:
            return "the time was used up"
        if self.turns and (
            left.micro_usd < worst.micro_usd + self._spent.micro_usd or left.tokens < worst.tokens + self._spent.tokens
        ):
            return "the budget was used up"
        return None

    def _wall_left_s(self, max_wall_s: float, now_s: float) -> float:
        return max_wall_s - self._earlier_s - (now_s - self._started_s)
