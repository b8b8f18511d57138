"""A child's grant is a subset of its parent's in every dimension, or the dimension is named."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from contracts.attenuation import Grant, attenuation_faults
from contracts.terms import Budget, Delegation, Resources

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
TOOLS = ["list_files", "read_file", "search_code"]
HOSTS = ["a.example:443", "b.example:80"]
SCOPE = st.lists(st.sampled_from(["a/", "a/b", "a/*.md", "**/b", "c", "**"]), max_size=3)


def some(items: list[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(items), unique=True)


GRANTS = st.builds(
    Grant,
    resources=st.builds(
        Resources,
        tools=some(TOOLS),
        network=st.just("deny") | some(HOSTS),
        read_scope=SCOPE,
        write_scope=SCOPE,
        credentials=some(["KEY", "TOKEN"]),
        delegation=st.just("deny") | st.builds(Delegation, max_depth=st.integers(1, 4), max_children=st.integers(1, 4)),
        effects=st.sampled_from(["none", "declared", "possible"]),
    ),
    budget=st.builds(
        Budget,
        max_turns=st.none() | st.integers(1, 5),
        max_cost_usd=st.none() | st.sampled_from([0.0, 0.5, 0.800001, 2.0]),
    ),
    isolation=st.sampled_from(["none", "sandbox"]),
    deadline_at=st.none() | st.sampled_from([NOON, NOON + timedelta(seconds=1)]),
)

PARENT: dict[str, Any] = {
    "resources": {
        "tools": ["read_file", "list_files"],
        "network": ["a.example:443"],
        "read_scope": ["src/", "docs/"],
        "write_scope": ["out/"],
        "credentials": ["KEY"],
        "delegation": {"max_depth": 2, "max_children": 5},
        "effects": "declared",
    },
    "budget": {"max_turns": 10, "max_cost_usd": 1.0},
    "isolation": "sandbox",
    "deadline_at": NOON,
}
CHILD: dict[str, Any] = {
    "resources": {
        "tools": ["read_file"],
        "network": ["a.example:443"],
        "read_scope": ["src/a.py", "docs/**"],
        "write_scope": ["out/x/"],
        "credentials": ["KEY"],
        "delegation": {"max_depth": 1, "max_children": 4},
        "effects": "declared",
    },
    "budget": {"max_turns": 10, "max_cost_usd": 1.0},
    "isolation": "sandbox",
    "deadline_at": NOON,
}


def grant(base: dict[str, Any], **changes: Any) -> Grant:
    """``base`` with dotted changes: ``resources__tools=[…]``."""
    value = {**base, "resources": dict(base["resources"]), "budget": dict(base["budget"])}
    for key, item in changes.items():
        place, _, name = key.rpartition("__")
        (value[place] if place else value)[name] = item
    return Grant.model_validate(value)


@pytest.mark.parametrize(
    "narrower",
    [
        {},
        {"resources__tools": []},
        {"resources__network": "deny"},
        {"resources__network": []},
        {"resources__read_scope": []},
        {"resources__write_scope": ["out/x/y.md", "out/*"]},
        {"resources__credentials": []},
        {"resources__delegation": "deny"},
        {"resources__effects": "none"},
        {"budget__max_turns": 1},
        {"budget__max_cost_usd": 0.0},
        {"deadline_at": NOON - timedelta(hours=1)},
    ],
)
def test_a_grant_within_its_parents_is_accepted(narrower: dict[str, Any]) -> None:
    assert attenuation_faults(grant(PARENT), grant(CHILD, **narrower)) == []


@pytest.mark.parametrize(
    ("wider", "path"),
    [
        ({"resources__tools": ["read_file", "search_code"]}, "resources.tools"),
        ({"resources__network": ["a.example:443", "b.example:443"]}, "resources.network"),
        ({"resources__network": ["a.example:80"]}, "resources.network"),
        ({"resources__read_scope": ["**"]}, "resources.read_scope"),
        ({"resources__read_scope": ["s*/a.py"]}, "resources.read_scope"),
        ({"resources__write_scope": ["out"]}, "resources.write_scope"),
        ({"resources__credentials": ["KEY", "OTHER"]}, "resources.credentials"),
        ({"resources__delegation": {"max_depth": 2, "max_children": 4}}, "resources.delegation"),
        ({"resources__delegation": {"max_depth": 1, "max_children": 5}}, "resources.delegation"),
        ({"resources__effects": "possible"}, "resources.effects"),
        ({"budget__max_turns": 11}, "resources.budget.max_turns"),
        ({"budget__max_turns": None}, "resources.budget.max_turns"),
        ({"budget__max_cost_usd": 1.000001}, "resources.budget.max_cost_usd"),
        ({"budget__max_cost_usd": None}, "resources.budget.max_cost_usd"),
        ({"isolation": "none"}, "resources.isolation"),
        ({"deadline_at": NOON + timedelta(microseconds=1)}, "resources.limits.deadline_s"),
        ({"deadline_at": None}, "resources.limits.deadline_s"),
    ],
)
def test_widening_one_dimension_is_refused_and_named(wider: dict[str, Any], path: str) -> None:
    assert [fault.path for fault in attenuation_faults(grant(PARENT), grant(CHILD, **wider))] == [path]


def test_every_dimension_that_is_wider_is_named_at_once() -> None:
    narrow = grant(PARENT, resources__tools=[], resources__credentials=[], budget__max_turns=1)
    paths = [fault.path for fault in attenuation_faults(narrow, grant(CHILD), path="terms")]
    assert paths == ["terms.tools", "terms.credentials", "terms.budget.max_turns"]


@pytest.mark.parametrize("nothing", ["deny", []])
def test_an_empty_network_list_is_the_same_as_deny(nothing: Any) -> None:
    parent = grant(PARENT, resources__network=nothing)
    assert attenuation_faults(parent, grant(CHILD, resources__network=[])) == []
    assert attenuation_faults(parent, grant(CHILD, resources__network="deny")) == []
    (fault,) = attenuation_faults(parent, grant(CHILD))
    assert fault.path == "resources.network"


def test_a_deadline_without_a_time_zone_is_refused() -> None:
    with pytest.raises(ValidationError):
        Grant(deadline_at=NOON.replace(tzinfo=None))


@given(GRANTS, GRANTS, GRANTS)
def test_what_is_within_a_grant_within_a_grant_is_within_the_first(a: Grant, b: Grant, c: Grant) -> None:
    if not attenuation_faults(a, b) and not attenuation_faults(b, c):
        assert attenuation_faults(a, c) == []


@given(GRANTS, st.data())
def test_any_subset_is_accepted_and_subsets_of_subsets_too(top: Grant, data: st.DataObject) -> None:
    chain = [top]
    for _ in range(2):
        chain.append(data.draw(_within(chain[-1])))
    for above, parent in enumerate(chain):
        for child in chain[above + 1 :]:
            assert attenuation_faults(parent, child) == []


@st.composite
def _within(draw: st.DrawFn, parent: Grant) -> Grant:
    theirs = parent.resources

    def part(items: Any) -> list[str]:
        return [item for item in items if draw(st.booleans())]

    delegation: Any = "deny"
    if (
        isinstance(theirs.delegation, Delegation)
        and min(theirs.delegation.max_depth, theirs.delegation.max_children) > 1
    ):
        delegation = Delegation(
            max_depth=theirs.delegation.max_depth - 1, max_children=theirs.delegation.max_children - 1
        )
    order = ["none", "declared", "possible"]
    return Grant(
        resources=Resources(
            tools=part(theirs.tools),
            network="deny" if theirs.network == "deny" else part(theirs.network),
            read_scope=part(theirs.read_scope),
            write_scope=part(theirs.write_scope),
            credentials=part(theirs.credentials),
            delegation=delegation,
            effects=draw(st.sampled_from(order[: order.index(theirs.effects) + 1])),
        ),
        budget=Budget(max_turns=parent.budget.max_turns, max_cost_usd=parent.budget.max_cost_usd and 0.25),
        isolation=draw(st.sampled_from(["sandbox", parent.isolation])),
        deadline_at=parent.deadline_at,
    )
