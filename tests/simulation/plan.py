"""What a seed says: the work, who does it, and what goes wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from contracts.orchestration import Orchestration
from contracts.terms import Terms

__all__ = ["Plan", "child_terms"]

RUN_LIMIT_USD = 0.25
PRICES = {"m": {"input_mtok_usd": 1, "output_mtok_usd": 1}}


@dataclass(frozen=True, slots=True)
class Plan:
    """``trouble`` in 0..1: what children do wrong. ``quiet``: nothing at all goes wrong, so all must be accepted.

    ``wide``: many small tasks at once. ``spends``: some children spend money and have effects outside. ``mixes``: calls
    to which late ones are added. ``lost_answers``: ticks that are committed, but nobody is told so; ``lost_calls``: the
    same of renewals, of charges, and of what settles them.
    """

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
    wide: bool
    spends: bool
    mixes: int
    lost_answers: int
    lost_calls: int

    @classmethod
    def of(cls, chance: random.Random, extra: random.Random, lost: random.Random) -> Plan:
        quiet = chance.random() < 0.05

        def some(most: int, often: float) -> int:
            return chance.randint(1, most) if not quiet and chance.random() < often else 0

        wide = extra.random() < 0.25
        return cls(
            quiet=quiet,
            trouble=0.0 if quiet else chance.choice([0.3, 0.7, 1.0]),
            workers=chance.choice([1, 2, 2, 3]),
            slots=chance.choice([1, 2, 3]) + (4 if wide else 0),
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
            wide=wide,
            spends=extra.random() < 0.5,
            mixes=extra.choice([0, 20, 40, 40]) if not quiet else 0,
            lost_answers=extra.choice([0, 0, 1, 3]) if not quiet else 0,
            lost_calls=lost.choice([0, 2, 5]) if not quiet else 0,
        )


def orchestration(chance: random.Random, extra: random.Random, plan: Plan, version: int) -> Orchestration:
    """The work as authored. A later version differs in some tasks."""
    names = [f"t{number}" for number in range(chance.randint(2, 4) + (4 if plan.wide else 0))]
    tasks: dict[str, Any] = {}
    patience = 4 if plan.quiet else 1  # so that what the seed delays never takes as long
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
                "lease_s": chance.choice([2, 3, 6]) * patience, "deadline_s": chance.choice([8, 20]) * patience,
                "max_claims": chance.randint(1, 4) if not plan.quiet else 3, "max_repairs": chance.randint(0, 2),
            },
        }  # fmt: skip
        if plan.wide and extra.random() < 0.6:
            tasks[name]["needs"] = []
        if plan.spends and extra.random() < 0.7:
            _spend(extra, plan, tasks[name])
    whole: dict[str, Any] = {"name": "work", "objective": "All of it.", "tasks": tasks}
    if plan.source:
        whole["source"] = "/simulated"
    if plan.spends:
        whole |= {"prices": PRICES, "budget": {} if plan.quiet else {"max_cost_usd": RUN_LIMIT_USD}}
    return Orchestration.model_validate(whole)


def _spend(extra: random.Random, plan: Plan, task: dict[str, Any]) -> None:
    """Make of a task one that is charged: for each call of a model, or as a whole."""
    usd, tokens = extra.choice([None, 0.04]), extra.choice([None, 600, 3000])
    if extra.random() < 0.3:
        task["budget"] = {"max_cost_usd": 0.04}
        return
    task["agent"] = {"openai": {"model": "m", "api_key_env": None, "base_url": "http://localhost"}}
    task["resources"]["effects"] = "declared"
    if not plan.quiet:
        limits = {"max_cost_usd": usd, "max_tokens": tokens}
        task["budget"] = {name: limit for name, limit in limits.items() if limit is not None}


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
