"""DBOS through a queue: killed by a child, and, run again, it recovers what was open and takes the rest."""

from __future__ import annotations

import logging
from pathlib import Path

import marks
from dbos import DBOS, DBOSConfig, SetWorkflowID
from meter import Meter

POLL_S = 0.01


@DBOS.step()
def work(name: str) -> int:
    marks.start(name)
    return 1


@DBOS.workflow()
def child(name: str) -> int:
    return work(name)


def main() -> None:
    meter = Meter()
    marks.prepare(meter.arguments)
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": meter.arguments.get("url") or f"sqlite:///{Path(meter.arguments['home']) / 'dbos.db'}",
        "log_level": "ERROR",
    }
    meter.start()
    DBOS(config=config)
    logging.getLogger("dbos").setLevel(logging.ERROR)
    DBOS.launch()
    DBOS.register_queue("bench", worker_concurrency=meter.arguments["slots"], polling_interval_sec=POLL_S)
    handles = []
    for number in range(meter.arguments["count"]):
        with SetWorkflowID(f"t{number}"):
            handles.append(DBOS.enqueue_workflow("bench", child, f"t{number}"))
    accepted = sum(handle.get_result(polling_interval_sec=POLL_S) for handle in handles)
    meter.stop()
    ends = [one.updated_at / 1000 for one in DBOS.list_workflows() if one.updated_at]
    DBOS.destroy()
    began_at: float = meter.arguments["began_at"]
    meter.report(
        accepted=accepted,
        accepted_before=sum(end < began_at for end in ends),
        run_twice=marks.run_twice(),
        first_accepted_at=min(end for end in ends if end >= began_at),
    )


if __name__ == "__main__":
    main()
