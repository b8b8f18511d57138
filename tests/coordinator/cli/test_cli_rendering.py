from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from contracts.results import EvidenceVerdict
from contracts.states import Outcome
from coordinator.cli.evidence import print_evidence
from coordinator.cli.inspecting import print_task
from coordinator.cli.tree import duration, follow_up, how_it_stands, next_command, run_tree
from coordinator.home import open_home
from coordinator.store import TaskStore

HOSTILE = "\x1b[2J[bold red]x[/] \u202e\u2066 :smile: " + "w" * 300


@pytest.fixture
def own_store(sqlite_url: str) -> Iterator[TaskStore]:
    """A store whose files lie where they do when nobody says otherwise."""
    store = TaskStore(sqlite_url, open_home(sqlite_url).folder)
    yield store
    store.close()


def text_of(draw: Any, *, width: int = 80, colour: bool = False) -> str:
    out = Console(
        file=io.StringIO(), width=width, markup=False, highlight=False, emoji=False,
        force_terminal=colour, color_system="standard" if colour else None, legacy_windows=False,
    )  # fmt: skip
    draw(out)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def tree(store: Any, row: int, clock: Any, **options: Any) -> str:
    return text_of(lambda out: out.print(run_tree(store.run(row), now=clock.now, **options)))


def test_a_tree_of_eighty_columns_says_who_holds_what_and_why(sqlite_store: Any, build: Any, clock: Any) -> None:
    sqlite_store.create_run(build.run("one", build.task("two", needs=["one"]), name="work"))
    sqlite_store.claim("alice", work=1)
    clock.forward(10)
    assert tree(sqlite_store, 1, clock).splitlines() == [
        "work  All of it.",
        "├── one  running  alice, generation 1, lease 20 s left, attempt 1",
        "└── two  blocked",
        "    needs one (running)",
    ]
    clock.forward(60)
    assert "one  lease ran out  alice, generation 1, lease over since 40 s" in tree(sqlite_store, 1, clock)


@pytest.mark.parametrize("width", [40, 80])
def test_no_line_is_longer_than_the_terminal_and_no_text_is_obeyed(
    width: int, sqlite_store: Any, build: Any, clock: Any
) -> None:
    sqlite_store.create_run(build.run(build.task("one", objective=HOSTILE, limits={"max_claims": 1}), name="w" * 60))
    [claim] = sqlite_store.claim("alice", work=1)
    sqlite_store.end([build.ending(claim, "failed", HOSTILE)])
    run = sqlite_store.run(1)
    for draw in (
        lambda out: out.print(run_tree(run, now=clock.now)),
        lambda out: print_task(sqlite_store, out, run.tasks[0], [], None),
        lambda out: print_evidence(sqlite_store, out, run.tasks[0], None),
    ):
        text = text_of(draw, width=width)
        assert max(len(line) for line in text.splitlines()) <= width
        assert not set(text) & {"\x1b", "\u202e", "\u2066"}
    assert "[bold red]x[/]" in text_of(lambda out: print_task(sqlite_store, out, run.tasks[0], [], None))
    assert ":smile:" in tree(sqlite_store, 1, clock)


