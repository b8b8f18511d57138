"""The checks of the simulation can fail: each fault that is planted into production code is found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.store import claiming, transitions
from tests.simulation.planted_clocks import PLANTED
from tests.simulation.simulation import play
from tests.simulation.snapshot import Violation

SEEDS = 100


@pytest.fixture(autouse=True)
def _statements_are_made_anew() -> Iterator[None]:
    """Production puts each statement together once."""
    made = (transitions._guarded, transitions._refresh, claiming._candidates_query)
    for statement in made:
        statement.cache_clear()
    yield
    for statement in made:
        statement.cache_clear()


def first_violation(folder: Path, focus: dict[str, Any]) -> tuple[int, str]:
    for seed in range(SEEDS):
        try:
            play(seed, folder / str(seed), **focus)
        except Violation as found:
            return seed, str(found)
    return -1, "nothing was found"


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str, tmp_path: Path) -> None:
    says, focus, plant = PLANTED[name]
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        seed, found = first_violation(tmp_path, focus)
    assert re.search(says, found), found
    assert f"python -m tests.simulation --seed {seed} --trace" in found
