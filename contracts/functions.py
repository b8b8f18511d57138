"""How a Python callable is named so that any other process can find it again."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from contracts.errors import BadInput, Fault

__all__ = ["function_reference"]


def function_reference(function: Callable[..., Any]) -> str:
    """``module:name`` for a function in a package, else ``/absolute/file.py:name``.

    Raises ``BadInput`` for a callable that no other process could take over: lambdas, nested functions, methods,
    partials, and whatever was typed at a prompt.
    """

    def refuse(what: str) -> BadInput:
        hint = "use a function at the top level of a file: another process must be able to take it over"
        return BadInput([Fault("agent", what, hint)])

    if not isinstance(function, FunctionType):
        raise refuse(f"{function!r:.80} is not a plain function")
    name = function.__qualname__
    if "<lambda>" in name:
        raise refuse("a lambda has no name that another process could import")
    if "<locals>" in name:
        raise refuse(f"{name!r} is nested in another function")
    if "." in name:
        raise refuse(f"{name!r} is a method")
    module = sys.modules.get(function.__module__ or "")
    file = getattr(module, "__file__", None)
    if file is None or not file.endswith(".py"):
        raise refuse(f"{name!r} does not come from a .py file")
    if getattr(module, name, None) is not function:
        raise refuse(f"{file} holds something else under the name {name!r}")
    # `python -m package.module` runs it as __main__; its own name is in its spec.
    spec = getattr(module, "__spec__", None)
    module_name = function.__module__ if spec is None else spec.name
    package = module_name.rpartition(".")[0]
    if package and getattr(sys.modules.get(package), "__file__", None):
        return f"{module_name}:{name}"
    return f"{os.path.abspath(file)}:{name}"
