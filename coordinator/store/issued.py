"""Terms as they were issued, read back from their bytes."""

from __future__ import annotations

import json

from contracts.terms import Terms
from coordinator.store.database import intact

__all__ = ["remember_terms", "terms_of"]

_terms_by_digest: dict[str, Terms] = {}
TERMS_KEPT_MAX = 1_000


def terms_of(digest: str, data: bytes) -> Terms:
    """Parsed terms; immutable, so parsed once. Raises ``Damaged``."""
    known = _terms_by_digest.get(digest)
    if known is None:
        known = Terms.from_canonical(json.loads(intact(digest, data)))
        remember_terms(digest, known)
    return known


def remember_terms(digest: str, terms: Terms) -> None:
    """Spare this process the parsing of what it has just made."""
    if len(_terms_by_digest) > TERMS_KEPT_MAX:
        _terms_by_digest.clear()
    _terms_by_digest[digest] = terms
