"""Named points at which a test or a demonstration can kill this process. Off, they cost one comparison.

A fault is written ``POINT:TASK`` or ``POINT:TASK:ATTEMPT``; the process dies by SIGKILL when it gets there.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from contracts.errors import BadInput

__all__ = ["POINTS", "Fault", "arm", "reached"]

POINTS = ("claimed", "tool_call", "child_returned", "submitted", "judged", "decided")


@dataclass(frozen=True, slots=True)
class Fault:
    point: str
    task_id: str
    attempt: int | None = None

    @classmethod
    def parse(cls, text: str) -> Fault:
        parts = text.split(":")
        if len(parts) not in (2, 3) or parts[0] not in POINTS or (len(parts) == 3 and not parts[2].isdigit()):
            raise BadInput(
                f"--fault {text!r}: write POINT:TASK or POINT:TASK:ATTEMPT, POINT one of {', '.join(POINTS)}"
            )
        return cls(parts[0], parts[1], int(parts[2]) if len(parts) == 3 else None)


_armed: Fault | None = None


def arm(fault: Fault | None) -> None:
    global _armed
    _armed = fault


def reached(point: str, task_id: str, attempt: int) -> None:
    """Die here if a fault says so."""
    here = (Fault(point, task_id), Fault(point, task_id, attempt))
    if _armed is not None and _armed in here:
        os.kill(os.getpid(), signal.SIGKILL)
