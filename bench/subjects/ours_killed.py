"""A fan-out whose process is killed by one of its own children, and, run again, goes on to the end."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import marks
from meter import Meter

from coordinator import Assignment, Coordinator, Orchestration, Result, Task


def marked(a: Assignment) -> Result:
    marks.start(a.task_id)
    return a.completed({"n": 1})


def main() -> None:
    meter = Meter()
    marks.prepare(meter.arguments)
    folder = Path(meter.arguments["home"])
    store = meter.arguments.get("url", f"sqlite:///{folder / 'store.db'}")
    began_at = datetime.fromtimestamp(meter.arguments["began_at"], UTC)
    meter.start()
    task = Task(objective="Nothing.", agent=marked, isolation="none", acceptance=[{"cel": "output.n == 1"}])
    tasks = {f"t{number}": task for number in range(meter.arguments["count"])}
    with Coordinator(store, home=folder / "home", workers=meter.arguments["slots"]) as coordinator:
        result = coordinator.run(Orchestration(name="killed", objective="Fan out.", tasks=tasks))
        meter.stop()
        events = coordinator.store.events(coordinator.store.find_run("killed"))
    accepted = [event for event in events if event.verb == "accepted"]
    first = min((event.at for event in accepted if event.at >= began_at), default=None)
    meter.report(
        accepted=sum(one.outcome == "accepted" for one in result.tasks.values()),
        accepted_before=sum(event.at < began_at for event in accepted),
        accepted_twice=sum(times > 1 for times in Counter(event.task_id for event in accepted).values()),
        run_twice=marks.run_twice(),
        first_accepted_at=first.timestamp() if first else None,
    )


if __name__ == "__main__":
    main()
