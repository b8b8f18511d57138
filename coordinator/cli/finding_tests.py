"""The test command of a repository, found by what its pinned commit holds: nothing of it is run or imported."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from configparser import Error as ConfigError
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import CoordinatorError
from coordinator.pinning import PROGRAM_PATH
from workspaces import TreeReader
from workspaces.repository import find_repository

__all__ = ["find_test_command"]

FILE_BYTES_MAX = 1_000_000
NPM_DEFAULT = "no test specified"
"""What `npm init` writes when it was told no test command."""


@dataclass(frozen=True, slots=True)
class _Source:
    """``files``: every path of the commit, or those of a plain folder that tests can be found by."""

    files: frozenset[str]
    read_bytes: Callable[[str], bytes]

    def text(self, path: str) -> str:
        """Empty when it is not there."""
        if path not in self.files:
            return ""
        return self.read_bytes(path)[:FILE_BYTES_MAX].decode("utf-8", "replace")


def find_test_command(folder: Path) -> list[str] | None:
    """The arguments that run the tests at the top of the source of ``folder``; None when nothing tells them.

    Only a program that children and checks find on this machine is named.
    """
    try:
        repository = find_repository(folder)
        if repository is None:
            return _command(_Source(frozenset(_paths(folder)), lambda path: (folder / path).read_bytes()))
        with closing(TreeReader(repository.git_dir, repository.resolve("HEAD")[0])) as reader:
            return _command(_Source(frozenset(file.path for file in reader.files()), reader.read_bytes))
    except (CoordinatorError, OSError, RecursionError):
        return None  # what is wrong with the source is said by those who pin it


def _paths(folder: Path) -> Iterator[str]:
    for path in (*folder.iterdir(), *(folder / "tests").rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix()


def _command(source: _Source) -> list[str] | None:
    for find in (_pytest, _unittest, _npm, _cargo, _go, _make):
        command = find(source)
        if command is not None and (command[0] == "python" or _is_here(command[0])):
            return command
    return None


def _is_here(program: str) -> bool:
    return shutil.which(program, path=f"{Path(sys.executable).parent}:{PROGRAM_PATH}") is not None


def _pytest(source: _Source) -> list[str] | None:
    named = [path for path in source.files if re.fullmatch(r"(?:.*/)?(?:test_[^/]*|[^/]*_test)\.py", path)]
    usual = any(path.startswith("tests/") for path in named)
    if not named or not (usual or _configures_pytest(source)) or importlib.util.find_spec("pytest") is None:
        return None
    return ["python", "-m", "pytest", "-q"]


def _configures_pytest(source: _Source) -> bool:
    if source.files & {"pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"}:
        return True
    try:
        tool = tomllib.loads(source.text("pyproject.toml")).get("tool")
    except tomllib.TOMLDecodeError:
        tool = None
    if isinstance(tool, dict) and "pytest" in tool:
        return True
    return _has_section(source.text("setup.cfg"), "tool:pytest") or _has_section(source.text("tox.ini"), "pytest")


def _has_section(text: str, name: str) -> bool:
    parser = ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except ConfigError:
        return False
    return parser.has_section(name)


def _unittest(source: _Source) -> list[str] | None:
    files = [path for path in source.files if re.fullmatch(r"tests/(?:.*/)?test[^/]*\.py", path)]
    if not any(re.search(r"^\s*(?:import|from)\s+unittest\b", source.text(path), re.MULTILINE) for path in files):
        return None
    # Of a package the names begin at the top, or what its modules import relatively is not found.
    top = ["-t", "."] if "tests/__init__.py" in source.files else []
    return ["python", "-m", "unittest", "discover", "-s", "tests", *top]


def _npm(source: _Source) -> list[str] | None:
    try:
        package = json.loads(source.text("package.json") or "null")
    except ValueError:
        return None
    scripts = package.get("scripts") if isinstance(package, dict) else None
    script = scripts.get("test") if isinstance(scripts, dict) else None
    return ["npm", "test"] if isinstance(script, str) and script.strip() and NPM_DEFAULT not in script else None


def _cargo(source: _Source) -> list[str] | None:
    return ["cargo", "test"] if "Cargo.toml" in source.files else None


def _go(source: _Source) -> list[str] | None:
    return ["go", "test", "./..."] if "go.mod" in source.files else None


def _make(source: _Source) -> list[str] | None:
    name = next((name for name in ("GNUmakefile", "makefile", "Makefile") if name in source.files), "")
    return ["make", "test"] if re.search(r"^test\s*:(?!=)", source.text(name), re.MULTILINE) else None
