"""The tool broker: the one door through which a child reaches anything."""

from __future__ import annotations

from agents.broker.reading import ReadBroker, ToolRefused

__all__ = ["ReadBroker", "ToolRefused"]
