"""The wheel and openai-agents share the folder ``agents`` of one environment, and neither harms the other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import Distribution
from pathlib import Path
from zipfile import ZipFile

import pytest

pytestmark = pytest.mark.slow

OURS, THEIRS = "delegation-coordinator", "openai-agents"


@pytest.fixture(scope="session")
def their_wheel(root: Path, pytestconfig: pytest.Config) -> Path:
    """Fetched once and kept between sessions, so that later ones need no network."""
    wanted = root / "tests" / "packaging" / "openai-agents.txt"
    kept = pytestconfig.cache.mkdir("openai-agents")
    version = wanted.read_text().split()[0].partition("==")[2]
    wheel = kept / f"openai_agents-{version}-py3-none-any.whl"
    if not wheel.exists():
        with tempfile.TemporaryDirectory(dir=kept) as fetched:
            pip(None, "download", "--no-deps", "--require-hashes", "--dest", fetched, "-r", wanted)
            (Path(fetched) / wheel.name).replace(wheel)
    return wheel


def pip(environment: Path | None, *arguments: str | Path) -> None:
    target = ["--python", environment / "bin" / "python"] if environment else []
    command = [sys.executable, "-m", "pip", *target, "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    return tmp_path / "venv"


def run(environment: Path, code: str) -> object:
    """Runs in the environment, with this one's dependencies behind it; returns the JSON that the code prints."""
    done = subprocess.run(
        [environment / "bin" / "python", "-c", code],
        cwd=environment,
        env={**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def site_packages(environment: Path) -> Path:
    [found] = environment.glob("lib/python3.*/site-packages")
    return found


def missing_files(environment: Path, name: str) -> list[str]:
    [distribution] = Distribution.discover(name=name, path=[str(site_packages(environment))])
    assert distribution.files
    return [str(file) for file in distribution.files if not Path(str(file.locate())).exists()]


def check_ours(environment: Path) -> None:
    assert missing_files(environment, OURS) == []
    code = """
import json, sys
from coordinator.runtimes import load_agents
print(json.dumps([load_agents().__file__, "agents" in sys.modules]))
"""
    ours = site_packages(environment) / "agents" / "runtimes" / "__init__.py"
    assert run(environment, code) == [str(ours), False]


def check_theirs(environment: Path) -> None:
    assert missing_files(environment, THEIRS) == []
    code = "import importlib.util, json; print(json.dumps(importlib.util.find_spec('agents').origin))"
    assert run(environment, code) == str(site_packages(environment) / "agents" / "__init__.py")


@pytest.mark.parametrize("removed", [OURS, THEIRS])
@pytest.mark.parametrize("first", [OURS, THEIRS])
def test_both_work_in_one_environment_and_the_other_survives_when_one_is_removed(
    environment: Path, wheel: Path, their_wheel: Path, first: str, removed: str
) -> None:
    for each in (wheel, their_wheel) if first == OURS else (their_wheel, wheel):
        pip(environment, "install", "--no-deps", "--no-index", each)
    check_ours(environment)
    check_theirs(environment)

    pip(environment, "uninstall", "--yes", removed)

    agents = site_packages(environment) / "agents"
    if removed == OURS:
        check_theirs(environment)
        assert not (agents / "runtimes").exists()
    else:
        check_ours(environment)
        assert {path.name for path in agents.iterdir()} >= {"broker", "runtimes"}
        assert not (agents / "__init__.py").exists()


def test_no_module_of_theirs_has_a_name_of_ours(wheel: Path, their_wheel: Path) -> None:
    def modules(file: Path) -> set[str]:
        with ZipFile(file) as archive:
            inside = [name.split("/")[1] for name in archive.namelist() if name.startswith("agents/")]
        return {name.removesuffix(".py") for name in inside}

    assert {"broker", "runtimes"} <= modules(wheel)
    assert modules(wheel) & modules(their_wheel) == set()


def test_the_commands_of_the_wheel_start_outside_the_source_tree(environment: Path, wheel: Path) -> None:
    pip(environment, "install", "--no-deps", "--no-index", wheel)

    for command in ("coordinator", "coord"):
        program = shutil.which(command, path=environment / "bin")
        assert program
        done = subprocess.run(
            [program, "--help"],
            cwd=environment,
            env={**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "Usage" in done.stdout
