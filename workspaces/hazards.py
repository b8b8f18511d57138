"""What a tree made by a child must not hold: names that git takes for its own, and links that lead out of it."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["escaping_links", "name_fault"]

# What HFS+ ignores in a name, and NTFS at its end; both fold case. A tree may be checked out there one day.
_IGNORED_BY_HFS = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
_MAX_HOPS = 40


def name_fault(path: str, *, is_link: bool) -> str | None:
    """Why some file system would take a part of the path for git's own, or None."""
    for part in re.split(r"[/\\]", path):
        plain = _IGNORED_BY_HFS.sub("", part).casefold().partition(":")[0].rstrip(" .")
        if plain in (".git", "git~1"):
            return "has a name that git keeps for itself"
        if is_link and plain == ".gitmodules":
            return "is a link with a name that git reads"
    return None


def escaping_links(links: Mapping[str, str]) -> set[str]:
    """Which of the links of a tree (path to target) lead out of it, whether or not anything is there.

    They are followed as a system would follow them, through each other. One that never ends leads nowhere.
    """
    return {path for path in links if _escapes(path, links)}


def _escapes(path: str, links: Mapping[str, str]) -> bool:
    place: list[str] = path.split("/")[:-1]
    todo = links[path].split("/")[::-1]
    if links[path].startswith("/"):
        return True
    hops = 0
    while todo:
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if not place:
                return True
            place.pop()
            continue
        place.append(part)
        target = links.get("/".join(place))
        if target is not None:
            hops += 1
            if target.startswith("/"):
                return True
            if hops > _MAX_HOPS:
                return False
            place.pop()
            todo += target.split("/")[::-1]
    return False
