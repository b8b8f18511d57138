"""Models as children: one loop, whoever the provider is."""

from __future__ import annotations

from agents.llm.loop import ModelRuntime

__all__ = ["ModelRuntime"]
