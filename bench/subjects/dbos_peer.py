"""DBOS, as it comes: a workflow of one step per child, called directly or through a queue."""

from __future__ import annotations

import logging
from pathlib import Path

from dbos import DBOS, DBOSConfig
from meter import Meter, postgres_bytes, sqlite_bytes

POLL_S = 0.01


@DBOS.step()
def work(number: int) -> int:
    return 1


@DBOS.workflow()
def child(number: int) -> int:
    return work(number)


def main() -> None:
    meter = Meter()
    count: int = meter.arguments["count"]
    path = Path(meter.arguments["folder"]) / "dbos.db"
    url = meter.arguments.get("url")
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": url or f"sqlite:///{path}",
        "log_level": "ERROR",
    }
    DBOS(config=config)
    logging.getLogger("dbos").setLevel(logging.ERROR)
    DBOS.launch()
    if meter.arguments["queue"]:
        DBOS.register_queue("bench", polling_interval_sec=POLL_S)
        DBOS.enqueue_workflow("bench", child, -1).get_result(polling_interval_sec=POLL_S)
    else:
        child(-1)
    before = postgres_bytes(url) if url else sqlite_bytes(path)
    meter.start()
    if meter.arguments["queue"]:
        handles = [DBOS.enqueue_workflow("bench", child, number) for number in range(count)]
        accepted = sum(handle.get_result(polling_interval_sec=POLL_S) for handle in handles)
    else:
        accepted = sum(child(number) for number in range(count))
    meter.stop()
    DBOS.destroy()
    after = postgres_bytes(url) if url else sqlite_bytes(path)
    meter.report(accepted=accepted, database_bytes=after - before)


if __name__ == "__main__":
    main()
