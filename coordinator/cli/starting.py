"""``init``: an orchestration that runs as it is, with its children and its schemas."""

from __future__ import annotations

import json as json_module
import os
import shlex
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from contracts.errors import BadInput, Refused
from contracts.orchestration import Orchestration
from contracts.schemas import json_schema
from coordinator.cli.finding_tests import find_test_command
from coordinator.cli.output import console, print_json
from coordinator.home import FOLDER, default_store
from coordinator.launch import plan_launch

__all__ = ["init"]

STARTERS = ("orchestration.yaml", "inventory.py", "inventory.schema.json")
SCHEMAS = ("orchestration", "delegation")

FOUND = """\
  tests:
    objective: Show that the tests pass.
    agent: {function: "inventory.py:tests"}   # says which command; the gate itself runs it
    resources: {tools: []}
    limits: {max_repairs: 0}            # a result that says nothing new is not worth another try
    acceptance:                         # in a clean checkout of the pinned commit: what is not committed is not there
      - {command: @COMMAND@, timeout_s: 600}"""

NONE = """\
  # No test command was found in the commit. With one, the gate itself runs it in a clean checkout of that commit:
  # take the marks away, put your command in, and let the summary need it too: needs: [kinds, largest, tests]
  # tests:
  #   objective: Show that the tests pass.
  #   agent: {function: "inventory.py:tests"}
  #   resources: {tools: []}
  #   limits: {max_repairs: 0}
  #   acceptance:
  #     - {command: [make, test], timeout_s: 600}"""


def init(directory: Path, json: bool) -> int:
    """Write the files of a first orchestration; none of them over another. Raises ``Refused`` naming what is there."""
    if not directory.is_dir():
        raise BadInput(f"{directory} is not a folder: make it first, or name another")
    files = {name: resources.files("coordinator.cli").joinpath("starter", name).read_bytes() for name in STARTERS}
    command = find_test_command(directory.resolve())
    files["orchestration.yaml"] = _with_tests(files["orchestration.yaml"].decode(), command).encode()
    for name in SCHEMAS:
        text = json_module.dumps(json_schema(name), indent=2) + "\n"
        files[f"{FOLDER}/{name}.schema.json"] = text.encode()
    # Schemas are made by this program and the same for everybody: one that is there may be of an older version.
    taken = [name for name in STARTERS if os.path.lexists(directory / name)]
    if taken:
        raise Refused(
            f"nothing was written: {', '.join(str(directory / name) for name in taken)} "
            f"{'is' if len(taken) == 1 else 'are'} there already, and nothing is overwritten; name another folder"
        )
    _write(directory, files)
    hindrances = _hindrances(directory)
    next_command = _run_command(directory)
    if json:
        written = [str(directory / name) for name in files]
        print_json({"written": written, "test_command": command, "hindrances": hindrances, "next": next_command})
        return 0
    out = console()
    out.print("wrote " + ", ".join(str(directory / name) for name in files), soft_wrap=True)
    if command is None:
        out.print("found no test command; orchestration.yaml says how to add one", soft_wrap=True)
    else:
        out.print(f"the gate will run the tests: {shlex.join(command)}", soft_wrap=True)
    for hindrance in hindrances:
        out.print(f"before it can run: {hindrance}", soft_wrap=True)
    out.print(f"next: {next_command}", soft_wrap=True)
    return 0


def _with_tests(text: str, command: Sequence[str] | None) -> str:
    """The starter with a task for the test command that was found, or with a comment that shows one."""
    task = NONE if command is None else FOUND.replace("@COMMAND@", f"[{', '.join(command)}]")
    needs = "kinds, largest" if command is None else "kinds, largest, tests"
    return text.replace("@TESTS@", task).replace("@NEEDS@", needs)


def _write(directory: Path, files: dict[str, bytes]) -> None:
    try:
        hidden = directory / FOLDER
        hidden.mkdir(exist_ok=True)
        ignore = hidden / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
        for name, data in files.items():
            if name in STARTERS:
                with (directory / name).open("xb") as file:
                    file.write(data)
            else:
                (directory / name).write_bytes(data)
    except FileExistsError as error:
        raise Refused(f"{error.filename} is there already and is never overwritten") from None
    except OSError as error:
        raise Refused(f"cannot write {error.filename}: {error.strerror}") from error


def _hindrances(directory: Path) -> list[str]:
    """What would keep the new file from being launched: of the repository, since the file itself is in order."""
    orchestration = Orchestration.from_file(directory / "orchestration.yaml")
    plan = plan_launch(orchestration, exclude=(default_store(Path.cwd()).parent,))
    return [f"{fault.message}, {fault.hint}" if fault.hint else fault.message for fault in plan.faults]


def _run_command(directory: Path) -> str:
    file = directory / "orchestration.yaml"
    same = directory.resolve() == Path.cwd()
    return "coordinator run" if same else f"coordinator run {shlex.quote(str(file))}"
