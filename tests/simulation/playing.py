"""One seed for a command: in a module of its own, since other processes cannot import from ``__main__``."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.simulation.simulation import play
from tests.simulation.snapshot import Violation

__all__ = ["memory", "played"]


def memory() -> Path | None:
    """Where files cost no disk, if there is such a place."""
    place = Path("/dev/shm")
    return place if place.is_dir() else None


def played(seed: int, *, trace: bool = False) -> str | None:
    """What is wrong with a seed; None: nothing."""
    folder = Path(tempfile.mkdtemp(prefix=f"simulation-{seed}-", dir=memory()))
    try:
        play(seed, folder, trace=print if trace else None)
    except Violation as error:
        return str(error)
    except Exception as error:
        return f"seed {seed}: {type(error).__name__}: {error}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return None