def test_colour_adds_nothing_that_the_words_do_not_say(sqlite_store: Any, build: Any, clock: Any) -> None:
    import re

    sqlite_store.create_run(build.run("one"))
    run = sqlite_store.run(1)
    coloured = text_of(lambda out: out.print(run_tree(run, now=clock.now)), colour=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == tree(sqlite_store, 1, clock)


def test_of_many_tasks_the_pressing_ones_stay(sqlite_store: Any, build: Any, clock: Any) -> None:
    sqlite_store.create_run(build.run(*(f"t{number}" for number in range(50))))
    claims = sqlite_store.claim("alice", work=2)
    sqlite_store.submit([build.submission(claims[1])])
    text = tree(sqlite_store, 1, clock, rows_max=5)
    assert "t0 " in text
    assert "t1 " in text
    assert "… and 45 more: 48 pending, 1 submitted, 1 running" in text
    assert len(text.splitlines()) == 7


def test_children_stand_under_their_parents(sqlite_store: Any, build: Any, clock: Any) -> None:
    sqlite_store.create_run(build.run("top", closed=False))
    [claim] = sqlite_store.claim("alice", work=1)
    sqlite_store.delegate(1, [build.task("below")], parent=claim)
    assert "    └── below  pending" in tree(sqlite_store, 1, clock)


def test_each_state_has_its_sentence_and_its_next_command(
    own_store: Any, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDINATOR_STORE", own_store.url)
    own_store.create_run(build.run("one"))

    def now() -> tuple[str, str]:
        run = own_store.run(1)
        return how_it_stands(run), next_command(own_store, run)

    assert now() == ("run is open and nobody works on it: 1 pending", "coordinator worker")
    [claim] = own_store.claim("alice", work=1)
    assert now() == ("run is being worked on: 1 running", "coordinator status run -w")
    own_store.end([build.ending(claim, "blocked", question=build.question())])
    assert now() == ("run waits for an answer: 1 waiting", "coordinator answer run-q1 --approve -m TEXT")
    own_store.answer("run-q1", approved=True)
    [claim] = own_store.claim("alice", work=1)
    own_store.submit([build.submission(claim)])
    [gating] = own_store.claim("bob", work=0, gate=1)
    assert now()[0] == "run is being worked on: 1 being judged"
    own_store.decide([build.verdict(gating)])
    assert now() == ("run ended: its task accepted", "coordinator evidence run")


def test_a_partial_and_a_program_run_have_their_own_next(
    own_store: Any, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDINATOR_STORE", own_store.url)
    own_store.create_run(build.run("one", name="part"))
    [claim] = own_store.claim("alice", work=1)
    own_store.submit([build.submission(claim, outcome=Outcome.PARTIAL)])
    [gating] = own_store.claim("bob", work=0, gate=1)
    own_store.decide([build.verdict(gating, partial=True)])
    run = own_store.run(1)
    assert (how_it_stands(run), next_command(own_store, run)) == (
        "part ended: 1 partial",
        "coordinator evidence part/one",
    )
    own_store.create_run(build.run(build.task("x"), name="program", closed=False))
    [claim] = own_store.claim("alice", work=1)
    own_store.submit([build.submission(claim)])
    [gating] = own_store.claim("bob", work=0, gate=1)
    own_store.decide([build.verdict(gating)])
    assert next_command(own_store, own_store.run(2)) == ""


def test_evidence_shows_calls_shares_and_refusals(sqlite_store: Any, build: Any) -> None:
    sqlite_store.create_run(
        build.run(build.task("one", required_evidence=["places", {"name": "proof", "kind": "citation"}]))
    )
    [claim] = sqlite_store.claim("alice", work=1)
    items = [
        {
            "name": "places", "kind": "citation", "path": f"a{n}.py", "line": n,
            "origin": "observed" if n < 5 else "claimed", "seen_in_calls": [n] if n < 5 else [],
        }
        for n in range(1, 6)
    ]  # fmt: skip
    calls = [{"number": n, "tool": "read_file", "arguments": {}, "ok": n != 3, "at": "now"} for n in range(1, 6)]
    sqlite_store.submit([build.submission(claim, evidence=items, observed_calls=calls, read_set={"a": "sha256:0"})])
    [gating] = sqlite_store.claim("bob", work=0, gate=1)
    verdict = build.verdict(gating, "repair_required", reason="evidence 'proof' is missing")
    owed = [
        EvidenceVerdict(name="places", kind="note", min_origin="claimed", found_origin="claimed", ok=True),
        EvidenceVerdict(
            name="proof", kind="citation", min_origin="claimed", found_origin=None, ok=False, message="not there"
        ),
    ]
    decision = verdict.decision.model_copy(update={"evidence": owed})
    sqlite_store.decide([type(verdict)(verdict.claim, decision, (), False)])
    task = sqlite_store.run(1).tasks[0]
    text = " ".join(text_of(lambda out: print_evidence(sqlite_store, out, task, task.attempts[0]), width=160).split())
    assert "a1.py:1 4 of 5: calls 1, 2, 3, 4 no; claimed is enough" in text
    assert "… and 2 more" in text
    assert "nothing handed in - no: not there" in text
    assert "5 tool calls: read_file 5 (1 refused or failed) read 1 file, with digests: a " in text


def test_a_follow_up_is_quoted_for_a_shell(own_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COORDINATOR_STORE", own_store.url)
    assert follow_up(own_store, "export", "run/one", "a b.md") == "coordinator export run/one 'a b.md'"
    monkeypatch.delenv("COORDINATOR_STORE")
    path = own_store.url.removeprefix("sqlite:///")
    assert follow_up(own_store, "worker") == f"coordinator worker --store {path}"


def test_a_follow_up_names_a_home_that_nobody_would_guess(sqlite_store: Any, tmp_path: Path) -> None:
    path = sqlite_store.url.removeprefix("sqlite:///")
    assert follow_up(sqlite_store, "worker") == f"coordinator worker --store {path} --home {tmp_path / 'store'}"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0.4 s"), (59, "59 s"), (150, "2 min"), (7200, "2 h"), (200_000, "2 d")]
)
def test_a_duration_is_told_in_its_largest_unit(seconds: float, words: str) -> None:
    assert duration(seconds) == words
