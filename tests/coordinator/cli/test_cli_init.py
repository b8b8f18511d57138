from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from coordinator.cli.finding_tests import find_test_command

REPOSITORIES: dict[str, dict[str, bytes]] = {
    "python": {"pkg/__init__.py": b"", "pkg/a.py": b"x = 1\n" * 40, "README.md": b"# Hello\n"},
    "names with spaces": {"a file.txt": b"one\ntwo\n", "d d/|pipe`.md": b"x\n", "d d/\xc3\xa4.c": b"int x;\n"},
    "no python": {"logo.png": b"\x00\x01", "Makefile": b"all:\n", "data.bin": bytes(range(256))},
    "nothing in it": {},
}


@pytest.mark.parametrize("name", REPOSITORIES)
def test_what_init_writes_runs_as_it_is(name: str, cli: Any, git_repository: Any) -> None:
    folder = cli.folder / name
    git_repository(folder, REPOSITORIES[name])
    wrote = cli("init", cwd=folder)
    assert wrote.returncode == 0, wrote.stderr
    assert "next: coordinator run\n" in wrote.stdout
    checked = cli("contract", "check", "orchestration.yaml", cwd=folder)
    assert (checked.returncode, checked.stdout) == (0, "orchestration.yaml: ok (orchestration inventory, 3 tasks)\n")
    done = cli("run", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all 3 tasks accepted" in done.stdout
    assert "found no test command" in wrote.stdout
    assert "next: coordinator export inventory/summary" in done.stdout
    assert cli("export", "inventory/summary", cwd=folder).returncode == 0
    text = (folder / "inventory.md").read_text()
    assert f"{len(REPOSITORIES[name])} files" in text


def test_a_plain_folder_is_a_source_too(cli: Any) -> None:
    (cli.folder / "a.txt").write_text("hello\n")
    assert cli("init").returncode == 0
    done = cli("run")
    assert done.returncode == 0, done.stderr
    found = cli.json("evidence", "inventory/kinds")[0]["manifest"]["output"]
    assert found["total"] == 4, found  # a.txt and what init wrote; not the store
    assert cli("evidence", "--verify").returncode == 0


@pytest.mark.parametrize("taken", ["orchestration.yaml", "inventory.py", "inventory.schema.json"])
def test_init_overwrites_nothing_and_then_writes_nothing(taken: str, cli: Any) -> None:
    (cli.folder / taken).symlink_to("nowhere")  # a dangling link is there too
    done = cli("init")
    assert done.returncode == 3
    assert f"{taken} is there already" in done.stderr
    assert [path.name for path in cli.folder.iterdir()] == [taken]


def test_init_says_what_keeps_the_file_from_running(cli: Any, git_repository: Any) -> None:
    subprocess.run(["git", "init", "-q"], cwd=cli.folder, check=True)
    done = cli("init")
    assert done.returncode == 0
    assert "before it can run: " in done.stdout
    assert "has no commit yet" in done.stdout


def test_init_names_the_run_command_of_another_folder(cli: Any) -> None:
    (cli.folder / "sub dir").mkdir()
    done = cli("init", "sub dir")
    assert done.stdout.endswith("next: coordinator run 'sub dir/orchestration.yaml'\n")
    ran = cli("run", "sub dir/orchestration.yaml")
    assert ran.returncode == 0, ran.stderr


def test_init_refuses_what_is_no_folder(cli: Any) -> None:
    done = cli("init", "absent", "--json")
    assert done.returncode == 2
    assert "absent is not a folder" in json.loads(done.stdout)["message"]


def test_the_modeline_names_a_schema_that_accepts_the_file(cli: Any) -> None:
    import yaml
    from jsonschema import Draft202012Validator

    written = cli.json("init")["written"]
    assert ".coordinator/delegation.schema.json" in written
    text = (cli.folder / "orchestration.yaml").read_text()
    first = text.splitlines()[0]
    schema = json.loads(Path(cli.folder, first.partition("$schema=")[2]).read_text())
    Draft202012Validator(schema).validate(yaml.safe_load(text))
    assert (cli.folder / ".coordinator" / ".gitignore").read_text() == "*\n"


PASSES = b"from pkg.a import x\n\n\ndef test_x():\n    assert x == 1\n"
FAILS = PASSES.replace(b"== 1", b"== 2")
PACKAGE = {"pkg/__init__.py": b"", "pkg/a.py": b"x = 1\n"}


def test_the_tests_that_init_found_are_run_by_the_gate_itself(cli: Any, git_repository: Any) -> None:
    git_repository(cli.folder, {**PACKAGE, "tests/test_a.py": PASSES})
    wrote = cli("init")
    assert "the gate will run the tests: python -m pytest -q\n" in wrote.stdout
    assert cli("contract", "check", "orchestration.yaml").stdout.endswith("ok (orchestration inventory, 4 tasks)\n")
    done = cli("run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all 4 tasks accepted" in done.stdout
    shown = cli("evidence", "inventory/tests").stdout
    assert "`python -m pytest -q` exited 0" in shown
    assert cli("export", "inventory/summary").returncode == 0
    assert "the gate ran 'python" not in shown
    assert "the gate ran `python -m pytest -q` in a clean checkout" in (cli.folder / "inventory.md").read_text()
    assert cli("evidence", "--verify").returncode == 0


def test_failing_tests_end_the_run_with_the_name_of_the_check(cli: Any, git_repository: Any) -> None:
    git_repository(cli.folder, {**PACKAGE, "tests/test_a.py": FAILS})
    # What is not committed is not what is tested.
    (cli.folder / "pkg" / "a.py").write_text("x = 2\n")
    assert cli("init").returncode == 0
    done = cli("run")
    assert done.returncode == 1, done.stdout + done.stderr
    tree = done.stdout
    assert "tests    failed" in tree
    assert "`python -m pytest -q` exited 1" in tree
    assert "needs tests (failed)" in tree
    assert "next: coordinator inspect inventory/tests\n" in tree
    shown = cli("inspect", "inventory/tests").stdout
    assert "failed: command python -m pytest -q (at most 600 s)" in shown
    assert re.search(r"^  \| +E       assert 1 == 2 *$", shown, re.MULTILINE), shown  # a program's spaces are kept
    assert "repairs used" not in shown.splitlines()[0]
    assert "attempt 2" not in shown


PYTEST = ["python", "-m", "pytest", "-q"]
FOUND: list[tuple[str, dict[str, bytes], list[str] | None]] = [
    ("tests", {"tests/a/test_b.py": b""}, PYTEST),
    ("beside the code", {"pkg/a_test.py": b"", "pyproject.toml": b"[tool.pytest.ini_options]\n"}, PYTEST),
    ("old configuration", {"test_a.py": b"", "setup.cfg": b"[tool:pytest]\n"}, PYTEST),
    ("a test file alone", {"pkg/test_a.py": b""}, None),
    ("configuration alone", {"pytest.ini": b"[pytest]\n", "tests/readme": b""}, None),
    ("broken configuration", {"test_a.py": b"", "pyproject.toml": b"[tool", "setup.cfg": b"x", "tox.ini": b"["}, None),
    ("make", {"Makefile": b"all:\n\ntest: all\n\ttrue\n"}, ["make", "test"]),
    ("no target", {"Makefile": b"tests: x\ntest := 3\n\ttest: no\n"}, None),
    ("npm", {"package.json": b'{"scripts": {"test": "node --test"}}'}, ["npm", "test"]),
    ("npm's own", {"package.json": b'{"scripts": {"test": "echo \\"Error: no test specified\\" && exit 1"}}'}, None),
    ("broken npm", {"package.json": b'{"scripts": ["test"]'}, None),
    ("deep", {"package.json": b"[" * 200_000}, None),
    ("other npm", {"package.json": b'{"scripts": ["test"]}', "Makefile": b"test:\n"}, ["make", "test"]),
    ("cargo", {"Cargo.toml": b"", "tests/a.rs": b""}, ["cargo", "test"]),
    ("go", {"go.mod": b""}, ["go", "test", "./..."]),
    ("python first", {"tests/test_a.py": b"", "package.json": b'{"scripts": {"test": "x"}}'}, PYTEST),
    ("nothing", {}, None),
]  # fmt: skip


@pytest.mark.parametrize(("files", "command"), [case[1:] for case in FOUND], ids=[case[0] for case in FOUND])
@pytest.mark.parametrize("kind", ["git", "folder"])
def test_a_test_command_is_found_by_what_the_commit_holds(
    kind: str, files: dict[str, bytes], command: list[str] | None, tmp_path: Path, git_repository: Any
) -> None:
    if kind == "git":
        git_repository(tmp_path, files)
        (tmp_path / "tests").mkdir(exist_ok=True)
        (tmp_path / "tests" / "test_not_committed.py").write_text("")
    else:
        for name, data in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(data)
        if "pkg/a_test.py" in files:  # a plain folder is not walked through for this
            command = None
    with mock.patch("coordinator.cli.finding_tests._is_here", return_value=True):
        assert find_test_command(tmp_path) == command


def test_a_program_that_is_not_on_this_machine_is_not_named(tmp_path: Path, git_repository: Any) -> None:
    git_repository(tmp_path, {"Makefile": b"test:\n", "Cargo.toml": b""})
    with mock.patch("coordinator.cli.finding_tests._is_here", lambda program: program == "make"):
        assert find_test_command(tmp_path) == ["make", "test"]
    with mock.patch("coordinator.cli.finding_tests._is_here", return_value=False):
        assert find_test_command(tmp_path) is None


@pytest.mark.parametrize(("package", "top"), [(True, ["-t", "."]), (False, [])])
def test_without_pytest_the_tests_of_unittest_are_found(
    package: bool, top: list[str], cli: Any, git_repository: Any
) -> None:
    case = (
        b"import unittest\nfrom pkg.a import x\n\n\nclass T(unittest.TestCase):\n"
        b"    def test_x(self):\n        self.assertEqual(x, 1)\n"
    )
    git_repository(cli.folder, {**PACKAGE, "tests/test_a.py": case, **({"tests/__init__.py": b""} if package else {})})
    with mock.patch("importlib.util.find_spec", return_value=None):
        found = find_test_command(cli.folder)
        assert found == ["python", "-m", "unittest", "discover", "-s", "tests", *top]
    assert cli("init").returncode == 0
    file = cli.folder / "orchestration.yaml"
    file.write_text(file.read_text().replace("[python, -m, pytest, -q]", json.dumps(found)))
    done = cli("run")
    assert done.returncode == 0, done.stdout + done.stderr


def test_in_a_folder_of_a_repository_the_tests_of_the_whole_are_found(cli: Any, git_repository: Any) -> None:
    git_repository(cli.folder, {"tests/test_a.py": b"", "sub/tests/readme": b""})
    assert find_test_command(cli.folder / "sub") == PYTEST


def test_the_comment_about_tests_is_a_task_when_its_marks_are_taken_away(cli: Any, git_repository: Any) -> None:
    git_repository(cli.folder, {"Makefile": b"check:\n\ttrue\n"})
    assert cli("init").returncode == 0
    file = cli.folder / "orchestration.yaml"
    text = file.read_text()
    begin = text.index("  # tests:\n")
    end = text.index("  summary:")
    text = text[:begin] + text[begin:end].replace("  # ", "  ") + text[end:]
    file.write_text(
        text.replace("[make, test]", "[make, check]").replace(
            "needs: [kinds, largest] ", "needs: [kinds, largest, tests]"
        )
    )
    done = cli("run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all 4 tasks accepted" in done.stdout
