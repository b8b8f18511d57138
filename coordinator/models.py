"""Agents that are models, before anything starts: files that define them, what they cost, and their keys."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from contracts.agent_files import AgentFile, parse_agent_file
from contracts.errors import BadInput, Fault
from contracts.model_specs import servers_used
from contracts.orchestration import Task
from contracts.prices import Price
from contracts.terms import AgentSpec, AnthropicSpec, Terms
from coordinator.pinning import pin
from coordinator.runtimes import load_agents

__all__ = [
    "Keys",
    "PricedModel",
    "Resolved",
    "keys_of",
    "missing_keys",
    "price_model",
    "refuse_missing_keys",
    "resolve_agent",
    "used_terms",
]


class Resolved(NamedTuple):
    """A task whose agent says all of itself, and the pins of the file that it was read from."""

    task: Task
    snapshot: dict[str, str]
    faults: list[Fault]
    warnings: list[Fault]


def resolve_agent(task: Task, folder: Path, path: str, files: dict[str, bytes]) -> Resolved:
    """An agent that a file defines, as the model and the tools that it means; any other task as it is.

    The bytes of the file are added to ``files``. Its tools never widen the task's grant.
    """
    name, where = task.agent.definition, f"{path}.agent.file"
    if name is None:
        return Resolved(task, {}, [], [])
    faults: list[Fault] = []
    snapshot: dict[str, str] = {}
    data = pin(name, where, folder / name, files, snapshot, faults)
    if data is None:
        return Resolved(task, {}, faults, [])
    try:
        defined = parse_agent_file(data, file=str(folder / name))
        spec = task.agent.model or _own_model(defined, name, where)
    except BadInput as error:
        return Resolved(task, snapshot, list(error.faults), [])
    instructions = "\n\n".join(filter(None, [defined.instructions, spec.instructions]))
    kind = task.agent.kind
    agent = AgentSpec.model_validate({kind: {**spec.model_dump(), "instructions": instructions}})
    tools = [tool for tool in task.resources.tools if defined.allows(tool)]
    update = {"agent": agent, "resources": task.resources.model_copy(update={"tools": tools})}
    return Resolved(task.model_copy(update=update), snapshot, [], _unmet(defined, name, task, path))


def _own_model(defined: AgentFile, name: str, where: str) -> AnthropicSpec:
    if defined.model is None:
        hint = f"add 'agent: {{file: {json.dumps(name)}, anthropic: {{model: MODEL_ID}}}}'"
        raise BadInput([Fault(where, f"{name} names no model by its id, so none can be pinned", hint)])
    return AnthropicSpec(model=defined.model)


def _unmet(defined: AgentFile, name: str, task: Task, path: str) -> list[Fault]:
    """What the file asks for and the child will not have."""
    notes = []
    if lost := defined.without_counterpart():
        notes.append(Fault(f"{path}.agent.file", f"{name} asks for {', '.join(lost)}, which nothing here can do"))
    missing = [tool for tool in defined.wanted() if tool not in task.resources.tools]
    if missing:
        what = f"{name} asks for {', '.join(missing)}, which this task is not granted"
        notes.append(Fault(f"{path}.resources.tools", what, "grant it, or leave it so"))
    return notes


class PricedModel(NamedTuple):
    """What one task's model costs. ``source``: who says so."""

    model: str
    price: Price
    source: str

    def words(self) -> str:
        """For people."""
        price = self.price
        return f"{price.input_mtok_usd:g} in, {price.output_mtok_usd:g} out USD a million tokens (from {self.source})"

    def document(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "source": self.source,
            **self.price.model_dump(mode="json", exclude_none=True),
        }


def price_model(task: Task, path: str) -> PricedModel | Fault | None:
    """The price of a task's model; None where no model works, and a fault where nobody knows the price."""
    spec = task.agent.model
    if spec is None:
        return None
    stated = task.prices.get(spec.model)
    if stated is not None:
        return PricedModel(spec.model, stated, "the contract")
    load_agents()
    from agents.metering import price_of

    known = price_of(task.agent.kind, spec.model, task.prices, base_url=spec.base_url)
    if known is not None:
        return PricedModel(spec.model, known, "genai-prices")
    price = "{input_mtok_usd: 0, output_mtok_usd: 0}" if spec.base_url else "{input_mtok_usd: IN, output_mtok_usd: OUT}"
    where = f" at {spec.base_url}" if spec.base_url else ""
    hint = f"add 'prices: {{{json.dumps(spec.model)}: {price}}}' with its dollars for a million tokens"
    return Fault(f"{path}.agent.{task.agent.kind}", f"nobody knows the price of {spec.model!r}{where}", hint)


def used_terms(task: Task) -> dict[str, Any]:
    """Of prices and servers, which a whole file shares, those that concern this task."""
    models = {*task.resources.models, *([task.agent.model.model] if task.agent.model is not None else [])}
    servers = servers_used(task.resources.tools)
    return {
        "prices": {model: price for model, price in task.prices.items() if model in models},
        "mcp_servers": {name: server for name, server in task.mcp_servers.items() if name in servers},
    }


class Keys(NamedTuple):
    """Variables that hold the keys of a task's model and of its servers of tools."""

    model: list[str]
    servers: list[str]


def keys_of(terms: Terms) -> Keys:
    spec = terms.agent.model if terms.agent is not None else None
    model = [spec.api_key_env] if spec is not None and spec.api_key_env is not None else []
    return Keys(model, [name for server in terms.mcp_servers.values() for name in server.credentials])


def missing_keys(terms: Iterable[Terms], environ: Mapping[str, str] | None = None) -> list[Fault]:
    """Variables that models and servers of tools take their keys from and that are not set: one fault for each."""
    wanted: dict[str, list[str]] = {}
    of_models: set[str] = set()
    for own in terms:
        keys = keys_of(own)
        of_models.update(keys.model)
        for name in [*keys.model, *keys.servers]:
            wanted.setdefault(name, []).append(own.task_id)
    set_here = os.environ if environ is None else environ
    faults = []
    for name, tasks in wanted.items():
        if not set_here.get(name):
            who = ", ".join(dict.fromkeys(tasks))
            hint = "export it" + (", or write 'api_key_env: null' for a server without keys" * (name in of_models))
            faults.append(Fault("", f"{name} is not set in the environment, and {who} cannot work without it", hint))
    return faults


def refuse_missing_keys(terms: Iterable[Terms]) -> None:
    """Raises ``BadInput`` that names every missing variable with the children that need it."""
    if faults := missing_keys(terms):
        raise BadInput(faults)
