"""A pinned tree in memory, a workspace on disk, a broker over both, and an assignment around it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from contracts.assignment import Assignment
from contracts.canonical import sha256_digest
from contracts.delegation import Binding, render_contract
from contracts.errors import OperationUnsettled, Refused
from contracts.ports import ArtifactRef, ChildEnd, SourceFile, Standing
from contracts.terms import Terms
from coordinator.runtimes import load_agents

load_agents()
from agents.broker import Broker  # noqa: E402 - found once it is loaded

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass
class PinnedTree:
    """Implements ``contracts.ports.SourceReader``."""

    contents: dict[str, bytes]
    modes: dict[str, str] = field(default_factory=dict)

    def files(self) -> Sequence[SourceFile]:
        return [
            SourceFile(path, self.modes.get(path, "100644"), len(data), "0" * 40)
            for path, data in sorted(self.contents.items())
        ]

    def read_bytes(self, path: str) -> bytes:
        try:
            return self.contents[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def close(self) -> None: ...


class Stop:
    """Implements ``contracts.ports.CancelSignal``."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.reason = ""

    def is_set(self) -> bool:
        return self.event.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        return self.event.wait(timeout_s)

    def set(self, reason: str) -> None:
        self.reason = reason
        self.event.set()


class Artifacts:
    """Implements ``contracts.ports.ArtifactStore``."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def put(self, name: str, data: bytes, media_type: str) -> ArtifactRef:
        digest = sha256_digest(data)
        self.kept[digest] = data
        return ArtifactRef(name, digest, len(data), media_type)

    def get(self, digest: str) -> bytes:
        return self.kept[digest]


class Programs:
    """Implements ``contracts.ports.CommandRunner``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ran: list[tuple[list[str], float]] = []

    def __call__(self, argv: Sequence[str], timeout_s: float) -> tuple[int | None, str]:
        self.ran.append((list(argv), timeout_s))
        try:
            done = subprocess.run(
                argv, cwd=self.folder, timeout=timeout_s, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                errors="surrogateescape", check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None, "it took too long"
        return done.returncode, done.stdout


class OperationsOfOneTask:
    """Implements ``contracts.ports.Operations``: what was sent stays known, whichever attempt asks."""

    def __init__(self) -> None:
        self.states: dict[str, tuple[str, str]] = {}
        self.missing: set[str] = set()

    def files_are_missing(self, key: str) -> bool:
        return key in self.missing

    def run(
        self,
        key: str,
        tool: str,
        arguments: Mapping[str, Any],
        send: Callable[[], str],
        standing: Callable[[], Standing] | None = None,
    ) -> str:
        state, text = self.states.get(key, ("", ""))
        if state == "sent":
            raise OperationUnsettled(f"{tool} was sent, and nobody knows what came of it")
        if state == "failed":
            raise Refused(text)
        if not state:
            self.states[key] = ("sent", "")
            try:
                text = send()
            except OperationUnsettled:
                raise
            except Exception as error:
                self.states[key] = ("failed", str(error))
                raise
            self.states[key] = ("succeeded", text)
        return text


class People:
    """Implements ``contracts.ports.Inbox``."""

    def __init__(self, **answers: tuple[bool, str]) -> None:
        self.answers = answers

    def answer_to(self, question: str) -> tuple[bool, str] | None:
        return self.answers.get(question)


class Children:
    """Implements ``contracts.ports.Delegator``."""

    def __init__(self) -> None:
        self.terms: dict[str, Mapping[str, Any]] = {}

    def delegate(self, delegation_id: str, terms: Mapping[str, Any]) -> str:
        self.terms[delegation_id] = terms
        return f"task-{delegation_id}"

    def wait(self, delegation_ids: Sequence[str], time_left_s: float) -> Sequence[ChildEnd]:
        return [ChildEnd(name, "accepted", "", {"of": name}, {"log": "sha256:1"}, ["a gap"]) for name in delegation_ids]


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    """An empty workspace; what lies beside it is out of reach."""
    folder = tmp_path / "ws"
    folder.mkdir()
    return folder


MakeBroker = Callable[..., Broker]


@pytest.fixture
def make_broker(ws: Path) -> MakeBroker:
    """``make_broker(*tools, read=[…], write=[…], base={path: bytes}, workspace=True)``; no tools named: all of them.

    ``grant``: more of the resources; anything else goes to the broker.
    """

    def make(
        *tools: str,
        read: Sequence[str] = ("**",),
        write: Sequence[str] = ("**",),
        base: Mapping[str, bytes] | None = None,
        modes: Mapping[str, str] | None = None,
        workspace: Path | bool = True,
        grant: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Broker:
        from contracts.tools import TOOLS

        terms = Terms.model_validate(
            {
                "task_id": "one", "contract_version": 1, "objective": "x", "workspace": "directory",
                "resources": {
                    "tools": list(tools or TOOLS), "read_scope": list(read), "write_scope": list(write),
                    **(grant or {}),
                },
            }
        )  # fmt: skip
        tree = PinnedTree(dict(base or {}), dict(modes or {}))
        folder = {True: ws, False: None}[workspace] if isinstance(workspace, bool) else workspace
        return Broker(terms.resources, tree, clock=lambda: NOW, workspace=folder, **more)

    return make


MakeAssignment = Callable[..., Assignment]


@pytest.fixture
def make_assignment(make_broker: MakeBroker) -> MakeAssignment:
    """``make_assignment(terms={…}, broker=…, **fields of the assignment)``."""

    def make(*, terms: Mapping[str, Any] | None = None, broker: Broker | None = None, **fields: Any) -> Assignment:
        full = Terms.model_validate({"task_id": "one", "contract_version": 1, "objective": "Do it.", **(terms or {})})
        binding = Binding(
            child_run_id="child-1", parent_run_id="run", delegation_id="d-1", parent_state_version=1, claim_generation=1
        )
        values: dict[str, Any] = {
            "run_id": "run", "task_id": "one", "child_run_id": "child-1", "attempt": 1, "generation": 1,
            "contract": render_contract(full, binding), "objective": full.objective, "inputs": dict(full.inputs),
            "needs": {}, "feedback": None, "answers": (), "left_out": (), "deadline_at": NOW,
            "tools": broker or make_broker(*full.resources.tools), "cancel": Stop(), "artifacts": Artifacts(),
        }  # fmt: skip
        return Assignment(**{**values, **fields})

    return make
