"""Models as children, while processes die: what is planned, who plays the model and the person, what a death costs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from coordinator.store import tables as t
from coordinator.store.views import TurnView
from tests.model_servers.script import Call, Reply
from tests.scenarios.crashing import Loss, Plan, Player

if TYPE_CHECKING:
    from tests.model_servers.fake import FakeModelServer, Request

FRESH = " under fresh"
ASKING = [
    Plan(point, point)
    for point in ("reserve.commit", "reserve.committed", "model_charged", "model_answered", "settle.commit",
                  "settle.committed", "answered.commit")
]  # fmt: skip
"""Before the turn is stored: both policies ask again."""
ANSWERING = [
    *(Plan(point, point) for point in ("answered.committed", "turn_answered")),
    Plan("tool_call of a model", "tool_call"),
    *(Plan(point, point) for point in ("finished.commit", "finished.committed", "turn_finished")),
    *(Plan(point + FRESH, point) for point in ("turn_answered", "turn_finished")),
]
EFFECTS = [
    *(Plan(point, point) for point in ("prepare_operation.commit", "prepare_operation.committed",
                                       "send_operation.commit", "send_operation.committed", "operation_sent",
                                       "operation_done", "settle_operation.commit", "settle_operation.committed")),
    *(Plan(point + FRESH, point) for point in ("operation_done", "settle_operation.committed")),
]  # fmt: skip
MODELS = [*ASKING, *ANSWERING, *EFFECTS]

PRICES = {"model-x": {"input_mtok_usd": 3, "output_mtok_usd": 15}}
PAID_MICRO_USD = 100 * 3 + 10 * 15
"""For one answer of the fake server."""
NAMED = re.compile(r"You are (\w+)\.")
MADE = "made 42"
UNSETTLED = t.charge.c.settled_at.is_(None)
COMMAND = "echo {name} 0 0 $$ called >> {marks}; mkdir -p out; echo {name} > out/{name}.made; echo made $((6 * 7))"
NOT_HERE = "what it wrote there is not here"
"""How a model is told that what its command wrote is not in its workspace."""


def _named(request: Request) -> str:
    found = NAMED.search(request.asked.text)
    assert found is not None, request.asked.text
    return found[1]


class Models:
    """The tasks of one run for models that call a command until they read that it is done, and then hand in."""

    def __init__(self, player: Player, server: FakeModelServer) -> None:
        self._player = player
        self._place = player.place
        self._server = server
        server.choose(self._say)
        player.paid_micro_usd = lambda: PAID_MICRO_USD * len(server.requests)

    def task(self, name: str, *, fresh: bool = False, declared: bool = True) -> dict[str, Any]:
        """``declared``: the command is a side effect, each call of it an operation."""
        effects = "declared" if declared else "none"
        spec = {"model": "model-x", "base_url": self._server.openai_url, "api": "responses", "api_key_env": None}
        resources = {
            "tools": ["run_command", "write_file"], "commands": [["sh", "-c"]], "write_scope": ["out/"],
            "effects": effects,
        }  # fmt: skip
        return {
            "objective": f"You are {name}.", "agent": {"openai": spec}, "isolation": "none", "prices": PRICES,
            "workspace": "clone", "resources": resources, "limits": {"lease_s": 30, "max_claims": 1000},
            "acceptance": [{"cel": "output.done == true"}], "on_takeover": "fresh" if fresh else "continue",
        }  # fmt: skip

    def launch(self, tasks: Mapping[str, Any]) -> None:
        file = self._player.bench.file(tasks, budget={"max_cost_usd": 5})
        self._player.play("begin", file=str(file), amend=False)

    def _say(self, request: Request) -> Reply:
        name = _named(request)
        if any(MADE in item.text for item in request.asked.items):
            return Reply((Call("write_file", {"path": f"out/{name}.txt", "text": name}),
                          Call("submit_result", {"outcome": "completed", "output": {"done": True}})))  # fmt: skip
        command = COMMAND.format(name=name, marks=self._place.marks_file)
        return Reply((Call("run_command", {"command": ["sh", "-c", command]}),))

    # -- what came of it

    @property
    def asked(self) -> int:
        """How often the server was asked."""
        return len(self._server.requests)

    @property
    def unstored(self) -> int:
        """Answers that are in no turn, but for those that an overloaded machine has let fail on their way."""
        failed = self._player.rows(select(t.charge.c.id).where(UNSETTLED, t.charge.c.failed.is_not(None)))
        return self.asked - len(self.turns()) - len(failed)

    def calls(self, name: str) -> int:
        """How often the command ran."""
        return len(self._place.marks("called", name))

    def files_lost(self, name: str) -> bool:
        """Whether what the command wrote is in nothing that is accepted; which its model was told, or it is there."""
        (*_, last) = [request.asked.items for request in self._server.requests if _named(request) == name]
        lost = f"out/{name}.made" not in self._player.head_paths()
        assert lost == any(NOT_HERE in item.text for item in last), f"{name}: {'lost' if lost else 'there'}, {last}"
        return lost

    def turns(self) -> Sequence[TurnView]:
        turns: Sequence[TurnView] = self._place.store.turns(self._place.run().row)
        return turns

    def operations(self, name: str, state: str) -> int:
        of_task = t.operation.c.task_id == self._place.one(name).row
        query = select(func.count()).where(of_task, t.operation.c.state == state)
        ((count,),) = self._player.rows(query)
        return int(count)

    def unsettled_charges(self) -> int:
        """Of calls that did not fail."""
        return len(self._player.rows(select(t.charge.c.id).where(UNSETTLED, t.charge.c.failed.is_(None))))

    def answer_for_people(self) -> int:
        """Whoever asks what came of a side effect is told what the world shows; how many asked."""
        asking = [one for one in self._place.store.requests(self._place.run().row) if one.state == "open"]
        for one in asking:
            assert one.kind == "operation", one
            happened = self.calls(one.task_id) > self.operations(one.task_id, "succeeded")
            said = MADE if happened else "nothing was made"
            self._place.store.answer(one.request_id, approved=happened, message=said)
        return len(asking)


def play_model(player: Player, plan: Plan) -> Loss:
    """One task, in which a process dies once; a person says what came of a side effect that nobody saw the end of."""
    models, declared = Models(player, player.fake_model()), plan in EFFECTS
    models.launch({"one": models.task("one", fresh=plan.label.endswith(FRESH), declared=declared)})
    player.work(plan)
    asked, called, unsettled = models.asked, models.calls("one"), models.operations("one", "sent")
    player.work(code=4 if unsettled else 0)
    assert models.answer_for_people() == unsettled
    if unsettled:
        player.work()
    unstored, again = models.unstored, models.calls("one") > 1
    assert unstored in (0, 1), f"{models.asked} answers were paid, {unstored} not stored"
    assert not (declared and again), "a side effect happened twice"
    anew = len({turn.conversation for turn in models.turns()}) > 1
    return Loss.of(
        lost={
            "the claim": not asked,
            "the model's answer": bool(unstored),
            "the conversation": anew,
            "what the turn's calls were answered": again and not anew,
            "what the side effect was answered": bool(unsettled and called),
            "what the side effect wrote into the workspace": models.files_lost("one"),
        },
        repeated={
            "a paid model call": bool(unstored),
            "the conversation": anew,
            "the turn's calls": again,
            "the workspace's making": len(player.rows(select(t.workspace.c.folder))) > 1,
        },
        unknown={"whether the side effect happened": bool(unsettled)},
        left={**player.left(), "an unsettled charge": bool(models.unsettled_charges())},
    )
