"""Stands in for a command-line agent: prints JSON lines like one, and can be told to behave as real ones were seen to.

``agent_stand_in.py [--do CASE] PROMPT``; the cases are in ``CASES``: (lines to print, exit status).
"""

from __future__ import annotations

import argparse
import json
import sys

START = {"type": "system", "subtype": "init", "tools": ["Read", "Edit"]}
GOOD = {
    "type": "result", "subtype": "success", "is_error": False, "terminal_reason": "completed", "num_turns": 2,
    "result": "I read the objective and did it.", "total_cost_usd": 0.0006525, "permission_denials": [],
}  # fmt: skip
NO_SERVER = {**GOOD, "is_error": True, "terminal_reason": "api_error", "result": "API Error: connection refused"}
REFUSED = {**GOOD, "permission_denials": [{"tool_name": "Edit", "tool_use_id": "t1", "tool_input": {}}]}
TURNS = {**GOOD, "subtype": "error_max_turns", "is_error": True, "terminal_reason": "max_turns", "result": None}

CASES = {
    "well": ([START, GOOD], 0),
    "denied": ([START, REFUSED], 0),  # a needed tool was refused, and it says success all the same
    "no-server": ([START, NO_SERVER], 1),  # the error text stands where the result would
    "no-server-exit-0": ([START, NO_SERVER], 0),
    "turns": ([START, TURNS], 1),
    "silent": ([], 0),
    "interrupted": ([START], 0),  # a signal ended it, with status 0 and no record
    "status-1": ([START, GOOD], 1),
    "twice": ([START, GOOD, GOOD], 0),
    "empty": ([START, {**GOOD, "result": ""}], 0),
    "half": ([START], 0),  # and half a record, see below
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--do", choices=CASES, default="well")
    parser.add_argument("prompt")
    arguments = parser.parse_args()
    lines, status = CASES[arguments.do]
    for line in lines:
        sys.stdout.write(json.dumps(line) + "\n")
    if arguments.do == "half":
        sys.stdout.write(json.dumps(GOOD)[:40])
    return status


if __name__ == "__main__":
    sys.exit(main())
