"""Folders that appear whole and disappear whole, whoever dies meanwhile, and only outside every repository."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from contracts.canonical import well_formed
from contracts.errors import Refused
from contracts.steps import reached
from workspaces.durable import make_folders, sync
from workspaces.locks import held, is_held
from workspaces.trash import delete_folder

__all__ = ["appearing", "disappear", "place_of"]


@contextlib.contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """An empty folder that takes the name ``folder`` (as ``place_of`` gives it) when the block ends well, else none.

    Raises ``Refused``, before and after the block, when that name is taken; what has it is not touched.
    """
    prefix = _prefix(folder, "partial")
    with contextlib.ExitStack() as own:
        with held(folder.parent):
            _refuse_taken(folder)
            for left in _named(folder.parent, prefix):
                if not is_held(left):  # its maker is dead
                    delete_folder(left)
            partial = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
            own.enter_context(held(partial))
        try:
            yield partial
            reached("workspace_filled")
            with held(folder.parent):
                _refuse_taken(folder)
                os.rename(partial, folder)
        except BaseException:
            delete_folder(partial)
            raise


def disappear(folder: Path) -> None:
    """Deletes a folder. Its name is free at once; what a killed process left of it is deleted by the next call."""
    prefix = _prefix(folder, "removed")
    with held(folder.parent):
        if os.path.lexists(folder):
            grave = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
            os.rename(folder, grave / "it")
            sync(folder.parent)
            reached("workspace_renamed")
        for left in _named(folder.parent, prefix):
            delete_folder(left)


def place_of(folder: Path) -> Path:
    """The real path for a new folder, with its parents made. Raises ``Refused`` inside of any repository.

    A repository above would lend its configuration, ignore rules and hooks to whatever runs there.
    """
    folder = folder.absolute()
    if folder.name in ("", ".."):
        raise Refused(f"{folder} cannot be the name of a workspace")
    make_folders(folder.parent)
    parent = folder.parent.resolve(strict=True)
    for above in (parent, *parent.parents):
        is_bare = (above / "HEAD").is_file() and (above / "objects").is_dir() and (above / "refs").is_dir()
        if is_bare or os.path.lexists(above / ".git"):
            raise Refused(
                f"{well_formed(str(folder))} lies in the repository {well_formed(str(above))}; "
                "workspaces must lie outside every repository, choose another --home"
            )
    return parent / folder.name


def _refuse_taken(folder: Path) -> None:
    if os.path.lexists(folder):
        raise Refused(f"{well_formed(str(folder))} exists already and was left as it is; use a new name")


def _prefix(folder: Path, what: str) -> str:
    # The name itself may be as long as names can be.
    return f".{what}-{hashlib.sha256(os.fsencode(folder.name)).hexdigest()[:16]}-"


def _named(parent: Path, prefix: str) -> list[Path]:
    return [parent / name for name in os.listdir(parent) if name.startswith(prefix)]
