"""The ``coordinator`` command."""

from __future__ import annotations

from coordinator.cli.app import main

__all__ = ["main"]
