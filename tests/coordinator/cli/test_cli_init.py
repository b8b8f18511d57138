from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

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
    import subprocess

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
