"""CEL expressions (Common Expression Language) for acceptance checks: compiled when a contract is loaded.

The library answers a run-time error with a *string*, which Python takes for true; so only a value of type BOOL that
``is True`` counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from contracts.canonical import well_formed

if TYPE_CHECKING:
    from cel_expr_python import cel

__all__ = ["VARIABLES", "ExpressionError", "evaluate", "expression_fault"]

VARIABLES = ("output", "evidence", "contract", "observed")


class ExpressionError(Exception):
    """The expression could not be judged on this data; the text says why."""


def expression_fault(expression: str) -> str | None:
    """Why an expression does not compile to a yes or no, with its place in the expression; None when it does."""
    try:
        _compiled(expression)
    except ExpressionError as error:
        return str(error)
    return None


def evaluate(expression: str, values: Mapping[str, Any]) -> bool:
    """Judge an expression over ``VARIABLES``. Raises ``ExpressionError`` when it has no answer."""
    from cel_expr_python import cel

    try:
        result = _compiled(expression).eval(data=dict(values))
        value = result.plain_value()
    except (RuntimeError, TypeError, ValueError) as error:
        raise ExpressionError(_first_line(str(error))) from None
    if result.type() != cel.Type.BOOL or not isinstance(value, bool):
        raise ExpressionError(_first_line(str(value)))
    return value


@lru_cache(maxsize=512)
def _compiled(expression: str) -> cel.Expression:
    from cel_expr_python import cel

    if "\0" in expression or well_formed(expression) != expression:
        raise ExpressionError("the expression holds a NUL character or half a surrogate pair")
    try:
        compiled = _environment().compile(expression)
    except (RuntimeError, TypeError) as error:
        raise ExpressionError(_first_line(str(error))) from None
    if compiled.return_type() != cel.Type.BOOL:
        raise ExpressionError(f"it gives {compiled.return_type()}, not a yes or no: compare it with something")
    return compiled


@lru_cache(maxsize=1)
def _environment() -> cel.Env:
    from cel_expr_python import cel

    return cel.NewEnv(variables=dict.fromkeys(VARIABLES, cel.Type.DYN))


def _first_line(text: str) -> str:
    line = text.split("\n", 1)[0]
    return re.sub(r"^(?:[A-Z_]+: )?(?:ERROR: )?(?:<input>:)?", "", line)
