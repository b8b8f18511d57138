"""What the documentation shows is run."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest
from pydantic import BaseModel

from contracts.orchestration import Orchestration, Task
from contracts.states import transition_table
from coordinator.launch import plan_launch

ROOT = Path(__file__).resolve().parents[2]


def code_blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run_script(folder: Path, code: str) -> str:
    (folder / "script.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_example_runs_as_it_stands(tmp_path: Path) -> None:
    [code] = code_blocks("README.md", "python")

    assert run_script(tmp_path, code) == "{'files': 1}\n"


def test_the_python_page_runs_and_goes_on_when_it_is_run_again(tmp_path: Path) -> None:
    [code] = code_blocks("docs/python.md", "python")

    assert run_script(tmp_path, code) == "accepted {'total': 42}\n"
    assert run_script(tmp_path, code) == "accepted {'total': 42}\n"


WRONG = """
from coordinator import Orchestration, Task


def no_child(text: str) -> str:
    return text


one = Task(objective="o", agent=no_child, acceptance=[{"cel": "true"}])
two = Task(objective="o", agent={"function": "f.py:f"}, isolaton="none")
three = Orchestration(name="n", objective="o", tasks=[one])
four = Orchestration(name="n", objective="o", tasks={"one": one, "two": {"objective": "o"}}, source=7)
"""


@pytest.mark.slow
def test_the_python_examples_pass_strict_type_checks_of_a_user_and_what_is_wrong_does_not(tmp_path: Path) -> None:
    for page, name in (("README.md", "readme.py"), ("docs/python.md", "page.py")):
        [code] = code_blocks(page, "python")
        (tmp_path / name).write_text(code, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    check = ["-m", "mypy", "--strict", "--config-file=", "--hide-error-context", "readme.py", "page.py", "wrong.py"]
    done = subprocess.run(
        [sys.executable, *check], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    found = [line.split(": ")[:2] for line in done.stdout.splitlines() if ": error:" in line]
    assert found == [["wrong.py:9", "error"], *([f"wrong.py:{line}", "error"] for line in (10, 11, 12))], done.stdout


@pytest.mark.parametrize("model", [Task, Orchestration])
def test_what_type_checkers_are_told_of_a_document_is_what_it_holds(model: type[BaseModel]) -> None:
    [tree] = [
        node
        for node in ast.walk(ast.parse((ROOT / "contracts/orchestration.py").read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and node.name == model.__name__
    ]
    [told] = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    needed = {one.arg for one, default in zip(told.args.kwonlyargs, told.args.kw_defaults, strict=True) if not default}
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    assert {one.arg for one in told.args.kwonlyargs} == set(fields)
    assert needed == {name for name, field in fields.items() if field.is_required()}


def test_the_orchestration_page_shows_a_file_that_would_be_launched(tmp_path: Path) -> None:
    text, _ = code_blocks("docs/orchestration.md", "yaml")
    (tmp_path / "survey.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "files.schema.json").write_text('{"type": "object"}', encoding="utf-8")
    (tmp_path / "survey.py").write_text("def files(a): ...\ndef summary(a): ...\n", encoding="utf-8")

    plan = plan_launch(Orchestration.from_file(tmp_path / "survey.yaml"))

    assert plan.faults == []
    assert set(plan.terms) == {"files", "summary"}


def test_the_orchestration_page_shows_a_model_that_would_be_launched(tmp_path: Path) -> None:
    whole, model = code_blocks("docs/orchestration.md", "yaml")
    head, _, _ = whole.partition("  files:\n")
    task = "  files:\n    objective: o\n    acceptance: [{approval: Well?}]\n" + indent(model, "    ")
    (tmp_path / "survey.yaml").write_text(head + task, encoding="utf-8")

    assert plan_launch(Orchestration.from_file(tmp_path / "survey.yaml")).faults == []


MODELS = code_blocks("docs/models.md", "yaml")


@pytest.mark.parametrize("number", range(len(MODELS)))
def test_the_page_on_models_shows_agents_that_would_be_launched(number: int, tmp_path: Path) -> None:
    head = "schema: coordinator/v1\nname: x\nobjective: o\ntasks:\n  one:\n"
    task = "    objective: o\n    isolation: none\n    acceptance: [{approval: Well?}]\n"
    (tmp_path / "one.yaml").write_text(head + task + indent(MODELS[number], "    "), encoding="utf-8")

    plan = plan_launch(Orchestration.from_file(tmp_path / "one.yaml"))

    assert plan.faults == []
    assert set(plan.priced) == {"one"}


@pytest.mark.parametrize("page", sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")))
def test_links_between_pages_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    broken = [target for target in re.findall(r"\]\(([^)#:]+)\)", text) if not ((ROOT / page).parent / target).exists()]

    assert broken == []


def test_the_table_of_transitions_is_the_one_in_the_code() -> None:
    assert transition_table() in (ROOT / "docs/states.md").read_text(encoding="utf-8")


def test_every_command_has_its_row() -> None:
    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    listed = subprocess.run(
        [sys.executable, "-m", "coordinator", "--help"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    commands = re.findall(r"^  ([a-z]+) {2,}", listed, re.MULTILINE)

    assert len(commands) >= 12
    assert [command for command in commands if f"`{command}" not in page] == []


def test_the_script_on_the_orchestration_page_plays(tmp_path: Path) -> None:
    [code] = code_blocks("docs/orchestration.md", "python")
    (tmp_path / "README.md").write_text("Hello.\n", encoding="utf-8")
    (tmp_path / "script.yaml").write_text(
        "schema: coordinator/v1\nname: play\nobjective: Count.\nsource: {repo: .}\n"
        "tasks:\n  count:\n    objective: Count the characters.\n    agent: {scripted: 'play.py:play'}\n"
        "    isolation: none\n    resources: {tools: [read_file]}\n"
        "    acceptance: [{cel: 'output.characters == 7'}]\n",
        encoding="utf-8",
    )
    (tmp_path / "play.py").write_text(code, encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-m", "coordinator", "run", "script.yaml"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
