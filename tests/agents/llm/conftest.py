"""A model child against the fake server, with a journal and a meter in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import stamina

from contracts.assignment import Assignment
from contracts.errors import BudgetExhausted
from contracts.ports import Reserved, Worst
from contracts.results import Result
from contracts.turns import CallRecord, FailedTry, ModelUsage, StoredTurn, ToolAnswer, TurnResponse
from coordinator.runtimes import load_agents

load_agents()
from agents.broker import Broker  # noqa: E402 - found once it is loaded
from agents.llm import ModelRuntime  # noqa: E402
from agents.llm.limiter import Limiter, Limiters  # noqa: E402
from agents.runtimes.rendering import render_assignment  # noqa: E402

if TYPE_CHECKING:
    from tests.model_servers.fake import FakeModelServer

FORMS = [(api, stream) for api in ("messages", "responses", "chat") for stream in (True, False)]
PRICES = {
    "model-x": {
        "input_mtok_usd": 3, "output_mtok_usd": 15, "cached_input_mtok_usd": 0.3, "cache_write_mtok_usd": 3.75,
    }
}  # fmt: skip
UNLIMITED = 2**53 - 1


class MemoryJournal:
    """Implements ``contracts.ports.Journal``."""

    conversation = 1

    def __init__(self, stored: Sequence[StoredTurn] = ()) -> None:
        self.stored: dict[int, StoredTurn] = {turn.number: turn for turn in stored}
        self.steps: list[str] = []

    def turns(self) -> Sequence[StoredTurn]:
        return list(self.stored.values())

    def answered(
        self,
        number: int,
        request_digest: str,
        response: TurnResponse,
        usage: ModelUsage | None,
        cost_micro_usd: int | None,
        tries: Sequence[CallRecord],
    ) -> None:
        assert number not in self.stored, "a stored turn is never paid for again"
        turn = StoredTurn(
            number=number, request_digest=request_digest, response=response, usage=usage,
            cost_micro_usd=cost_micro_usd, tries=list(tries), answers=None,
        )  # fmt: skip
        # What cannot be written to a store is found here.
        self.stored[number] = StoredTurn.model_validate_json(turn.model_dump_json())
        self.steps.append(f"answered {number}")

    def finished(self, number: int, answers: Sequence[ToolAnswer]) -> None:
        self.stored[number] = self.stored[number].model_copy(update={"answers": list(answers)})
        self.steps.append(f"finished {number}")


class MemoryMeter:
    """Implements ``contracts.ports.Meter``: one budget. ``seen`` gives the requests at the server, at each reserve."""

    def __init__(self, micro_usd: int = UNLIMITED, tokens: int = UNLIMITED) -> None:
        self.limit = Worst(micro_usd, tokens)
        self.open: dict[int, Worst] = {}
        self.settled: list[tuple[Worst, Worst]] = []
        self.tried: list[FailedTry] = []
        self.requests_seen: Callable[[], int] = lambda: 0
        self.reserved_before: list[int] = []
        self._spent = Worst(0, 0)
        self._lock = threading.Lock()

    def reserve(self, worst: Worst) -> Reserved:
        with self._lock:
            left = self.left()
            if worst.micro_usd > left.micro_usd or worst.tokens > left.tokens:
                raise BudgetExhausted("the budget of the task one does not hold the next call")
            self.reserved_before.append(self.requests_seen())
            number = len(self.reserved_before)
            self.open[number] = worst
            return Reserved(number)

    def settle(self, reserved: Reserved, spent: Worst) -> None:
        with self._lock:
            self.settled.append((self.open.pop(reserved.number), spent))
            self._spent = Worst(self._spent.micro_usd + spent.micro_usd, self._spent.tokens + spent.tokens)

    def failed(self, reserved: Reserved, tried: FailedTry) -> None:
        self.tried.append(tried)
        if tried.record.billed == "no":
            self.settle(reserved, Worst(0, 0))

    @property
    def charged(self) -> Worst:
        charges = [self._spent, *self.open.values()]
        return Worst(sum(one.micro_usd for one in charges), sum(one.tokens for one in charges))

    def left(self) -> Worst:
        charged = self.charged
        return Worst(self.limit.micro_usd - charged.micro_usd, self.limit.tokens - charged.tokens)


class Hurried:
    """A clock for waiting: it runs as fast as nothing else is done."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waits_s: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.waits_s.append(seconds)
        self.now_s += seconds
        await asyncio.sleep(0)

    def limiter(self) -> Limiter:
        return Limiter(monotonic=lambda: self.now_s, sleep=self.sleep)


