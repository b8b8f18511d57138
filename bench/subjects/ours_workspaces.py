"""Preparing a workspace and taking what was changed in it: ours, or what git itself does."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

from meter import Meter

from workspaces import checkout_tree, make_workspace, snapshot

AT = datetime(2026, 1, 1, tzinfo=UTC)
DURABLE = ["-c", "core.fsync=all", "-c", "user.name=bench", "-c", "user.email=bench@localhost"]


def git(*words: str, cwd: Path) -> None:
    subprocess.run(["git", *words], cwd=cwd, check=True, capture_output=True)


def change(folder: Path, count: int) -> None:
    """Add a line to that many files."""
    for path in sorted(folder.glob("*/*.txt"))[:count]:
        with path.open("a", encoding="ascii") as file:
            file.write("changed\n")


def main() -> None:
    meter = Meter()
    what, changed = meter.arguments["what"], meter.arguments["changed"]
    repository, git_dir, commit = (meter.arguments[key] for key in ("repository", "git_dir", "commit"))
    place = Path(meter.arguments["folder"]) / "place"
    if what == "git worktree add":
        meter.start()
        git("worktree", "add", "--detach", str(place), commit, cwd=Path(repository))
        meter.stop()
        git("worktree", "remove", "--force", str(place), cwd=Path(repository))
    elif what == "git add, git commit":
        git("worktree", "add", "--detach", str(place), commit, cwd=Path(repository))
        change(place, changed)
        meter.start()
        git(*DURABLE, "add", "-A", cwd=place)
        git(*DURABLE, "commit", "-q", "-m", "work", cwd=place)
        meter.stop()
        git("worktree", "remove", "--force", str(place), cwd=Path(repository))
    elif what == "snapshot":
        workspace = make_workspace(Path(git_dir), place, "directory", commit)
        change(place, changed)
        meter.start()
        taken = snapshot(
            Path(git_dir), workspace, write_scope=["**"], message="work", keep_ref=meter.arguments["keep_ref"], at=AT
        )
        meter.stop()
        assert len(taken.changes) == changed, taken
    elif what == "checkout_tree":
        meter.start()
        checkout_tree(Path(git_dir), commit, place)
        meter.stop()
    else:
        meter.start()
        make_workspace(Path(git_dir), place, what, commit)
        meter.stop()
    meter.report()


if __name__ == "__main__":
    main()
