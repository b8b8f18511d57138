"""Finding the source file of a module without running it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from contracts.errors import BadInput, Fault

__all__ = ["add_folder", "module_file"]


def add_folder(folder: Path) -> None:
    """Let modules beside an orchestration be imported: last on the path, so that they can shadow nothing."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def module_file(name: str, folder: Path) -> Path:
    """Path of a module's source. Raises ``BadInput`` when there is none."""
    add_folder(folder)
    hint = "name a module that can be imported, or a file beside the orchestration: file.py:name"
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError) as error:
        raise BadInput([Fault("agent", f"cannot find the module {name!r}: {error}", hint)]) from None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise BadInput([Fault("agent", f"no Python module is called {name!r}", hint)])
    return Path(spec.origin)
