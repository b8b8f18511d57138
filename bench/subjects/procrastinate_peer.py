"""procrastinate: all jobs deferred in one batch, then worked off by one worker in this process."""

from __future__ import annotations

import asyncio

import procrastinate
from meter import Meter, postgres_bytes

accepted = 0


async def work(number: int) -> int:
    global accepted
    accepted += 1
    return 1


async def play(meter: Meter, app: procrastinate.App, url: str) -> int:
    """Bytes that the database grew by."""
    task = app.task(name="work")(work)
    slots: int = meter.arguments["slots"]
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await task.defer_async(number=-1)
        await app.run_worker_async(wait=False, concurrency=slots, install_signal_handlers=False)
        before = postgres_bytes(url)
        meter.start()
        await task.batch_defer_async(*({"number": number} for number in range(meter.arguments["count"])))
        await app.run_worker_async(wait=False, concurrency=slots, install_signal_handlers=False)
        meter.stop()
        return postgres_bytes(url) - before


def main() -> None:
    meter = Meter()
    url: str = meter.arguments["url"]
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))
    grown = asyncio.run(play(meter, app, url))
    meter.report(accepted=accepted - 1, database_bytes=grown)


if __name__ == "__main__":
    main()
