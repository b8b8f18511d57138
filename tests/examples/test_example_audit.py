"""What the audit says of docstrings and dependencies, and that the files of the examples are sound."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from contracts.assignment import NeededResult
from contracts.orchestration import Orchestration
from coordinator.launch import plan_launch
from tests.examples.conftest import EXAMPLES

Load = Callable[[str], ModuleType]


@pytest.mark.parametrize("name", ["audit", "report"])
def test_an_example_passes_contract_check(name: str, tmp_path: Path, demo: Any) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "copied" / "examples")
    file = tmp_path / "copied" / "examples" / name / "orchestration.yaml"
    done = demo("contract", "check", str(file), cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["audit", "report"])
def test_an_example_can_be_launched_as_it_is(name: str, make_repository: Any) -> None:
    orchestration = Orchestration.from_file(EXAMPLES / name / "orchestration.yaml")
    source = make_repository({"a.py": ""}) if name == "audit" else None
    plan = plan_launch(orchestration, source=source)

    assert plan.faults == []
    assert plan.warnings == []


def test_only_public_definitions_without_a_docstring_are_listed(
    load_example: Load, make_repository: Any, assign: Any
) -> None:
    text = '''\
"""Module."""
import typing

def bare():
    def nested():
        pass

def told():
    """Told."""

def _private():
    pass

class Bare:
    def method(self):
        pass

    def told(self):
        """Told."""

    @property
    def value(self):
        """Told."""

    @value.setter
    def value(self, new):
        pass

    def __init__(self):
        pass

class _Hidden:
    def method(self):
        pass

class Told:
    """Told."""

    async def waits(self):
        pass

@typing.overload
def many(x: int) -> int: ...
def many(x):
    """Told."""

if typing.TYPE_CHECKING:
    def sometimes():
        pass
'''
    repository = make_repository({"pkg/a.py": text, "tests/test_a.py": "def test_a():\n    pass\n", "bad.py": "def ("})
    result = load_example("audit/python_code.py").find_undocumented(assign(repository))

    assert [(item["symbol"], item["kind"]) for item in result.output["items"]] == [
        ("bare", "function"), ("Bare", "class"), ("Bare.method", "method"), ("Told.waits", "method"),
        ("sometimes", "function"),
    ]  # fmt: skip
    assert result.output["items"][0] == {"file": "pkg/a.py", "line": 4, "symbol": "bare", "kind": "function"}
    assert result.output["public"] == 10
    assert any("bad.py could not be parsed" in gap for gap in result.output["not_covered"])
    assert any("1 Python files of tests" in gap for gap in result.output["not_covered"])


PYPROJECT = """\
[build-system]
requires = ["hatchling>=1.33"]
[project]
dependencies = ["PyYAML>=6.0.4", "typer", "uvicorn[standard] (>=0.3,<1) ; python_version < '3.12'", "own @ https://e.org/o.whl"]
[project.optional-dependencies]
postgres = ["psycopg[binary]>=3"]
[dependency-groups]
dev = ["pytest>=9", {include-group = "other"}]
[tool.poetry.dependencies]
python = "^3.11"
httpx = {version = "^0.27", extras = ["http2"]}
"""
REQUIREMENTS = """\
# a comment
--index-url https://example.org/simple
-r more.txt
typer==0.29.2 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
colorama==0.4.6 ; sys_platform == 'win32'  # why
rich
https://example.org/own.whl
"""
SETUP_CFG = """\
[metadata]
name = a
[options]
install_requires =
    requests>=2
    attrs
