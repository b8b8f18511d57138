"""The most that a model call can cost, known before it is made."""

from __future__ import annotations

from contracts.ports import Worst
from contracts.prices import Price

__all__ = ["worst_of", "worst_tokens"]

UNSEEN_TOKENS = 1_024
"""What a provider adds to a request: its own words about tools, and marks between messages."""


def worst_tokens(request_bytes: int) -> int:
    """Most input tokens of a request: tokenizers that work on bytes make at most one token of a byte."""
    return request_bytes + UNSEEN_TOKENS


def worst_of(request_bytes: int, max_output_tokens: int, price: Price) -> Worst:
    input_tokens = worst_tokens(request_bytes)
    return Worst(price.worst_micro_usd(input_tokens, max_output_tokens), input_tokens + max_output_tokens)
