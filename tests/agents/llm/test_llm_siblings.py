"""Several model children at once: each has its own conversation, all share one budget."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING

import pytest

from agents.llm.limiter import Limiter, Limiters
from contracts.states import Outcome
from tests.agents.llm.conftest import MemoryMeter, Played
from tests.model_servers.script import Call, Failure, Reply, Usage

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


HURRY = 4
"""How many seconds of the limiter's pass in one."""


async def hurried_sleep(seconds: float) -> None:
    await asyncio.sleep(seconds / HURRY)


def hurried() -> Limiter:
    return Limiter(monotonic=lambda: time.monotonic() * HURRY, sleep=hurried_sleep)


def announce(form: str) -> str:
    if form == "date":
        return format_datetime(datetime.now(UTC) + timedelta(seconds=5), usegmt=True)
    return {"seconds": "4", "text": "soon", "negative": "-5", "hour": "3600"}[form]


@pytest.mark.parametrize(
    ("form", "least_s"),
    [
        ("seconds", 4.0), pytest.param("date", 3.5, marks=pytest.mark.slow),
        pytest.param("text", 2.0, marks=pytest.mark.slow), pytest.param("negative", 2.0, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_ten_children_of_an_overloaded_provider_wait_as_told_and_come_back_out_of_step(
    stage: Stage, form: str, least_s: float
) -> None:
    came_s: dict[str, list[float]] = defaultdict(list)
    refused_s: list[float] = []
    stage.limiters = Limiters(hurried)

    def answer(request: Request) -> Reply | Failure:
        now_s = time.monotonic() * HURRY
        found = re.search(r"Be child (\d+)\.", request.asked.text)
        assert found is not None
        came_s[found[1]].append(now_s)
        if refused_s and now_s - refused_s[0] >= least_s:
            return Reply((Call("submit_result", {"outcome": "completed"}),))
        refused_s.append(now_s)
        return Failure(429, headers={"retry-after": announce(form)})

    stage.server.choose(answer)

    async def all_of_them() -> list[Played]:
        return await asyncio.gather(
            *(
                stage.start(
                    stage.runtime(["responses", "chat"][number % 2], False),
                    stage.assignment(objective=f"Be child {number}.", workspace=False),
                )
                for number in range(10)
            )
        )

    played = asyncio.run(all_of_them())
    assert {one.result.outcome for one in played} == {Outcome.COMPLETED}
    assert sorted(came_s) == sorted(str(number) for number in range(10))
    again_s = sorted(times[-1] for times in came_s.values())
    # The one that was told it, and those that were not and had not asked yet.
    assert again_s[0] - refused_s[0] >= least_s
    if form in ("seconds", "date"):  # announced to each of them
        assert all(after - told >= least_s for times in came_s.values() for told, after in itertools.pairwise(times))
    assert len(set(again_s)) == 10
    assert again_s[-1] - again_s[0] > 0.2


def test_nobody_waits_for_an_hour(stage: Stage) -> None:
    stage.limiters = Limiters(hurried)
    stage.server.choose(lambda request: Failure(429, headers={"retry-after": announce("hour")}))

    async def one_after_another() -> list[Played]:
        return [await stage.start(stage.runtime("chat", False), stage.assignment(workspace=False)) for _ in range(3)]

    played = asyncio.run(one_after_another())
    assert {one.result.outcome for one in played} == {Outcome.FAILED}
    assert all(one.result.message.startswith("provider unavailable: rate limited (HTTP 429)") for one in played)
    assert len(stage.server.requests) == 1  # the others know it already
