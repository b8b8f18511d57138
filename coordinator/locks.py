"""Kernel locks that prove a worker alive. A worker holds a shared flock as long as it lives; process numbers prove
nothing.

Whoever gets the exclusive lock on an owner's file has proof that every holder is gone. No file, or a file on another
machine's disk, proves nothing: then only the lease counts.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from coordinator.store.filesystem import is_local

__all__ = ["OwnerLock", "forget_owner", "owner_is_gone"]


def _path(folder: Path, owner: str) -> Path:
    return folder / f"{owner}.lock"


class OwnerLock:
    """Held from construction until ``release`` or the end of the process, however it comes.

    Release it only when no claim and no child is left: whoever leaves some behind keeps it until the process ends.
    """

    def __init__(self, folder: Path, owner: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = _path(folder, owner)
        # Not inherited by programs that children start (PEP 446); a plain fork shares it, and so keeps it held.
        self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._handle, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def release(self) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self._handle)


def owner_is_gone(folder: Path, owner: str) -> bool:
    """Whether it is proved that nobody holds this owner's lock."""
    path = _path(folder, owner)
    try:
        handle = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        if not is_local(path):
            return False
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def forget_owner(folder: Path, owner: str) -> None:
    """Remove the file of an owner whose claims have been taken back."""
    _path(folder, owner).unlink(missing_ok=True)
