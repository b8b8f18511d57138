"""Deleting folders that a child wrote: at any depth, whatever their modes, following no link."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from workspaces.walk import FOLDER

__all__ = ["delete_folder"]

_PASSES = 3
"""A process that outlived its dead parent may still be putting its last words there."""


def delete_folder(top: Path) -> None:
    """Raises ``OSError`` when something cannot be deleted."""
    _open_up(top, None)
    fd = os.open(top, FOLDER)
    try:
        for passes_left in reversed(range(_PASSES)):
            try:
                _empty(fd)
                os.rmdir(top)
            except OSError:
                if not passes_left:
                    raise
            else:
                return
    finally:
        os.close(fd)


def _empty(top_fd: int) -> None:
    # Folders further down are moved to the top before they are emptied: no path gets long, nothing is nested in calls.
    prefix = f".{os.urandom(8).hex()}-"
    count = 0
    while folders := _without_files(top_fd):
        for name in folders:
            fd = os.open(name, FOLDER, dir_fd=top_fd)
            try:
                for inner in _without_files(fd):
                    count += 1
                    os.rename(inner, f"{prefix}{count}", src_dir_fd=fd, dst_dir_fd=top_fd)
            finally:
                os.close(fd)
            os.rmdir(name, dir_fd=top_fd)


def _without_files(folder_fd: int) -> list[str]:
    """Deletes all but the folders in a folder; gives those, ready to be entered and moved."""
    folders: list[str] = []
    for name in os.listdir(folder_fd):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode):
            _open_up(name, folder_fd)
            folders.append(name)
        else:
            os.unlink(name, dir_fd=folder_fd)
    return folders


def _open_up(folder: str | Path, folder_fd: int | None) -> None:
    # Only a folder without a right for its owner: chmod would follow what a racing process puts in its place.
    if stat.S_IMODE(os.stat(folder, dir_fd=folder_fd, follow_symlinks=False).st_mode) & stat.S_IRWXU != stat.S_IRWXU:
        os.chmod(folder, stat.S_IRWXU, dir_fd=folder_fd)
