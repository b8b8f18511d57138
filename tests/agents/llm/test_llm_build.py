"""From an agent in a contract to a model child."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agents.llm import ModelRuntime
from agents.runtimes import Place, Runtime, build_runtime
from contracts.errors import Refused
from contracts.states import Outcome
from contracts.terms import AgentSpec
from tests.model_servers.script import Call

if TYPE_CHECKING:
    from tests.agents.llm.conftest import Stage

SUBMIT = Call("submit_result", {"outcome": "completed"})


def build(agent: dict[str, Any], tmp_path: Path) -> Runtime:
    place = Place(tmp_path, tmp_path, tmp_path / "out", tmp_path / "lock", {})
    spec = AgentSpec.model_validate(agent)
    return build_runtime(spec, pins={}, pinned_file=lambda name: tmp_path / name, place=place)


@pytest.mark.parametrize(
    ("agent", "api"),
    [
        ({"anthropic": {}}, "messages"),
        ({"openai": {}}, "responses"),
        ({"openai": {"api": "chat"}}, "chat"),
    ],
)
def test_the_key_comes_from_the_variable_that_the_contract_names(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: dict[str, Any], api: str
) -> None:
    [(kind, spec)] = agent.items()
    url = stage.server.url if kind == "anthropic" else stage.server.openai_url
    named = {"model": "model-x", "base_url": url, "api_key_env": "OUR_KEY", **spec}
    # What the SDKs would read by themselves must not be used.
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "not-this-one")
    for name in ("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("OUR_KEY", "this-one")
    stage.server.api_key = "this-one"
    stage.server.reply(SUBMIT)
    runtime = build({kind: named}, tmp_path)
    assert isinstance(runtime, ModelRuntime)
    played = asyncio.run(stage.start(runtime, stage.assignment()))
    assert played.result.outcome is Outcome.COMPLETED
    [request] = stage.server.requests
    assert (request.api, request.body["model"]) == (api, "model-x")


@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_key_is_named_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("ANTHROPIC_API_KEY", value)
    with pytest.raises(Refused, match="ANTHROPIC_API_KEY, with the key for claude-x, is not set"):
        build({"anthropic": "claude-x"}, tmp_path)


def test_a_server_without_keys_needs_none(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    stage.server.reply(SUBMIT)
    agent = {"openai": {"model": "model-x", "base_url": stage.server.openai_url, "api": "chat", "api_key_env": None}}
    runtime = build(agent, tmp_path)
    assert isinstance(runtime, ModelRuntime)
    assert asyncio.run(stage.start(runtime, stage.assignment())).result.outcome is Outcome.COMPLETED


def test_a_temperature_is_sent_where_one_is_set(stage: Stage, form: tuple[str, bool]) -> None:
    for temperature in (0.5, None):
        stage.server.reply(SUBMIT)
        stage.play(*form, spec={"temperature": temperature})
    assert [request.body.get("temperature") for request in stage.server.requests] == [0.5, None]
    stage.server.faults.clear()  # Anthropic's newest models refuse one


def test_a_key_named_none_is_not_cut_out_of_words(stage: Stage) -> None:
    stage.server.reply(Call("submit_result", {"outcome": "completed", "message": "no-key at all, none"}))
    assert stage.play("chat").result.message == "no-key at all, none"
