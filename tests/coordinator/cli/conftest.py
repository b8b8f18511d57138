"""The command as users start it: a process of its own in a folder of theirs."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

REPORT = """\
schema: coordinator/v1
name: report
objective: Write a report on the pilot.
source: {repo: .}
defaults: {isolation: none, limits: {deadline_s: 30, max_claims: 2}}
tasks:
  draft:
    objective: Draft the report.
    agent: {function: "kids.py:draft"}
    budget: {max_cost_usd: 0.5}
    required_evidence: [facts used, {name: draft, kind: artifact, min_origin: verified}]
    acceptance:
      - {sections: [Background, Risks], of: draft.md}
      - {approval: "May the draft be published?"}
  colour:
    objective: Find the colour.
    agent: {function: "kids.py:colour"}
    acceptance: [{cel: "output.colour == 'blue'"}]
  broken:
    objective: Break.
    agent: {function: "kids.py:broken"}
    acceptance: [{cel: "true"}]
  final:
    needs: [draft, broken]
    objective: Put it together.
    agent: {function: "kids.py:draft"}
    acceptance: [{cel: "true"}]
"""

KIDS = r"""
def draft(a):
    text = "# Background\nx\n" + ("# Risks\ny\n" if a.feedback else "")
    a.artifact("draft.md", text, "text/markdown")
    a.artifact("notes/../../evil.txt", "evil")
    a.artifact("large.bin", b"x" * 100_000)
    a.note("facts used", "\x1b[31mred [bold]20 staff[/bold]\x07")
    a.evidence("draft", "artifact", artifact="draft.md")
    a.assume("the pilot goes on")
    a.gap("costs are not covered")
    return a.completed({"ok": True}, message="done [red]x[/red] \x1b[2J")


def colour(a):
    if not a.answers:
        return a.blocked("Which colour? \x1b[2J [bold]")
    return a.completed({"colour": a.answers[-1][1].message})


def broken(a):
    raise ValueError("boom \x1b[31m")
"""


class Cli:
    """Runs ``coordinator`` in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """A command that works, in a process of its own; one that only looks or decides, in this process."""
        if words[:1] not in (("run",), ("worker",), ("init",), ()):
            return self.inside(*words, cwd=cwd)
        return self.process(*words, cwd=cwd)

    def process(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*words), cwd=cwd or self.folder, env=self.env(), capture_output=True, text=True, timeout=120
        )

    def inside(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        from coordinator.cli import main

        with (
            mock.patch.dict(os.environ, self.env(), clear=True),
            mock.patch.object(sys, "argv", ["coordinator", *words]),
            contextlib.chdir(cwd or self.folder),
            contextlib.redirect_stdout(io.StringIO()) as out,
            contextlib.redirect_stderr(io.StringIO()) as err,
        ):
            code = main()
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())

    def json(self, *words: str) -> Any:
        done = self(*words, "--json")
        assert not done.stderr, done.stderr
        return json.loads(done.stdout)

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "coordinator", *words]

    def env(self, **more: str) -> dict[str, str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("COORDINATOR_", "GIT_"))}
        return {**clean, "XDG_STATE_HOME": str(self.folder.parent / f"state of {self.folder.name}"), **more}


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The command in an empty folder."""
    folder = tmp_path / "work here"
    folder.mkdir()
    return Cli(folder)


def make_report(folder: Path) -> Cli:
    """A run that waits for two people, with a repaired result, a failed task and a blocked one."""
    (folder / "orchestration.yaml").write_text(REPORT, encoding="utf-8")
    (folder / "kids.py").write_text(KIDS, encoding="utf-8")
    cli = Cli(folder)
    done = cli("run")
    assert done.returncode == 4, done.stderr
    return cli


@pytest.fixture(scope="session")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """The report while it waits; only looked at."""
    return make_report(tmp_path_factory.mktemp("waiting"))


@pytest.fixture
def report(tmp_path: Path) -> Cli:
    """The report while it waits, to be changed."""
    return make_report(tmp_path)


@pytest.fixture(scope="session")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """The report when it has ended: draft and colour accepted, broken failed; only looked at."""
    cli = make_report(tmp_path_factory.mktemp("answered"))
    for request in cli.json("status")["requests"]:
        assert cli("answer", request["request_id"], "--approve", "-m", "blue").returncode == 0
    assert cli("worker").returncode == 1
    return cli


GitRepository = Callable[[Path, dict[str, bytes]], None]


@pytest.fixture(scope="session")
def git_repository() -> GitRepository:
    """Makes a git repository of a folder, with one commit of these files."""

    def make(folder: Path, files: dict[str, bytes]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        identity = ["-c", "user.email=a@example.org", "-c", "user.name=A"]
        for words in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "--allow-empty", "-m", "first"]):
            subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)

    return make


@pytest.fixture(scope="session")
def cli_of() -> type[Cli]:
    """Makes the command for a folder."""
    return Cli
