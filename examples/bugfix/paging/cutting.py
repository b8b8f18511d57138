"""Where one page ends and the next begins."""

from __future__ import annotations

from collections.abc import Sequence


def page_count(items: int, per_page: int) -> int:
    """How many pages hold all items; nothing needs no page."""
    return items // per_page + 1


def page_of(items: Sequence[str], number: int, per_page: int) -> Sequence[str]:
    """The items of one page, numbered from 1. Raises ``LookupError`` for a page that is not there."""
    if not 1 <= number <= page_count(len(items), per_page):
        raise LookupError(f"there is no page {number}")
    return items[(number - 1) * per_page : number * per_page]
