"""Whether a folder is a safe place for a store: local file system, working kernel locks."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from contracts.errors import StoreUnavailable
from coordinator.crash_points import reached

__all__ = ["check_store_folder", "filesystem_type", "is_local", "make_durable", "write_durable"]

NETWORK = frozenset(
    {
        "nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "9p", "afs", "ceph", "glusterfs", "lustre", "gpfs",
        "beegfs", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "vboxsf", "prl_fs",
        "virtiofs", "drvfs", "davfs", "fuse.davfs2",
    }
)  # fmt: skip
"""Where WAL's shared memory or flock are known not to be dependable between machines."""


def filesystem_type(path: Path) -> str | None:
    """Type of the file system that holds ``path``, or None where the system does not tell."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        left, _, right = line.partition(" - ")
        if left.split(" ")[2] == wanted:
            return right.split(" ")[0]
    return None


def is_local(path: Path) -> bool:
    return filesystem_type(path) not in NETWORK


def check_store_folder(folder: Path) -> None:
    """Raise ``StoreUnavailable`` where a store would not be safe."""
    kind = filesystem_type(folder)
    if kind in NETWORK:
        raise StoreUnavailable(
            f"{folder} is on a network or shared file system ({kind}), where SQLite's locks cannot be trusted: "
            "give --store a path on a local disk, or a postgresql:// address"
        )
    try:
        with tempfile.TemporaryFile(dir=folder) as one:
            fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
            again = os.open(f"/proc/self/fd/{one.fileno()}", os.O_RDWR)
            try:
                fcntl.flock(again, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            finally:
                os.close(again)
    except FileNotFoundError:
        return  # no /proc: the test cannot be made here
    except OSError as error:
        raise StoreUnavailable(
            f"cannot write in {folder}: {error.strerror}; the store needs a writable folder"
        ) from error
    raise StoreUnavailable(f"locks do not work in {folder}: put the store on a local disk")


def write_durable(path: Path, data: bytes) -> None:
    """Write a file so that it is whole or absent after any crash, and there to stay when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # before the name is there
        reached("file_written")
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    make_durable(path)
    reached("file_named")


def make_durable(path: Path) -> None:
    """Flush a whole file, and the folders that name it."""
    for place in (path, path.parent, path.parent.parent):
        handle = os.open(place, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
