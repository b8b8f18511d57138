"""The one door to the ``agents`` packages.

Another distribution (openai-agents) owns a regular package named ``agents``. Ours lie in the folder of the same name
beside this package and are found by that place alone: the foreign package may be installed in the same environment,
may come first on ``sys.path``, or may be imported already; it is neither run nor hidden from those who want it.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from threading import Lock
from types import ModuleType

from contracts.errors import Refused

__all__ = ["load_agents"]

_HOME = Path(__file__).resolve().parent.parent / "agents"
_IN_ORDER_OF_NEED = ("processes", "broker", "metering", "llm", "runtimes")
_lock = Lock()
_loaded: ModuleType | None = None


def load_agents() -> ModuleType:
    """Our ``agents.runtimes``, imported on the first call. Cheap to repeat, safe from several threads.

    Afterwards ``from agents.runtimes import …`` and ``from agents.broker import …`` find ours, with their types.
    ``import agents.runtimes`` does not: Python then asks for the parent too, which is whoever owns that name.

    Raises ``Refused`` when another package holds one of these names already.
    """
    global _loaded
    if _loaded is None:
        with _lock:
            for name in _IN_ORDER_OF_NEED:
                _load(name)
            _loaded = sys.modules["agents.runtimes"]
    return _loaded


def _load(name: str) -> None:
    full_name = f"agents.{name}"
    face = _HOME / name / "__init__.py"
    present = sys.modules.get(full_name)
    if present is not None:
        found = getattr(present, "__file__", None)
        if found is None or Path(found).resolve() != face:
            raise Refused(
                f"the module {full_name} is already imported from {found or 'an unknown place'}, but the coordinator "
                f"needs its own from {face}: start it in a process or environment without the other one"
            )
        return
    spec = spec_from_file_location(full_name, face, submodule_search_locations=[str(face.parent)])
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[full_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(full_name, None)
        raise
