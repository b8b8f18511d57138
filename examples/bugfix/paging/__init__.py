"""Long lists, cut into pages."""

from __future__ import annotations

from paging.cutting import page_count, page_of

__all__ = ["page_count", "page_of"]
