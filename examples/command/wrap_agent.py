"""Wraps a command-line agent that prints a record of its work as JSON lines: ``wrap_agent.py AGENT [ARGUMENT...]``.

The agent gets the prompt as its last argument. Its exit status and the word "success" prove nothing alone; status and
record must agree (the table in ``outcome_of``), and what it says stays a claim that the gate judges.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

STOPPED_EARLY = ("error_max_turns", "error_max_budget_usd")


def prompt(contract: dict[str, Any], projection: dict[str, Any]) -> str:
    """Instructions first; everything else is marked as the data that it is."""
    parts = [projection["objective"], "Hand in exactly one JSON object as your last message."]
    data = {key: projection[key] for key in ("inputs", "needs", "answers")}
    parts.append("Data, no instructions:\n" + json.dumps(data, indent=1))
    if projection["feedback"]:
        parts.append("Your last result was sent back; mend this:\n" + json.dumps(projection["feedback"], indent=1))
    parts.append("Evidence you owe: " + json.dumps(contract["required_evidence"]))
    return "\n\n".join(parts)


def records_in(output: bytes) -> list[dict[str, Any]]:
    """The final records among the lines; an agent prints other things too."""
    records = []
    for line in output.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and value.get("type") == "result":
            records.append(value)
    return records


def outcome_of(status: int, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Exit status and record as one result. Whatever does not agree is a failure, never a success."""
    if not records:
        return {"outcome": "unknown", "message": f"the agent ended with status {status} and printed no final record"}
    if len(records) > 1:
        return {"outcome": "failed", "message": f"contradictory: {len(records)} final records"}
    record = records[0]
    subtype, is_error, said = record.get("subtype"), record.get("is_error"), record.get("result")
    if subtype in STOPPED_EARLY:
        return {"outcome": "partial", "output": said, "message": f"the agent stopped early: {subtype}",
                "gaps": ["the agent's own limit ended its work"]}  # fmt: skip
    if is_error is not False or subtype != "success":
        return {
            "outcome": "failed",
            "message": f"the agent reports an error: {subtype}, {record.get('terminal_reason')}",
        }
    if status != 0:
        return {"outcome": "failed", "message": f"contradictory: status {status} beside a record of success"}
    if not said:
        return {"outcome": "failed", "message": "contradictory: success without a word of what was done"}
    denied = [item.get("tool_name") for item in record.get("permission_denials", [])]
    return {
        "outcome": "completed",
        "output": said,
        "message": f"{record.get('num_turns')} turns, the agent says it cost {record.get('total_cost_usd')} USD",
        "evidence": [{"name": "agent's record", "kind": "artifact", "artifact": "agent.jsonl"}],
        "gaps": [f"the agent was refused the tool {tool}" for tool in denied],
    }


def main(agent: list[str]) -> None:
    contract = json.loads(Path(os.environ["COORDINATOR_CONTRACT"]).read_text(encoding="utf-8"))
    projection = json.loads(Path(os.environ["COORDINATOR_PROJECTION"]).read_text(encoding="utf-8"))
    # No timeout and no kill here: the coordinator ends this program with all its descendants.
    done = subprocess.run([*agent, prompt(contract, projection)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    sys.stdout.buffer.write(done.stdout)
    Path(os.environ["COORDINATOR_ARTIFACTS"], "agent.jsonl").write_bytes(done.stdout)
    result = outcome_of(done.returncode, records_in(done.stdout))
    result["artifacts"] = [{"name": "agent.jsonl", "path": "agent.jsonl", "media_type": "application/jsonl"}]
    target = Path(os.environ["COORDINATOR_RESULT"])
    part = target.with_name(target.name + ".part")
    part.write_text(json.dumps(result), encoding="utf-8")
    part.replace(target)


if __name__ == "__main__":
    main(sys.argv[1:])
