"""The audit of this repository, made to fit another one."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping
from pathlib import Path

from contracts.base import JSON
from contracts.errors import BadInput
from contracts.orchestration import Orchestration, Task
from workspaces import TreeReader
from workspaces.repository import find_repository

__all__ = ["fitted"]


def fitted(file: Path, root: Path, given: Mapping[str, JSON]) -> tuple[Orchestration, dict[str, JSON]]:
    """The orchestration of a file, and its inputs, for the repository at ``root``.

    ``given["test"]`` takes the place of the test command. In the repository that the file lies in, the rest is as the
    file says; in another one, what cannot be there is left out, and the input ``left_out`` says why.
    Raises ``BadInput``.
    """
    given = dict(given)
    orchestration = Orchestration.from_file(file)
    tasks, left_out = dict(orchestration.tasks), dict[str, JSON]()
    test = given.pop("test", None)
    if root != file.parents[2]:
        given.setdefault("symbol", "")  # the child takes the function that is called most
        tasks["callers"] = _without_commands(tasks["callers"])
        if _has_python(root):
            left_out["recount of callers"] = "the script that lists them again by other means is not in this source"
        else:
            left_out["callers"] = "there is no Python file in this source"
        if test is None:
            left_out["tests"] = "no test command was given; --input test=COMMAND gives one"
    if test is not None:
        tasks["tests"] = _with_command(tasks["tests"], test)
    tasks = {name: task for name, task in tasks.items() if name not in left_out}
    needs = [need for need in tasks["report"].needs if need.task in tasks]
    tasks["report"] = tasks["report"].model_copy(update={"needs": needs})
    inputs = {**given, "demonstrate_repair": True, "left_out": left_out}
    return orchestration.model_copy(update={"tasks": tasks}), inputs


def _without_commands(task: Task) -> Task:
    return task.model_copy(update={"acceptance": [check for check in task.acceptance if check.command is None]})


def _with_command(task: Task, test: JSON) -> Task:
    """The same task for another test command: a line as one types it, or a list of arguments."""
    words: JSON = test
    with contextlib.suppress(ValueError):  # quotes that are not closed
        words = shlex.split(test) if isinstance(test, str) else test
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise BadInput(f"--input test={test!r}: write a command, such as test='python -m pytest -q'")
    checks = [
        check if check.command is None else check.model_copy(update={"command": words}) for check in task.acceptance
    ]
    return task.model_copy(update={"acceptance": checks})


def _has_python(root: Path) -> bool:
    """Whether the commit that will be audited holds a Python file; of a plain folder, whether it does."""
    repository = find_repository(root)
    if repository is None:
        return any(root.rglob("*.py"))
    commit, _ = repository.resolve("HEAD")
    with contextlib.closing(TreeReader(repository.git_dir, commit)) as reader:
        return any(file.path.endswith(".py") for file in reader.files())
