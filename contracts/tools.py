"""The tools that a grant can name."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["TOOLS", "Tool"]


class Tool(NamedTuple):
    """``summary`` is for people and models."""

    name: str
    summary: str


TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool("list_files", "paths in the read scope that match a glob"),
        Tool("read_file", "the text of one file"),
        Tool("search_code", "lines that match a regular expression"),
    )
}
