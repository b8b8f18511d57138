"""Our ``agents`` packages are found by their place, whoever else owns the name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOAD = "import sys; from coordinator.runtimes import load_agents; ours = load_agents()\n"
NAMES = ("processes", "broker", "metering", "llm", "runtimes")
TRAP = "raise SystemExit('the foreign package ran')"


def run(code: str, folder: Path, *first_on_path: Path) -> subprocess.CompletedProcess[str]:
    """``python -c`` puts its working folder first on ``sys.path``; what is named here comes before it."""
    head = "import sys\n" + "".join(f"sys.path.insert(0, {str(path)!r})\n" for path in first_on_path)
    return subprocess.run([sys.executable, "-c", head + code], cwd=folder, capture_output=True, text=True)


def words(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout.split()


def write(file: Path, text: str = "") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def home(tmp_path: Path, root: Path) -> Path:
    """A copy of the loader, with agents of the test's own making beside it."""
    home = tmp_path / "home"
    for file in ("coordinator/runtimes.py", "contracts/errors.py"):
        write(home / file, (root / file).read_text())
    for package in ("coordinator", "contracts", *(f"agents/{name}" for name in NAMES)):
        write(home / package / "__init__.py")
    return home


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    write(tmp_path / "foreign" / "agents" / "__init__.py", TRAP)
    return tmp_path / "foreign"


def test_ours_is_found_where_no_other_is(tmp_path: Path, root: Path) -> None:
    done = run(LOAD + "print(ours.__name__, ours.__file__, 'agents' in sys.modules)", tmp_path)

    assert words(done) == ["agents.runtimes", str(root / "agents" / "runtimes" / "__init__.py"), "False"]


def test_a_foreign_package_in_the_working_folder_is_not_run(foreign: Path, root: Path) -> None:
    done = run(LOAD + "print(ours.__file__, 'agents' in sys.modules)", foreign)

    assert words(done) == [str(root / "agents" / "runtimes" / "__init__.py"), "False"]


def test_ours_is_found_beside_a_foreign_package_that_is_imported_already(foreign: Path) -> None:
    write(foreign / "agents" / "__init__.py", "OWNER = 'foreign'")

    done = run(
        "import agents\n" + LOAD + "print(sys.modules['agents'].OWNER, ours.__name__, hasattr(agents, 'runtimes'))",
        foreign,
    )

    assert words(done) == ["foreign", "agents.runtimes", "False"]


def test_a_foreign_package_can_still_be_imported_afterwards(foreign: Path) -> None:
    write(foreign / "agents" / "__init__.py", "OWNER = 'foreign'")
    write(foreign / "agents" / "run.py", "OWNER = 'foreign too'")

    done = run(LOAD + "import agents.run\nprint(agents.OWNER, agents.run.OWNER, ours.__name__, sep=',')", foreign)

    assert done.stdout == "foreign,foreign too,agents.runtimes\n"


def test_from_imports_between_ours_never_touch_the_foreign_package(home: Path, foreign: Path) -> None:
    write(home / "agents" / "broker" / "calls.py", "NAME = 'ours'")
    write(home / "agents" / "runtimes" / "__init__.py", "from agents.broker.calls import NAME as NAME")
    write(home / "agents" / "runtimes" / "function.py", "from ..broker import calls\nNAME = calls.NAME")

    done = run(
        LOAD + "from agents.runtimes.function import NAME\nprint(ours.NAME, NAME, 'agents' in sys.modules)",
        home,
        foreign,
    )

    assert words(done) == ["ours", "ours", "False"]


def test_ours_imported_in_the_ordinary_way_are_taken_as_they_are(home: Path) -> None:
    done = run("import agents.runtimes\n" + LOAD + "print(ours is agents.runtimes)", home)

    assert words(done) == ["True"]


@pytest.mark.parametrize("name", ["broker", "runtimes"])
def test_a_foreign_module_under_one_of_our_names_is_refused_by_name(home: Path, foreign: Path, name: str) -> None:
    write(foreign / "agents" / "__init__.py")
    write(foreign / "agents" / name / "__init__.py", "OWNER = 'foreign'")

    done = run(
        f"import agents.{name}\n"
        "from contracts.errors import Refused\n"
        "try:\n"
        "    import coordinator.runtimes; coordinator.runtimes.load_agents()\n"
        "except Refused as refused:\n"
        f"    print(agents.{name}.OWNER, refused)",
        home,
        foreign,
    )

    said = " ".join(words(done))
    assert said.startswith("foreign ")
    assert f"agents.{name}" in said
    assert str(foreign / "agents" / name / "__init__.py") in said
    assert str(home / "agents" / name / "__init__.py") in said


def test_a_failed_import_leaves_nothing_behind_and_can_be_tried_again(home: Path, tmp_path: Path) -> None:
    write(
        home / "agents" / "runtimes" / "__init__.py",
        f"import pathlib\nif not pathlib.Path({str(tmp_path / 'mended')!r}).exists():\n    raise ImportError('broken')",
    )

    done = run(
        "import pathlib\n"
        "from coordinator.runtimes import load_agents\n"
        "try:\n"
        "    load_agents()\n"
        "except ImportError as error:\n"
        "    print(error, 'agents.runtimes' in sys.modules)\n"
        f"pathlib.Path({str(tmp_path / 'mended')!r}).touch()\n"
        "print(load_agents().__name__)",
        home,
    )

    assert words(done) == ["broken", "False", "agents.runtimes"]


def test_threads_that_ask_at_once_get_one_finished_module(home: Path) -> None:
    write(
        home / "agents" / "runtimes" / "__init__.py",
        "import time\nprint('run')\ntime.sleep(0.2)  # long enough for the other threads to arrive\nFINISHED = True",
    )

    done = run(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from coordinator.runtimes import load_agents\n"
        "with ThreadPoolExecutor(8) as pool:\n"
        "    found = list(pool.map(lambda _: load_agents().FINISHED, range(8)))\n"
        "print(found.count(True))",
        home,
    )

    assert words(done) == ["run", "8"]
