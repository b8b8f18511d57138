"""What a child that is a model gets from the store."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from contracts.errors import OperationUnsettled, Refused, StaleClaim, StoreUnavailable
from contracts.ports import Worst
from contracts.results import ArtifactEntry
from contracts.turns import CallRecord, ModelCall, ModelUsage, ToolAnswer, TurnResponse
from coordinator.children import StopSignal
from coordinator.model_ports import AttemptJournal, AttemptMeter, TaskInbox, TaskOperations, patiently
from coordinator.redaction import Redactor
from coordinator.store import TaskStore
from coordinator.store.records import Claim
from coordinator.taking_over import Start, start_of

SECRET = "s3cr3t-k3y-0123"
REDACTOR = Redactor({"MODEL_KEY": SECRET})


@pytest.fixture
def store(sqlite_store: TaskStore) -> TaskStore:
    return sqlite_store


@pytest.fixture
def claim(store: TaskStore, build: Any) -> Claim:
    agent = {"anthropic": {"model": "m", "api_key_env": None}}
    fields = {"agent": agent, "on_takeover": "continue", "limits": {"max_claims": 9}}
    store.create_run(build.run(build.task("one", resources={"effects": "declared"}, **fields)))
    return store.claim("w", work=1)[0]


@pytest.fixture
def operations(store: TaskStore, claim: Claim) -> TaskOperations:
    return TaskOperations(store, claim, REDACTOR, StopSignal())


def response(*names: str, raw: Any = ()) -> TurnResponse:
    calls = [ModelCall(call_id=f"c{n}", name=name, arguments={"text": "x"}) for n, name in enumerate(names)]
    return TurnResponse(text="I look.", calls=calls, stop="calls", model="m-1", raw=list(raw))


def journal(store: TaskStore, claim: Claim, start: Start | None = None, **fields: Any) -> AttemptJournal:
    options = {"tree": None, "record": lambda turn: None, **fields}
    return AttemptJournal(store, claim, start or start_of(store, claim), REDACTOR, StopSignal(), **options)


def again(store: TaskStore, build: Any, claim: Claim, word: Any = "released") -> Claim:
    store.end([build.ending(claim, word)])
    return store.claim("w", work=1)[0]


# -- journal


def test_the_next_attempt_gets_the_turns_as_they_were(store: TaskStore, build: Any, claim: Claim) -> None:
    usage = ModelUsage(input_tokens=9, output_tokens=3)
    said = response("note_gap", raw=[{"deep": [1.5, 1e300, "\ud800", 2**70]}])
    own = journal(store, claim)
    own.answered(1, "sha256:1", said, usage, 7, [])
    own.finished(1, [ToolAnswer(call_id="c0", text="noted")])
    own.answered(2, "sha256:2", response("read_file"), None, None, [])
    start = start_of(store, again(store, build, claim))
    first, second = start.turns
    assert (start.conversation, first.usage, first.cost_micro_usd) == (1, usage, 7)
    assert first.response.raw == [{"deep": [1.5, 1e300, "\ud800", 2**70]}]
    assert first.answers == [ToolAnswer(call_id="c0", text="noted")]
    assert second.answers is None


def test_no_secret_is_stored_with_a_turn(store: TaskStore, build: Any, claim: Claim) -> None:
    own = journal(store, claim)
    own.answered(1, "sha256:1", response("note_gap", raw=[f"key {SECRET}"]), None, None, [])
    own.finished(1, [ToolAnswer(call_id="c0", text=f"it is {SECRET}")])
    (turn,) = store.turns(claim.orchestration_row, task=claim.task_row)
    assert turn.answers_digest is not None
    kept = store.bytes_of(turn.response_digest) + store.bytes_of(turn.answers_digest)
    assert SECRET.encode() not in kept
    assert kept.count(b"[redacted:MODEL_KEY]") == 2


def test_words_about_a_try_are_cut_after_secrets_are_taken_out(store: TaskStore, claim: Claim) -> None:
    said = f"{'x' * 290} {SECRET} {'y' * 5_000}"  # the secret lies on the cut
    tried = CallRecord(number=1, started_at="", elapsed_s=0.0, outcome="overloaded", said=said)
    journal(store, claim).answered(1, "sha256:1", response(), None, None, [tried])
    (turn,) = store.turns(claim.orchestration_row, task=claim.task_row)
    (kept,) = json.loads(store.bytes_of(turn.response_digest))["tries"]
    assert kept["said"] == ("x" * 290 + " [redacted:MODEL_KEY]")[:300] + " …"


def test_a_large_turn_is_a_file_that_is_there_before_its_row(store: TaskStore, claim: Claim) -> None:
    journal(store, claim).answered(1, "sha256:1", response(raw=["x" * 100_000]), None, None, [])
    (turn,) = store.turns(claim.orchestration_row, task=claim.task_row)
    assert store.files.read(turn.response_digest) is not None


def test_the_workspace_is_recorded_after_turns_that_may_have_changed_it(store: TaskStore, claim: Claim) -> None:
    recorded: list[int] = []

    def record(turn: int) -> str:
        recorded.append(turn)
        return f"{turn}" * 40

    own = journal(store, claim, tree="0" * 40, record=record)
    for number, tool in enumerate(["read_file", "write_file", "note_gap", "mcp__files__put"], 1):
        own.answered(number, "sha256:1", response(tool), None, None, [])
        own.finished(number, [])
    trees = [turn.workspace_tree for turn in store.turns(claim.orchestration_row, task=claim.task_row)]
    assert trees == ["0" * 40, "2" * 40, "2" * 40, "4" * 40]
    assert recorded == [2, 4]


@pytest.mark.parametrize(
    ("word", "last", "goes_on"),
    [("failed", "read_file", True), ("failed", "submit_result", False), ("released", "submit_result", True)],
)
def test_what_a_model_has_ended_by_its_own_word_is_not_gone_on_from(
    store: TaskStore, build: Any, claim: Claim, word: str, last: str, goes_on: bool
) -> None:
    own = journal(store, claim)
    own.answered(1, "sha256:1", response(last), None, None, [])
    own.finished(1, [])
    start = start_of(store, again(store, build, claim, word))
    assert (start.conversation, len(start.turns)) == ((1, 1) if goes_on else (2, 0))


def test_the_whole_of_what_was_cut_can_be_read_by_the_next_attempt(store: TaskStore, build: Any, claim: Claim) -> None:
    whole = store.files.make_durable(b"x" * 60_000)
    entry = ArtifactEntry(name="whole.txt", digest=whole.digest, size_bytes=whole.size_bytes, media_type="text/plain")
    own = journal(store, claim)
    own.answered(1, "sha256:1", response("read_file"), None, None, [])
    for _ in range(2):
        own.finished(1, [ToolAnswer(call_id="c0", text="xx", whole=entry)])
    [turn] = start_of(store, again(store, build, claim)).turns
    assert turn.answers is not None
    assert turn.answers[0].whole == entry
    assert store.bytes_of(entry.digest) == b"x" * 60_000


# -- meter


def test_a_stale_holder_settles_and_charges_no_more(
    store: TaskStore, claim: Claim, expire: Callable[..., None]
) -> None:
    meter = AttemptMeter(store, claim, REDACTOR, StopSignal())
    reserved = meter.reserve(Worst(100, 10))
    expire(claim)
    meter.settle(reserved, Worst(40, 4))
    assert store.run(1).charged_micro_usd == 40
    with pytest.raises(StaleClaim):
        meter.reserve(Worst(1, 1))


class DeafStore:
    """Every second call is committed, and its caller is told that the store is away."""

    def __init__(self, store: TaskStore) -> None:
        self._store = store
        self._calls = 0

    def reserve(self, *args: Any, **more: Any) -> int:
        number = self._store.reserve(*args, **more)
        self._calls += 1
        if self._calls % 2:
            raise StoreUnavailable("the answer is lost")
        return number


def test_a_call_is_charged_once_however_often_its_answer_is_lost(store: TaskStore, claim: Claim) -> None:
    deaf: Any = DeafStore(store)
    meter = AttemptMeter(deaf, claim, REDACTOR, StopSignal())
    numbers = [meter.reserve(Worst(100, 10)).number for _ in range(2)]
    assert len(set(numbers)) == 2
    assert store.run(1).charged_micro_usd == 200


def test_what_was_paid_is_written_when_the_store_is_back() -> None:
    calls: list[int] = []

    def write() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise StoreUnavailable("away")
        return "written"

    assert patiently(write, StopSignal()) == "written"
    told = StopSignal()
    told.set("interrupted")
    calls.clear()
    with pytest.raises(StoreUnavailable):
        patiently(write, told)


# -- operations


def test_an_operation_is_sent_once_and_its_first_outcome_is_found_again(operations: TaskOperations) -> None:
    sent: list[str] = []

    def send() -> str:
        sent.append("now")
        return "deployed"

    assert operations.run("k", "run_command", {"command": ["deploy"]}, send) == "deployed"
    assert operations.run("k", "run_command", {"command": ["deploy"]}, send) == "deployed"
    assert sent == ["now"]


def test_what_failed_before_fails_again_and_is_not_sent(operations: TaskOperations) -> None:
    def fails() -> str:
        raise ValueError("no such host")

    with pytest.raises(ValueError, match="no such host"):
        operations.run("k", "t", {}, fails)
    with pytest.raises(Refused, match="no such host"):
        operations.run("k", "t", {}, lambda: "never")


def test_what_nobody_saw_the_end_of_is_never_sent_again_and_asked_without_secrets(
    operations: TaskOperations, store: TaskStore, build: Any, claim: Claim
) -> None:
    def hangs() -> str:
        raise OperationUnsettled("timed out")

    for send in (hangs, lambda: "never"):
        with pytest.raises(OperationUnsettled):
            operations.run("k", "t", {"secret": SECRET, "odd": ["\ud800", 2**70, 1e300]}, send)
    store.end([build.ending(claim, "released")])
    (request,) = store.requests(1)
    assert "[redacted:MODEL_KEY]" in request.question
    assert SECRET not in request.question


# -- inbox


def test_an_answer_is_found_by_its_very_question(store: TaskStore, build: Any, claim: Claim) -> None:
    inbox = TaskInbox(store, claim, lambda question: question.strip())
    assert inbox.answer_to("May I?") is None
    store.end([build.ending(claim, "blocked", question=build.question(what="May I?"))])
    assert inbox.answer_to("May I?") is None
    store.answer("run-q1", approved=False, message="not today")
    assert inbox.answer_to(" May I? ") == (False, "not today")
    assert inbox.answer_to("May you?") is None


def test_an_answer_is_not_that_of_an_older_contract_version(store: TaskStore, build: Any, claim: Claim) -> None:
    store.end([build.ending(claim, "blocked", question=build.question(what="May I?"))])
    store.answer("run-q1", approved=True)
    store.amend(
        1, expected_version=1, document=build.run().document, authored_digest="x", head=None, removed=[], overlaps=[],
        files=[], replaced=[build.task("one", version=2)],
    )  # fmt: skip
    assert TaskInbox(store, claim, str).answer_to("May I?") == (True, "")
    (after,) = store.claim("w", work=1)
    assert TaskInbox(store, after, str).answer_to("May I?") is None
