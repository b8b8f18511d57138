"""Making files and folders survive a power cut."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["make_folders", "sync", "sync_tree"]


def sync(path: str | Path) -> None:
    """Flushes one file or folder. Needs no right to write, changes no times."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_tree(root: Path) -> None:
    """Flushes every file and folder below ``root``, and ``root``. Made for shallow trees such as a git directory."""
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            sync(os.path.join(folder, name))
        sync(folder)


def make_folders(path: Path) -> None:
    """Like ``mkdir -p``, with every new name flushed."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync(folder.parent)
