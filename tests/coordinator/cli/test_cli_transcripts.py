"""The turns of models as they are shown: stored as a worker stores them, and hostile throughout."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from contracts.ports import Worst
from contracts.turns import CallRecord, FailedTry, ModelCall, ModelUsage, ToolAnswer, TurnResponse
from coordinator.cli import showing
from coordinator.cli.logs import _turns_told
from coordinator.cli.progress import Progress
from coordinator.cli.showing import _changes
from coordinator.cli.transcript import dollars
from coordinator.cli.values import run_value
from coordinator.home import open_home
from coordinator.model_ports import AttemptJournal, AttemptMeter, Start
from coordinator.redaction import Redactor
from coordinator.store import TaskStore
from coordinator.store.records import Claim

HOSTILE = "\x1b[2J[bold]red[/bold] \u202e\x07 :smile:"


class Told:
    """Implements ``contracts.ports.CancelSignal``."""

    reason = ""

    def is_set(self) -> bool:
        return False

    def wait(self, timeout_s: float | None = None) -> bool:
        return False


class Desk:
    """A run of a model in a store of its own, whose turns a test writes as a worker does."""

    def __init__(self, cli: Any, build: Any) -> None:
        self.cli = cli
        self.build = build
        home = open_home(str(cli.folder / ".coordinator" / "store.db"))
        self.store = TaskStore(home.url, home.folder)
        agent = {"anthropic": {"model": "model-x", "api_key_env": None}}
        budget = {"max_turns": 12, "max_cost_usd": 0.5, "max_tokens": 90_000}
        work = build.task("fix", agent=agent, budget=budget, on_takeover="continue", limits={"lease_s": 3600})
        self.store.create_run(build.run(work, build.task("plain", agent={"function": "kids.py:f"}), name="work"))
        [self.claim] = self.store.claim("alice", work=1)
        self.journal = self.journal_of(self.claim)

    def journal_of(self, claim: Claim, start: Start | None = None) -> AttemptJournal:
        begin = start or Start(claim.attempt)
        return AttemptJournal(self.store, claim, begin, Redactor({}), Told(), tree=None, record=lambda number: None)

    def turn(
        self,
        number: int,
        *calls: ModelCall,
        answers: Sequence[str] | None = (),
        text: str = "",
        tries: Sequence[CallRecord] = (),
        journal: AttemptJournal | None = None,
        **response: Any,
    ) -> None:
        """A stored turn of 1,100 input and 20 output tokens; without ``answers`` its calls are not answered yet."""
        usage = response.pop("usage", ModelUsage(input_tokens=1_100, cached_input_tokens=800, output_tokens=20))
        said = TurnResponse(
            **{"text": text, "calls": list(calls), "stop": "calls", "model": "model-x", "raw": [], **response}
        )
        journal = journal or self.journal
        journal.answered(number, "sha256:" + "0" * 64, said, usage, 12_300 if usage else None, tries)
        if answers is not None:
            given = [ToolAnswer(call_id=call.call_id, text=text) for call, text in zip(calls, answers, strict=True)]
            journal.finished(number, given)


def call(name: str, arguments: dict[str, Any] | None = None, number: int = 1, malformed: str = "") -> ModelCall:
    return ModelCall(call_id=f"c{number}", name=name, arguments=arguments, malformed=malformed)


@pytest.fixture
def desk(cli: Any, build: Any) -> Any:
    made = Desk(cli, build)
    yield made
    made.store.close()


def test_a_transcript_shows_text_calls_answers_usage_cost_and_tries(desk: Desk) -> None:
    limited = CallRecord(number=1, started_at="t", elapsed_s=0.2, outcome="rate_limited", status=429, said="slow down")
    taken = CallRecord(number=2, started_at="t", elapsed_s=1, outcome="answered", billed="yes")
    desk.turn(1, call("read_file", {"path": "a.py"}), answers=["x\n" * 30], text="I look.", tries=[limited, taken])
    desk.turn(2, call("edit_file", None, malformed="not JSON"), answers=None, stop="other", usage=None)
    said = desk.cli("inspect", "work/fix", "--transcript")
    assert said.returncode == 0, said.stderr
    lines = [" ".join(line.split()) for line in said.stdout.splitlines()]
    assert lines[0].startswith("turn 1, attempt 1, ")
    assert lines[0].endswith("Z, model-x")
    for line in (
        "usage 1,100 tokens in (800 from a cache), 20 out, $0.0123",
        "try 1: rate_limited (429) after 0.2 s, not charged: slow down", "| I look.", 'call read_file {"path":"a.py"}',
        "answer 60 characters", "| … and 22 more lines; --json has all of it", "usage tokens unknown, cost unknown",
        "stop stopped for a reason of the provider's own", "call edit_file (not JSON)", "answer none is stored yet",
        "work/fix: 2 turns, 1,120+ tokens, $0.0123+",
    ):  # fmt: skip
        assert line in lines, line
    assert not any(line.startswith("try 2") for line in lines)  # the one that brought the answer


def test_a_turn_that_was_never_answered_is_shown_with_its_tries(desk: Desk) -> None:
    meter = AttemptMeter(desk.store, desk.claim, Redactor({"KEY": "s3cr3t-k3y"}), Told())
    told = [
        CallRecord(number=1, started_at="t", elapsed_s=0.2, outcome="overloaded", status=529, said=HOSTILE),
        CallRecord(number=2, started_at="t", elapsed_s=7, outcome="timeout", billed="unknown", waited_s=21.3),
        CallRecord(number=3, started_at="t", elapsed_s=0.1, outcome="unauthorized", status=401, said="not s3cr3t-k3y"),
    ]
    desk.turn(1, call("read_file", {"path": "a"}), answers=["a"], tries=[told[0]])
    for turn, record in [(1, told[0]), *((2, record) for record in told)]:
        meter.failed(meter.reserve(Worst(1_000, 10)), FailedTry(turn=turn, record=record))
    desk.store.end([desk.build.ending(desk.claim, "failed")])
    said = desk.cli("inspect", "work/fix", "--transcript").stdout
    lines = [" ".join(line.split()) for line in said.splitlines()]
    [second] = [index for index, line in enumerate(lines) if line.startswith("turn 2, attempt 1, ")]
    assert lines[second].endswith("Z, not answered")
    assert lines[second + 1].startswith("try 1: overloaded (529) after 0.2 s, not charged: ")
    assert lines[second + 2 : second + 4] == [
        "try 2: timeout after 7.0 s, 21.3 s were waited before, perhaps billed, so it stays charged",
        "try 3: unauthorized (401) after 0.1 s, not charged: not [redacted:KEY]",
    ]
    assert sum(line.startswith("try ") for line in lines) == 1 + 3
    assert not {"\x1b", "\u202e", "\x07"} & set(said)
    value = desk.cli.json("inspect", "work/fix@1", "--transcript")
    [unanswered] = value["unanswered"]
    assert (unanswered["attempt"], unanswered["number"]) == (1, 2)
    assert [record["billed"] for record in unanswered["tries"]] == ["no", "unknown", "no"]
    assert desk.store.run(1).charged_micro_usd == 1_000
    [claim] = [claim for claim in desk.store.claim("bob", work=2) if claim.task_id == "fix"]
    desk.turn(1, call("read_file", {"path": "c"}), answers=["c"], journal=desk.journal_of(claim))
    assert desk.cli.json("inspect", "work/fix@2", "--transcript")["unanswered"] == []


def test_json_has_all_of_it(desk: Desk) -> None:
    desk.turn(1, call("read_file", {"path": "a.py"}), answers=["x\n" * 30], text=HOSTILE)
    value = desk.cli.json("inspect", "work/fix", "--transcript")
    [turn] = value["turns"]
    assert value["address"] == "work/fix"
    assert (turn["response"]["text"], turn["answers"][0]["text"]) == (HOSTILE, "x\n" * 30)
    assert (turn["usage"]["cached_input_tokens"], turn["cost_micro_usd"], turn["damage"]) == (800, 12_300, None)
    assert desk.cli.json("inspect", "work")["tasks"][0]["max_turns"] == 12


def test_no_text_of_a_model_or_a_tool_is_obeyed(desk: Desk) -> None:
    desk.turn(
        1, call(HOSTILE, {HOSTILE: HOSTILE}), answers=[HOSTILE], text=HOSTILE, model=HOSTILE, stop="refusal"
    )  # fmt: skip
    for words in (("inspect", "work/fix", "--transcript"), ("logs", "work/fix"), ("status",)):
        shown = desk.cli(*words).stdout
        assert "[bold]red[/bold]" in shown
        assert not {"\x1b", "\u202e", "\x07"} & set(shown), words


def test_an_attempt_is_shown_with_the_turns_that_it_goes_on_from_and_no_others(desk: Desk) -> None:
    desk.turn(1, call("read_file", {"path": "a"}), answers=["a"])
    desk.store.end([desk.build.ending(desk.claim, "released")])
    claims = {claim.task_id: claim for claim in desk.store.claim("bob", work=2)}
    second = desk.journal_of(claims["fix"], Start(1))
    desk.turn(2, call("read_file", {"path": "b"}), answers=["b"], journal=second)
    desk.store.end([desk.build.ending(claims["fix"], "failed")])
    [third] = desk.store.claim("carol", work=1)
    desk.turn(1, call("read_file", {"path": "c"}), answers=["c"], journal=desk.journal_of(third))

    def numbers(address: str) -> list[tuple[int, int]]:
        turns = desk.cli.json("inspect", address, "--transcript")["turns"]
        return [(turn["attempt"], turn["number"]) for turn in turns]

    assert numbers("work/fix") == [(1, 1), (2, 2), (3, 1)]
    assert numbers("work/fix@1") == [(1, 1)]
    assert numbers("work/fix@2") == [(1, 1), (2, 2)]
    assert numbers("work/fix@3") == [(3, 1)]


def test_a_turn_that_came_late_says_so(desk: Desk) -> None:
    desk.store.end([desk.build.ending(desk.claim, "released")])
    with pytest.raises(Exception, match="fix"):
        desk.turn(1, call("read_file", {"path": "a"}), answers=None)
    assert "LATE: its attempt had lost the task" in desk.cli("inspect", "work/fix", "--transcript").stdout


def test_damaged_bytes_are_named_and_the_rest_is_shown(desk: Desk) -> None:
    desk.turn(1, call("read_file", {"path": "a"}), answers=["a"])
    desk.turn(2, call("read_file", {"path": "b"}), answers=["b"])
    [first, _] = desk.store.turns(desk.claim.orchestration_row)
    with desk.store._db.engine.begin() as conn:
        conn.exec_driver_sql("UPDATE document SET data = x'7b7d' WHERE digest = ?", (first.response_digest,))
    shown = desk.cli("inspect", "work/fix", "--transcript").stdout
    assert "DAMAGED" in shown
    assert 'read_file {"path":"b"}' in shown


def test_a_damaged_record_of_a_failed_try_is_named(desk: Desk) -> None:
    desk.store.settle(desk.store.reserve(desk.claim, Worst(1, 1)), None, failed=b"{not json")
    done = desk.cli("inspect", "work/fix", "--transcript")
    assert "what is stored of a failed try of work/fix@1 cannot be read" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_no_model_has_no_transcript(desk: Desk) -> None:
    done = desk.cli("inspect", "work/plain", "--transcript")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "work/plain is no model but a function, which has no transcript: `coordinator logs work/plain`" in done.stderr
    )


def test_status_shows_turn_tool_tokens_and_cost_of_the_limit(desk: Desk) -> None:
    assert "turn 1: nothing was answered yet" in desk.cli("status").stdout
    charge = desk.store.reserve(desk.claim, Worst(micro_usd=200_000, tokens=5_000))
    assert "charged $0.20 of $0.5, 5,000 of 90,000 tokens" in desk.cli("status").stdout
    desk.store.settle(charge, Worst(micro_usd=12_300, tokens=1_120))
    desk.turn(1, *(call("read_file", {"path": "a"}, number) for number in range(5)), answers=None)
    shown = desk.cli("status").stdout
    assert "charged $0.0123 of $0.5, 1,120 of 90,000 tokens" in shown
    assert "turn 1 of 12: read_file, read_file, read_file and 2 more, 1,120 tokens, $0.0123\n" in shown
    value = run_value(desk.store.run(desk.claim.orchestration_row))
    assert (value["tasks"][0]["charged_micro_usd"], value["charged_tokens"]) == (12_300, 1_120)


def test_status_says_what_of_a_charge_was_never_settled(desk: Desk) -> None:
    settled, _ = (desk.store.reserve(desk.claim, Worst(micro_usd=200_000, tokens=5_000)) for _ in range(2))
    desk.store.settle(settled, Worst(micro_usd=12_300, tokens=1_120))
    assert "never settled" not in desk.cli("status").stdout  # it is under way
    desk.store.end([desk.build.ending(desk.claim, "released")])
    shown = desk.cli("status").stdout
    assert "charged $0.2123 of $0.5, 6,120 of 90,000 tokens" in shown
    assert "1 call was never settled, which keeps $0.20, 5,000 tokens charged" in shown
    [claim] = [claim for claim in desk.store.claim("bob", work=2) if claim.task_id == "fix"]
    meter = AttemptMeter(desk.store, claim, Redactor({}), Told())
    record = CallRecord(number=1, started_at="t", elapsed_s=7, outcome="timeout", billed="unknown")
    meter.failed(meter.reserve(Worst(1_000, 10)), FailedTry(turn=1, record=record))
    assert "2 calls were never settled, which keeps $0.2010, 5,010 tokens charged" in desk.cli("status").stdout
    [task] = [task for task in desk.cli.json("status")["tasks"] if task["task_id"] == "fix"]
    assert task["unsettled"] == {"charges": 2, "micro_usd": 201_000, "tokens": 5_010}


def test_a_watched_run_is_shown_again_when_something_is_charged(desk: Desk, monkeypatch: Any) -> None:
    row = desk.claim.orchestration_row
    steps = [lambda: desk.store.reserve(desk.claim, Worst(micro_usd=7, tokens=3)), lambda: desk.store.cancel(row)]
    between = SimpleNamespace(sleep=lambda seconds: steps.pop(0)())
    monkeypatch.setattr(showing, "time", between)  # what happens between two looks
    assert [(run.state, run.charged_tokens) for run in _changes(desk.store, row)] == [
        ("open", 0), ("open", 3), ("ended", 3),
    ]  # fmt: skip


def test_followed_logs_show_each_turn_once_its_calls_are_answered(desk: Desk) -> None:
    desk.turn(1, call("read_file", {"path": "a"}), answers=["first"])
    follower = _start(desk.cli, "logs", "work/fix", "-f", "--json")
    assert follower.stdout is not None
    first = json.loads(follower.stdout.readline())["turn"]
    desk.turn(2, call("read_file", {"path": "b"}), answers=None)
    desk.journal.finished(2, [ToolAnswer(call_id="c1", text="second")])
    second = json.loads(follower.stdout.readline())["turn"]
    desk.turn(3, call("submit_result", {"outcome": "completed"}), answers=None)
    desk.store.end([desk.build.ending(desk.claim, "failed")])
    rest, _ = follower.communicate(timeout=60)
    [third] = [json.loads(line)["turn"] for line in rest.splitlines()]
    assert [turn["number"] for turn in (first, second, third)] == [1, 2, 3]
    assert (second["answers"][0]["text"], third["answers"]) == ("second", None)
    assert follower.returncode == 0
    kept = desk.cli.json("logs", "work/fix")
    assert [turn["number"] for turn in kept["turns"]] == [1, 2, 3]


def test_a_followed_turn_waits_for_its_answers_and_the_last_one_is_shown_without_them(desk: Desk) -> None:
    desk.turn(1, call("read_file", {"path": "a"}), answers=["first"])
    steps = [
        lambda: desk.turn(2, call("read_file", {"path": "b"}), answers=None),
        lambda: desk.journal.finished(2, [ToolAnswer(call_id="c1", text="second")]),
        lambda: desk.turn(3, call("submit_result", {"outcome": "completed"}), answers=None),
    ]

    def over() -> bool:
        steps.pop(0)()
        return not steps

    [task, _] = desk.store.run(desk.claim.orchestration_row).tasks
    told = [
        (turn.number, turn.answers_digest is not None) for turn in _turns_told(desk.store, task, task.attempts[0], over)
    ]
    assert told == [(1, True), (2, True), (3, False)]


def test_progress_tells_of_each_turn_where_there_is_no_terminal(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.turn(1, call("read_file", {"path": "a"}), answers=["a"])
    with Progress(desk.store, [desk.claim.orchestration_row], quiet=False, doing=lambda task: ""):
        desk.turn(2, call("edit\x1b[2J_file", {"path": HOSTILE}), answers=["b"])
    assert capsys.readouterr().err == "fix: turn 2: edit\ufffd[2J_file, 1,120 tokens, $0.0123\n"


@pytest.mark.parametrize(
    ("micro_usd", "words"),
    [(0, "$0.00"), (3, "$0.000003"), (12_300, "$0.0123"), (500_000, "$0.50"), (12_000_000, "$12.00")],
)
def test_small_sums_are_not_shown_as_nothing(micro_usd: int, words: str) -> None:
    assert dollars(micro_usd) == words


def _start(cli: Any, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        cli.argv(*words), cwd=cli.folder, env=cli.env(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
