"""What an import costs, and which imports would hand a foreign package to us."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

HEAVY = {
    "alembic",
    "anthropic",
    "openai",
    "pydantic",
    "psycopg",
    "rich",
    "sqlalchemy",
    "sqlmodel",
    "structlog",
    "typer",
}


def test_importing_the_coordinator_loads_nothing_heavy(tmp_path: Path) -> None:
    code = "import sys, coordinator; print(*sorted(name for name in sys.modules if '.' not in name))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout

    assert HEAVY & set(loaded.split()) == set()
    assert "agents" not in loaded.split()


def test_help_loads_nothing_that_only_the_commands_need(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['coordinator', '--help']\n"
        "from coordinator.cli import main\n"
        "main()\n"
        "print(*sorted(name for name in sys.modules if '.' not in name), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)

    assert "Usage: coordinator" in done.stdout
    assert (HEAVY - {"typer"}) & set(done.stderr.split()) == set()


def test_no_import_asks_for_the_foreign_parent_package(root: Path) -> None:
    """``import agents.x`` and ``from agents import x`` run its owner; ``from agents.x import y`` does not."""

    def asks(node: ast.AST) -> bool:
        if isinstance(node, ast.Import):
            return any(alias.name.split(".")[0] == "agents" for alias in node.names)
        return isinstance(node, ast.ImportFrom) and node.level == 0 and node.module == "agents"

    offenders = [
        f"{file.relative_to(root)}:{node.lineno}"
        for package in ("agents", "contracts", "coordinator", "workspaces")
        for file in (root / package).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_bytes()))
        if asks(node)
    ]
    assert offenders == []


def test_only_the_loader_lets_agents_in_at_import_time(root: Path) -> None:
    """An import at the head of a module would run before ``load_agents`` and find the foreign package."""
    offenders = [
        f"{file.relative_to(root)}:{node.lineno}"
        for file in (root / "coordinator").rglob("*.py")
        for node in ast.parse(file.read_bytes()).body
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "agents"
    ]
    assert offenders == []
