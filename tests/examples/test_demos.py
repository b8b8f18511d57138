"""Both demonstrations from end to end, in processes of their own; what they tell is compared with the store."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import BadInput
from coordinator.cli.demos import claims_beside_entries, example
from coordinator.store.views import EventView

Demo = Callable[..., subprocess.CompletedProcess[str]]
MADE: dict[str, str | bytes] = {
    "shop/__init__.py": "",
    "shop/prices.py": "def price(item):\n    return 1\n\ndef tax(item):\n    '''The tax.'''\n    return price(item)\n",
    "shop/basket.py": "from .prices import price as p\n\nclass Basket:\n    def all(self):\n        return p(1)\n",
    "shop/old.py": "def broken(:\n",
    "pyproject.toml": "[project]\nname = 'shop'\ndependencies = ['attrs>=24']\n",
    "README.md": "Ask for the price.\n",
}


def rows(store: str, query: str) -> list[Any]:
    with closing(sqlite3.connect(store)) as database:
        return database.execute(query).fetchall()


EVENTS = (
    "SELECT task.key, verb, event.generation, event.owner FROM event JOIN task ON task.id = task_id ORDER BY event.id"
)


def names(found: list[Any]) -> list[tuple[str, str, int, str]]:
    return [(key, verb, generation, str(owner).rpartition("-")[0]) for key, verb, generation, owner in found]


@pytest.mark.slow
def test_the_audit_survives_a_killed_worker_and_sends_one_result_back(
    demo: Demo, make_repository: Any, tmp_path: Path
) -> None:
    repository = make_repository(MADE)
    before = sorted(path.relative_to(repository) for path in repository.rglob("*"))
    done = demo("demo", "audit", "--json", cwd=repository / "shop")
    facts = json.loads(done.stdout)
    events = names(rows(facts["store"], EVENTS))

    assert done.returncode == 0, done.stdout + done.stderr
    assert facts["workers"][0] == {"name": "alice", "exit_status": -signal.SIGKILL}
    assert ("callers", "claimed", 1, "alice") in events
    assert ("callers", "lost", 1, "alice") in events
    assert ("callers", "submitted", 2, "bob") in events
    assert [(verb, generation) for key, verb, generation, _ in events if key == "callers" and generation] == [
        ("claimed", 1), ("lost", 1),
        ("claimed", 2), ("submitted", 2), ("gate_claimed", 3), ("repair_required", 3),
        ("claimed", 4), ("submitted", 4), ("gate_claimed", 5), ("accepted", 5),
    ]  # fmt: skip
    [sent_back] = [item for item in facts["decisions"] if item["decision"] == "repair_required"]
    assert (sent_back["task"], sent_back["attempt"]) == ("callers", 2)
    assert (
        "citations_resolve of caller inventory: there is no line 8: 'shop/prices.py' has 6 lines"
        in sent_back["findings"]
    )
    assert all(facts["happened"].values())
    assert len(facts["happened"]) == 8
    assert set(facts["tasks"].values()) == {"accepted"}
    text = Path(facts["report"]).read_text()
    assert "- Symbol: `shop.prices.price`, defined at `shop/prices.py:1`" in text
    assert "- `shop/basket.py:5` in `Basket.all`: `return p(1)`" in text
    assert "- `attrs` `>=24` (`pyproject.toml`, `dependencies`)" in text
    assert "- `shop/basket.py:3` class `Basket`" in text
    assert "shop/old.py could not be parsed" in text
    assert "README.md mentions 'price'" in text
    assert "## Tests\n\n- left out: no test command was given" in text
    assert "- recount of callers: `left out:" in text
    assert sorted(path.relative_to(repository) for path in repository.rglob("*")) == before


TESTED = {**MADE, "tests/test_prices.py": "from shop.prices import tax\n\ndef test_tax():\n    assert tax(1) == 1\n"}


@pytest.mark.slow
def test_another_repository_is_audited_with_its_own_test_command(demo: Demo, make_repository: Any) -> None:
    repository = make_repository(TESTED)
    done = demo("demo", "audit", "--json", "--input", "test=python -m pytest -q tests", cwd=repository)
    facts = json.loads(done.stdout)
    proved = {(item["task"], item["evidence"]): item for item in facts["evidence"]}

    assert done.returncode == 0, done.stdout + done.stderr
    assert facts["tasks"]["tests"] == "accepted"
    assert "tests" not in facts["left_out"]
    assert proved["tests", "test run"]["found"] == "verified"
    assert proved["tests", "JUnit report"]["found"] == "verified"
    assert proved["callers", "caller inventory"]["found"] == "verified"
    assert proved["callers", "caller inventory"]["claimed"] == 3
    assert "`python -m pytest -q tests` exited 0 after" in Path(facts["report"]).read_text()
    assert ": 1 tests, 0 failures, 0 errors, 0 skipped" in Path(facts["report"]).read_text()


@pytest.mark.slow
def test_tests_that_fail_are_not_accepted_and_neither_is_the_audit(demo: Demo, make_repository: Any) -> None:
    repository = make_repository({"a.py": "def f():\n    pass\n\nf()\n"})
    done = demo("demo", "audit", "--json", "--input", 'test=["sh", "-c", "exit 3"]', cwd=repository)
    facts = json.loads(done.stdout)

    assert done.returncode == 1, done.stdout + done.stderr
    assert facts["tasks"]["tests"] == "failed"
    assert facts["tasks"]["callers"] == "accepted"
    assert facts["report"] is None
    assert any("exited 3" in text for item in facts["decisions"] for text in item["findings"])


@pytest.mark.parametrize("test", ["''", "[]", "5", "'not closed", "no-such-program -q"])
def test_a_test_command_that_is_none_is_bad_input(demo: Demo, make_repository: Any, tmp_path: Path, test: str) -> None:
    done = demo("demo", "audit", "--input", f"test={test}", cwd=make_repository(MADE))

    assert done.returncode == 2, done.stdout + done.stderr
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.slow
def test_the_audit_of_a_repository_without_python_is_whole_too(demo: Demo, make_repository: Any) -> None:
    repository = make_repository({"index.js": "price()\n", "package.json": '{"dependencies": {"react": "^19"}}'})
    done = demo("demo", "audit", "--json", "--source", str(repository), cwd=repository.parent)
    facts = json.loads(done.stdout)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "`react`" in Path(facts["report"]).read_text()
    assert "## Callers\n\n- left out: there is no Python file" in Path(facts["report"]).read_text()
    assert set(facts["tasks"]) == {"undocumented", "dependencies", "report"}


@pytest.mark.slow
def test_the_audit_tells_its_story_within_a_narrow_terminal(demo: Demo, make_repository: Any) -> None:
    done = demo("demo", "audit", "--input", "symbol=shop.prices.price", cwd=make_repository(MADE))
    told, _, commands = done.stdout.partition("To look further:")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "alice was ended by SIGKILL" in told
    assert "callers       taken by bob, generation 2" in told
    assert "callers       sent back: required_evidence: evidence 'caller inventory' is not" in told
    assert "callers       caller inventory  3        3         yes, by the gate" in told
    wide = [line for line in told.splitlines() if len(line) > 80 and len(line.split()) > 1]
    assert [line for line in wide if "Show who" not in line and "work kept at /" not in line] == []
    assert [line.split()[1] for line in commands.splitlines() if line.strip()] == [
        "status", "inspect", "evidence", "evidence", "history",
    ]  # fmt: skip


@pytest.mark.slow
def test_this_repository_is_audited_at_its_commit(demo: Demo) -> None:
    top = Path(__file__).resolve().parents[2]
    head = subprocess.run(["git", "-C", str(top), "rev-parse", "HEAD"], capture_output=True, text=True)
    if head.returncode:
        pytest.skip("this is no repository with a commit")
    done = demo("demo", "audit", "--json", cwd=top)
    facts = json.loads(done.stdout)

    assert done.returncode == 0, done.stdout + done.stderr
    assert facts["source"].endswith(f"@{head.stdout.strip()}")
    assert facts["left_out"] == {}
    assert {item["found"] for item in facts["evidence"] if item["task"] == "tests"} == {"verified"}
    assert (
        "- Symbol: `contracts.canonical.sha256_digest`, defined at `contracts/canonical.py:"
        in Path(facts["report"]).read_text()
    )


@pytest.mark.slow
def test_a_symbol_that_is_nowhere_leaves_a_question_and_exit_code_4(demo: Demo, make_repository: Any) -> None:
    repository = make_repository(MADE)
    done = demo("demo", "audit", "--input", "symbol=shop.prices.prise", cwd=repository)

    assert done.returncode == 4, done.stdout + done.stderr
    assert "shop.prices.prise" in done.stdout
    assert "coordinator answer" in done.stdout


@pytest.mark.slow
def test_the_report_survives_two_killed_workers_with_one_claim_more_than_entries(demo: Demo, tmp_path: Path) -> None:
    done = demo("demo", "report", "--json", cwd=tmp_path)
    facts = json.loads(done.stdout)
    events = names(rows(facts["store"], EVENTS))
    claims = [event for event in events if event[1] in ("claimed", "gate_claimed")]
    entries = [event for event in events if event[1] in ("submitted", "repair_required", "accepted")]

    assert done.returncode == 0, done.stdout + done.stderr
    assert [worker["exit_status"] for worker in facts["workers"]] == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert len(claims) == len(entries) + 1
    assert {claim[:1] + claim[2:3] for claim in claims} - {entry[:1] + entry[2:3] for entry in entries} == {
        ("draft", 2)
    }
    assert [claim for claim in claims if claim[3] == "bob"] == [("draft", "gate_claimed", 2, "bob")]
    assert ("draft", "submitted", 1, "alice") in events
    assert ("draft", "repair_required", 3, "carol") in events
    assert facts["decisions"][0]["findings"] == ["sections of draft.md: Missing required sections: Risks"]
    assert [item["decision"] for item in facts["decisions"]] == ["repair_required", "accepted", "accepted"]
    assert facts["altered_export"]["exit_status"] == 3
    assert "draft.md" in facts["altered_verify"]["said"]
    assert facts["second_export"]["exit_status"] == 3
    text = Path(facts["report"]).read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## Background", "## Risks", "## Recommendation", "## Sources",
    ]  # fmt: skip
    assert "may not issue refunds" in text
    assert all(facts["happened"].values())


def test_an_audit_outside_a_repository_says_what_to_give_it(demo: Demo, tmp_path: Path) -> None:
    done = demo("demo", "audit", cwd=tmp_path)

    assert done.returncode == 2
    assert "coordinator demo audit --source PATH" in done.stderr
    assert list((tmp_path / "temporary").iterdir()) == []


def test_an_audit_of_a_repository_without_a_commit_is_bad_input(demo: Demo, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path / "empty")], check=True)
    done = demo("demo", "audit", cwd=tmp_path / "empty")

    assert done.returncode == 2
    assert "no commit" in done.stderr
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_claim_is_matched_with_what_was_committed_under_its_own_generation() -> None:
    told = [
        ("draft", "claimed", 1, "alice-aa"),
        ("final", "claimed", 1, "carol-cc"),
        ("draft", "submitted", 1, "alice-aa"),
        ("draft", "gate_claimed", 2, "bob-bb"),
        ("draft", "gate_lost", 2, "bob-bb"),
        ("draft", "gate_claimed", 3, "carol-cc"),
        ("draft", "repair_required", 3, "carol-cc"),
    ]
    events = [
        EventView(number, datetime.now(UTC), task, verb, generation, owner, {})
        for number, (task, verb, generation, owner) in enumerate(told)
    ]
    claims = [(c.task, c.generation, c.worker, c.kind, c.entry) for c in claims_beside_entries(events)]

    assert claims == [
        ("draft", 1, "alice", "work", "submitted"),
        ("final", 1, "carol", "work", None),
        ("draft", 2, "bob", "judge", None),
        ("draft", 3, "carol", "judge", "repair_required"),
    ]


def test_an_example_that_is_not_installed_is_bad_input() -> None:
    assert example("audit").is_file()
    with pytest.raises(BadInput, match="not installed"):
        example("nothing")
