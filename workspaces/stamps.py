"""What the file system said about each file when a workspace was made, so that unchanged ones need not be read again.

Sizes and times of modification can be put back by anybody; the time of the last change of the inode cannot, short of
turning the clock. It is trusted only where every way of writing sets it, and if it was past before the child began.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from workspaces.walk import Entry, described

__all__ = ["stamps_of"]

_TRUSTED = frozenset({b"ext4"})
"""Not tmpfs, where writing through a memory map sets no time, nor xfs, which lets two files swap what they hold without
one. Others are unknown, and only cost reading."""


def stamps_of(top: Path, written: Mapping[str, os.stat_result]) -> dict[str, Entry]:
    """Entries that a later walk finds again only if nothing was written to them, by path. Asked before a child runs."""
    with tempfile.TemporaryFile(dir=top) as probe:
        status = os.fstat(probe.fileno())
    if _file_system(status.st_dev) not in _TRUSTED:
        return {}
    # Whatever happens from now on gets this time or a later one. A file of the same tick could be written unseen.
    return {
        path: described(path, was, None)
        for path, was in written.items()
        if was.st_ctime_ns < status.st_ctime_ns and stat.S_ISREG(was.st_mode)
    }


def _file_system(device: int) -> bytes | None:
    """Its kind, as the kernel calls it."""
    number = b"%d:%d" % (os.major(device), os.minor(device))
    try:
        mounts = Path("/proc/self/mountinfo").read_bytes()
    except OSError:
        return None
    for line in mounts.splitlines():
        place, _, kind = line.partition(b" - ")
        if place.split(b" ")[2] == number:
            return kind.split(b" ")[0]
    return None
