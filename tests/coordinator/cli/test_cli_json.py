"""What programs read is JSON, whatever children do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FILE = """\
schema: coordinator/v1
name: printing
objective: Print.
tasks:
  one:
    objective: Print.
    agent: {function: "child.py:child"}
    isolation: none
    acceptance: [{cel: "output == 1"}]
"""


def test_what_a_function_child_prints_does_not_get_among_the_json(tmp_path: Path) -> None:
    (tmp_path / "orchestration.yaml").write_text(FILE)
    (tmp_path / "child.py").write_text("def child(a):\n    print('HELLO')\n    return a.completed(1)\n")

    done = subprocess.run(
        [sys.executable, "-m", "coordinator", "run", "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state"] == "ended"
    assert "HELLO" in done.stderr
