"""Artifacts by digest: small ones inline in the database, larger ones as durable files. Bytes before rows."""

from __future__ import annotations

from pathlib import Path

from contracts.canonical import sha256_digest
from contracts.errors import StoreUnavailable
from coordinator.store.database import Blob
from coordinator.store.filesystem import make_durable, write_durable

__all__ = ["INLINE_BYTES_MAX", "ArtifactFiles"]

INLINE_BYTES_MAX = 32 * 1024


class ArtifactFiles:
    """The folder of the larger artifacts: ``ab/cdef…`` under their SHA-256."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, digest: str) -> Path:
        name = digest.removeprefix("sha256:")
        assert len(name) == 64, digest
        assert name.isalnum(), digest
        return self.folder / name[:2] / name[2:]

    def make_durable(self, data: bytes) -> Blob:
        """A blob that may be named in a row: when it is not inline, its file is there and verified.

        Raises ``StoreUnavailable``.
        """
        digest = sha256_digest(data)
        if len(data) <= INLINE_BYTES_MAX:
            return Blob(digest, len(data), data)
        path = self.path(digest)
        try:
            if path.is_file() and sha256_digest(path.read_bytes()) == digest:
                make_durable(path)  # another process may have written it a moment ago
            else:
                write_durable(path, data)
        except OSError as error:
            raise StoreUnavailable(
                f"the artifact folder {self.folder} did not take {len(data)} bytes: {error.strerror}. "
                "Nothing of this step was changed"
            ) from error
        return Blob(digest, len(data), None)

    def read(self, digest: str) -> bytes | None:
        try:
            return self.path(digest).read_bytes()
        except FileNotFoundError:
            return None
