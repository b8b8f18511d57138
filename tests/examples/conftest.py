"""What the tests of the examples share: made repositories, and assignments that read them through the real broker."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agents.broker import Broker
from contracts.assignment import Assignment, Feedback, NeededResult
from contracts.canonical import sha256_digest
from contracts.ports import ArtifactRef
from contracts.requests import Answer
from contracts.terms import Resources
from coordinator.children import StopSignal
from workspaces import TreeReader

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MakeRepository = Callable[[Mapping[str, str | bytes]], Path]
Assign = Callable[..., Assignment]


class KeptArtifacts:
    """What one child hands over."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def put(self, name: str, data: bytes, media_type: str) -> ArtifactRef:
        digest = sha256_digest(data)
        self.kept[digest] = data
        return ArtifactRef(name, digest, len(data), media_type)

    def get(self, digest: str) -> bytes:
        return self.kept[digest]


@pytest.fixture(scope="session")
def load_example() -> Callable[[str], ModuleType]:
    """Loads a file of the examples as the runtime does: by its path, under a name of its own."""
    loaded: dict[str, ModuleType] = {}

    def load(name: str) -> ModuleType:
        if name not in loaded:
            unique = "example_" + name.replace("/", "_").removesuffix(".py")
            spec = importlib.util.spec_from_file_location(unique, EXAMPLES / name)
            assert spec is not None
            assert spec.loader is not None
            loaded[name] = sys.modules[unique] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(loaded[name])
        return loaded[name]

    return load


@pytest.fixture
def make_repository(tmp_path: Path) -> MakeRepository:
    """A git repository with one commit of these files."""

    def make(files: Mapping[str, str | bytes]) -> Path:
        top = tmp_path / "made"
        for name, content in files.items():
            path = top / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
        person = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org"]
        for words in (["init", "-q", "."], ["add", "-A"], [*person, "commit", "-q", "-m", "made"]):
            subprocess.run(["git", *words], cwd=top, env=environment, check=True, capture_output=True)
        return top

    return make


@pytest.fixture
def assign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Assign]:
    """An assignment whose tools work on a clone of a repository."""
    readers: list[TreeReader] = []

    def make(
        repository: Path,
        *,
        answers: list[tuple[str, Answer]] | None = None,
        feedback: Feedback | None = None,
        needs: Mapping[str, NeededResult] | None = None,
        **inputs: Any,
    ) -> Assignment:
        words = ["git", "-C", str(repository), "rev-parse", "HEAD"]
        commit = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
        readers.append(TreeReader(repository / ".git", commit))
        folder = tmp_path_factory.mktemp("workspace") / "tree"
        subprocess.run(["git", "clone", "-q", str(repository), str(folder)], check=True, capture_output=True)
        grant = Resources(tools=["list_files", "read_file", "write_file"], write_scope=["callers.json", "report.md"])
        tools = Broker(grant, readers[-1], clock=lambda: datetime.now(UTC), workspace=folder)
        return Assignment(
            run_id="audit",
            task_id="one",
            child_run_id="child-1",
            attempt=1,
            generation=1,
            contract={"input_snapshot": {"repo_ref": f"made@{commit}"}},
            objective="Do it.",
            inputs={"demonstrate_repair": False, "left_out": {}, **inputs},
            needs=needs or {},
            feedback=feedback,
            answers=answers or [],
            left_out=[],
            deadline_at=datetime.now(UTC) + timedelta(minutes=1),
            tools=tools,
            cancel=StopSignal(),
            artifacts=KeptArtifacts(),
            workspace=folder,
        )

    yield make
    for reader in readers:
        reader.close()


@pytest.fixture
def demo(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command of the command line as a person does; what it makes lies under this test's folder."""
    folder = tmp_path / "temporary"
    folder.mkdir()

    def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if key != "COORDINATOR_STORE"}
        command = [sys.executable, "-m", "coordinator", *words]
        return subprocess.run(
            command,
            cwd=cwd,
            env={**environment, "TMPDIR": str(folder), "XDG_STATE_HOME": str(tmp_path / "state")},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run
