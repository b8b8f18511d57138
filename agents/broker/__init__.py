"""The tool broker: the one door through which a child reaches anything."""

from __future__ import annotations

from agents.broker.broker import Broker
from agents.broker.errors import ToolRefused
from agents.broker.loop import ToolLoop

__all__ = ["Broker", "ToolLoop", "ToolRefused"]
