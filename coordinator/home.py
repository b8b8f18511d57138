"""Where things lie: the store, and beside it artifacts, git directories, locks, logs and pinned files."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from contracts.canonical import sha256_digest
from contracts.errors import BadInput, StoreUnavailable

__all__ = ["Home", "default_store", "open_home"]

FOLDER = ".coordinator"


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of a store's files, and the store's address."""

    url: str
    folder: Path
    outside: Path
    """Where workspaces and checkouts lie: outside every repository, whose configuration would reach into them."""

    @property
    def locks(self) -> Path:
        return self.folder / "locks"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def store_file(self) -> Path | None:
        """The SQLite file; None for another database."""
        return Path(self.url.removeprefix("sqlite:///")) if self.url.startswith("sqlite:///") else None

    def own_files(self) -> tuple[Path, ...]:
        """What lies here, so that a source around it can leave it out."""
        file = self.store_file
        if file is None:
            return (self.folder,)
        return (self.folder, *(file.with_name(file.name + suffix) for suffix in ("", "-wal", "-shm", "-journal")))

    def output_of(self, child_run_id: str) -> Path:
        """Where the output of a program child is kept, and can be followed."""
        return self.folder / "output" / f"{child_run_id}.log"

    def git_dir(self, name: str) -> Path:
        return self.folder / "git" / name

    def pinned_file(self, name: str, digest: str, data: bytes) -> Path:
        """Path of a pinned file's exact bytes, read-only, for loaders and programs that want a path."""
        from coordinator.store.filesystem import write_durable

        path = self.folder / "files" / digest.removeprefix("sha256:") / Path(name).name
        if not (path.is_file() and sha256_digest(path.read_bytes()) == digest):
            # Replaced, never unlinked first: a child beside this one may be about to open it.
            fresh = path.with_name(f".{secrets.token_hex(8)}")
            write_durable(fresh, data)
            fresh.chmod(0o555)  # it may be the program itself
            fresh.replace(path)
        return path


def open_home(
    store: str | None = None, home: str | Path | None = None, *, cwd: Path | None = None, create: bool = True
) -> Home:
    """Locate the store: ``store``, else ``$COORDINATOR_STORE``, else ``.coordinator/store.db`` at the git root.

    With PostgreSQL ``home`` (else the user's state folder) holds the files. ``create`` makes the folder when it is
    not there. Raises ``BadInput``, ``StoreUnavailable``.
    """
    url = store or os.environ.get("COORDINATOR_STORE") or str(default_store(cwd or Path.cwd()))
    if url.startswith(("postgres:", "postgresql:", "postgresql+")):
        folder = Path(home).absolute() if home else _state_of(url)
        if create:
            _make(folder)
        return Home(url, folder, folder)
    path = url.removeprefix("sqlite:///") if url.startswith("sqlite:") else url
    if "://" in path or not path:
        raise BadInput(f"--store {url!r}: use sqlite:///PATH or postgresql://…")
    file = Path(path).absolute()
    if home:
        folder = Path(home).absolute()
    elif file.parent.name == FOLDER:
        folder = file.parent
    else:
        folder = file.with_name(file.name + "-files")
    if create:
        _make(folder)
    url = f"sqlite:///{file}"
    return Home(url, folder, folder if home else _state_of(url))


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # What lies here is nobody's source: the folder ignores itself.
        if not (folder / ".gitignore").exists():
            (folder / ".gitignore").write_text("*\n", encoding="utf-8")
    except OSError as error:
        what = f"cannot make {folder}: {error.strerror}; give --store a path that can be written"
        raise StoreUnavailable(what) from error


def default_store(cwd: Path) -> Path:
    """``.coordinator/store.db`` at the top of the git work tree that ``cwd`` is in, else in ``cwd``."""
    for folder in (cwd, *cwd.parents):
        if (folder / ".git").exists():
            return folder / FOLDER / "store.db"
    return cwd / FOLDER / "store.db"


def _state_of(url: str) -> Path:
    """Of one store, in the user's state folder."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "coordinator" / sha256_digest(url.encode())[7:19]
