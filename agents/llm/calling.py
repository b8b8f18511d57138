"""One question to the model: charged before it is asked, settled after, tried again where that can help."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from agents.llm.adapter import Adapter
from agents.llm.conversation import ModelRequest
from agents.llm.failures import CallFailed
from agents.llm.limiter import PATIENCE_S, Limiter, Permit
from agents.llm.retrying import with_retries
from agents.llm.threads import in_thread
from agents.metering import price_of, worst_of, worst_tokens
from contracts.canonical import digest_of, well_formed
from contracts.errors import StoreUnavailable
from contracts.ports import Meter, Reserved, Worst
from contracts.prices import Price
from contracts.steps import reached
from contracts.terms import ModelSpec
from contracts.turns import CallRecord, FailedTry, ModelUsage, TurnResponse

__all__ = ["Caller", "Prepared", "Reply"]

NOTHING = Worst(0, 0)
_BROKEN_OFF = CallFailed("stopped", "its child was stopped before the answer came")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request with its digest and the most that it can cost."""

    request: ModelRequest
    digest: str
    worst: Worst


@dataclass(frozen=True, slots=True)
class Reply:
    """The model's answer. ``spent``: what was settled; the worst case where usage is unknown."""

    response: TurnResponse
    usage: ModelUsage | None
    cost_micro_usd: int | None
    spent: Worst
    tries: list[CallRecord]


class Caller:
    """Asks one model on behalf of one attempt."""

    def __init__(
        self,
        adapter: Adapter,
        spec: ModelSpec,
        provider: str,
        prices: Mapping[str, Price],
        meter: Meter,
        limiter: Limiter,
        where: tuple[str, int],
        stopped: Callable[[], bool],
    ) -> None:
        """``limiter``: of the account that is asked. ``where``: task and attempt. ``stopped``: whether to wait no
        more."""
        self._adapter = adapter
        self._spec = spec
        self._provider = provider
        self._prices = prices
        self._meter = meter
        self._limiter = limiter
        self._where = where
        self._stopped = stopped

    def price(self, input_tokens: int = 0) -> Price | None:
        spec = self._spec
        return price_of(self._provider, spec.model, self._prices, base_url=spec.base_url, input_tokens=input_tokens)

    def prepare(self, request: ModelRequest) -> Prepared:
        """Blocks for a while where the conversation is long. Raises ``LookupError`` for a model without a price."""
        document = {
            "provider": self._provider,
            "model": self._spec.model,
            "max_output_tokens": self._spec.max_output_tokens,
            "temperature": self._spec.temperature,
            **request.document(),
        }
        size = len(well_formed(json.dumps(document, ensure_ascii=False)).encode())
        price = self.price(worst_tokens(size))
        if price is None:
            raise LookupError(f"no price is known for the model {self._spec.model}")
        return Prepared(request, digest_of(document), worst_of(size, self._spec.max_output_tokens, price))

    async def ask(
        self, prepared: Prepared, time_left_s: Callable[[], float], tries: list[CallRecord], turn: int
    ) -> Reply:
        """Every try is added to ``tries``, and one without an answer is recorded at once as one of this turn. Raises
        ``CallFailed``, and what the meter raises."""
        ended_s = time.monotonic()  # of the try before, as far as there was one
        patience_s = PATIENCE_S

        async def attempt(_number: int) -> Reply:
            """Refusals for overload are none of the few tries: the limiter says when to ask again, and when no more."""
            nonlocal ended_s, patience_s
            while True:
                permit = await self._limiter.wait(time_left_s, patience_s, self._stopped)
                patience_s -= permit.waited_s
                waited_s = time.monotonic() - ended_s if tries else permit.waited_s
                try:
                    return await self._try(prepared, time_left_s, tries, turn, permit, waited_s)
                except CallFailed as failed:
                    ended_s = time.monotonic()
                    if not failed.overload:
                        raise
                    self._limiter.refused(permit, failed)

        return await with_retries(attempt, time_left_s)

    async def _try(
        self,
        prepared: Prepared,
        time_left_s: Callable[[], float],
        tries: list[CallRecord],
        turn: int,
        permit: Permit,
        waited_s: float,
    ) -> Reply:
        timeout_s = min(self._spec.timeout_s, time_left_s())
        if timeout_s <= 0:
            raise CallFailed("out_of_time", "no time is left for a call", billed="no")
        reserved = await self._reserve(prepared.worst)
        reached("model_charged", *self._where)
        started_at, started_s = datetime.now(UTC).isoformat(), time.monotonic()

        def record(outcome: str, failed: CallFailed | None) -> CallRecord:
            made = CallRecord(
                number=len(tries) + 1,
                started_at=started_at,
                elapsed_s=round(time.monotonic() - started_s, 3),
                outcome=outcome,
                status=failed.status if failed else None,
                billed=failed.billed if failed else "yes",
                waited_s=round(waited_s, 3),
                said=failed.message if failed else "",
            )
            tries.append(made)
            return made

        try:
            async with asyncio.timeout(timeout_s):
                response, usage = await self._adapter.ask(prepared.request, timeout_s)
        except (TimeoutError, CallFailed) as error:
            failed = _failure(error, timeout_s)
            tried = FailedTry(turn=turn, record=record(failed.word, failed))
            await in_thread(lambda: self._meter.failed(reserved, tried))
            raise failed from None
        except asyncio.CancelledError:
            broken_off = FailedTry(turn=turn, record=record("stopped", _BROKEN_OFF))
            with contextlib.suppress(StoreUnavailable):
                await in_thread(lambda: self._meter.failed(reserved, broken_off))
            raise
        self._limiter.answered(permit)
        reached("model_answered", *self._where)
        record("answered", None)
        if usage is None:
            return Reply(response, None, None, prepared.worst, tries)
        price = self.price(usage.input_tokens)
        cost_micro_usd = price.cost_micro_usd(usage) if price else prepared.worst.micro_usd
        spent = Worst(cost_micro_usd, usage.total_tokens)  # beyond the worst case it is an overrun, and shown as one
        await self._settle(reserved, spent)
        if usage.output_tokens >= self._spec.max_output_tokens and response.stop in ("calls", "end", "other"):
            response = response.model_copy(update={"stop": "length"})  # servers that do not say so
        return Reply(response, usage, cost_micro_usd, spent, tries)

    async def _reserve(self, worst: Worst) -> Reserved:
        made: list[Reserved] = []
        try:
            await in_thread(lambda: made.append(self._meter.reserve(worst)))
        except asyncio.CancelledError:
            if made:  # nothing was sent
                await self._settle(made[0], NOTHING)
            raise
        return made[0]

    async def _settle(self, reserved: Reserved, spent: Worst) -> None:
        await in_thread(lambda: self._meter.settle(reserved, spent))


def _failure(error: TimeoutError | CallFailed, timeout_s: float) -> CallFailed:
    if isinstance(error, CallFailed):
        return error
    return CallFailed("timeout", f"no whole answer within {timeout_s:g} s", retryable=True)
