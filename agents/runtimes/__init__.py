"""Runtimes: who does the work of a child."""

from __future__ import annotations

from agents.runtimes.build import Runtime, build_runtime
from agents.runtimes.function import NoResult, SourceChanged

__all__ = ["NoResult", "Runtime", "SourceChanged", "build_runtime"]
