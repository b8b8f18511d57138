"""The acceptance gate: judges one submitted result. It changes nothing, asks no database and waits for nobody."""

from __future__ import annotations

from coordinator.gate.case import Case
from coordinator.gate.checks import load_schema
from coordinator.gate.judge import approval_key, bound_of, judge, policy_version
from coordinator.gate.tree import JudgedTree, RunCommand

__all__ = ["Case", "JudgedTree", "RunCommand", "approval_key", "bound_of", "judge", "load_schema", "policy_version"]
