"""Output: for people by default, JSON for programs; errors say what was found and what to do, and become exit codes."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from coordinator.home import Home
    from coordinator.store import TaskStore

__all__ = ["DIFFERS", "INTERRUPTED", "console", "exit_code_of", "opened", "print_json"]

INTERNAL = 70
INTERRUPTED = 130
USAGE = 2
DIFFERS = "`coordinator evidence RUN --verify` names everything that differs"


def console(*, stderr: bool = False) -> Console:
    """A console that never interprets markup in what it is given, and does not wrap when it is not a terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 200
    return Console(file=stream, markup=False, highlight=False, emoji=False, soft_wrap=not stream.isatty(), width=width)


def print_json(value: Any, *, one_line: bool = False) -> None:
    print(json.dumps(value, indent=None if one_line else 2, ensure_ascii=False, default=_plain), flush=True)


def _plain(value: Any) -> Any:
    from datetime import datetime

    from pydantic import BaseModel

    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    return str(value)


def exit_code_of(error: BaseException, *, json_wanted: bool = False) -> int:
    """Say what went wrong, on stderr, and give the exit code of it."""
    import typer

    from contracts.errors import BadInput, CoordinatorError

    if isinstance(error, typer.Abort | KeyboardInterrupt):
        print("interrupted; what was committed is kept, run the same command again to continue", file=sys.stderr)
        return INTERRUPTED
    if isinstance(error, typer.TyperException):  # the command line itself is wrong
        if json_wanted:
            print_json({"error": "BadInput", "message": str(error), "faults": []})
        elif show := getattr(error, "show", None):  # with the usage of the command
            show(sys.stderr)
        else:
            print(error, file=sys.stderr)
        return USAGE
    if isinstance(error, BrokenPipeError):
        # Whoever read this has enough; what is still buffered must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if not isinstance(error, CoordinatorError):
        traceback.print_exception(error, file=sys.stderr)
        what = "internal error: this is a fault of the program; the store is as the last commit left it"
        print(what, file=sys.stderr)
        return INTERNAL
    if json_wanted:
        print_json({"error": type(error).__name__, "message": str(error), "faults": faults_json(error)})
        return error.exit_code
    from coordinator.store import Damaged

    lines = [str(fault) for fault in error.faults] if isinstance(error, BadInput) else [str(error)]
    for line in lines:
        print(line, file=sys.stderr)
    if isinstance(error, Damaged):
        print(DIFFERS, file=sys.stderr)
    return error.exit_code


def faults_json(error: BaseException) -> list[Mapping[str, Any]]:
    from dataclasses import asdict

    from contracts.errors import BadInput

    return [asdict(fault) for fault in error.faults] if isinstance(error, BadInput) else []


@contextmanager
def opened(store: str | None, home: Path | None, *, create: bool = False) -> Iterator[tuple[TaskStore, Home]]:
    """The store that a command works on, open. Only what launches or works may ``create`` one."""
    from contracts.errors import NotFound
    from coordinator.home import open_home
    from coordinator.store import TaskStore

    place = open_home(store, home, create=create)
    file = place.store_file
    if not create and file is not None and not file.exists():
        raise NotFound(f"there is no store at {file}; `coordinator run` makes one, --store names another")
    task_store = TaskStore(place.url, place.folder)
    try:
        yield task_store, place
    finally:
        task_store.close()
