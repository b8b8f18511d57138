"""A yes to a call is good for that call alone, once: what else would run with it was never approved."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from contracts.errors import Refused, StaleClaim, WrongState
from contracts.ports import Standing
from contracts.requests import action_digest
from coordinator.approving import call_question
from coordinator.redaction import Redactor
from coordinator.store import TaskStore
from coordinator.store.database import Blob
from coordinator.store.records import Claim, Question

TOOL = "run_command"
DEPLOY = {"command": ["sh", "deploy.sh"], "timeout_s": 600.0}
TREE = "sha256:" + "a" * 64
EDITED = "sha256:" + "b" * 64
RESOURCES = {"tools": [TOOL], "commands": [["sh"]], "effects": "declared", "needs_approval": [TOOL]}
NO_SECRETS = Redactor({}, ())


def asked(claim: Claim, tree: str = TREE, arguments: Any = DEPLOY) -> Question:
    return call_question(claim, TOOL, arguments, Standing(tree, ["deploy.sh"]), NO_SECRETS)


def row_of(store: TaskStore, claim: Claim, key: str = "1:1:0") -> int:
    return store.prepare_operation(claim, key, TOOL, Blob.of(DEPLOY)).row


def send(store: TaskStore, claim: Claim, question: Question | None = None, key: str = "1:1:0") -> bool:
    return store.send_operation(claim, row_of(store, claim, key), (question or asked(claim)).bound_digest)


def block(store: TaskStore, build: Any, claim: Claim, question: Question | None = None) -> None:
    store.end([build.ending(claim, "blocked", question=question or asked(claim))])


def answer(store: TaskStore, approved: bool = True, message: str = "", number: int = -1) -> None:
    store.answer(store.requests(1)[number].request_id, approved=approved, message=message)


def claim_of(store: TaskStore, task_id: str = "one") -> Claim:
    return next(claim for claim in store.claim("w", work=9) if claim.task_id == task_id)


def states(store: TaskStore) -> list[str]:
    return [request.state for request in store.requests(1)]


@pytest.fixture
def claim(store: TaskStore, build: Any) -> Claim:
    store.create_run(build.run(build.task("one", resources=RESOURCES)))
    return claim_of(store)


@pytest.fixture
def approved(store: TaskStore, build: Any, claim: Claim) -> Claim:
    """The next holder, after a yes to deploying ``TREE``."""
    assert not send(store, claim)
    block(store, build, claim)
    assert store.claim("v", work=9) == []  # no slot is held while nobody has answered
    answer(store)
    return claim_of(store)


def test_an_approved_call_is_sent_once_and_its_yes_is_used_up_with_it(
    store: TaskStore, build: Any, approved: Claim, sql: Callable[..., list[Any]]
) -> None:
    row = row_of(store, approved)
    assert send(store, approved)
    assert [tuple(found) for found in sql("SELECT state, approval_id FROM operation")] == [("sent", 1)]
    with pytest.raises(WrongState, match="was sent already"):
        send(store, approved)
    # Once more the same is another call: it is asked about, and sent with a yes of its own.
    assert not send(store, approved, key="1:1:1")
    store.settle_operation(approved, row, ok=True, outcome=Blob.of("deployed"))
    block(store, build, approved)
    assert states(store) == ["answered", "open"]
    answer(store)
    assert send(store, claim_of(store), key="1:1:1")
    assert [tuple(found) for found in sql("SELECT approval_id FROM operation ORDER BY id")] == [(1,), (2,)]


def other_arguments(claim: Claim) -> Question:
    return asked(claim, arguments={**DEPLOY, "command": ["sh", "deploy.sh", "prod"]})


def other_time(claim: Claim) -> Question:
    return asked(claim, arguments={**DEPLOY, "timeout_s": 601.0})


def edited(claim: Claim) -> Question:
    return asked(claim, EDITED)


CHANGES = [other_arguments, other_time, edited]


@pytest.mark.parametrize("change", CHANGES)
def test_anything_changed_is_a_new_question_and_the_old_yes_is_void(
    store: TaskStore, build: Any, approved: Claim, change: Callable[[Claim], Question]
) -> None:
    assert not send(store, approved, change(approved))
    assert states(store) == ["answered"]  # nothing was recorded
    block(store, build, approved, change(approved))
    assert states(store) == ["void", "open"]
    voided = [event.data for event in store.events(1) if event.verb == "voided"]
    assert voided == [{"request": store.requests(1)[0].request_id}]  # a yes is not taken back in silence
    with pytest.raises(WrongState, match="void"):
        answer(store, number=0)
    answer(store)
    after = claim_of(store)
    assert not send(store, after)  # not even what was approved first
    assert send(store, after, change(after))


def test_what_is_only_said_about_a_call_changes_nothing(store: TaskStore, build: Any, approved: Claim) -> None:
    said = Question("approval", "Please, quick!", asked(approved).bound_digest, "x", asked(approved).action)
    assert said.text != asked(approved).text
    block(store, build, approved, said)
    assert states(store) == ["answered"]  # the yes can still be used: nothing new is asked
    assert send(store, claim_of(store))


def test_a_no_stands_for_this_content_and_for_no_other(store: TaskStore, build: Any, claim: Claim) -> None:
    assert not send(store, claim)
    block(store, build, claim)
    answer(store, approved=False, message="not on a Friday")
    after = claim_of(store)
    for key in ("1:1:0", "1:1:1"):
        with pytest.raises(Refused, match="a person said no to this call: not on a Friday"):
            send(store, after, key=key)
    assert not send(store, after, asked(after, EDITED))
    block(store, build, after, asked(after, EDITED))
    assert states(store) == ["answered", "open"]
    answer(store)
    last = claim_of(store)
    with pytest.raises(Refused, match="not on a Friday"):
        send(store, last)
    assert send(store, last, asked(last, EDITED))


def test_a_yes_is_not_that_of_another_task(store: TaskStore, build: Any) -> None:
    store.create_run(build.run(*(build.task(name, resources=RESOURCES) for name in ("one", "two"))))
    claims = {claim.task_id: claim for claim in store.claim("w", work=2)}
    block(store, build, claims["one"])
    answer(store)
    assert not send(store, claims["two"])
    # Nor would it be with the very digest of the other one.
    assert not send(store, claims["two"], asked(claims["one"]))
    assert send(store, claim_of(store), asked(claims["one"]))


def test_a_new_contract_version_is_asked_about_anew(store: TaskStore, build: Any, approved: Claim) -> None:
    block(store, build, approved, edited(approved))
    answer(store)
    store.amend(
        1, expected_version=1, document=build.run().document, authored_digest="x", head=None, removed=[], overlaps=[],
        files=[], replaced=[build.task("one", version=2, resources=RESOURCES)],
    )  # fmt: skip
    after = claim_of(store)
    assert after.terms.contract_version == 2
    for old in (asked(approved), edited(approved), asked(after), edited(after)):
        assert not send(store, after, old)


def test_a_holder_that_has_lost_the_task_sends_nothing_and_uses_nothing_up(
    store: TaskStore, approved: Claim, expire: Callable[..., None]
) -> None:
    row = row_of(store, approved)
    expire(approved)
    with pytest.raises(StaleClaim):
        store.send_operation(approved, row, asked(approved).bound_digest)
    assert send(store, claim_of(store))


def test_of_calls_of_the_same_content_at_the_same_time_one_is_sent(store: TaskStore, approved: Claim) -> None:
    keys = [f"k:{number}" for number in range(6)]
    rows = [row_of(store, approved, key) for key in keys]
    came: list[bool] = []
    start = threading.Barrier(len(rows))

    def one(row: int) -> None:
        start.wait()
        came.append(store.send_operation(approved, row, asked(approved).bound_digest))

    threads = [threading.Thread(target=one, args=(row,)) for row in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(came) == [False] * 5 + [True]


def test_without_the_digest_of_a_call_nothing_is_sent(store: TaskStore, approved: Claim) -> None:
    assert not store.send_operation(approved, row_of(store, approved))


def test_the_database_itself_takes_a_yes_for_one_operation_only(
    store: TaskStore, approved: Claim, sql: Callable[..., list[Any]]
) -> None:
    assert send(store, approved)
    row_of(store, approved, "1:1:1")
    for statement in (
        "UPDATE operation SET state = 'sent', approval_id = 1 WHERE key = '1:1:1'",
        "UPDATE operation SET approval_id = 1, state = 'prepared' WHERE key = '1:1:0'",
        "UPDATE request SET state = 'open' WHERE id = 1",
        "UPDATE request SET kind = 'input' WHERE id = 1",
    ):
        with pytest.raises(IntegrityError):
            sql(statement)


def test_a_call_that_was_sent_and_not_seen_to_end_is_asked_about_and_its_yes_is_gone(
    store: TaskStore, build: Any, approved: Claim
) -> None:
    assert send(store, approved)
    store.end([build.ending(approved, "released")])
    assert [(request.kind, request.state) for request in store.requests(1)] == [
        ("approval", "answered"), ("operation", "open"),
    ]  # fmt: skip
    answer(store, approved=False, message="nothing was deployed")
    after = claim_of(store)
    assert store.prepare_operation(after, "1:1:0", TOOL, Blob.of(DEPLOY)).state == "failed"
    assert not send(store, after, key="2:1:0")


def test_a_request_says_what_a_yes_to_it_covers(store: TaskStore, build: Any, approved: Claim) -> None:
    (request,) = store.requests(1)
    assert request.kind == "approval"
    assert request.bound_digest == action_digest(approved.terms_digest, TOOL, DEPLOY, TREE)
    assert request.action == asked(approved).action
    assert request.action is not None
    assert (request.action.tree_digest, request.action.changed) == (TREE, ["deploy.sh"])


def test_a_tool_that_needs_no_yes_is_sent_without_one(store: TaskStore, build: Any) -> None:
    store.create_run(build.run(build.task("one", resources={**RESOURCES, "needs_approval": ["mcp__s__x"]})))
    claim = claim_of(store)
    assert store.send_operation(claim, row_of(store, claim))
