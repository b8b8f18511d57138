"""Metering: what a model call costs, and the most that it can cost."""

from __future__ import annotations

from agents.metering.prices import price_of
from agents.metering.worst import worst_of, worst_tokens

__all__ = ["price_of", "worst_of", "worst_tokens"]