[options.extras_require]
test = pytest>=9
"""
PACKAGE_JSON = '{"name": "a", "dependencies": {"react": "^19.0.0"}, "devDependencies": {"@types/node": "~22"}}'


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        (
            "pyproject.toml",
            PYPROJECT,
            [
                ("build-system.requires", "hatchling", ">=1.33"),
                ("dependencies", "PyYAML", ">=6.0.4"),
                ("dependencies", "typer", ""),
                ("dependencies", "uvicorn", ">=0.3,<1"),
                ("dependencies", "own", "@ https://e.org/o.whl"),
                ("optional-dependencies.postgres", "psycopg", ">=3"),
                ("dependency-groups.dev", "pytest", ">=9"),
                ("poetry", "python", "^3.11"),
                ("poetry", "httpx", '{"version": "^0.27", "extras": ["http2"]}'),
            ],
        ),
        (
            "requirements-dev.txt",
            REQUIREMENTS,
            [
                ("requirements", "typer", "==0.29.2"),
                ("requirements", "colorama", "==0.4.6"),
                ("requirements", "rich", ""),
            ],
        ),
        ("requirements/dev.txt", "a==1\n", [("requirements", "a", "==1")]),
        (
            "setup.cfg",
            SETUP_CFG,
            [("install_requires", "requests", ">=2"), ("install_requires", "attrs", ""), ("test", "pytest", ">=9")],
        ),
        (
            "web/package.json",
            PACKAGE_JSON,
            [("dependencies", "react", "^19.0.0"), ("devDependencies", "@types/node", "~22")],
        ),
    ],
)
def test_declared_dependencies_are_listed(
    path: str,
    text: str,
    expected: list[tuple[str, str, str]],
    load_example: Load,
    make_repository: Any,
    assign: Any,
) -> None:
    result = load_example("audit/audit.py").list_dependencies(assign(make_repository({path: text})))

    assert [(item["group"], item["name"], item["constraint"]) for item in result.output["dependencies"]] == expected
    assert result.output["files"] == [path]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("pyproject.toml", "[project"),
        ("pyproject.toml", "project = 1\n"),
        ("setup.cfg", "no section\n"),
        ("package.json", "{"),
        ("package.json", "[]"),
        ("package.json", '{"dependencies": ["a"]}'),
        ("Cargo.toml", "[dependencies]\n"),
        ("requirements.txt", "-r other.txt\n"),
        ("requirements.txt", "???\n"),
    ],
)
def test_a_dependency_file_that_cannot_be_read_is_a_coverage_gap(
    path: str, text: str, load_example: Load, make_repository: Any, assign: Any
) -> None:
    result = load_example("audit/audit.py").list_dependencies(assign(make_repository({path: text})))

    assert result.output["dependencies"] == []
    assert [gap for gap in result.output["not_covered"] if gap.startswith(path)]


def needed(task_id: str, output: dict[str, Any], *gaps: str) -> NeededResult:
    return NeededResult(task_id, output, {}, f"sha256:{task_id}", partial=False, gaps=gaps)


NEEDS = {
    "callers": {
        "symbol": "a.f",
        "defined_at": "a.py:1",
        "python_files": 2,
        "callers": [{"file": "b.py", "line": 3, "symbol": "g", "text": "f()  # `x`", "match": "name"}],
    },
    "undocumented": {"public": 4, "items": [{"file": "a.py", "line": 1, "symbol": "f", "kind": "function"}]},
    "dependencies": {
        "files": ["p.toml"],
        "dependencies": [{"name": "rich", "constraint": "", "file": "p.toml", "group": "g"}],
    },
    "tests": {"command": ["python", "t.py"], "exit_status": 0, "seconds": 1.5, "counts": {"tests": 3, "failures": 0}},
}


def test_the_report_is_a_file_in_the_workspace_and_the_same_bytes_as_its_artifact(
    load_example: Load, make_repository: Any, assign: Any
) -> None:
    needs = {name: needed(name, output, f"gap of {name}") for name, output in NEEDS.items()}
    assignment = assign(make_repository({"a.py": ""}), needs=needs)
    result = load_example("audit/audit.py").write_report(assignment)
    data = (assignment.workspace / "report.md").read_bytes()
    [item] = result.evidence

    assert assignment.artifacts.get(result.artifacts[0].digest) == data
    assert (item.kind, item.path, item.digest) == ("file", "report.md", result.artifacts[0].digest)
    assert set(result.output["built_from"]) == set(NEEDS)
    text = data.decode()
    assert "- Symbol: `a.f`, defined at `a.py:1`" in text
    assert "- `b.py:3` in `g` (by name only): `f() # 'x'`" in text
    assert "- `rich` `any version` (`p.toml`, `g`)" in text
    assert "- `python t.py` exited 0 after 1.5 s: 3 tests, 0 failures" in text
    assert "- tests: `gap of tests`" in text
    assert "4 coverage gaps" in text


def test_what_was_left_out_stands_in_its_section_and_among_the_gaps(
    load_example: Load, make_repository: Any, assign: Any
) -> None:
    needs = {name: needed(name, NEEDS[name]) for name in ("undocumented", "dependencies")}
    left_out = {"tests": "no command", "callers": "no Python", "recount": "no script"}
    assignment = assign(make_repository({"a.py": ""}), needs=needs, left_out=left_out)
    load_example("audit/audit.py").write_report(assignment)
    text = (assignment.workspace / "report.md").read_text()

    assert "## Tests\n\n- left out: no command\n" in text
    assert "## Callers\n\n- left out: no Python\n" in text
    assert "- recount: `left out: no script`" in text
    assert "3 coverage gaps" in text
