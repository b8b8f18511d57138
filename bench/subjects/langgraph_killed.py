"""LangGraph, one thread per child: killed by a child, and, run again, each thread goes on from its last checkpoint."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import TypedDict

import marks
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from meter import Meter


class State(TypedDict):
    name: str
    n: int


def work(state: State) -> State:
    marks.start(state["name"])
    return {"name": state["name"], "n": 1}


def main() -> None:
    meter = Meter()
    marks.prepare(meter.arguments)
    meter.start()
    connection = sqlite3.connect(Path(meter.arguments["home"]) / "langgraph.db", check_same_thread=False)
    saver = SqliteSaver(connection)
    saver.setup()
    builder = StateGraph(State)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    builder.add_edge("work", END)
    graph = builder.compile(checkpointer=saver)
    before, accepted, first_at = 0, 0, None
    for number in range(meter.arguments["count"]):
        name = f"t{number}"
        thread = {"configurable": {"thread_id": name}}
        found = graph.get_state(thread)
        if found.values and not found.next:
            before += 1
            continue
        begun = bool(found.values or found.next)
        done = graph.invoke(None if begun else {"name": name, "n": 0}, thread, durability="sync")
        accepted += int(done["n"])
        first_at = first_at or time.time()
    meter.stop()
    connection.close()
    meter.report(
        accepted=before + accepted,
        accepted_before=before,
        run_twice=marks.run_twice(),
        first_accepted_at=first_at,
    )


if __name__ == "__main__":
    main()
