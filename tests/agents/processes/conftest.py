"""What the tests of programs share: a cancel signal, programs that misbehave, and a look at what is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.processes import ProcessEnd, ProcessSpec, child_environment, run_process

Run = Callable[..., ProcessEnd]
MakeSpec = Callable[..., ProcessSpec]


class Signal:
    """A cancel signal that is given by the test."""

    reason = "the test says so"

    def __init__(self) -> None:
        self._event = threading.Event()
        self.set = self._event.set
        self.is_set = self._event.is_set

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._event.wait(timeout_s)


def wait_for(what: Callable[[], Any], seconds: float = 15) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
    return found


def alive(tag: str) -> list[int]:
    """Processes with ``tag`` in their arguments."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if tag.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                found.append(int(name))
    return found


@pytest.fixture
def tag(tmp_path: Path) -> Iterator[str]:
    """A word for the arguments of everything that a test starts; nothing that has it may be left."""
    word = f"tag-{os.getpid()}-{time.monotonic_ns()}"
    yield word
    left = alive(word)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert left == []


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir()
    return child_environment(home=tmp_path / "home", tmp=tmp_path / "tmp", extra={}, passed={})


@pytest.fixture
def spec(tmp_path: Path, env: dict[str, str]) -> MakeSpec:
    (tmp_path / "work").mkdir()

    def make(*argv: str, **fields: Any) -> ProcessSpec:
        return ProcessSpec(
            argv=argv, **{"cwd": tmp_path / "work", "env": env, "timeout_s": 60, "grace_s": 0.3, **fields}
        )

    return make


@pytest.fixture
def run(spec: MakeSpec) -> Run:
    return lambda *argv, **fields: asyncio.run(run_process(spec(*argv, **fields), Signal()))


def python(code: str, tag: str = "") -> tuple[str, ...]:
    return (sys.executable, "-c", code, tag)


DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("up", "w").close()
        while True:
            with open("beats", "a") as file: file.write("x")
            time.sleep(0.05)
    os._exit(0)
while not os.path.exists("up"): time.sleep(0.01)
"""


def stands_still(file: Path) -> bool:
    size = file.stat().st_size
    time.sleep(0.25)
    return file.stat().st_size == size