@dataclass
class Played:
    """A model child that has ended."""

    result: Result
    assignment: Assignment
    broker: Broker
    journal: MemoryJournal
    meter: MemoryMeter
    runtime: ModelRuntime

    def calls(self) -> list[str]:
        return [call.tool for call in self.broker.calls()]


@dataclass
class Stage:
    """``stage.play(api, stream, …)`` runs a child; ``stage.start(…)`` is the coroutine of one."""

    server: FakeModelServer
    make_broker: Callable[..., Broker]
    make_assignment: Callable[..., Assignment]
    folder: Path
    """Where pinned files lie under their names."""
    files: dict[str, bytes] = field(default_factory=lambda: {"a.txt": b"alpha\n", "b.txt": b"beta\n"})
    clock: Hurried = field(default_factory=Hurried)
    limiters: Limiters = field(init=False)

    def __post_init__(self) -> None:
        self.limiters = Limiters(self.clock.limiter)

    def runtime(self, api: str, stream: bool, **spec: Any) -> ModelRuntime:
        from contracts.terms import AnthropicSpec, OpenAISpec

        common = {"model": "model-x", "stream": stream, "api_key_env": None, "timeout_s": 20, **spec}
        if api == "messages":
            of_anthropic = AnthropicSpec(**{"base_url": self.server.url, **common})
            return ModelRuntime(
                of_anthropic, "anthropic", "key-1", render_assignment, self.folder.joinpath, self.limiters
            )
        model = OpenAISpec(**{"base_url": self.server.openai_url, "api": api, **common})
        return ModelRuntime(model, "openai", "key-1", render_assignment, self.folder.joinpath, self.limiters)

    def assignment(
        self,
        *,
        journal: MemoryJournal | None = None,
        meter: MemoryMeter | None = None,
        budget: Mapping[str, Any] | None = None,
        tools: Sequence[str] = ("read_file", "list_files", "write_file"),
        **fields: Any,
    ) -> Assignment:
        workspace = fields.pop("workspace", True)
        broker = fields.pop("broker", None) or self.make_broker(*tools, base=self.files, workspace=workspace)
        terms = {
            "budget": dict(budget or {}), "resources": {"tools": list(tools)}, "prices": PRICES,
            **fields.pop("terms", {}),
        }  # fmt: skip
        meter = meter or MemoryMeter()
        meter.requests_seen = lambda: len(self.server.requests)
        return self.make_assignment(
            terms=terms, broker=broker, journal=journal or MemoryJournal(), meter=meter,
            deadline_at=fields.pop("deadline_at", datetime.now(UTC) + timedelta(hours=1)), **fields,
        )  # fmt: skip

    async def start(self, runtime: ModelRuntime, assignment: Assignment) -> Played:
        result = await runtime.run(assignment)
        broker, journal, meter = assignment.tools, assignment.journal, assignment.meter
        assert isinstance(broker, Broker)
        assert isinstance(journal, MemoryJournal)
        assert isinstance(meter, MemoryMeter)
        return Played(result, assignment, broker, journal, meter, runtime)

    def play(
        self, api: str = "messages", stream: bool = True, *, spec: Mapping[str, Any] | None = None, **fields: Any
    ) -> Played:
        return asyncio.run(self.start(self.runtime(api, stream, **(spec or {})), self.assignment(**fields)))


@pytest.fixture
def stage(
    fake_model: FakeModelServer,
    make_broker: Callable[..., Broker],
    make_assignment: Callable[..., Assignment],
    tmp_path: Path,
) -> Stage:
    return Stage(fake_model, make_broker, make_assignment, tmp_path)


@pytest.fixture(params=FORMS, ids=lambda form: f"{form[0]}-{'streamed' if form[1] else 'plain'}")
def form(request: pytest.FixtureRequest) -> tuple[str, bool]:
    """Each API, streamed and plain."""
    api, stream = request.param
    return api, stream


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    """As many tries as else, without the waits between them."""
    testing: AbstractContextManager[None] = stamina.set_testing(True, attempts=6)
    with testing:
        yield
