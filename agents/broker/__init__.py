"""The tool broker: the one door through which a child reaches anything."""

from __future__ import annotations

from agents.broker.broker import Broker
from agents.broker.errors import OutcomeUnknown, ServerFailed, ToolRefused, Unanswered
from agents.broker.loop import ToolLoop
from agents.broker.mcp_tools import ServerPlace, ToolServers

__all__ = [
    "Broker",
    "OutcomeUnknown",
    "ServerFailed",
    "ServerPlace",
    "ToolLoop",
    "ToolRefused",
    "ToolServers",
    "Unanswered",
]
