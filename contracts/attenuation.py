"""Attenuation: a child's grant is a subset of its parent's in every dimension, or it is not issued.

The idea is that of capability attenuation (macaroons, Birgisson et al. 2014): authority may be narrowed by whoever
holds it, never widened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import AwareDatetime

from contracts.base import StrictModel
from contracts.errors import Fault
from contracts.scopes import covers
from contracts.terms import Budget, Delegation, Resources

__all__ = ["Grant", "attenuation_faults"]

EFFECTS = ("none", "declared", "possible")
ISOLATION = ("sandbox", "none")


class Grant(StrictModel):
    """Everything in which a child is limited by its parent."""

    resources: Resources = Resources()
    budget: Budget = Budget()
    isolation: Literal["none", "sandbox"] = "sandbox"
    deadline_at: AwareDatetime | None = None


def attenuation_faults(parent: Grant, child: Grant, *, path: str = "resources") -> list[Fault]:
    """Where the child's grant goes beyond its parent's; empty when it is a subset."""
    faults: list[Fault] = []
    theirs, ours = parent.resources, child.resources

    def beyond(key: str, found: object, allowed: object) -> None:
        faults.append(Fault(f"{path}.{key}", f"{found} goes beyond the parent's grant", f"the parent has {allowed}"))

    for key in ("tools", "credentials"):
        extra = sorted(set(getattr(ours, key)) - set(getattr(theirs, key)))
        if extra:
            beyond(key, ", ".join(extra), ", ".join(getattr(theirs, key)) or "none")
    for key in ("read_scope", "write_scope"):
        if not covers(getattr(theirs, key), getattr(ours, key)):
            beyond(key, getattr(ours, key), getattr(theirs, key) or "none")
    if not _network_within(theirs.network, ours.network):
        beyond("network", ours.network, theirs.network)
    if EFFECTS.index(ours.effects) > EFFECTS.index(theirs.effects):
        beyond("effects", ours.effects, theirs.effects)
    if not _delegation_within(theirs.delegation, ours.delegation):
        beyond("delegation", ours.delegation, theirs.delegation)
    for limit in ("max_turns", "max_cost_usd"):
        bound, asked = getattr(parent.budget, limit), getattr(child.budget, limit)
        if bound is not None and (asked is None or asked > bound):
            beyond(f"budget.{limit}", "no limit" if asked is None else asked, bound)
    if ISOLATION.index(child.isolation) > ISOLATION.index(parent.isolation):
        beyond("isolation", child.isolation, parent.isolation)
    if parent.deadline_at is not None and (child.deadline_at is None or child.deadline_at > parent.deadline_at):
        beyond("limits.deadline_s", child.deadline_at or "no deadline", parent.deadline_at)
    return faults


def _network_within(parent: Literal["deny"] | Sequence[str], child: Literal["deny"] | Sequence[str]) -> bool:
    if child == "deny" or not child:
        return True
    return parent != "deny" and set(child) <= set(parent)


def _delegation_within(parent: Literal["deny"] | Delegation, child: Literal["deny"] | Delegation) -> bool:
    if isinstance(child, str):
        return True
    if isinstance(parent, str):
        return False
    # The child stands one level below its parent, and is itself one of the parent's children.
    return child.max_depth < parent.max_depth and child.max_children < parent.max_children
