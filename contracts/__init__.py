"""What is agreed: documents, states, digests, and the ports through which the other packages meet."""

from __future__ import annotations

from contracts.assignment import Assignment, Feedback, NeededResult
from contracts.delegation import Binding, DelegationContract, render_contract
from contracts.errors import (
    BadInput,
    CoordinatorError,
    Fault,
    NotFound,
    Refused,
    StaleClaim,
    StoreUnavailable,
    VersionRefused,
    WrongState,
)
from contracts.evidence import EvidenceItem, EvidenceRequirement
from contracts.orchestration import Orchestration, Source, Task
from contracts.results import Decision, Manifest, Result
from contracts.states import Outcome, State
from contracts.terms import Budget, Limits, Resources, Terms

__all__ = [
    "Assignment",
    "BadInput",
    "Binding",
    "Budget",
    "CoordinatorError",
    "Decision",
    "DelegationContract",
    "EvidenceItem",
    "EvidenceRequirement",
    "Fault",
    "Feedback",
    "Limits",
    "Manifest",
    "NeededResult",
    "NotFound",
    "Orchestration",
    "Outcome",
    "Refused",
    "Resources",
    "Result",
    "Source",
    "StaleClaim",
    "State",
    "StoreUnavailable",
    "Task",
    "Terms",
    "VersionRefused",
    "WrongState",
    "render_contract",
]
