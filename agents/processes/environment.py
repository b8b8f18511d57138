"""The environment of a child: built up from nothing, so that no secret and no habit of the coordinator's reaches it."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from contracts.errors import BadInput, Fault
from contracts.json_positions import short

__all__ = ["child_environment"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_NEVER_ASK = {
    # Whatever would wait for a person fails at once instead.
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "false",
    "GIT_EDITOR": "false",
    "GIT_SEQUENCE_EDITOR": "false",
    "GIT_MERGE_AUTOEDIT": "no",
    "GIT_PAGER": "cat",
    "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
    "SSH_ASKPASS_REQUIRE": "never",
    "EDITOR": "false",
    "VISUAL": "false",
    "PAGER": "cat",
    "MANPAGER": "cat",
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_NO_INPUT": "1",
}

_SAME_EVERYWHERE = {
    "LANG": "C.UTF-8",
    "SHELL": "/bin/sh",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "GIT_CONFIG_NOSYSTEM": "1",
    # A commit in the child's own clone needs an author, and the private home has none.
    "GIT_AUTHOR_NAME": "child",
    "GIT_AUTHOR_EMAIL": "child@coordinator.invalid",
    "GIT_COMMITTER_NAME": "child",
    "GIT_COMMITTER_EMAIL": "child@coordinator.invalid",
    # Output is followed live, and compiled files beside the source would be changes that nobody meant.
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def child_environment(*, home: Path, tmp: Path, extra: Mapping[str, str], passed: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a child.

    ``home`` and ``tmp`` are private folders of the attempt. ``passed``: what the contract grants by name; it may
    replace a default. ``extra``: what the coordinator says (``COORDINATOR_*``); nothing replaces it. The folder of the
    running interpreter comes first in PATH, so that ``python`` is the same for children and checks.
    Raises ``BadInput`` with every name or value that no environment can hold; values are not shown.
    """
    faults = [
        Fault("env", f"{short(name)} is no name of an environment variable", "use letters, digits and _")
        for name in (*passed, *extra)
        if not _NAME.fullmatch(name)
    ]
    faults += [
        Fault("env", f"the value of {short(name)} holds a NUL byte", "remove it")
        for name, value in (*passed.items(), *extra.items())
        if "\0" in value
    ]
    if faults:
        raise BadInput(faults)
    own = Path(sys.executable).parent
    return {
        "PATH": f"{own}:/usr/local/bin:/usr/bin:/bin",
        **_SAME_EVERYWHERE,
        **_NEVER_ASK,
        "HOME": str(home),
        "TMPDIR": str(tmp),
        **passed,
        **extra,
    }
