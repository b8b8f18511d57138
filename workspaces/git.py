"""The one way in which git is run: a fixed program, a built-up environment, fixed settings, a timeout."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from contracts.errors import Refused

__all__ = ["GitError", "ask_git", "git_argv", "git_environment", "run_git"]

Setting = tuple[str, str]

# Command-scope settings outrank the configuration of the repository, which may be anybody's.
_SETTINGS: tuple[Setting, ...] = (
    # A repository of another user is refused by git because its configuration can name programs to run. All
    # of those are switched off (here, and filters where files are compared), so reading such a repository is safe.
    ("safe.directory", "*"),
    ("safe.bareRepository", "explicit"),
    ("core.fsmonitor", "false"),
    ("core.hooksPath", "/dev/null"),
    ("core.attributesFile", "/dev/null"),
    ("core.pager", "cat"),
    ("core.editor", "false"),
    ("core.sshCommand", "false"),
    ("core.alternateRefsCommand", ""),
    ("core.protectHFS", "true"),
    ("core.protectNTFS", "true"),
    ("core.fsync", "all"),
    ("advice.graftFileDeprecated", "false"),  # for GIT_GRAFT_FILE below; it would stand in every message
    ("credential.helper", ""),
    ("commit.gpgSign", "false"),
    ("diff.external", ""),
    ("diff.ignoreSubmodules", "all"),
    ("submodule.recurse", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("protocol.allow", "never"),
    ("transfer.fsckObjects", "true"),
)

_VARIABLES = {
    "LC_ALL": "C",
    "PATH": os.defpath,
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_GRAFT_FILE": "/dev/null",
    "GIT_NO_LAZY_FETCH": "1",
    # For gits that do not know GIT_NO_LAZY_FETCH. A repository's protocol.<name>.allow would outrank protocol.allow;
    # this variable outranks both, and lists no real protocol.
    "GIT_ALLOW_PROTOCOL": "none",
}


class GitError(Refused):
    """Git failed. ``message`` is what it said, ``returncode`` its exit code (None: it never ended by itself)."""

    def __init__(self, command: str, message: str, returncode: int | None = None) -> None:
        super().__init__(f"git {command}: {message}")
        self.message = message
        self.returncode = returncode


@functools.cache
def _git_program() -> str:
    # A relative PATH entry could find a program inside somebody's source folder.
    folders = [folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(folder)]
    found = shutil.which("git", path=os.pathsep.join(folders))
    if found is None:
        raise Refused("git was not found on PATH, install git 2.39 or later")
    return found


def git_argv(args: Sequence[str], git_dir: Path | None) -> list[str]:
    """Command line for git. Without ``git_dir`` git looks for the repository from its working folder upwards."""
    where = [] if git_dir is None else [f"--git-dir={git_dir}"]
    return [_git_program(), "--no-pager", *where, *args]


def git_environment(extra: Iterable[Setting] = ()) -> dict[str, str]:
    """The whole environment of a git process: nothing is inherited."""
    environment = dict(_VARIABLES)
    settings = (*_SETTINGS, *extra)
    environment["GIT_CONFIG_COUNT"] = str(len(settings))
    for index, (key, value) in enumerate(settings):
        environment[f"GIT_CONFIG_KEY_{index}"] = key
        environment[f"GIT_CONFIG_VALUE_{index}"] = value
    return environment


def run_git(
    args: Sequence[str],
    *,
    git_dir: Path | None,
    cwd: Path | None = None,
    settings: Iterable[Setting] = (),
    stdin: bytes | None = None,
    timeout_s: float = 60,
) -> bytes:
    """What git wrote to its standard output. ``git_dir=None`` is only for finding the repository of ``cwd``.

    Raises ``GitError`` when git fails or does not end in time, ``OSError`` when ``cwd`` cannot be entered.
    """
    return ask_git(args, (0,), git_dir=git_dir, cwd=cwd, settings=settings, stdin=stdin, timeout_s=timeout_s)[1]


def ask_git(
    args: Sequence[str],
    answers: Collection[int] = (0, 1),
    *,
    git_dir: Path | None,
    cwd: Path | None = None,
    settings: Iterable[Setting] = (),
    stdin: bytes | None = None,
    timeout_s: float = 60,
) -> tuple[int, bytes]:
    """Like ``run_git`` for commands whose exit code is an answer: the code, one of ``answers``, and the output."""
    command = next(arg for arg in args if not arg.startswith("-"))
    try:
        done = subprocess.run(
            git_argv(args, git_dir),
            cwd="/" if cwd is None else cwd,
            env=git_environment(settings),
            stdin=subprocess.DEVNULL if stdin is None else None,
            input=stdin,
            capture_output=True,
            timeout=timeout_s,
            # Ctrl-C in a terminal is for the coordinator, which ends git itself.
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise GitError(command, f"did not end within {timeout_s:g} s") from None
    if done.returncode not in answers:
        message = done.stderr.decode("utf-8", "backslashreplace").strip()
        raise GitError(command, message or f"exit code {done.returncode}", done.returncode)
    return done.returncode, done.stdout
