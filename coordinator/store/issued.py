"""Terms as they were issued, read back from their bytes."""

from __future__ import annotations

import json

from contracts.terms import Terms
from coordinator.store.database import Damaged, intact

__all__ = ["damage_of", "remember_terms", "terms_of"]

_terms_by_digest: dict[str, Terms] = {}
TERMS_KEPT_MAX = 1_000


def terms_of(digest: str, data: bytes | None) -> Terms:
    """Parsed terms; immutable, so parsed once. Raises ``Damaged``."""
    known = _terms_by_digest.get(digest)
    if known is None:
        known = Terms.from_canonical(json.loads(_whole(digest, data)))
        remember_terms(digest, known)
    return known


def damage_of(digest: str, data: bytes | None) -> str:
    """What is wrong with the stored bytes; empty: nothing."""
    try:
        _whole(digest, data)
    except Damaged as error:
        return str(error)
    return ""


def _whole(digest: str, data: bytes | None) -> bytes:
    if data is None:
        raise Damaged(f"the store has no bytes of {digest}")
    return intact(digest, data)


def remember_terms(digest: str, terms: Terms) -> None:
    """Spare this process the parsing of what it has just made."""
    if len(_terms_by_digest) > TERMS_KEPT_MAX:
        _terms_by_digest.clear()
    _terms_by_digest[digest] = terms
