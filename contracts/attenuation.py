"""Attenuation: a child's grant is a subset of its parent's in every dimension, or it is not issued.

The idea is that of capability attenuation (macaroons, Birgisson et al. 2014): authority may be narrowed by whoever
holds it, never widened.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import Literal, Self

from pydantic import AwareDatetime

from contracts.base import StrictModel
from contracts.checks import Check
from contracts.errors import Fault
from contracts.evidence import EvidenceRequirement
from contracts.model_specs import McpServer, servers_used
from contracts.orchestration import Task
from contracts.prices import Price
from contracts.scopes import covers
from contracts.terms import AgentSpec, AnthropicSpec, Budget, Delegation, ModelSpec, OpenAISpec, Resources, Terms

__all__ = ["Grant", "attenuation_faults"]

EFFECTS = ("none", "declared", "possible")
ISOLATION = ("sandbox", "none")


class Grant(StrictModel):
    """Everything in which a child is limited by its parent.

    ``agent`` is None for a program, whose own code names the agents and the checks of its children: then only models
    are limited, to ``resources.models``.
    """

    resources: Resources = Resources()
    budget: Budget = Budget()
    isolation: Literal["none", "sandbox"] = "sandbox"
    deadline_at: AwareDatetime | None = None
    agent: AgentSpec | None = None
    mcp_servers: dict[str, McpServer] = {}
    prices: dict[str, Price] = {}
    acceptance: list[Check] = []
    required_evidence: list[EvidenceRequirement] = []

    @classmethod
    def of(cls, terms: Terms | Task, deadline_at: datetime | None = None) -> Self:
        """What a task has, and so the most that it can hand on."""
        return cls(
            resources=terms.resources,
            budget=terms.budget,
            isolation=terms.isolation,
            deadline_at=deadline_at,
            agent=terms.agent,
            mcp_servers=terms.mcp_servers,
            prices=terms.prices,
            acceptance=terms.acceptance,
            required_evidence=terms.required_evidence,
        )


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
    for command in ours.commands:
        if not _command_within(theirs.commands, command):
            beyond("commands", command, theirs.commands or "none")
    unasked = [tool for tool in theirs.needs_approval if tool in ours.tools and tool not in ours.needs_approval]
    if unasked:
        what = f"{', '.join(unasked)} without a person's yes goes beyond the parent's grant"
        faults.append(Fault(f"{path}.needs_approval", what, f"add {', '.join(unasked)}"))
    for server in sorted(servers_used(ours.tools)):
        if child.mcp_servers.get(server) != parent.mcp_servers.get(server):
            beyond(f"mcp_servers.{server}", "another server of this name", "the one that its own contract names")
    models = {*theirs.models, *([parent.agent.model.model] if parent.agent and parent.agent.model else [])}
    extra = sorted(set(ours.models) - models)
    if extra:
        beyond("models", ", ".join(extra), ", ".join(sorted(models)) or "none")
    if child.agent is not None and not _agent_within(parent.agent, models, child.agent):
        allowed = [parent.agent.label()] if parent.agent else []
        beyond("agent", child.agent.label(), ", ".join(dict.fromkeys([*allowed, *sorted(models)])) or "no model")
    for model in _priced_otherwise(parent, child):
        beyond(f"prices.{model}", "another price", "the one that its own contract states, or the known one")
    if parent.agent is not None:
        faults += _checks_beyond(parent, child, path)
    if not _network_within(theirs.network, ours.network):
        beyond("network", ours.network, theirs.network)
    if EFFECTS.index(ours.effects) > EFFECTS.index(theirs.effects):
        beyond("effects", ours.effects, theirs.effects)
    if not _delegation_within(theirs.delegation, ours.delegation):
        beyond("delegation", ours.delegation, theirs.delegation)
    for limit in Budget.model_fields:
        bound, asked = getattr(parent.budget, limit), getattr(child.budget, limit)
        if bound is not None and (asked is None or asked > bound):
            beyond(f"budget.{limit}", "no limit" if asked is None else asked, bound)
    if ISOLATION.index(child.isolation) > ISOLATION.index(parent.isolation):
        beyond("isolation", child.isolation, parent.isolation)
    if parent.deadline_at is not None and (child.deadline_at is None or child.deadline_at > parent.deadline_at):
        beyond("limits.deadline_s", child.deadline_at or "no deadline", parent.deadline_at)
    return faults


def _command_within(granted: Sequence[Sequence[str]], command: Sequence[str]) -> bool:
    return any(list(command[: len(words)]) == list(words) for words in granted)


def _agent_within(parent: AgentSpec | None, models: Collection[str], child: AgentSpec) -> bool:
    """Whether a parent may have this agent work for it: itself, or a model that is granted to it.

    A model is reached where the parent's own is, with the same key: elsewhere, a key and all that the child is told
    would go to whoever is named there.
    """
    spec = child.model
    if parent is not None and child.definition is not None:
        return False  # it would be read from the coordinator's disk
    if spec is None:
        return parent is None or child == parent
    if spec.model not in models:
        return False
    if parent is None:
        return True
    reached: list[ModelSpec] = (
        [parent.model] if parent.model is not None else [AnthropicSpec(model=spec.model), OpenAISpec(model=spec.model)]
    )
    return any(type(own) is type(spec) and own.endpoint() == spec.endpoint() for own in reached)


def _priced_otherwise(parent: Grant, child: Grant) -> Iterator[str]:
    """Models that the child would count at another price, by which it would pass the budgets above it.

    A program may state the price of a model for which its own grant states none.
    """
    own = child.agent.model if child.agent is not None else None
    for model in sorted({*child.prices, *child.resources.models, *([own.model] if own is not None else [])}):
        price = parent.prices.get(model)
        if child.prices.get(model) != price and not (price is None and parent.agent is None):
            yield model


def _checks_beyond(parent: Grant, child: Grant, path: str) -> list[Fault]:
    """Checks run programs and read files with the coordinator's own hands: a child that delegates gets no more of these
    than it has."""
    faults: list[Fault] = []
    own = [check.document() for check in parent.acceptance]
    # What it may run only when a person has said yes, nobody runs for it without one.
    unasked = "run_command" not in parent.resources.needs_approval
    for index, check in enumerate(child.acceptance):
        if check.document() in own or check.command is None:
            continue
        if check.env or not (unasked and _command_within(parent.resources.commands, check.command)):
            what = f"{check.command} is neither a command that the parent may run nor a check of its own"
            faults.append(Fault(f"{path}.acceptance[{index}].command", what, "name one of these, without env"))
    files = _files(parent)
    for name in sorted(_files(child) - files):
        what = f"the file {name!r} is not one that the parent's own contract names"
        faults.append(Fault(f"{path}.acceptance", what, f"known: {', '.join(sorted(files)) or 'none'}"))
    return faults


def _files(grant: Grant) -> set[str]:
    named = [check.json_schema for check in grant.acceptance]
    named += [item.schema_file for item in grant.required_evidence]
    return {name for name in named if name is not None}


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
