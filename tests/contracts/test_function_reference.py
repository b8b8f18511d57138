"""A callable is named so that another process finds it, or refused."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contracts.canonical import digest_of
from contracts.errors import BadInput
from contracts.functions import function_reference

ROOT = Path(__file__).parents[2]


def plain(a: Any) -> Any:
    return a


async def waiting(a: Any) -> Any:
    return a


def traced(function: Any) -> Any:
    @functools.wraps(function)
    def inner(a: Any) -> Any:
        return function(a)

    return inner


@traced
def decorated(a: Any) -> Any:
    return a


hidden = traced(plain)  # says that it is ``plain``, and is not


class Holder:
    def method(self, a: Any) -> Any:
        return a

    @staticmethod
    def static(a: Any) -> Any:
        return a

    def __call__(self, a: Any) -> Any:
        return a


def nested() -> Any:
    def inner(a: Any) -> Any:
        return a

    return inner


def test_a_function_of_a_package_is_named_by_its_module() -> None:
    assert function_reference(digest_of) == "contracts.canonical:digest_of"


@pytest.mark.parametrize("function", [plain, waiting, decorated])
def test_a_function_of_a_file_is_named_by_the_path_of_the_file(function: Any) -> None:
    assert function_reference(function) == f"{__file__}:{function.__name__}"


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda a: a, "a lambda has no name"),
        (nested(), "'nested.<locals>.inner' is nested in another function"),
        (Holder().method, "is not a plain function"),
        (Holder.method, "'Holder.method' is a method"),
        (Holder.static, "'Holder.static' is a method"),
        (Holder(), "is not a plain function"),
        (Holder, "is not a plain function"),
        (functools.partial(plain, 1), "is not a plain function"),
        (functools.lru_cache(plain), "is not a plain function"),
        (len, "is not a plain function"),
        ("".join, "is not a plain function"),
        (hidden, "holds something else under the name 'plain'"),
    ],
)
def test_what_no_other_process_could_find_is_refused_by_name(function: Any, why: str) -> None:
    with pytest.raises(BadInput) as refused:
        function_reference(function)
    (fault,) = refused.value.faults
    assert fault.path == "agent"
    assert why in fault.message
    assert "another process must be able to take it over" in fault.hint


def test_a_function_made_by_exec_is_refused() -> None:
    for module in ({"__name__": "nowhere"}, {}):
        space: dict[str, Any] = dict(module)
        exec("def made(a): return a", space)
        with pytest.raises(BadInput, match="does not come from a .py file"):
            function_reference(space["made"])


SCRIPT = """\
from __future__ import annotations
from contracts.errors import BadInput
from contracts.functions import function_reference

def work(a):
    return a

try:
    print(function_reference(work))
except BadInput as refused:
    print(refused)
"""


def run(*argv: str, folder: Path, text: str | None = None) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *argv]
    done = subprocess.run(command, cwd=folder, env=env, input=text, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_function_of_a_script_is_named_by_its_absolute_path(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert run("script.py", folder=tmp_path) == f"{script}:work"
    assert run("-m", "script", folder=tmp_path) == f"{script}:work"


def test_a_function_of_a_module_run_by_its_name_is_named_by_the_package(tmp_path: Path) -> None:
    package = tmp_path / "parcel"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "module.py").write_text(SCRIPT)
    assert run("-m", "parcel.module", folder=tmp_path) == "parcel.module:work"


@pytest.mark.parametrize("argv", [["-c", SCRIPT], ["-"], ["-i", "-q"]])
def test_what_was_typed_at_a_prompt_is_refused(argv: list[str], tmp_path: Path) -> None:
    typed = SCRIPT.replace("return a\n", "return a\n\n") if "-i" in argv else SCRIPT
    output = run(*argv, folder=tmp_path, text=None if "-c" in argv else f"{typed}\n")
    assert "agent: 'work' does not come from a .py file" in output
