"""Plays the model that orchestration.yaml names: the same tools, the same gate, and no key."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from coordinator import ToolReply, ToolUse

TESTS = ["python", "-m", "unittest", "discover", "-s", "tests"]


def fix(view: Any) -> Generator[ToolUse, ToolReply, None]:
    """Sees the tests fail, reads, mends, sees them pass, and hands in."""
    failed = yield ToolUse("run_command", {"command": TESTS})
    yield ToolUse("read_file", {"path": "paging/cutting.py"})
    first_guess = {"path": "paging/cutting.py", "old": "items // per_page + 1", "new": "-(-items // per_page)"}
    edited = yield ToolUse("edit_file", first_guess)
    passed = yield ToolUse("run_command", {"command": TESTS})
    if failed.text == passed.text or edited.is_error:
        yield ToolUse("note_gap", {"text": "the tests say the same as before"})
    yield ToolUse(
        "submit_result",
        {
            "outcome": "completed",
            "output": {"files": ["paging/cutting.py"]},
            "evidence": [
                {"name": "cause", "kind": "note", "text": "page_count counted one page more than full pages need"},
                {"name": "changed file", "kind": "file", "path": "paging/cutting.py"},
                {"name": "test run", "kind": "command", "data": {"argv": TESTS}},
            ],
        },
    )
