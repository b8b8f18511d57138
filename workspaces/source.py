"""What a run reads: pinned once at launch, to a full commit id."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from contracts.canonical import well_formed
from contracts.errors import BadInput, Fault
from workspaces.folder import snapshot_folder
from workspaces.git import GitError
from workspaces.repository import find_repository
from workspaces.tree import OBJECT_ID, check_complete

__all__ = ["SourcePin", "pin_source"]

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class SourcePin:
    """One exact state of a source.

    ``origin`` is the absolute path of the repository's top folder, or of the folder. ``commit`` is a full id in the
    run's own git directory. ``content_digest`` (folders only) is of ``{path: sha256 of the bytes}``. ``dirty`` says
    that the user's checkout had changes or untracked files, which are not part of the pin.
    """

    kind: Literal["git", "folder"]
    origin: str
    name: str
    ref: str | None
    commit: str
    tree: str
    content_digest: str | None
    dirty: bool

    def repo_ref(self) -> str:
        """``name@<full commit id>``."""
        return f"{self.name}@{self.commit}"

    def to_json(self) -> dict[str, str | bool | None]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SourcePin:
        """Raises ``BadInput`` with every field that is missing, unknown or has no legal value."""
        legal = {
            "kind": value.get("kind") in ("git", "folder"),
            "origin": isinstance(value.get("origin"), str) and Path(value["origin"]).is_absolute(),
            "name": isinstance(value.get("name"), str) and value["name"] != "",
            "ref": value.get("ref") is None or isinstance(value["ref"], str),
            "commit": isinstance(value.get("commit"), str) and bool(OBJECT_ID.fullmatch(value["commit"])),
            "tree": isinstance(value.get("tree"), str) and bool(OBJECT_ID.fullmatch(value["tree"])),
            "content_digest": value.get("content_digest") is None
            if value.get("kind") == "git"
            else isinstance(value.get("content_digest"), str) and bool(_DIGEST.fullmatch(value["content_digest"])),
            "dirty": isinstance(value.get("dirty"), bool),
        }
        faults = [Fault(key, f"{value.get(key)!r} is not legal in a pin") for key, fine in legal.items() if not fine]
        faults += [Fault(str(key), "unknown field of a pin") for key in value if key not in legal]
        if faults:
            raise BadInput(faults)
        return cls(**value)


def pin_source(path: Path, ref: str = "HEAD", *, exclude: Collection[Path] = ()) -> SourcePin:
    """Resolves the source at ``path`` and changes nothing.

    Anywhere in a git work tree the source is the whole repository at ``ref``; a folder outside any repository is
    itself the source, as its files are now (``ref`` must then be left alone). Raises ``BadInput`` by name for
    what cannot be pinned: a missing or unreadable path, no commit yet, an unknown ref, missing objects. ``exclude``
    names what is no part of a plain folder: the store that lies in it.
    """
    try:
        folder = path.resolve(strict=True)
        if not folder.is_dir():
            raise _fault(f"{path} is not a folder", "give a repository or a folder")
        _refuse_odd_name(folder)
        return _pin(folder, ref, exclude)
    except FileNotFoundError as error:
        raise _fault(f"{path} does not exist", "give a repository or a folder") from error
    except GitError as error:
        raise _fault(f"{path} cannot be pinned: {error}", "repair the repository") from error
    except (OSError, RuntimeError, ValueError) as error:  # the latter two: a loop of links, a NUL in the name
        raise _fault(f"{path} cannot be read: {error}", "give a readable repository or folder") from error


def _pin(folder: Path, ref: str, exclude: Collection[Path]) -> SourcePin:
    repository = find_repository(folder)
    if repository is None:
        if ref != "HEAD":
            raise _fault(f"{folder} is not in a git repository, so it has no ref {ref!r}", "leave the ref out")
        snapshot = snapshot_folder(folder, exclude)
        return SourcePin(
            kind="folder",
            origin=str(folder),
            name=folder.name or "root",
            ref=None,
            commit=snapshot.commit,
            tree=snapshot.tree,
            content_digest=snapshot.content_digest,
            dirty=False,
        )
    _refuse_odd_name(repository.origin)
    commit, tree = repository.resolve(ref)
    check_complete(repository.git_dir, commit)
    return SourcePin(
        kind="git",
        origin=str(repository.origin),
        name=(repository.origin.name.removesuffix(".git") or "root"),
        ref=ref,
        commit=commit,
        tree=tree,
        content_digest=None,
        dirty=repository.is_dirty(),
    )


def _refuse_odd_name(path: Path) -> None:
    if well_formed(str(path)) != str(path):
        raise _fault(f"the path {well_formed(str(path))} is not UTF-8, so no document can name it", "rename it")


def _fault(message: str, hint: str) -> BadInput:
    return BadInput([Fault("source", well_formed(message), hint)])
