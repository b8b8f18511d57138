"""The recount of callers against the inventory, which is made by other means: on real packages, and on small ones."""

from __future__ import annotations

import ast
import importlib.util
import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Load = Callable[[str], ModuleType]


def copy_of(package: str, top: Path) -> Path:
    """A repository of the installed sources of a package."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    shutil.copytree(Path(spec.origin).parent, top / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return top


def analysed(load: Load, top: Path) -> Any:
    """What the child that makes the inventory knows of a source."""
    code = load("audit/python_code.py").Code()
    for path in sorted(top.rglob("*.py")):
        text = path.read_text("utf-8")
        code.add(path.relative_to(top).as_posix(), text, ast.parse(text))
    return code


@pytest.mark.parametrize("package", ["rich", "typer", "structlog"])
def test_inventory_and_recount_agree_on_a_real_package_and_no_single_caller_can_be_left_out_unseen(
    load_example: Load, tmp_path: Path, package: str
) -> None:
    verify = load_example("audit/verify_callers.py")
    code = analysed(load_example, copy_of(package, tmp_path))
    source = verify.Source(tmp_path, "")
    counts = Counter(path for _, _, path, _ in code._calls if path in code.defined and path not in code.classes)
    targets = [path for path, _ in counts.most_common(25)] + sorted(counts)[:60]
    certain = shown = 0
    for target in targets:
        listed = {(call.file, call.line) for call in code.callers(target)}
        found = verify.recount(source, target)
        assert found.certain <= listed, target  # or else a complete inventory would be refused
        assert listed <= found.certain | found.possible, target  # or else one could be left out unseen
        assert listed <= found.named, target
        certain += len(found.certain)
        shown += len(found.possible & listed)
    assert certain > 100
    assert shown > 20


def inventory(code: Any, symbol: str, *, without: int | None = None, gaps: tuple[str, ...] = ("g",)) -> dict[str, Any]:
    callers = [{"file": call.file, "line": call.line} for call in code.callers(tuple(symbol.split(".")))]
    if without is not None:
        del callers[without]
    return {"symbol": symbol, "callers": callers, "not_covered": list(gaps)}


@pytest.mark.parametrize(
    ("package", "symbol", "caught"),
    [
        ("structlog", "structlog._frames._format_exception", 1.0),
        ("typer", "typer.core._typer_main_shell_completion", 1.0),
        ("typer", "typer.utils.get_params_from_function", 1.0),
        ("rich", "rich.cells.cell_len", 0.5),
    ],
)
def test_each_caller_that_is_left_out_is_an_error_or_is_shown(
    load_example: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str], package: str, symbol: str, caught: float
) -> None:
    verify = load_example("audit/verify_callers.py")
    code = analysed(load_example, copy_of(package, tmp_path))
    file = tmp_path / "callers.json"
    file.write_text(json.dumps(inventory(code, symbol)))
    assert verify.main([str(file), str(tmp_path)]) == 0, capsys.readouterr().out
    capsys.readouterr()
    callers = inventory(code, symbol)["callers"]
    assert callers
    errors = 0
    tried = range(0, len(callers), max(1, len(callers) // 8))
    for left_out in tried:
        file.write_text(json.dumps(inventory(code, symbol, without=left_out)))
        status = verify.main([str(file), str(tmp_path)])
        said = capsys.readouterr().out
        assert f"{callers[left_out]['file']}:{callers[left_out]['line']} " in said
        errors += status
    assert errors >= caught * len(tried)


SMALL = {
    "lib/__init__.py": "from .core import Job as Job, start\n",
    "lib/core.py": (
        "class Job:\n    def run(self): return self.step()\n    def step(self): pass\n"
        "    @classmethod\n    def make(cls): return cls()\n"
        "def start(): pass\nstart()\n"
    ),
    "app.py": (
        "import subprocess\nimport lib\nfrom lib import start as go, Job\nfrom lib.core import start\n"
        "start()\ngo()\nlib.start()\nlib.core.start()\nsubprocess.run('x')\n"
        "job = Job(\n    1)\njob.run()\n"
        "with lib.Job() as other:\n    (other\n     .run())\n"
        "def f(it, run):\n    it.run()\n    run()\n    return f'{it.run()}'\n"
        "@start\ndef g(): pass\n"
    ),
    "shadow.py": "from lib import start\ndef f(start):\n    start()\n",
    "own.py": "def start(): pass\nstart()\n",
    "broken.py": "def f(:\n    '''start()\n",
}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    for name, text in SMALL.items():
        path = tmp_path / "small" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "small"


def places(found: set[tuple[str, int]]) -> Mapping[str, list[int]]:
    told: dict[str, list[int]] = {}
    for path, line in sorted(found):
        told.setdefault(path, []).append(line)
    return told


def test_what_is_certain_and_what_cannot_be_told(load_example: Load, small: Path) -> None:
    verify = load_example("audit/verify_callers.py")
    found = verify.recount(verify.Source(small, "start"), ("lib", "core", "start"))
    assert places(found.certain) == {"app.py": [5, 6, 7, 8, 20], "lib/core.py": [7]}
    assert places(found.possible) == {"broken.py": [2], "own.py": [2], "shadow.py": [3]}
    found = verify.recount(verify.Source(small, "run"), ("lib", "core", "Job", "run"))
    assert places(found.certain) == {"app.py": [12, 15]}
    assert places(found.possible) == {"app.py": [17, 19]}
    found = verify.recount(verify.Source(small, "step"), ("lib", "core", "Job", "step"))
    assert places(found.certain) == {"lib/core.py": [2]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"callers": [{"file": "app.py", "line": 12}]}, "app.py:15 calls lib.core.Job.run, and is not listed"),
        ({"callers": []}, "app.py:12 calls lib.core.Job.run, and is not listed"),
        ({"not_covered": []}, "2 places may be calls, and the inventory names no gap"),
        ({"add": {"file": "app.py", "line": 1}}, "app.py:1 is listed, and nothing of that name stands there"),
        ({"add": {"file": "gone.py", "line": 1}}, "gone.py:1 is listed, and nothing of that name stands there"),
        ({"callers": {}}, "app.py:12 calls lib.core.Job.run, and is not listed"),
        ({"callers": None}, "no inventory of callers"),
        ({"callers": [{"file": "app.py"}]}, "no inventory of callers"),
        ({"symbol": "lib.core.Job.other"}, "app.py:12 is listed, and nothing of that name stands there"),
    ],
    ids=range(9),
)
def test_an_inventory_that_is_not_right_fails_with_the_reason(
    load_example: Load, small: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], said: str
) -> None:
    right = {
        "symbol": "lib.core.Job.run",
        "callers": [{"file": "app.py", "line": 12}, {"file": "app.py", "line": 15}],
        "not_covered": ["calls through other things are not seen"],
    }
    file = small.parent / "callers.json"
    main = load_example("audit/verify_callers.py").main
    file.write_text(json.dumps(right))
    assert main([str(file), str(small)]) == 0
    shown = capsys.readouterr().out
    assert "app.py:17 may call lib.core.Job.run, and is not listed" in shown
    wrong = {**right, **{key: value for key, value in change.items() if key != "add"}}
    if "add" in change:
        wrong["callers"] = [*right["callers"], change["add"]]  # type: ignore[misc]
    file.write_text(json.dumps(wrong))
    assert main([str(file), str(small)]) == 1
    assert said in capsys.readouterr().out


def test_what_is_no_inventory_or_no_file_fails(
    load_example: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = load_example("audit/verify_callers.py").main
    assert main([]) == 2
    assert main([str(tmp_path / "gone.json")]) == 1
    (tmp_path / "deep.json").write_text("[" * 100_000)
    assert main([str(tmp_path / "deep.json")]) == 1
    assert capsys.readouterr().out.count("is no inventory of callers") == 2
