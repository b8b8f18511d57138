"""Exclusive locks on folders, which leave nothing behind and end with their holder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["held", "is_held"]


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Exclusive among threads and processes; waits for the holder."""
    fd = _opened(folder)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def is_held(folder: Path) -> bool:
    fd = _opened(folder)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _opened(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
