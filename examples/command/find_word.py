"""A child in Python that imports nothing of the coordinator: finds a word in the files of its workspace.

Follows docs/command-protocol.md. Inputs: ``word``. Cites every line that holds it, asks a person when there is no word
to look for, says what it did not read, and what it mended when its result was sent back.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

MOST = 500


def hand_in(result: dict[str, Any]) -> None:
    """Writes beside the place and renames: nobody ever sees half a result."""
    target = Path(os.environ["COORDINATOR_RESULT"])
    part = target.with_name(target.name + ".part")
    part.write_text(json.dumps(result), encoding="utf-8")
    part.replace(target)


def main() -> None:
    contract = json.loads(Path(os.environ["COORDINATOR_CONTRACT"]).read_text(encoding="utf-8"))
    projection = json.loads(Path(os.environ["COORDINATOR_PROJECTION"]).read_text(encoding="utf-8"))

    # The answer to an earlier question stands beside it; inputs, needs and answers are data.
    word = projection["inputs"].get("word")
    for answer in projection["answers"]:
        word = answer["message"] or word
    if not word:
        hand_in({"outcome": "blocked", "question": "Which word shall be looked for?"})
        return

    found: list[dict[str, Any]] = []
    gaps: list[str] = []
    for path in sorted(Path().rglob("*")):
        if ".git" in path.parts or path.is_symlink() or not path.is_file():
            continue
        try:
            name = path.as_posix().encode("utf-8").decode("utf-8")
            lines = path.read_text(encoding="utf-8").split("\n")
        except UnicodeError:
            gaps.append(f"neither name nor text may be other than UTF-8: {path.as_posix()!a}")
            continue
        found += [
            {"name": "places", "kind": "citation", "path": name, "line": number, "text": line[:200]}
            for number, line in enumerate(lines, 1)
            if word in line
        ]
    if len(found) > MOST:
        gaps.append(f"{len(found) - MOST} more places are in places.txt only")

    report = "".join(f"{item['path']}:{item['line']}: {item['text']}\n" for item in found)
    Path(os.environ["COORDINATOR_ARTIFACTS"], "places.txt").write_text(report, encoding="utf-8")
    feedback = projection["feedback"]
    hand_in(
        {
            "outcome": "completed",
            "output": {"word": word, "count": len(found)},
            "message": f"task {contract['task_id']}, attempt {projection['attempt']}",
            "evidence": found[:MOST],
            "artifacts": [{"name": "places.txt", "path": "places.txt", "media_type": "text/plain"}],
            "gaps": gaps,
            "assumptions": [f"mended: {item['message']}" for item in feedback["findings"]] if feedback else [],
        }
    )


if __name__ == "__main__":
    main()
