"""Prices of models: the contract's own first, then those that come with `genai-prices`. No network is used."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import ROUND_UP, Decimal
from typing import TYPE_CHECKING

from pydantic import ValidationError

from contracts.prices import MICRO, Price

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice

__all__ = ["price_of"]


def price_of(
    provider: str,
    model: str,
    override: Mapping[str, Price],
    *,
    base_url: str | None = None,
    input_tokens: int = 0,
) -> Price | None:
    """What ``model`` costs in a call with ``input_tokens`` of input (long ones may be dearer); None: nobody knows.

    ``provider``: ``anthropic`` or ``openai``. With a ``base_url`` it is whoever is known to serve there, never one of
    these two by the name of the model alone. The first call imports `genai-prices`, which takes a moment.
    """
    stated = override.get(model)
    if stated is not None:
        return stated
    from genai_prices import data_snapshot

    snapshot = data_snapshot.get_snapshot()
    try:
        if base_url is None:
            _, found = snapshot.find_provider_model(model, None, provider, None)
        else:
            _, found = snapshot.find_provider_model(model, None, None, base_url)
        return _price(found.get_prices(datetime.now(UTC)), input_tokens)
    except (LookupError, ValidationError):  # the latter: a price that is no amount of money
        return None


def _price(prices: ModelPrice, input_tokens: int) -> Price | None:
    rates = {
        "input_mtok_usd": _rate(prices.input_mtok, input_tokens),
        "output_mtok_usd": _rate(prices.output_mtok, input_tokens),
        "cached_input_mtok_usd": _rate(prices.cache_read_mtok, input_tokens),
        "cache_write_mtok_usd": _rate(prices.cache_write_mtok, input_tokens),
    }
    if rates["input_mtok_usd"] is None or rates["output_mtok_usd"] is None:
        return None
    return Price.model_validate(rates)


def _rate(price: object, input_tokens: int) -> float | None:
    """Dollars for a million tokens, rounded up to whole micro-USD. Of tiers that apply, the dearest."""
    from genai_prices.types import TieredPrices

    if isinstance(price, TieredPrices):
        price = max([price.base, *(tier.price for tier in price.tiers if tier.start <= input_tokens)])
    if not isinstance(price, Decimal):
        return None
    return float(price.quantize(Decimal(1) / MICRO, rounding=ROUND_UP))
