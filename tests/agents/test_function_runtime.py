"""Function children: found by what the contract pinned, and only a result is a result."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from contracts.assignment import Assignment
from contracts.canonical import sha256_digest
from contracts.results import Result
from contracts.states import Outcome
from contracts.terms import AgentSpec
from coordinator.runtimes import load_agents

load_agents()
from agents.runtimes import NoResult, SourceChanged, build_runtime  # noqa: E402 - found once it is loaded

Run = Callable[[str, str], Any]
NOWHERE: Any = None
"""Functions need no place."""


def assignment() -> Assignment:
    unused: Any = None
    return Assignment(
        run_id="run", task_id="one", child_run_id="child-1", attempt=1, generation=1, contract={}, objective="x",
        inputs={}, needs={}, feedback=None, answers=(), left_out=(), deadline_at=unused, tools=unused,
        cancel=unused, artifacts=unused,
    )  # fmt: skip


def pinned(folder: Path, source: str, name: str = "child") -> Any:
    """A runtime for a function in a pinned file."""
    file = folder / "pinned.py"
    file.write_text(source)
    pins = {"work.py": sha256_digest(source.encode())}
    return build_runtime(AgentSpec(function=f"work.py:{name}"), pins=pins, pinned_file=lambda _: file, place=NOWHERE)


def run(runtime: Any) -> Result:
    result: Result = runtime.run(assignment())
    return asyncio.run(result) if isinstance(result, Coroutine) else result


def test_a_sync_function_runs_where_it_is_called_and_cannot_be_stopped(tmp_path: Path) -> None:
    source = "import threading\ndef child(a):\n    return a.completed(threading.current_thread().name)\n"
    runtime = pinned(tmp_path, source)
    assert runtime.run(assignment()).output == threading.current_thread().name
    assert not runtime.stoppable


def test_an_async_function_is_left_to_the_loop_and_can_be_stopped(tmp_path: Path) -> None:
    source = "import asyncio\nasync def child(a):\n    return a.completed(asyncio.get_running_loop().is_running())\n"
    runtime = pinned(tmp_path, source)
    assert run(runtime).output is True
    assert runtime.stoppable


@pytest.mark.parametrize("prefix", ["", "async "])
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("pass", "returned nothing"),
        ("return 'done'", "returned a str"),
        ("return {'outcome': 'completed'}", "returned a dict"),
        ("return a.completed", "returned a method"),
        ("raise SystemExit(0)", "raised SystemExit: 0"),
        ("return a.completed(float('nan'))", "not a JSON number"),
        ("return a.completed({1: 2})", "is not a string"),
        ("return a.completed(2**60)", "beyond"),
        ("return a.completed('\\ud800')", "half a surrogate pair"),
    ],
)
def test_what_is_no_result_is_named(tmp_path: Path, prefix: str, body: str, says: str) -> None:
    runtime = pinned(tmp_path, f"{prefix}def child(a):\n    {body}\n# {prefix}{body!r}\n")
    with pytest.raises(Exception, match=says):
        run(runtime)


@pytest.mark.parametrize(
    "error", ["StopIteration('x')", "StopAsyncIteration('x')", "GeneratorExit()", "KeyboardInterrupt()"]
)
def test_an_error_that_no_future_can_carry_ends_the_child_and_nothing_else(tmp_path: Path, error: str) -> None:
    runtime = pinned(tmp_path, f"def child(a):\n    raise {error}\n")
    with pytest.raises((NoResult, StopAsyncIteration)):
        run(runtime)


def test_an_error_of_the_child_comes_through_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run(pinned(tmp_path, "def child(a):\n    1 / 0\n"))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def other(a): ...", "cannot load work.py:child: AttributeError"),
        ("child = 3", "work.py:child is not a function"),
        ("raise RuntimeError('no luck')", "cannot load work.py:child: RuntimeError: no luck"),
        ("import sys; sys.exit(4)", "cannot load work.py:child: SystemExit: 4"),
        ("def child(a:", "cannot load work.py:child: SyntaxError"),
    ],
)
def test_a_function_that_cannot_be_loaded_is_named(tmp_path: Path, source: str, says: str) -> None:
    with pytest.raises(NoResult, match=says):
        run(pinned(tmp_path, source))


def test_the_bytes_that_run_are_the_pinned_ones_also_when_the_same_name_was_loaded_before(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = pinned(tmp_path / "a", "def child(a):\n    return a.completed('first')\n")
    second = pinned(tmp_path / "b", "def child(a):\n    return a.completed('second')\n")
    assert run(first).output == "first"
    assert run(second).output == "second"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    name = f"module_of_{request.node.name}"
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / f"{name}.py"  # type: ignore[misc]
    sys.modules.pop(name, None)


def imported(file: Path, digest: str) -> Any:
    spec = AgentSpec(function=f"{file.stem}:child")
    return build_runtime(spec, pins={file.stem: digest}, pinned_file=lambda name: Path(name), place=NOWHERE)


def test_a_module_runs_if_its_source_is_the_pinned_one(module: Path) -> None:
    module.write_text("def child(a):\n    return a.completed('module')\n")
    assert run(imported(module, sha256_digest(module.read_bytes()))).output == "module"


def test_a_module_that_changed_is_refused_with_both_digests(module: Path) -> None:
    module.write_text("def child(a):\n    return a.completed('module')\n")
    pin = sha256_digest(b"something else")
    with pytest.raises(SourceChanged, match="changed since the contract was issued") as refused:
        run(imported(module, pin))
    assert pin in str(refused.value)
    assert sha256_digest(module.read_bytes()) in str(refused.value)


def test_older_code_that_this_process_imported_does_not_run_under_a_newer_pin(module: Path) -> None:
    module.write_text("def child(a):\n    return a.completed('old')\n")
    assert run(imported(module, sha256_digest(module.read_bytes()))).output == "old"
    module.write_text("def child(a):\n    return a.completed('newer')\n")
    with pytest.raises(SourceChanged, match="start a new worker"):
        run(imported(module, sha256_digest(module.read_bytes())))


def test_a_blocked_result_is_a_result(tmp_path: Path) -> None:
    assert run(pinned(tmp_path, "def child(a):\n    return a.blocked('Which?')\n")).outcome is Outcome.BLOCKED
