"""A run of which one contract is damaged: the command goes on with the rest, and says so."""

from __future__ import annotations

import json
import re
import sqlite3
from typing import Any

CHILDREN = """
def asks(a):
    return a.completed(1) if a.answers else a.blocked("Which one?")
"""


def terms_of(cli: Any, *change: Any) -> bytes:
    """The stored terms of the task ``bad``; perhaps others are put in their place."""
    where = "id = (SELECT terms_id FROM task WHERE key = 'bad')"
    with sqlite3.connect(cli.folder / ".coordinator" / "store.db") as connection:
        ((data,),) = connection.execute(f"SELECT data FROM document WHERE {where}")
        for other in change:
            connection.execute(f"UPDATE document SET data = ? WHERE {where}", (other,))
    connection.close()
    return bytes(data)


def test_one_damaged_contract_leaves_the_other_tasks_their_end(cli: Any) -> None:
    (cli.folder / "k.py").write_text(CHILDREN)
    (cli.folder / "orchestration.yaml").write_text(
        "schema: coordinator/v1\nname: work\nobjective: x\ndefaults: {isolation: none}\ntasks:\n"
        + "".join(
            f'  {name}: {{objective: x, needs: [{needs}], agent: {{function: "k.py:asks"}}, '
            'acceptance: [{cel: "true"}]}\n'
            for name, needs in (("bad", ""), ("good", ""), ("after", "good"))
        )
    )
    assert cli("run").returncode == 4
    whole = terms_of(cli)
    terms_of(cli, whole.replace(b"bad", b"BAD"))
    for request in ("work-q1", "work-q2"):
        assert cli("answer", request, "--approve", "-m", "this").returncode == 0
    done = cli("run")
    assert done.returncode == 4
    assert done.stderr.count("work/bad waits for a person, since its contract is damaged: stored bytes of sha256:") == 1
    status = cli("status")
    assert status.returncode == 3
    assert "work/bad: its contract is damaged: stored bytes of sha256:" in status.stderr
    asked = dict(re.findall(r"(work-q\d+) asks about (\w+: .*)", status.stdout))
    (bad,) = [request for request, text in asked.items() if "bad: The task can be neither worked on nor judged" in text]
    (after,) = set(asked) - {bad}
    assert cli("inspect", "work").returncode == cli("inspect", "work/good").returncode == 0
    one = cli("inspect", "work/bad")
    assert (one.returncode, "were changed" in one.stderr) == (3, True)
    assert "work/bad: terms: stored bytes of" in cli("evidence", "--verify").stdout
    tasks = {task["task_id"]: task for task in json.loads(cli("status", "--json").stdout)["tasks"]}
    assert [name for name, task in tasks.items() if "damage" in task] == ["bad"]
    assert tasks["good"]["state"] == "accepted"

    assert cli("answer", after, "--approve").returncode == 0
    assert "is cancelled" in cli("answer", bad, "--reject").stdout
    assert cli("worker").returncode == 3
    assert cli("status").returncode == 3
    terms_of(cli, whole)
    status = cli("status")
    assert (status.returncode, status.stderr) == (0, "")
    tasks = {task["task_id"]: task["state"] for task in cli.json("status")["tasks"]}
    assert tasks == {"bad": "cancelled", "good": "accepted", "after": "accepted"}
