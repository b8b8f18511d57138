"""Money and what models cost. Sums are integer micro-USD; people write dollars."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, PlainSerializer

from contracts.base import StrictModel

if TYPE_CHECKING:
    from contracts.turns import ModelUsage

__all__ = ["MICRO", "USD", "Price", "micro_usd"]

MICRO = 1_000_000
"""Micro-USD in a dollar, and tokens in the unit that prices are given for."""


def micro_usd(dollars: float) -> int:
    """Dollars with at most six decimals as micro-USD."""
    return int(Decimal(repr(dollars)) * MICRO)


def _whole_micros(value: float) -> float:
    if Decimal(repr(value)) * MICRO % 1:
        raise ValueError("money is counted in micro-USD: at most six decimals")
    return value


USD = Annotated[
    float,
    Field(ge=0, le=1_000_000_000, allow_inf_nan=False),
    AfterValidator(_whole_micros),
    PlainSerializer(lambda value: int(value) if value == int(value) else value, return_type=float | int),
]


class Price(StrictModel):
    """What a million tokens cost, in dollars. Cached input without a price of its own costs what other input does."""

    input_mtok_usd: USD
    output_mtok_usd: USD
    cached_input_mtok_usd: USD | None = None
    cache_write_mtok_usd: USD | None = None

    def cost_micro_usd(self, usage: ModelUsage) -> int:
        """What a call cost, rounded up. Cached tokens beyond the input are counted as they were reported."""
        plain = max(0, usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens)
        return _rounded_up(
            plain * self._rate(self.input_mtok_usd)
            + usage.cached_input_tokens * self._rate(self.cached_input_mtok_usd)
            + usage.cache_write_tokens * self._rate(self.cache_write_mtok_usd)
            + usage.output_tokens * self._rate(self.output_mtok_usd)
        )

    def worst_micro_usd(self, input_tokens: int, output_tokens: int) -> int:
        """The most that this many tokens can cost, however much of the input is cached."""
        dearest = max(map(self._rate, (self.input_mtok_usd, self.cached_input_mtok_usd, self.cache_write_mtok_usd)))
        return _rounded_up(input_tokens * dearest + output_tokens * self._rate(self.output_mtok_usd))

    def canonical(self) -> dict[str, int]:
        """Integers, micro-USD for a million tokens; what has no price of its own is left out."""
        said = {name: getattr(self, name) for name in type(self).model_fields}
        return {_CANONICAL[name]: micro_usd(value) for name, value in said.items() if value is not None}

    @classmethod
    def from_canonical(cls, value: dict[str, Any]) -> Price:
        return cls.model_validate({name: value[key] / MICRO for name, key in _CANONICAL.items() if key in value})

    def _rate(self, dollars: float | None) -> int:
        """Micro-USD for a million tokens."""
        return micro_usd(self.input_mtok_usd if dollars is None else dollars)


_CANONICAL = {name: name.replace("_usd", "_micro_usd") for name in Price.model_fields}


def _rounded_up(picos: int) -> int:
    return -(-picos // MICRO)
