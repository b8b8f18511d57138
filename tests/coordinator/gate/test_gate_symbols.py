"""Which function or class a line stands in: compared with Python's own syntax trees, and on hostile text."""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import threading
import time
import warnings
from pathlib import Path

import pytest

from coordinator.gate.symbols import MAX_CHARACTERS, line_texts, symbols_by_line

PARSING = threading.Lock()


def by_syntax_tree(text: str) -> list[str]:
    """The innermost definition of each line, its decorators included, by the parser of Python."""
    with PARSING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(text)
    inside = ["<module>"] * len(line_texts(text))

    def visit(node: ast.AST, names: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                own = (*names, child.name)
                first = min([child.lineno, *(mark.lineno for mark in child.decorator_list)])
                last = child.end_lineno or first
                inside[first - 1 : last] = [".".join(own)] * (last - first + 1)
                visit(child, own)
            else:
                visit(child, names)

    visit(tree, ())
    return inside


@pytest.mark.parametrize("package", ["rich", "typer", "structlog", "pydantic", "pytest"])
def test_it_agrees_with_the_parser_on_real_packages(package: str) -> None:
    files = importlib.metadata.files(package) or []
    paths = [Path(str(file.locate())) for file in files if str(file).endswith(".py")]
    assert len(paths) > 5
    definitions = 0
    for path in paths:
        text = path.read_text("utf-8")
        told, parsed = symbols_by_line(text), by_syntax_tree(text)
        definitions += len(set(parsed))
        for number, (ours, theirs) in enumerate(zip(told, parsed, strict=True), 1):
            assert ours[0] == theirs, f"{path}:{number}"
    assert definitions > 100


def test_where_a_definition_begins_both_names_hold() -> None:
    text = (
        "@mark(\n  1)\n@other\nasync def f(\n    a=g(),\n) -> int:\n    # why\n    x\n\ny\n"
        "class A(B): z = 1\nif x:\n    def h(): return 1\n    w\nelse:\n    v"
    )
    header, module = ("f", "<module>"), ("<module>",)
    assert symbols_by_line(text) == [
        *[header] * 6, ("f",), ("f",), module, module,
        ("A", "<module>"), module, ("h", "<module>"), module, module, module,
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "\n", "x", "x\r\ny\r\n", "a\rb\r", "\x0c\nclass A:\n\tdef f(self):\n\t\tpass\n"])
def test_small_and_odd_files_have_one_entry_for_each_line(text: str) -> None:
    assert len(symbols_by_line(text)) == len(line_texts(text))


@pytest.mark.parametrize(
    "text", ["x = '''", "x = (", "def f():\n    a\n  b\n", "a\0b", "x" * (MAX_CHARACTERS + 1), "a = $"]
)
def test_what_is_no_python_is_said_to_be_none(text: str) -> None:
    with pytest.raises(ValueError, match="it "):
        symbols_by_line(text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000 + ")" * 100_000,
        "-" * 200_000 + "1",
        "x = " + "a." * 200_000 + "b",
        "".join(f"{' ' * depth}class A{depth}:\n" for depth in range(1000)) + " " * 1000 + "x\n",
        "def f(): pass\n" * 50_000,
        "'\\d' '\\q'\n" * 10_000,
        "\\\n" * 100_000 + "x\n",
    ],
    ids=range(7),
)
def test_hostile_text_takes_neither_long_nor_deep(text: str) -> None:
    begin = time.monotonic()
    with contextlib.suppress(ValueError):
        symbols_by_line(text)
    assert time.monotonic() - begin < 20
