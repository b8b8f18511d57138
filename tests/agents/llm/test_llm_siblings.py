"""Several model children at once: each has its own conversation, all share one budget."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from contracts.states import Outcome
from tests.agents.llm.conftest import MemoryMeter, Played
from tests.model_servers.script import Call, Reply, Usage

if TYPE_CHECKING:
    from tests.agents.llm.conftest import Stage
    from tests.model_servers.fake import Request


def test_ten_children_at_once_each_hand_in_their_own_result(stage: Stage) -> None:
    def answer(request: Request) -> Reply:
        found = re.search(r"Return the number (\d+)\.", request.asked.text)
        assert found is not None
        number = int(found[1])
        if request.asked.turns == 0:
            return Reply((Call("read_file", {"path": f"{number}.txt"}, id="same"),))
        [text] = request.asked.results.values()
        return Reply((Call("submit_result", {"outcome": "completed", "output": [number, text]}, id="same"),))

    stage.files = {f"{number}.txt": f"text {number}".encode() for number in range(10)}
    stage.server.choose(answer)

    async def all_of_them() -> list[Played]:
        return await asyncio.gather(
            *(
                stage.start(
                    stage.runtime(api, number % 2 == 0),
                    stage.assignment(objective=f"Return the number {number}.", workspace=False),
                )
                for number, api in zip(range(10), ["messages", "responses", "chat"] * 4, strict=False)
            )
        )

    played = asyncio.run(all_of_them())
    assert [one.result.output for one in played] == [[number, f"text {number}"] for number in range(10)]


def test_siblings_never_spend_more_than_they_share_however_many_they_are(stage: Stage) -> None:
    stage.server.choose(lambda request: Reply((Call("list_files", {}),), usage=Usage(input=6_000, output=500)))
    meter = MemoryMeter(tokens=60_000)

    async def all_of_them() -> list[Played]:
        return await asyncio.gather(
            *(
                stage.start(stage.runtime("messages", True), stage.assignment(meter=meter, workspace=False))
                for _ in range(8)
            )
        )

    played = asyncio.run(all_of_them())
    assert {one.result.outcome for one in played} == {Outcome.PARTIAL}
    assert 0 < meter.charged.tokens <= 60_000
    assert len(stage.server.requests) == len(meter.reserved_before) > 1
