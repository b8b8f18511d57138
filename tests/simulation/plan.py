"""What a seed says: the work, who does it, and what goes wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from contracts.orchestration import Orchestration
from contracts.terms import Terms

__all__ = ["Plan", "child_terms"]


@dataclass(frozen=True, slots=True)
class Plan:
    """``trouble`` in 0..1: what children do wrong. ``quiet``: nothing at all goes wrong, so all must be accepted."""

    quiet: bool
    trouble: float
    workers: int
    slots: int
    poll: float
    job_delay_s: float
    crash_chance: float
    crashes: int
    stops: int
    clock_steps: int
    repeats: int
    cancels: int
    amends: int
    program: bool
    source: bool
    fault_s: float

    @classmethod
    def of(cls, chance: random.Random) -> Plan:
        quiet = chance.random() < 0.05

        def some(most: int, often: float) -> int:
            return chance.randint(1, most) if not quiet and chance.random() < often else 0

        return cls(
            quiet=quiet,
            trouble=0.0 if quiet else chance.choice([0.3, 0.7, 1.0]),
            workers=chance.choice([1, 2, 2, 3]),
            slots=chance.choice([1, 2, 3]),
            poll=chance.choice([4.0, 10.0, 30.0]),
            job_delay_s=chance.choice([0.001, 0.05, 0.3]),
            crash_chance=chance.choice([0.01, 0.03, 0.08]),
            crashes=some(5, 0.6),
            stops=some(3, 0.4),
            clock_steps=some(3, 0.3),
            repeats=some(12, 0.5),
            cancels=some(2, 0.35),
            amends=some(2, 0.35),
            program=chance.random() < 0.2,
            source=chance.random() < 0.55,
            fault_s=chance.choice([5.0, 15.0, 30.0]),
        )


def orchestration(chance: random.Random, plan: Plan, version: int) -> Orchestration:
    """The work as authored. A later version differs in some tasks."""
    names = [f"t{number}" for number in range(chance.randint(2, 4))]
    tasks: dict[str, Any] = {}
    for position, name in enumerate(names):
        needs = [
            {"task": other, "partial_ok": chance.random() < 0.5}
            for other in names[:position] if chance.random() < 0.35
        ]  # fmt: skip
        acceptance: list[dict[str, Any]] = [{"cel": "output.n >= 0"}]
        if not plan.quiet and chance.random() < 0.2:
            acceptance.append({"approval": "Is it good?"})
        workspace = plan.source and chance.random() < 0.7
        tasks[name] = {
            "objective": f"Version {version if chance.random() < 0.5 else 1}.", "agent": {"command": ["true"]},
            "isolation": "none", "needs": needs, "acceptance": acceptance,
            "workspace": "directory" if workspace else "none",
            "resources": {
                "write_scope": [chance.choice(["a/", "b/", f"{name}/", "a/sub/"])] if workspace else [],
                "tools": ["write_file"] if workspace else [],
            },
            "limits": {
                "lease_s": chance.choice([2, 3, 6]), "deadline_s": chance.choice([8, 20]),
                "max_claims": chance.randint(1, 4) if not plan.quiet else 3, "max_repairs": chance.randint(0, 2),
            },
        }  # fmt: skip
    return Orchestration.model_validate(
        {"name": "work", "objective": "All of it.", "source": "/simulated" if plan.source else None, "tasks": tasks}
    )


def child_terms(parent: Terms, number: int) -> Terms:
    """What a child delegates: the same for every attempt at the parent's task."""
    scope = [f"{part}c{number}/" for part in parent.resources.write_scope]
    resources = parent.resources.model_copy(update={"write_scope": scope})
    return parent.model_copy(
        update={
            "task_id": f"{parent.task_id}-c{number}", "contract_version": parent.contract_version, "needs": [],
            "resources": resources, "objective": f"Part {number} of {parent.task_id}.",
            "acceptance": parent.acceptance[:1],
        }
    )  # fmt: skip
