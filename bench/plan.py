"""What a run of the bench is asked to do, and where its programs work."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.records import Record

MEMORY = Path("/dev/shm")
SECTIONS = ("fan-out", "singly", "recovery", "workspaces", "startup")


@dataclass(frozen=True, slots=True)
class Plan:
    """``media``: tmpfs and disk, each with the folder to work in. ``peers``: their interpreter; None leaves them out.

    ``sizes``: children of a fan-out; peers take part up to ``peers_max`` of them. ``trace``: whether flushes are
    traced.
    """

    sizes: Sequence[int]
    peers_max: int
    one_by_one: int
    killed: int
    files: int
    changed: Sequence[int]
    repeats: int
    slots: int
    databases: Sequence[str]
    media: Mapping[str, Path]
    peers: Path | None
    trace: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to run and measure; ``run`` raises ``bench.programs.Failed``."""

    label: str
    run: Callable[[], Record]


@contextmanager
def work_folders(media: Sequence[str], disk: Path) -> Iterator[dict[str, Path]]:
    """A new folder on each medium; they go at the end."""
    made: dict[str, Path] = {}
    try:
        for medium in media:
            parent = MEMORY if medium == "tmpfs" else disk
            parent.mkdir(parents=True, exist_ok=True)
            made[medium] = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
            made[medium].chmod(0o755)
        yield made
    finally:
        for folder in made.values():
            shutil.rmtree(folder, ignore_errors=True)
