"""The child that runs the tests: a program of its own that imports nothing of the coordinator.

Follows docs/command-protocol.md. It runs the command that its contract's acceptance names, which the gate runs again
for itself, in a copy of the workspace: what tests leave lying about is no part of the result. That is
reports/junit.xml alone, by pytest itself or, for other test programs, with the whole run as its one case.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

REPORT = "reports/junit.xml"


def main() -> None:
    contract = json.loads(Path(os.environ["COORDINATOR_CONTRACT"]).read_text(encoding="utf-8"))
    command = next(check["command"] for check in contract["acceptance"] if "command" in check)
    started = time.monotonic()
    try:
        status, report = run(command, Path(os.environ["TMPDIR"]))
    except OSError as error:
        hand_in({"outcome": "failed", "message": f"{shlex.join(command)} could not be run: {error}"})
        return
    seconds = round(time.monotonic() - started, 1)
    data = report or one_case(command, status, seconds)
    Path(REPORT).parent.mkdir(exist_ok=True)
    Path(REPORT).write_bytes(data)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    hand_in(
        {
            "outcome": "completed",
            "output": {"command": command, "exit_status": status, "seconds": seconds, "counts": counts(data)},
            "evidence": [
                {"name": "test run", "kind": "command", "text": f"exit status {status}", "data": {"argv": command}},
                {"name": "JUnit report", "kind": "file", "path": REPORT, "digest": digest},
            ],
            "gaps": [] if report else ["the test program wrote no JUnit report: its cases are not told apart"],
        }
    )


def run(command: list[str], temporary: Path) -> tuple[int, bytes]:
    """Exit status and JUnit report, which is empty when there is none. The output is this program's own: followed live.

    Without .git, as in the checkout in which the gate runs it.
    """
    copy = shutil.copytree(Path(), temporary / "tree", symlinks=True, ignore=shutil.ignore_patterns(".git"))
    report = temporary / "junit.xml"
    words = [sys.executable if command[0] == "python" else command[0], *command[1:]]
    options = {"PYTEST_ADDOPTS": shlex.join([f"--junitxml={report}"])}
    done = subprocess.run(words, cwd=copy, env={**os.environ, **options}, stdin=subprocess.DEVNULL)
    return done.returncode, report.read_bytes() if report.is_file() else b""


def one_case(command: list[str], status: int, seconds: float) -> bytes:
    failure = f'<failure message="exit status {status}"/>' if status else ""
    attributes = f'tests="1" failures="{1 if status else 0}" errors="0" skipped="0" time="{seconds}"'
    case = f"<testcase name={quoteattr(shlex.join(command))}>{failure}</testcase>"
    return f'<testsuite name="tests" {attributes}>{case}</testsuite>\n'.encode()


def counts(report: bytes) -> dict[str, int]:
    """What the suite says of itself: tests, failures, errors and skipped."""
    head = re.search(rb"<testsuite\b[^>]*", report)
    found = re.findall(rb' (tests|failures|errors|skipped)="([0-9]{1,9})"', head[0] if head else b"")
    return {name.decode(): int(number) for name, number in found}


def hand_in(result: dict[str, Any]) -> None:
    """Writes beside the place and renames: nobody ever sees half a result."""
    target = Path(os.environ["COORDINATOR_RESULT"])
    part = target.with_name(target.name + ".part")
    part.write_text(json.dumps(result), encoding="utf-8")
    part.replace(target)


if __name__ == "__main__":
    main()
