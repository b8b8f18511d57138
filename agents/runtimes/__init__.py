"""Runtimes: who does the work of a child."""

from __future__ import annotations

from agents.runtimes.build import Runtime, build_runtime
from agents.runtimes.command import Place
from agents.runtimes.errors import NoResult, SourceChanged

__all__ = ["NoResult", "Place", "Runtime", "SourceChanged", "build_runtime"]
