"""Seeds, each of which plays a run with its own work, workers and faults: every invariant holds after every step."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.playing import memory
from tests.simulation.simulation import play, real_threads_forbidden

ROOT = Path(__file__).resolve().parents[2]
SEEDS, ITEMS = 1000, 20
KEPT = sorted((Path(__file__).parent / "seeds").glob("*.json"))


def played(seed: int, **focus: Any) -> list[str]:
    folder = Path(tempfile.mkdtemp(prefix=f"simulation-{seed}-", dir=memory()))
    try:
        return play(seed, folder, **focus).steps
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize("item", range(ITEMS))
def test_every_invariant_holds_after_every_step(item: int) -> None:
    with real_threads_forbidden():
        for seed in range(item, SEEDS, ITEMS):
            played(seed)


@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.stem)
def test_what_once_went_wrong_stays_right(file: Path) -> None:
    kept = json.loads(file.read_text(encoding="utf-8"))
    for seed in kept["seeds"]:
        played(seed, **kept.get("focus", {}))


def test_a_seed_says_all_that_happens(tmp_path: Path) -> None:
    first, again = played(17), played(17)
    assert first == again
    assert any("tick.committed" in step for step in first)
    assert first != played(18)
    command = [sys.executable, "-m", "tests.simulation", "--seed", "17", "--trace"]
    for hashes in ("1", "2"):
        done = subprocess.run(
            command, cwd=ROOT, env={"PYTHONHASHSEED": hashes, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
            timeout=120, check=True,
        )  # fmt: skip
        assert done.stdout.splitlines()[:-1] == first
