"""CEL checks: only a true of type BOOL is a yes; every fault is an error, at compile or at run time."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from contracts.expressions import VARIABLES, ExpressionError, evaluate, expression_fault

DATA: dict[str, Any] = {
    "output": {
        "files": 3,
        "none": 0,
        "name": "ERROR",
        "ok": True,
        "list": [1, 2],
        "map": {},
        "ratio": 0.5,
        "gone": None,
    },
    "evidence": [{"name": "x", "kind": "note", "origin": "claimed"}],
    "contract": {"task_id": "a"},
    "observed": [{"tool": "read_file", "ok": True}],
}


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("true", True),
        ("output.files > 0", True),
        ("output.none > 0", False),
        ("output.files == 3.0 && output.ratio < 1", True),
        ("output.ok == true", True),
        ("!output.ok", False),
        ("output.gone == null", True),
        ("has(output.files) && !has(output.missing)", True),
        ("output.list.all(n, n > 1)", False),
        ("size(output.map) == 0", True),
        ("evidence.exists(e, e.name == 'x' && e.origin == 'claimed')", True),
        ("observed.filter(c, c.ok).size() == 1 && contract.task_id == 'a'", True),
        ("output.name == 'ERROR'", True),
        ("output.missing || true", True),
        ("output.files > 9223372036854775807", False),
    ],
)
def test_a_yes_is_true_and_a_no_is_false(expression: str, answer: bool) -> None:
    assert expression_fault(expression) is None
    assert evaluate(expression, DATA) is answer


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("output.missing > 0", 'Key not found in map : "missing"'),
        ("output.name > 0", "No matching overloads"),
        ("output.files / output.none > 1", "divide by zero"),
        ("output.list[7] == 1", "Index error"),
        ("output.missing && true", "Key not found"),
        ("output.name && true", "No matching overloads"),
        ("!output.name", "No matching overloads"),
        ("output.name.matches('(')", "invalid regular expression"),
        ("int(output.name) > 1", "cannot convert"),
        ("output.map.x.y.z", "DYN"),
        ("output.list.exists(n, n.foo == 1)", "Applying SELECT to non-message type"),
    ],
)
def test_a_fault_at_run_time_is_an_error_and_never_a_yes(expression: str, why: str) -> None:
    with pytest.raises(ExpressionError, match=why) as refused:
        evaluate(expression, DATA)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", ["\udce9", 2**70, {"t": (1,)}, {1, 2}, Ellipsis, {"a": b"x"}, {None: 1}], ids=ascii)
def test_a_value_that_cel_cannot_hold_is_an_error_and_never_a_yes(value: Any) -> None:
    for expression in ("output != 'x' && output == output.nothing", "output == 'x' ? true : output.nothing"):
        with pytest.raises(ExpressionError):
            evaluate(expression, {**DATA, "output": value})


def test_a_variable_that_was_not_given_is_an_error() -> None:
    with pytest.raises(ExpressionError, match="output"):
        evaluate("output == 1", {})


@pytest.mark.parametrize(
    "expression", ["output", "output.map", "output.ok", "(output)", "dyn(true)", "output ? output : true"]
)
def test_an_expression_that_may_give_anything_is_refused_at_compile(expression: str) -> None:
    assert expression_fault(expression) == "it gives DYN, not a yes or no: compare it with something"
    with pytest.raises(ExpressionError):
        evaluate(expression, DATA)


@pytest.mark.parametrize(
    ("expression", "start"),
    [
        ("1 + 1", "it gives INT"),
        ("'yes'", "it gives STRING"),
        ("output.files >", "1:15: Syntax error"),
        ("true\n&& outpt.x > 1", "2:9: undeclared reference to 'outpt.x'"),
        ("", "1:1: Syntax error"),
        ("output.files > 0 \0", "the expression holds a NUL character"),
        ("output == '\ud800'", "the expression holds a NUL character or half a surrogate pair"),
        ("now() > 1", "1:4: undeclared reference to 'now'"),
        ("__import__('os').system('x') == 0", "1:11: undeclared reference to '__import__'"),
    ],
)
def test_an_expression_that_does_not_compile_says_where(expression: str, start: str) -> None:
    fault = expression_fault(expression)
    assert fault is not None
    assert fault.startswith(start)


def test_a_hostile_expression_is_refused_quickly() -> None:
    begin = time.monotonic()
    for expression in ("(" * 50_000 + "true" + ")" * 50_000, "!" * 200_000 + "true", "[" * 3000 + "]" * 3000 + " == 1"):
        assert expression_fault(expression) is not None
    assert time.monotonic() - begin < 5


def test_children_in_several_threads_can_be_judged_at_once() -> None:
    def judge(number: int) -> bool:
        return evaluate("output.n % 2 == 0", {**DATA, "output": {"n": number}})

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(judge, range(200))) == [number % 2 == 0 for number in range(200)]


def test_the_variables_are_those_that_the_documentation_names() -> None:
    assert VARIABLES == ("output", "evidence", "contract", "observed")
    assert all(expression_fault(f"{name} == null") is None for name in VARIABLES)
