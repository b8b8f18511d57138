"""Prices, and the most that a call can cost."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.metering import price_of, worst_of
from contracts.prices import Price
from contracts.turns import ModelUsage

OWN = Price(input_mtok_usd=1, output_mtok_usd=2)


def test_known_models_have_a_price_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a price was looked up over the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert price_of("anthropic", "claude-opus-4-8", {}) == Price(
        input_mtok_usd=5, output_mtok_usd=25, cached_input_mtok_usd=0.5, cache_write_mtok_usd=6.25
    )
    assert price_of("openai", "gpt-4o-mini", {}) == Price(
        input_mtok_usd=0.15, output_mtok_usd=0.6, cached_input_mtok_usd=0.075
    )


@pytest.mark.parametrize("model", ["unknown-x", "gtp-4o-mini", "", "claude"])
def test_an_unknown_model_has_no_price_rather_than_none_to_pay(model: str) -> None:
    assert price_of("openai", model, {}) is None


def test_the_contract_is_asked_first() -> None:
    assert price_of("openai", "gpt-4o-mini", {"gpt-4o-mini": OWN}) == OWN
    assert price_of("openai", "unknown-x", {"unknown-x": OWN}) == OWN
    free = Price(input_mtok_usd=0, output_mtok_usd=0)
    assert price_of("openai", "mine", {"mine": free}) == free


def test_another_server_is_not_priced_like_the_provider_whose_api_it_speaks() -> None:
    assert price_of("openai", "gpt-4o-mini", {}, base_url="http://127.0.0.1:8080/v1") is None
    assert price_of("openai", "gpt-4o-mini", {"gpt-4o-mini": OWN}, base_url="http://127.0.0.1:8080/v1") == OWN
    assert price_of("openai", "deepseek-chat", {}, base_url="https://api.deepseek.com/v1") is not None


def test_long_input_costs_what_long_input_costs() -> None:
    short = price_of("openai", "gpt-5.4", {}, input_tokens=1_000)
    long = price_of("openai", "gpt-5.4", {}, input_tokens=300_000)
    assert short is not None
    assert long is not None
    assert (short.input_mtok_usd, long.input_mtok_usd) == (2.5, 5)


counts = st.integers(0, 2_000_000)


@given(counts, counts, counts, counts, st.sampled_from(["claude-sonnet-4-5", "claude-opus-4-8", "gpt-5.4", "gpt-5"]))
def test_no_call_costs_more_than_the_worst(plain: int, cached: int, written: int, output: int, model: str) -> None:
    provider = "anthropic" if model.startswith("claude") else "openai"
    usage = ModelUsage(
        input_tokens=plain + cached + written, cached_input_tokens=cached, cache_write_tokens=written,
        output_tokens=output,
    )  # fmt: skip
    size = usage.input_tokens
    before = price_of(provider, model, {}, input_tokens=size + 1_024)
    after = price_of(provider, model, {}, input_tokens=usage.input_tokens)
    assert before is not None
    assert after is not None
    worst = worst_of(size, output, before)
    assert after.cost_micro_usd(usage) <= worst.micro_usd
    assert usage.total_tokens <= worst.tokens
