"""Function children of the scenarios. They leave marks in the folder that the input ``marks`` names."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path
from typing import Any

from contracts.tools import ToolUse
from coordinator import Assignment, Result

WATCHDOG_S = 60.0


def mark(a: Assignment, word: str) -> None:
    """One whole line: task, attempt, generation, process, word."""
    line = f"{a.task_id} {a.attempt} {a.generation} {os.getpid()} {word}\n"
    handle = os.open(Path(a.inputs["marks"]) / "marks.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, line.encode())
    os.close(handle)


def may_go(a: Assignment, name: str = "go") -> bool:
    return (Path(a.inputs["marks"]) / name).exists()


def quick(a: Assignment) -> Result:
    mark(a, "start")
    return a.completed({"attempt": a.attempt, "task": a.task_id})


def naps(a: Assignment) -> Result:
    mark(a, "start")
    time.sleep(0.1)
    return a.completed({"task": a.task_id})


def waits(a: Assignment) -> Result:
    """Works until it may go, and reaches a safe point when it is told to stop."""
    mark(a, "start")
    until = time.monotonic() + WATCHDOG_S
    while not may_go(a) and time.monotonic() < until:
        if a.cancel.wait(0.02):
            mark(a, f"stopped:{a.cancel.reason.split(':')[0]}")
            return a.cancelled()
    mark(a, "end")
    return a.completed({"attempt": a.attempt})


def waits_for_end(a: Assignment) -> Result:
    """Keeps a worker there until the test is over."""
    while not may_go(a, "end") and not a.cancel.wait(0.02):
        pass
    return a.completed({})


async def waits_async(a: Assignment) -> Result:
    mark(a, "start")
    try:
        until = time.monotonic() + WATCHDOG_S
        while not may_go(a) and time.monotonic() < until:  # noqa: ASYNC110 - another process says when
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        mark(a, "cancelled")
        raise
    mark(a, "end")
    return a.completed({"attempt": a.attempt})


def deaf(a: Assignment) -> Result:
    """Does not look at the signal; the first attempt alone waits."""
    mark(a, "start")
    until = time.monotonic() + WATCHDOG_S
    while a.attempt == 1 and not may_go(a) and time.monotonic() < until:
        time.sleep(0.02)
    mark(a, "end")
    return a.completed({"attempt": a.attempt})


def deaf_always(a: Assignment) -> Result:
    mark(a, "start")
    until = time.monotonic() + WATCHDOG_S
    while not may_go(a) and time.monotonic() < until:
        time.sleep(0.02)
    mark(a, "end")
    return a.completed({"attempt": a.attempt})


async def blocks_the_loop(a: Assignment) -> Result:
    mark(a, "start")
    time.sleep(3)  # noqa: ASYNC251 - that is the fault
    mark(a, "end")
    return a.completed({})


def blocks_its_thread(a: Assignment) -> Result:
    mark(a, "start")
    time.sleep(3)
    mark(a, "end")
    return a.completed({})


def kills_its_worker(a: Assignment) -> Result:
    mark(a, "start")
    os._exit(137)


def forks(a: Assignment) -> Result:
    """Leaves a process of its own behind, which holds what a fork inherits."""
    mark(a, "start")
    if a.attempt > 1:
        return a.completed({})
    pid = os.fork()
    if pid == 0:
        until = time.monotonic() + WATCHDOG_S
        while not may_go(a, "grandchild-may-go") and time.monotonic() < until:
            time.sleep(0.02)
        os._exit(0)
    (Path(a.inputs["marks"]) / "grandchild").write_text(str(pid))
    mark(a, "forked")
    while True:
        time.sleep(0.05)


def reads(a: Assignment) -> Result:
    mark(a, "start")
    return a.completed({"files": a.tools.list_files(), "text": a.tools.read_file("readme.md")})


def reads_needed(a: Assignment) -> Result:
    mark(a, "start")
    return a.completed({need: result.output for need, result in a.needs.items()})


def sees(a: Assignment) -> Result:
    one = a.needs["one"]
    return a.completed(
        {
            "one": {"output": one.output, "digest": one.manifest_digest},
            "left_out": list(a.left_out),
            "binding": {
                "child": a.contract["child_run_id"] == a.child_run_id,
                "generation": a.generation,
            },
        }
    )


def repairs(a: Assignment) -> Result:
    """Mends exactly what the feedback names."""
    mark(a, "start")
    if a.feedback is None:
        return a.completed({"files": 0})
    mark(a, "feedback:" + "|".join(f.check for f in a.feedback.findings).replace(" ", "_"))
    return a.completed({"files": 3, "said": str(a.feedback), "of": a.feedback.attempt})


def never_mends(a: Assignment) -> Result:
    mark(a, "start")
    return a.completed({"files": -1})


def mends_in_vain(a: Assignment) -> Result:
    mark(a, "start")
    return a.completed({"files": -a.attempt})


def asks(a: Assignment) -> Result:
    mark(a, "start")
    if not a.answers:
        return a.blocked("Which colour?")
    question, answer = a.answers[-1]
    return a.completed({"question": question, "approved": answer.approved, "message": answer.message})


def returns_none(a: Assignment) -> Result:
    return None  # type: ignore[return-value]


def returns_text(a: Assignment) -> Result:
    return "all done, tests pass"  # type: ignore[return-value]


def raises(a: Assignment) -> Result:
    raise RuntimeError("the pump is broken")


def exits(a: Assignment) -> Result:
    raise SystemExit(3)


async def exits_async(a: Assignment) -> Result:
    raise SystemExit(3)


def stops_iterating(a: Assignment) -> Result:
    raise StopIteration("nothing left")


def returns_nan(a: Assignment) -> Result:
    return a.completed({"rate": float("nan")})


def names_a_missing_artifact(a: Assignment) -> Result:
    result = a.completed({})
    entry = {"name": "report.csv", "digest": "sha256:" + "0" * 64, "size_bytes": 10, "media_type": "text/csv"}
    return Result.model_validate({**result.model_dump(mode="json"), "artifacts": [entry]})


def says_failed(a: Assignment) -> Result:
    return a.failed("the source has no tests")


def leaks(a: Assignment) -> Result:
    """Puts what it finds in its environment wherever it can."""
    secret = os.environ["CANARY_TOKEN"]
    if a.attempt == 1:
        raise RuntimeError(f"cannot log in with {'x' * 950} {secret}")
    a.note("how", f"with {secret}")
    a.evidence("raw", "note", data={"env": dict(os.environ), secret: secret})
    a.artifact("dump.txt", f"token={secret}\n" * 3000)
    a.artifact("small.txt", f"token={secret}\n")
    a.artifact(f"name-{secret}", "x")
    a.gap(f"could not hide {secret}")
    a.assume(f"{secret} is fine")
    if a.attempt == 2:
        return a.blocked(f"may I use {secret}?")
    if a.attempt == 3:
        return a.failed(f"failed with {secret}")
    return a.completed({"env": secret, "nested": [{secret: secret}]}, message=f"used {secret}", next_action=secret)


def hands_in_too_much(a: Assignment) -> Result:
    a.artifact("large.bin", os.urandom(8_000_000))
    return a.completed({})


def cites_unread(a: Assignment) -> Result:
    """Cites what it never read; told what is missing, it reads."""
    mark(a, "start")
    if a.feedback is not None:
        mark(a, "told")
        a.tools.read_file("readme.md")
    a.cite("the greeting", "readme.md", 1, text="hello")
    return a.completed({"told": str(a.feedback) if a.feedback else None})


def cites_what_it_searched(a: Assignment) -> Result:
    for found in a.tools.search_code("hello"):
        a.cite("the greeting", found["path"], found["line"])
    return a.completed({})


def cites_what_it_read(a: Assignment) -> Result:
    a.tools.read_file("readme.md")
    a.cite("the greeting", "readme.md", 1)
    return a.completed({})


def forges(a: Assignment) -> Result:
    """Tries every way to have read what it was not given."""
    broker: Any = a.tools
    refused = []
    for path in ("secret.txt", "../secret.txt", "/etc/passwd"):
        try:
            a.tools.read_file(path)
        except Exception as error:
            refused.append(type(error).__name__)
    with contextlib.suppress(Exception):
        broker._content("secret.txt")
    assert broker._base.read_bytes("secret.txt") == b"hello from outside\n"
    broker.read_set()["secret.txt"] = "sha256:" + "0" * 64
    a.cite("the greeting", "secret.txt", 1, text="I did read it")
    a.evidence("file", "file", path="secret.txt", digest="sha256:" + "0" * 64)
    with contextlib.suppress(Exception):
        a.evidence("origin", "note", origin="verified", seen_in_calls=[1])
    return a.completed({"refused": refused})


def hands_over(a: Assignment) -> Result:
    a.artifact("report.md", "# Report\n" + "x" * 100_000)
    return a.completed({})


def reads_artifact(a: Assignment) -> Result:
    return a.completed({"length": len(a.read_needed("one", "report.md"))})


def reads_tree(a: Assignment) -> Result:
    return a.completed(sorted(a.tools.list_files()))


def writes_by_tools(a: Assignment) -> Result:
    a.tools.write_file("by-function.txt", "by the function\n")
    return a.completed({"diff": a.tools.git_diff(), "saw": a.tools.read_file("by-program.txt")})


def plays(view: Any) -> Any:
    """Plays a model: writes a file, and hands in what it was told."""
    wrote = yield ToolUse("write_file", {"path": "by-script.txt", "text": "by the script\n"})
    diff = yield ToolUse("git_diff", {})
    yield ToolUse(
        "submit_result",
        {
            "outcome": "completed",
            "output": {"shown": view.assignment_text, "ok": not (wrote.is_error or diff.is_error)},
        },
    )


def sees_all(a: Assignment) -> Result:
    shown = {
        name: {"output": need.output, "digest": need.manifest_digest, "gaps": list(need.gaps)}
        for name, need in a.needs.items()
    }
    return a.completed({**shown, "left_out": list(a.left_out)})


def tells_what_it_was_shown(view: Any) -> Any:
    yield ToolUse("submit_result", {"outcome": "completed", "output": view.assignment_text})


def writes_on(a: Assignment) -> Result:
    """Its first attempt cannot be stopped, and goes on writing while the second works."""
    until = time.monotonic() + WATCHDOG_S
    while a.attempt == 1 and not may_go(a) and time.monotonic() < until:
        with contextlib.suppress(Exception):
            a.tools.write_file("by.txt", f"attempt {a.attempt}")
        if may_go(a, "second-done"):
            break
        time.sleep(0.01)
    a.tools.write_file("by.txt", f"attempt {a.attempt}")
    (Path(a.inputs["marks"]) / "second-done").touch()
    return a.completed({"attempt": a.attempt})


def hands_in_much(a: Assignment) -> Result:
    """A result that fits into no page that is there already."""
    mark(a, "start")
    until = time.monotonic() + WATCHDOG_S
    while not may_go(a) and time.monotonic() < until:
        time.sleep(0.02)
    return a.completed({"noise": os.urandom(150_000).hex()})
