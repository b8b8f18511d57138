"""The ``coordinator`` command."""

from coordinator.cli.app import main

__all__ = ["main"]
