"""What a person is asked about a call: short, true, and nothing in it can pass for words of the coordinator."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.canonical import canonical_bytes
from contracts.ports import Standing
from coordinator.approving import call_question
from coordinator.redaction import Redactor
from coordinator.store.records import Claim, Question

SECRET = "key-of-the-server-0123"
TREE = "sha256:" + "a" * 64


@pytest.fixture
def claim(sqlite_store: Any, build: Any) -> Claim:
    sqlite_store.create_run(build.run())
    (found,) = sqlite_store.claim("w", work=1)
    assert isinstance(found, Claim)
    return found


def about(claim: Claim, arguments: Any, *changed: str, tree: str | None = TREE) -> Question:
    standing = None if tree is None else Standing(tree, changed)
    return call_question(claim, "mcp__s__x", arguments, standing, Redactor({"MY_KEY": SECRET}))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ([], "No file of its workspace (sha256:aaaaaaaaaaaa…) differs from the base."),
        (["a b"], '1 file differs from the base: ["a b"]'),
        ([f"f{number}" for number in range(1_200)], '1,200 files differ from the base: ["f0", '),
    ],
)
def test_it_says_tool_arguments_and_what_differs(claim: Claim, changed: list[str], says: str) -> None:
    question = about(claim, {"to": "prod"}, *changed)
    assert question.text.startswith('May mcp__s__x be called once, with {"to": "prod"}? ')
    assert says in question.text
    assert len(question.text) < 1_000
    assert question.action is not None
    assert (len(question.action.changed), question.action.changed_count) == (min(len(changed), 500), len(changed))
    if len(changed) > 20:
        assert question.text.endswith('"f19"] and 1,180 more')


@pytest.mark.parametrize(
    "hostile",
    ['x"}? No file of its workspace differs.', "line\nAPPROVED", "\x1b[2J\u202eevil", "\ud800", "a\0b", "ﬁ́"],
)
def test_no_text_of_a_child_leaves_its_quotes(claim: Claim, hostile: str) -> None:
    question = about(claim, {"a": hostile, hostile: 1}, hostile)
    assert question.action is not None
    for text in (question.text, question.action.arguments):
        assert not {"\n", "\x1b", "\u202e", "\0", "\ud800"} & set(text)
        assert 'x"}? No file' not in text
    canonical_bytes(question.action.model_dump())  # it can be stored


def test_a_long_argument_is_cut_in_its_middle_and_kept_whole(claim: Claim) -> None:
    question = about(claim, {"a": "first" + "x" * 9_000 + "last"})
    assert "first" in question.text
    assert 'last"}? ' in question.text
    assert "characters are left out here" in question.text
    assert len(question.text) < 2_000
    assert question.action is not None
    assert len(question.action.arguments) > 9_000


def test_secrets_are_not_shown_and_yet_two_of_them_are_two_calls(claim: Claim) -> None:
    one, other = about(claim, {"a": f"{SECRET}"}), about(claim, {"a": "[redacted:MY_KEY]"})
    assert one.action is not None
    assert SECRET not in one.text + one.action.arguments
    assert "[redacted:MY_KEY]" in one.text
    assert one.bound_digest != other.bound_digest


ARGUMENTS: list[Any] = [
    {}, {"a": 1}, {"a": 1.0}, {"a": True}, {"a": "1"}, {"a": [1]}, {"a": [1, 2]}, {"a": [2, 1]}, {"b": 1}, {"a": None},
    {"a": 2**70}, {"a": 2**70 + 1}, {"a": float("inf")}, {"a": "\ud800"}, {"a": "\\ud800"}, {"a": {"b": 1}},
]  # fmt: skip


def test_every_difference_is_another_call_and_the_order_of_names_is_none(claim: Claim) -> None:
    digests = [about(claim, arguments).bound_digest for arguments in ARGUMENTS]
    digests += [about(claim, {}, tree=tree).bound_digest for tree in ("sha256:" + "b" * 64, None)]
    digests.append(call_question(claim, "mcp__s__y", {}, Standing(TREE, ()), Redactor({})).bound_digest)
    assert len(set(digests)) == len(digests)
    assert about(claim, {"a": 1, "b": 2}).bound_digest == about(claim, {"b": 2, "a": 1}).bound_digest
    assert about(claim, {}, "a").bound_digest == about(claim, {}, "b").bound_digest  # the tree says it all
