"""What ships, and what does not."""

from __future__ import annotations

import configparser
from pathlib import Path
from zipfile import ZipFile

import pytest


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with ZipFile(wheel) as archive:
        return archive.namelist()


def metadata_file(wheel: Path, name: str) -> str:
    with ZipFile(wheel) as archive:
        [member] = [each for each in archive.namelist() if each.endswith(f".dist-info/{name}")]
        return archive.read(member).decode()


def test_exactly_the_four_packages_ship(names: list[str]) -> None:
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"agents", "contracts", "coordinator", "workspaces"}


def test_every_source_file_ships(names: list[str], root: Path) -> None:
    sources = {
        file.relative_to(root).as_posix()
        for package in ("agents", "contracts", "coordinator", "workspaces")
        for file in (root / package).rglob("*.py")
    }
    assert sources <= set(names)


def test_nothing_lies_directly_in_agents(names: list[str], root: Path) -> None:
    assert [name for name in names if name.startswith("agents/") and name.count("/") == 1] == []
    assert [file.name for file in (root / "agents").iterdir() if not file.is_dir()] == []


def test_every_package_says_that_it_is_typed(names: list[str]) -> None:
    agents = {"/".join(name.split("/")[:2]) for name in names if name.startswith("agents/")}
    assert {"agents/broker", "agents/runtimes"} <= agents
    for package in agents | {"contracts", "coordinator", "workspaces"}:
        assert f"{package}/__init__.py" in names
        assert f"{package}/py.typed" in names


def test_the_files_of_the_demos_ship_inside_the_coordinator(names: list[str], root: Path) -> None:
    examples = root / "examples"
    there = {
        file.relative_to(examples).as_posix()
        for file in examples.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert "audit/orchestration.yaml" in there
    assert {f"coordinator/examples/{name}" for name in there} <= set(names)


def test_both_commands_start_the_same_program(wheel: Path) -> None:
    entry_points = configparser.ConfigParser()
    entry_points.read_string(metadata_file(wheel, "entry_points.txt"))
    assert dict(entry_points["console_scripts"]) == {
        "coordinator": "coordinator.cli:main",
        "coord": "coordinator.cli:main",
    }


def test_the_licence_ships(wheel: Path) -> None:
    assert "License-Expression: Apache-2.0\n" in metadata_file(wheel, "METADATA")
    assert "Apache License" in metadata_file(wheel, "licenses/LICENSE")
