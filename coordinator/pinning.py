"""Pinning the files that tasks name, and finding what only this machine can tell: programs, files, functions."""

from __future__ import annotations

import re
import shutil
import symtable
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from contracts.canonical import sha256_digest
from contracts.errors import BadInput, Fault
from contracts.orchestration import Task
from contracts.tools import SOURCE_TOOLS
from coordinator.gate import load_schema
from coordinator.modules import module_file

__all__ = ["PROGRAM_PATH", "Siblings", "lint_here", "pin", "snapshot_of", "unpinned_siblings"]

PROGRAM_PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where children and checks find programs, after the folder of the coordinator's interpreter."""

Pin = Callable[[str, str, Path], bytes | None]
"""(name, where it stands, file) -> its bytes, pinned; None when it cannot be read, which is then a fault."""


def pin(
    name: str, where: str, file: Path, files: dict[str, bytes], snapshot: dict[str, str], faults: list[Fault]
) -> bytes | None:
    """Pin one file: its bytes go into ``files``, its pin into ``snapshot``; None, with a fault, if it cannot be read.

    Read once, so that every task of a launch gets the same bytes.
    """
    data = files.get(name)
    if data is None:
        try:
            data = files[name] = file.read_bytes()
        except OSError as error:
            faults.append(Fault(where, f"cannot read {name!r}: {error.strerror}", f"it is looked for as {file}"))
            return None
    snapshot[name] = f"{Path(name).name}@{sha256_digest(data)}"
    return data


def snapshot_of(task: Task, folder: Path, path: str, files: dict[str, bytes]) -> tuple[dict[str, str], list[Fault]]:
    """Pins of the files that a task names: ``name -> name@digest``; their bytes are added to ``files``."""
    faults: list[Fault] = []
    snapshot: dict[str, str] = {}

    def own(name: str, where: str, file: Path) -> bytes | None:
        return pin(name, where, file, files, snapshot, faults)

    if task.agent.reference is not None:
        _pin_reference(own, task.agent.reference, task.agent.file, f"{path}.agent.{task.agent.kind}", folder, faults)
    elif task.agent.command is not None:
        _pin_program(own, task.agent.command, f"{path}.agent.command", folder, faults)
    for position, check in enumerate(task.acceptance):
        if check.json_schema is not None:
            _pin_schema(own, check.json_schema, f"{path}.acceptance[{position}].json_schema", folder, faults)
    for position, item in enumerate(task.required_evidence):
        if item.schema_file is not None:
            _pin_schema(own, item.schema_file, f"{path}.required_evidence[{position}].schema", folder, faults)
    return snapshot, faults


def _pin_reference(
    pin: Pin, reference: str, file_name: str | None, where: str, folder: Path, faults: list[Fault]
) -> None:
    place, name = reference.rsplit(":", 1)
    try:
        file = folder / place if file_name is not None else module_file(place, folder)
    except BadInput as error:
        faults.append(Fault(where, error.faults[0].message, error.faults[0].hint))
        return
    data = pin(place, where, file)
    if data is not None and not _defines(data, name):
        faults.append(Fault(where, f"{place} has no function {name!r} at its top level"))


def _pin_program(pin: Pin, argv: Sequence[str], where: str, folder: Path, faults: list[Fault]) -> None:
    """Pin the arguments that are files beside the orchestration; the program itself has to be on this machine."""
    for argument in argv:
        if argument and not argument.startswith(("-", "/")) and (folder / argument).is_file():
            pin(argument, where, folder / argument)
    program = argv[0]
    if not (folder / program).is_file() and not _is_here(program):
        hint = f"it is looked for beside the orchestration and in {PROGRAM_PATH}"
        faults.append(Fault(f"{where}[0]", f"no program is called {program!r} on this machine", hint))


def _pin_schema(pin: Pin, name: str, where: str, folder: Path, faults: list[Fault]) -> None:
    data = pin(name, where, folder / name)
    if data is not None:
        try:
            load_schema(name, data)
        except BadInput as error:
            faults += error.faults


@lru_cache(maxsize=64)
def _defines(source: bytes, name: str) -> bool:
    """Whether a function, or something that may be one, has this name at the top level."""

    try:
        # Not `ast.parse`: before Python 3.12 it fails at random when two threads use it at once.
        symbol = symtable.symtable(source, "<agent>", "exec").lookup(name)  # type: ignore[arg-type]
    except (SyntaxError, ValueError, KeyError):
        return False
    if symbol.is_namespace():
        return any(space.get_type() == "function" for space in symbol.get_namespaces())
    return symbol.is_assigned() or symbol.is_imported()


@lru_cache(maxsize=64)
def _imported(source: bytes) -> tuple[str, ...]:
    found = set(re.findall(rb"^\s*(?:from|import)\s+([A-Za-z_]\w*)", source, re.MULTILINE))
    return tuple(sorted(module.decode() for module in found))


class Siblings:
    """What files of Python import from beside the orchestration; looked up once for all tasks that name them."""

    def __init__(self, files: Mapping[str, bytes], folder: Path) -> None:
        self._files = files
        self._folder = folder
        self._found: dict[str, Sequence[str]] = {}

    def of(self, name: str) -> Sequence[str]:
        if name not in self._found:
            imported = _imported(self._files[name]) if name.endswith(".py") and name in self._files else ()
            self._found[name] = [f"{one}.py" for one in imported if (self._folder / f"{one}.py").is_file()]
        return self._found[name]


def unpinned_siblings(snapshot: Mapping[str, str], beside: Siblings, path: str) -> Iterator[Fault]:
    """Only named files are pinned: what they import from beside the orchestration is used as it is then."""
    for name in snapshot:
        for sibling in beside.of(name):
            if sibling not in snapshot:
                what = f"{name} imports {sibling} from beside it, which is not pinned and may change under a run"
                yield Fault(path, what, "put what a child needs into one file, or into an installed package")


def lint_here(task: Task, path: str, *, has_source: bool) -> Iterator[Fault]:
    """What only this machine and this run can tell."""
    for index, check in enumerate(task.acceptance):
        if check.command is not None and not has_source:
            what = "a command is run in a checkout of the source, but the orchestration names none"
            yield Fault(f"{path}.acceptance[{index}].command", what, "add 'source: {repo: .}'")
        if check.command is not None and not _is_here(check.command[0]) and "/" not in check.command[0]:
            what = f"no program is called {check.command[0]!r} on this machine"
            yield Fault(f"{path}.acceptance[{index}].command[0]", what, f"it is looked for in {PROGRAM_PATH}")
    if has_source:
        return
    reading = [tool for tool in task.resources.tools if tool in SOURCE_TOOLS]
    if reading:
        what = f"{', '.join(reading)} read the source, but the orchestration names none"
        yield Fault(f"{path}.resources.tools", what, "add 'source: {repo: .}'")
    if task.workspace != "none":
        what = "a workspace is a checkout of the source, but the orchestration names none"
        yield Fault(f"{path}.workspace", what, "add 'source: {repo: .}', or write 'workspace: none'")


def _is_here(program: str) -> bool:
    own = Path(sys.executable).parent
    return shutil.which(program, path=f"{own}:{PROGRAM_PATH}") is not None
