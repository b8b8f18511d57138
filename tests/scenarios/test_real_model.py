"""A real, very small model through the whole path: contract, loop, tools, submit, gate.

Its answers are well-formed and make no sense, so only the protocol and the books are looked at: the gate has to decide,
and which decision it comes to is not asked.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from contracts.results import Manifest
from coordinator import Coordinator, Orchestration
from coordinator.store.views import Unsettled

if TYPE_CHECKING:
    from coordinator.store.views import RunView, TurnView
    from tests.model_servers.fixtures import LocalModel

pytestmark = [pytest.mark.model, pytest.mark.slow]

TOKENS_MAX = 80
"""The call of a tool takes about thirty."""


def agent(kind: str, server: LocalModel) -> dict[str, Any]:
    common = {"model": "local", "max_output_tokens": TOKENS_MAX, "temperature": 0, "api_key_env": None}
    if kind == "anthropic":
        return {"anthropic": {**common, "base_url": server.url}}
    return {"openai": {**common, "base_url": server.openai_url, "api": kind}}


@pytest.mark.parametrize("kind", ["anthropic", "responses", "chat"])
def test_a_real_model_works_under_a_contract_and_the_gate_decides(
    kind: str, place: Any, local_model: LocalModel
) -> None:
    (place.folder / "source").mkdir()
    (place.folder / "source" / "README.md").write_text("Two cats and a dog.\n")
    task = {
        "objective": "List the files, then submit.", "agent": agent(kind, local_model), "isolation": "none",
        "resources": {"tools": ["list_files"]}, "limits": {"deadline_s": 500, "lease_s": 60, "max_claims": 1},
        "budget": {"max_turns": 2, "max_tokens": 100_000, "max_cost_usd": 5}, "acceptance": [{"cel": "true"}],
        "prices": {"local": {"input_mtok_usd": 1, "output_mtok_usd": 2}},
    }  # fmt: skip
    document = place.document({"look": task}, source=str(place.folder / "source"), inputs={})
    with Coordinator(place.url, home=place.home) as coordinator:
        coordinator.run(Orchestration.model_validate(document))
    run: RunView = place.store.run(1)
    [view] = run.tasks
    [attempt] = view.attempts
    turns: list[TurnView] = place.store.turns(1)

    assert 1 <= len(turns) <= 3  # a refused result may be mended once
    assert [turn.number for turn in turns] == list(range(1, len(turns) + 1))
    assert all(turn.input_tokens and turn.output_tokens and turn.cost_micro_usd for turn in turns)
    assert all(turn.answers_digest is not None for turn in turns)
    unsettled = view.unsettled or Unsettled(0, 0, 0)  # tries whose answer was lost on its way
    paid_tokens = sum((turn.input_tokens or 0) + (turn.output_tokens or 0) for turn in turns)
    assert view.charged_tokens == paid_tokens + unsettled.tokens
    assert view.charged_micro_usd == sum(turn.cost_micro_usd or 0 for turn in turns) + unsettled.micro_usd
    assert (run.charged_tokens, run.charged_micro_usd) == (view.charged_tokens, view.charged_micro_usd)
    called = [
        call["name"]
        for turn in turns
        for call in json.loads(place.store.bytes_of(turn.response_digest))["response"]["calls"]
    ]
    assert attempt.manifest_digest is not None
    manifest = Manifest.model_validate_json(place.store.bytes_of(attempt.manifest_digest))
    assert {call.tool for call in manifest.observed_calls} <= set(called)
    assert len(manifest.observed_calls) >= 1
    assert (attempt.ended, attempt.decision is not None) == ("submitted", True)
    assert attempt.decision_digest is not None
