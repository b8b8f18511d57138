"""The lock: complete, by digest, and silent about where anything was fetched from."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PIN = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>[\w.]+)( ; [\w .'<>=()!]+)? \\")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")
WHY = re.compile(r"    #( via)?(   | )?([a-z0-9-]+( \(pyproject\.toml(:dev)?\))?)?")


@pytest.fixture
def lock(root: Path) -> list[str]:
    return (root / "requirements" / "dev.txt").read_text().splitlines()


def test_every_line_is_a_pin_a_digest_or_a_reason(lock: list[str]) -> None:
    assert [line for line in lock if not any(form.fullmatch(line) for form in (PIN, HASH, WHY))] == []


def test_every_pin_has_a_digest(lock: list[str]) -> None:
    pins = [number for number, line in enumerate(lock) if PIN.fullmatch(line)]
    assert pins
    assert [lock[number] for number in pins if not HASH.fullmatch(lock[number + 1])] == []


def test_no_requirements_file_names_an_address(root: Path) -> None:
    files = [*(root / "requirements").glob("*.txt"), root / "tests" / "packaging" / "openai-agents.txt"]
    assert [file.name for file in files if re.search(r"://|--(extra-)?index|--find-links", file.read_text())] == []


def test_the_lock_satisfies_what_the_project_asks_for(lock: list[str], root: Path) -> None:
    pinned = {match["name"]: match["version"] for line in lock if (match := PIN.fullmatch(line))}
    project = tomllib.loads((root / "pyproject.toml").read_text())
    asked = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["postgres"],
        *project["dependency-groups"]["dev"],
        *project["build-system"]["requires"],
    ]
    for requirement in map(Requirement, asked):
        name = requirement.name.lower()
        assert requirement.specifier.contains(pinned.get(name, "0")), f"{requirement}: run `make lock`"
