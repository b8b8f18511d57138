"""Everybody but the workers: who launches, answers, cancels and amends, and the faults that come from outside."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import coordinator.launch
from contracts.errors import NotFound, Refused, StaleClaim
from coordinator.launch import plan_launch
from coordinator.store.records import Done, NewChild, NewTask
from tests.simulation.snapshot import FINAL, Snapshot
from tests.simulation.stores import AnnouncingStore, Said, judge_late

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

__all__ = ["answers", "launch", "program", "storm"]

Act = Callable[["Simulation", AnnouncingStore], Any]


async def as_process(simulation: Simulation, name: str, act: Act) -> bool:
    """Do one thing in a process of its own, as a command does. False: it died on the way."""
    process, store = simulation.command(name)

    async def life() -> None:
        try:
            done = act(simulation, store)
            if asyncio.iscoroutine(done):
                await done
        except (Refused, NotFound) as refused:
            simulation.say(f"refused: {str(refused)[:100]}")

    return await simulation.live(process, life)


async def until_it_lives(simulation: Simulation, name: str, act: Act) -> None:
    """Again and again, as whoever sees it die would."""
    lived = False
    while not lived:
        lived = await as_process(simulation, name, act)


async def launch(simulation: Simulation) -> None:
    """Launch, and again after a death: the second time it goes on with what the first one made."""
    work, pin = simulation.workflow(1)

    def act(simulation: Simulation, store: AnnouncingStore) -> None:
        plan = plan_launch(work, pin=pin)
        coordinator.launch.launch(store, simulation.home, plan, closed=not simulation.plan.program)
        simulation.say("launched")

    await until_it_lives(simulation, "launch", act)


async def program(simulation: Simulation) -> None:
    """A program that delegates as it goes, and begins anew when it dies."""
    if not simulation.plan.program:
        return
    first = min(simulation.observer.before.tasks)
    pause = simulation.chance.uniform(0.1, 3)

    async def act(simulation: Simulation, store: AnnouncingStore) -> None:
        (run,) = simulation.observer.before.runs
        terms = store.run(run, superseded=True).tasks[0].terms
        assert first in simulation.observer.before.tasks
        for number in range(2):
            name = f"program-{number}"
            update = {"task_id": name, "objective": name, "needs": [], "contract_version": 1}
            new = NewTask(terms.model_copy(update=update), name)
            with contextlib.suppress(Refused):  # the run was cancelled
                if number == 0:
                    store.delegate(run, [new])
                else:
                    store.delegate_by_tick(NewChild(run, new))
            await asyncio.sleep(pause)
        store.close_run(run)

    await until_it_lives(simulation, "program", act)


async def answers(simulation: Simulation) -> None:
    """A person answers what is open: late, at times twice, at times once more otherwise."""
    chance = simulation.chance
    while not simulation.over():
        await asyncio.sleep(chance.uniform(0.2, chance.choice([2, 12])))
        requests = simulation.observer.before.requests.values()
        waiting = [row["request_id"] for row in requests if row["state"] == "open"]
        if not waiting:
            continue
        request, approved = chance.choice(waiting), simulation.plan.quiet or chance.random() < 0.7

        def act(
            simulation: Simulation, store: AnnouncingStore, request: str = request, approved: bool = approved
        ) -> None:
            store.answer(request, approved=approved, message="so it is")
            if chance.random() < 0.2:
                before = facts(simulation)
                again = store.answer(request, approved=approved, message="so it is")
                expect(simulation, again.repeated, "an answer that was repeated was taken as a new one")
                expect(simulation, facts(simulation) == before, "a repeated answer changed something")
            if chance.random() < 0.2:
                store.answer(request, approved=not approved, message="no")
                simulation.fail("an answer was replaced by another one")

        await as_process(simulation, "person", act)


async def storm(simulation: Simulation) -> None:
    """What goes wrong from outside, at moments that the seed chooses; then it is calm."""
    plan, chance = simulation.plan, simulation.chance
    acts = [
        *[stop_worker] * plan.stops, *[step_clock] * plan.clock_steps, *[repeat] * plan.repeats,
        *[cancel] * plan.cancels, *[amend] * plan.amends, *[repeat_several] * (plan.mixes // 3),
    ]  # fmt: skip
    began = simulation.loop.now
    events = sorted((chance.uniform(0, plan.fault_s), number) for number in range(len(acts)))
    running = []
    for at, number in events:
        await asyncio.sleep(max(began + at - simulation.loop.now, 0))
        running.append(asyncio.ensure_future(acts[number](simulation)))
    if running:
        await asyncio.wait(running)
        for one in running:
            one.result()
    if plan.crashes:
        await asyncio.sleep(max(began + plan.fault_s - simulation.loop.now, 0))
    simulation.calm = True
    simulation.say("calm")


async def stop_worker(simulation: Simulation) -> None:
    """As by SIGSTOP, past its leases or not."""
    alive = [one for one in simulation.processes.values() if one.alive and not one.stopped]
    if alive:
        process = simulation.chance.choice(alive)
        simulation.say(f"{process.name} is stopped")
        process.stopped = True
        await asyncio.sleep(simulation.chance.choice([0.3, 1.5, 5, 12]))
        simulation.say(f"{process.name} goes on")
        simulation.loop.go_on(process)


async def step_clock(simulation: Simulation) -> None:
    simulation.step_clock(simulation.chance.choice([-15, -3, -0.5, 0.5, 3, 30, 3600]))


async def cancel(simulation: Simulation) -> None:
    tasks = list(simulation.observer.before.tasks.values())
    still_open = [row for row in tasks if row["state"] not in FINAL]
    row = simulation.chance.choice(still_open if still_open and simulation.chance.random() < 0.8 else tasks)
    whole = simulation.chance.random() < 0.2
    run = row["orchestration_id"]

    def act(simulation: Simulation, store: AnnouncingStore) -> None:
        store.cancel(run, None if whole else row["id"], reason="by chance")
        after = simulation.observer.before
        gone = [
            one for one in after.tasks.values()
            if (whole and one["orchestration_id"] == run) or row["id"] in (one["id"], *after.ancestors(one["id"]))
        ]  # fmt: skip
        expect(simulation, all(one["state"] in FINAL for one in gone), "a cancel did not reach all below")

    await as_process(simulation, "cancel", act)


class _Later:
    """A store whose ``amend`` is kept back: between reading a run and replacing it, others go on."""

    def __init__(self, store: AnnouncingStore) -> None:
        self._store = store
        self.kept: Callable[[], object] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def amend(self, run: int, **change: Any) -> int:
        self.kept = lambda: self._store.amend(run, **change)
        return 0


async def amend(simulation: Simulation) -> None:
    """Launch other content as a new version."""
    work, pin = simulation.workflow(2)
    wait_s = simulation.chance.choice([0.0, 0.1, 1.0])

    async def act(simulation: Simulation, store: AnnouncingStore) -> None:
        later: Any = _Later(store)
        coordinator.launch.launch(
            later, simulation.home, plan_launch(work, pin=pin), as_new_version=True, closed=not simulation.plan.program
        )
        await asyncio.sleep(wait_s)
        later.kept()

    await as_process(simulation, "amend", act)


async def repeat(simulation: Simulation) -> None:
    """A call that was made comes again, late: the same, or with a token that is not its own."""
    chance, history = simulation.chance, simulation.history
    if not history.said:
        return
    said = chance.choice(history.said[-8:] if chance.random() < 0.7 else history.said)
    kind = chance.random()

    def act(simulation: Simulation, store: AnnouncingStore) -> None:
        if kind < 0.6:
            _again(simulation, store, said)
        elif kind < 0.75:
            _forged(simulation, store, said)
        elif kind < 0.9 or not history.delegated:
            store.renew([said.item.claim])
            store.confirm_stopped([said.item.claim])
        else:
            parent, items = chance.choice(history.delegated)
            store.delegate(parent.orchestration_row, items, parent=parent)

    await as_process(simulation, "late", act)


async def repeat_several(simulation: Simulation) -> None:
    """Several calls that were made come again in one list, some of them twice, some with a token made up."""
    extra = simulation.extra
    verb = extra.choice(["submit", "end", "decide", "renew"])
    made = [said for said in simulation.history.said if verb in (said.verb, "renew")]
    if not made:
        return
    several = [simulation.perhaps_forged(said) for said in extra.choices(made, k=extra.randint(2, 6))]

    def act(simulation: Simulation, store: AnnouncingStore) -> None:
        simulation.say(f"{len(several)} late: {verb}")
        if verb == "renew":
            history = simulation.history
            living = [claim for claim in history.claims.values() if claim.token not in history.unheard][-3:]
            store.renew([*(said.item.claim for said in several), *living])
            return
        before = tasks(simulation)
        answers = getattr(store, verb)([said.item for said in several])
        for said, answer in zip(several, answers, strict=True):
            judge_late(said, answer, simulation.fail)
        if all(isinstance(answer, StaleClaim) or getattr(answer, "repeated", False) for answer in answers):
            expect(simulation, tasks(simulation) == before, f"late calls of {verb} changed a task")

    await as_process(simulation, "late", act)


def _again(simulation: Simulation, store: AnnouncingStore, said: Said) -> None:
    simulation.say(f"repeats {said.verb} of {said.item.claim.task_id} {said.item.claim.attempt}")
    before = facts(simulation)
    (answer,) = getattr(store, said.verb)([said.item])
    if isinstance(said.outcome, Done):
        stays = said.verb == "decide" and said.item.decision.decision in ("not_judged", "waiting")
        same = isinstance(answer, Done) and answer == replace(said.outcome, repeated=True)
        expect(simulation, same or (stays and isinstance(answer, StaleClaim)), f"{said.outcome}, then {answer}")
        expect(simulation, facts(simulation) == before, f"a repeated {said.verb} changed something")
    elif isinstance(answer, StaleClaim):
        expect(simulation, tasks(simulation) == before[0], f"a stale {said.verb} changed a task")


def _forged(simulation: Simulation, store: AnnouncingStore, said: Said) -> None:
    """With another token it is never new work, whoever holds the task."""
    simulation.say(f"forges {said.verb} of {said.item.claim.task_id} {said.item.claim.attempt}")
    item = replace(said.item, claim=replace(said.item.claim, token="f" * 32))
    before = tasks(simulation)
    (answer,) = getattr(store, said.verb)([item])
    expect(simulation, isinstance(answer, StaleClaim) or answer.repeated, f"a forged {said.verb} was taken: {answer}")
    expect(simulation, tasks(simulation) == before, f"a forged {said.verb} changed a task")


def tasks(simulation: Simulation) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in simulation.observer.before.tasks.values()]


def facts(simulation: Simulation) -> tuple[list[tuple[Any, ...]], ...]:
    seen: Snapshot = simulation.observer.before
    events = simulation.observer.reader.rows("SELECT * FROM event")
    some = [seen.attempts.values(), seen.requests.values(), events]
    return (tasks(simulation), *([tuple(row) for row in rows] for rows in some))


def expect(simulation: Simulation, holds: object, text: str) -> None:
    if not holds:
        simulation.fail(f"[2] {text}")
