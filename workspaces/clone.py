"""The git directory of a child's own in its workspace: copies of what the base commit needs, and no way back."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from workspaces.git import run_git
from workspaces.tree import FOLDER_MODE, GITLINK, TreeEntry, git_hash

__all__ = ["add_repository"]

_CONFIG = """[core]
	autocrlf = false
	fsmonitor = false
[user]
	name = child
	email = child@localhost
[commit]
	gpgSign = false
[gc]
	auto = 0
[maintenance]
	auto = false
"""
_ATTRIBUTES = "* -text !eol -ident -filter !working-tree-encoding\n"
"""So that the child's own git calls the checkout clean, and keeps bytes too."""

_FAST = [("core.fsync", "none"), ("pack.compression", "1")]
_STATUS = struct.Struct(">10I")


def add_repository(
    git_dir: Path,
    base_commit: str,
    *,
    base_tree: str,
    is_shallow: bool,
    entries: Iterable[TreeEntry],
    written: Mapping[str, os.stat_result],
    top: Path,
) -> None:
    """Makes ``top/.git`` on the branch ``work``, its index knowing the files as they were ``written``."""
    own = top / ".git"
    object_format = "sha1" if len(base_commit) == 40 else "sha256"
    initial = ["--template=", "--initial-branch=work", f"--object-format={object_format}"]
    run_git(["init", "--quiet", *initial, str(top)], git_dir=None, cwd=top, settings=_FAST)
    (own / "info").mkdir()
    (own / "info" / "attributes").write_text(_ATTRIBUTES)
    with (own / "config").open("a") as config:
        config.write(_CONFIG)
    ids = {base_commit: None, base_tree: None} | {e.object_id: None for e in entries if e.mode != GITLINK}
    wanted = "".join(f"{object_id}\n" for object_id in ids).encode()
    packing = ["pack-objects", "--quiet", "--window=0", "--delta-base-offset", str(own / "objects" / "pack" / "pack")]
    run_git(packing, git_dir=git_dir, settings=_FAST, stdin=wanted, timeout_s=600)
    (own / "refs" / "heads" / "work").write_text(f"{base_commit}\n")
    if is_shallow:
        (own / "shallow").write_text(f"{base_commit}\n")
    (own / "index").write_bytes(_index(entries, written, len(base_commit)))


def _index(entries: Iterable[TreeEntry], written: Mapping[str, os.stat_result], id_length: int) -> bytes:
    """An index of version 2. Git would have to read every file again to learn what is known here."""
    named = sorted((os.fsencode(entry.path), entry) for entry in entries if entry.mode != FOLDER_MODE)
    parts = [struct.pack(">4s2I", b"DIRC", 2, len(named))]
    for name, entry in named:
        status = written.get(entry.path)
        # Old trees hold modes such as 100664, which mean 100644.
        mode = int(entry.mode, 8) if entry.mode in ("120000", "100755", GITLINK) else 0o100644
        item = b"%s%s%s%s" % (
            _STATUS.pack(*_status_words(status, mode)),
            bytes.fromhex(entry.object_id),
            min(len(name), 0xFFF).to_bytes(2, "big"),
            name,
        )
        parts += [item, bytes(8 - len(item) % 8)]
    body = b"".join(parts)
    return body + git_hash(body, id_length).digest()


def _status_words(status: os.stat_result | None, mode: int) -> list[int]:
    if status is None:  # a submodule
        return [0, 0, 0, 0, 0, 0, mode, 0, 0, 0]
    changed, modified = divmod(status.st_ctime_ns, 10**9), divmod(status.st_mtime_ns, 10**9)
    words = [*changed, *modified, status.st_dev, status.st_ino, mode, status.st_uid, status.st_gid, status.st_size]
    return [word & 0xFFFFFFFF for word in words]
