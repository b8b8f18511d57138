"""Budgets up the tree: charged before, settled after, and never beyond what the root allows."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.canonical import MAX_SAFE_INTEGER
from contracts.errors import BudgetExhausted, StaleClaim
from contracts.ports import Worst
from contracts.terms import Budget
from coordinator.store import TaskStore
from coordinator.store.records import Claim, NewTask


def usd(micro: int) -> float:
    return micro / 1_000_000


class Tree:
    """A run with the task ``top``, a child of it, ``below``, and one beside it; each claimed."""

    def __init__(self, store: TaskStore, build: Any, **budgets: Budget) -> None:
        self.store = store
        none = Budget()

        def make(name: str) -> NewTask:
            task: NewTask = build.task(name, budget=budgets.get(name, none))
            return task

        store.create_run(build.run(make("top"), make("beside"), closed=True, budget=budgets.get("run", none)))
        self.claims = {claim.task_id: claim for claim in store.claim("w", work=2)}
        store.delegate(1, [make("below")], parent=self.claims["top"])
        self.claims |= {claim.task_id: claim for claim in store.claim("w", work=1)}

    def charged(self) -> dict[str, tuple[int, int]]:
        run = self.store.run(1)
        tasks = {task.task_id: (task.charged_micro_usd, task.charged_tokens) for task in run.tasks}
        return tasks | {"run": (run.charged_micro_usd, run.charged_tokens)}


def test_a_charge_stands_in_every_budget_up_the_tree_and_is_settled_in_all(store: TaskStore, build: Any) -> None:
    tree = Tree(store, build)
    first = store.reserve(tree.claims["below"], Worst(900, 90))
    store.reserve(tree.claims["beside"], Worst(50, 5))
    assert tree.charged() == {"top": (900, 90), "below": (900, 90), "beside": (50, 5), "run": (950, 95)}
    store.settle(first, Worst(400, 40))
    store.settle(first, Worst(1, 1))  # said again, otherwise: the first stands
    assert tree.charged() == {"top": (400, 40), "below": (400, 40), "beside": (50, 5), "run": (450, 45)}


def test_a_failed_try_is_kept_with_its_charge_whoever_brings_it_and_however_often(
    store: TaskStore, build: Any, expire: Callable[..., None]
) -> None:
    tree = Tree(store, build)
    claim = tree.claims["below"]
    billed, unbilled = (store.reserve(claim, Worst(900, 90)) for _ in range(2))
    expire(claim)
    for said in (b"{1}", b"{2}"):
        store.settle(billed, None, failed=said)
        store.settle(unbilled, Worst(0, 0), failed=said)
    assert tree.charged()["run"] == (900, 90)
    assert [(view.attempt, view.data) for view in store.failed_tries(claim.task_row)] == [(1, b"{1}"), (1, b"{1}")]
    assert store.failed_tries(tree.claims["top"].task_row) == []


def test_an_overrun_is_counted(store: TaskStore, build: Any) -> None:
    tree = Tree(store, build, run=Budget(max_tokens=100))
    store.settle(store.reserve(tree.claims["below"], Worst(0, 100)), Worst(7, 130))
    assert tree.charged()["run"] == (7, 130)
    assert store.left(tree.claims["beside"]).tokens == 0


@pytest.mark.parametrize(("limited", "named"), [("below", "task below"), ("top", "task top"), ("run", "run run")])
def test_what_does_not_fit_anywhere_up_the_tree_is_refused_by_name_and_charged_nowhere(
    store: TaskStore, build: Any, limited: str, named: str
) -> None:
    tree = Tree(store, build, **{limited: Budget(max_cost_usd=usd(1_000))})
    store.reserve(tree.claims["below"], Worst(700, 1))
    before = tree.charged()
    needed = "0.0003 USD of 0.001 USD are left, and the next call may need 0.000301 USD"
    with pytest.raises(BudgetExhausted, match=f"the budget of {named} is exhausted: {needed}"):
        store.reserve(tree.claims["below"], Worst(301, 1))
    assert tree.charged() == before
    store.reserve(tree.claims["below"], Worst(300, 1))


def test_a_budget_with_room_is_not_named_in_place_of_the_one_without(store: TaskStore, build: Any) -> None:
    limits = {"below": Budget(max_cost_usd=usd(1_100)), "top": Budget(max_cost_usd=usd(1_000))}
    tree = Tree(store, build, **limits)
    store.reserve(tree.claims["below"], Worst(700, 1))
    with pytest.raises(BudgetExhausted, match="task top is exhausted: 0.0003 USD of 0.001 USD are left"):
        store.reserve(tree.claims["below"], Worst(301, 1))


def test_tokens_are_a_limit_of_their_own(store: TaskStore, build: Any) -> None:
    tree = Tree(store, build, top=Budget(max_tokens=1_000))
    with pytest.raises(BudgetExhausted, match="task top is exhausted: 1,000 tokens of 1,000 tokens are left.*1,001"):
        store.reserve(tree.claims["below"], Worst(0, 1_001))
    store.reserve(tree.claims["below"], Worst(0, 1_000))


def test_the_least_that_is_left_anywhere_is_what_is_left(store: TaskStore, build: Any) -> None:
    tree = Tree(store, build, run=Budget(max_cost_usd=usd(500)), top=Budget(max_cost_usd=usd(900), max_tokens=70))
    assert store.left(tree.claims["below"]) == Worst(500, 70)
    assert store.left(tree.claims["beside"]) == Worst(500, MAX_SAFE_INTEGER)
    store.reserve(tree.claims["beside"], Worst(450, 9))
    assert store.left(tree.claims["below"]) == Worst(50, 70)


def test_a_stale_holder_charges_nothing_and_settles_what_it_had_charged(
    store: TaskStore, build: Any, expire: Callable[..., None]
) -> None:
    tree = Tree(store, build)
    claim = tree.claims["beside"]
    number = store.reserve(claim, Worst(100, 10))
    expire(claim)
    (after,) = [found for found in store.claim("v", work=3) if found.task_id == "beside"]
    with pytest.raises(StaleClaim, match="charging run/beside refused"):
        store.reserve(claim, Worst(1, 1))
    assert tree.charged()["run"] == (100, 10)
    store.settle(number, Worst(60, 6))
    assert tree.charged()["beside"] == tree.charged()["run"] == (60, 6)
    store.reserve(after, Worst(1, 1))


def test_a_charge_whose_answer_was_lost_is_found_again_and_not_made_twice(
    store: TaskStore, build: Any, expire: Callable[..., None]
) -> None:
    tree = Tree(store, build, run=Budget(max_cost_usd=usd(250)))
    below, beside = tree.claims["below"], tree.claims["beside"]
    assert store.reserve(beside, Worst(100, 10), after=0) != store.reserve(below, Worst(100, 10), after=0)
    store.cancel(1, beside.task_row)
    first = store.reserve(below, Worst(100, 10), after=0)
    assert store.reserve(below, Worst(100, 10), after=0) == first
    assert tree.charged()["run"] == (200, 20)
    # Another call, though it may cost the same; a call that may cost something else; one after what was settled.
    second = store.reserve(below, Worst(10, 1), after=first)
    third = store.reserve(below, Worst(10, 1), after=second)
    assert store.reserve(below, Worst(20, 2), after=second) > third > second > first
    store.settle(third, Worst(0, 0))
    assert store.reserve(below, Worst(10, 1), after=second) > third
    expire(below)
    with pytest.raises(StaleClaim):  # it may not be spent any more
        store.reserve(below, Worst(100, 10), after=0)


def test_a_task_of_a_cancelled_parent_charges_nothing(store: TaskStore, build: Any) -> None:
    tree = Tree(store, build)
    store.cancel(1, tree.claims["top"].task_row)
    with pytest.raises(StaleClaim):
        store.reserve(tree.claims["below"], Worst(1, 1))
    assert tree.charged()["run"] == (0, 0)


def test_a_new_version_of_a_run_brings_its_own_limit_and_keeps_what_was_charged(store: TaskStore, build: Any) -> None:
    tree = Tree(store, build, run=Budget(max_tokens=10))
    store.reserve(tree.claims["beside"], Worst(0, 10))
    document = store.run(1)
    store.amend(
        1, expected_version=1, document=build.run().document, authored_digest=document.authored_digest, replaced=[],
        removed=[], overlaps=[], files=[], head=None, budget=Budget(max_tokens=15),
    )  # fmt: skip
    assert store.left(tree.claims["beside"]).tokens == 5


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["below", "top", "beside"]),
        st.sampled_from(["reserve", "settle", "settle", "crash"]),
        st.integers(0, 400),
    ),
    max_size=40,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS, st.integers(0, 2**32))
def test_no_interleaving_of_calls_and_crashes_passes_the_root(
    open_store: Callable[..., TaskStore], build: Any, tmp_path_factory: Any, steps: list[Any], seed: int
) -> None:
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('charges') / 'store.db'}")
    limits = {"run": 1_000, "top": 700, "below": 500, "beside": 800}
    tree = Tree(store, build, **{name: Budget(max_cost_usd=usd(limit)) for name, limit in limits.items()})
    chance = random.Random(seed)
    pending: dict[str, list[tuple[int, int]]] = {name: [] for name in tree.claims}
    stands = dict.fromkeys(tree.claims, 0)
    for name, what, micro in steps:
        if what == "reserve":
            room = min(limits[above] - charged_in(above, stands) for above in (*UP[name], "run"))
            try:
                pending[name].append((store.reserve(tree.claims[name], Worst(micro, 0)), micro))
                assert micro <= room
                stands[name] += micro
            except BudgetExhausted:
                assert micro > room
        elif what == "settle" and pending[name]:
            number, worst = pending[name].pop(chance.randrange(len(pending[name])))
            spent = chance.randint(0, worst)
            store.settle(number, Worst(spent, 0))
            stands[name] += spent - worst
        elif what == "crash":  # what is pending stays charged for ever
            pending[name].clear()
        charged = tree.charged()
        assert all(charged[key][0] == charged_in(key, stands) <= limit for key, limit in limits.items())
    store.close()


UP = {"below": ("below", "top"), "top": ("top",), "beside": ("beside",)}


def charged_in(key: str, stands: dict[str, int]) -> int:
    return sum(micro for name, micro in stands.items() if key == "run" or key in UP[name])


def test_two_stores_that_charge_at_once_do_not_pass_the_root_together(
    store: TaskStore, open_store: Callable[..., TaskStore], database_url: str, build: Any
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    tree = Tree(store, build, run=Budget(max_tokens=1_000))
    other = open_store(database_url)

    def spend(through: TaskStore, claim: Claim) -> int:
        charged = 0
        for _ in range(30):
            try:
                through.settle(through.reserve(claim, Worst(0, 100)), Worst(0, 30))
            except BudgetExhausted:
                break
            charged += 30
        return charged

    with ThreadPoolExecutor(3) as threads:
        spent = threads.map(spend, [store, other, other], tree.claims.values())
        total = sum(spent)
    assert tree.charged()["run"] == (0, total)
    assert 900 < total <= 1_000
