"""Finding the Python callable that a contract pinned, in this process."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from agents.runtimes.errors import NoResult, SourceChanged
from contracts.canonical import sha256_digest
from contracts.terms import AgentSpec

__all__ = ["load_callable"]

_registry = threading.Lock()
_loading: dict[str, threading.RLock] = {}
"""A lock for each source: one that hangs when it is imported holds up nobody else's."""
_by_digest: dict[str, ModuleType] = {}
_imported: dict[str, str | None] = {}
"""module name -> digest of its source when it was first used here"""


def load_callable(agent: AgentSpec, *, pins: dict[str, str], pinned_file: Callable[[str], Path]) -> Callable[..., Any]:
    """The function or script of an agent.

    Raises ``SourceChanged``, or ``NoResult`` when the file or the name is not there.
    """
    reference = agent.reference
    assert reference is not None, agent
    place, name = reference.rsplit(":", 1)
    try:
        if agent.file is not None:
            module = _from_pinned_file(place, pins[place], pinned_file)
        else:
            module = _from_import(place, pins[place])
        found = getattr(module, name)
    except (SourceChanged, NoResult):
        raise
    except BaseException as error:  # a module that exits when it is imported ends this child, not the worker
        raise NoResult(f"cannot load {reference}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise NoResult(f"{reference} is not a function")
    return found  # type: ignore[no-any-return]


def _lock_of(source: str) -> threading.RLock:
    with _registry:
        return _loading.setdefault(source, threading.RLock())


def _from_pinned_file(place: str, digest: str, pinned_file: Callable[[str], Path]) -> ModuleType:
    with _lock_of(digest):
        known = _by_digest.get(digest)
        if known is not None:
            return known
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if file and Path(place).is_absolute() and Path(file) == Path(place) and _digest(Path(file)) == digest:
                _by_digest[digest] = module
                return module
        path = pinned_file(place)
        name = f"coordinator_child_{digest.removeprefix('sha256:')[:16]}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None, path
        assert spec.loader is not None, path
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        _by_digest[digest] = module
        return module


def _from_import(name: str, digest: str) -> ModuleType:
    with _lock_of(name):
        module = importlib.import_module(name)
        file = getattr(module, "__file__", None)
        found = _digest(Path(file)) if file else None
        loaded = _imported.setdefault(name, found)
    if found != digest:
        raise SourceChanged(
            f"the source of {name} changed since the contract was issued: pinned {digest}, found {found}; "
            "put it back, or launch a new version of the contract"
        )
    if loaded != digest:
        raise SourceChanged(
            f"this process imported {name} before its source became what the contract pinned: pinned {digest}, "
            f"imported {loaded}; start a new worker"
        )
    return module


def _digest(path: Path) -> str | None:
    try:
        return sha256_digest(path.read_bytes())
    except OSError:
        return None
