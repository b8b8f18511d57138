"""LangGraph with its SQLite checkpointer: one thread per child, sync durability, a graph of one node."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from meter import Meter, sqlite_bytes


class State(TypedDict):
    n: int


def work(state: State) -> State:
    return {"n": 1}


def main() -> None:
    meter = Meter()
    path = Path(meter.arguments["folder"]) / "langgraph.db"
    connection = sqlite3.connect(path, check_same_thread=False)
    saver = SqliteSaver(connection)
    saver.setup()
    builder = StateGraph(State)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    builder.add_edge("work", END)
    graph = builder.compile(checkpointer=saver)

    def child(name: str) -> int:
        done = graph.invoke({"n": 0}, {"configurable": {"thread_id": name}}, durability="sync")
        return int(done["n"])

    child("warm-up")
    before = sqlite_bytes(path)
    meter.start()
    accepted = sum(child(f"t{number}") for number in range(meter.arguments["count"]))
    meter.stop()
    connection.close()
    meter.report(accepted=accepted, database_bytes=sqlite_bytes(path) - before)


if __name__ == "__main__":
    main()
