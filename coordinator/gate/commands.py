"""The programs that a contract's checks run, and what their ends say of a result.

A program that ended by itself has judged: it exited 0, or it failed. One that could not be started, was ended by its
limit or by a signal, or left others running has judged nothing; that is never held against the result.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from typing import Final

from contracts.canonical import digest_of
from contracts.checks import Check
from contracts.results import Finding, ProcessRecord
from coordinator.gate.case import CannotJudge, Case, one_line

__all__ = ["Commands", "same_command"]

MAX_TAIL: Final = 1500
_ENDS: Final = {
    "timeout": "its limit ended it",
    "start_failed": "it could not be started",
    "unknown": "nobody saw its end",
}
_RULES = re.compile(r"([=_~*#-])\1{3,}")
"""Drawn lines say nothing, and would fill what little of the output is shown."""
_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)", re.DOTALL)


class Commands:
    """Runs the programs of one result's checks, each once, in the order in which they are asked for."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._ends: dict[str, ProcessRecord | str] = {}

    @property
    def records(self) -> list[ProcessRecord]:
        """Of all programs that were started."""
        return [end for end in self._ends.values() if isinstance(end, ProcessRecord)]

    def findings(self, check: Check) -> list[Finding]:
        """None when it passed. Raises ``CannotJudge``."""
        assert check.command is not None
        record = self._end(check)
        if record.exit_status == 0:
            return []
        message = f"`{_shown(check.command)}` exited {record.exit_status}{_last_output(record)}"
        return [Finding(check=one_line(check.label()), message=one_line(message, MAX_TAIL + 400))]

    def _end(self, check: Check) -> ProcessRecord:
        """How the program ended by itself. Raises ``CannotJudge`` for every other end."""
        assert check.command is not None
        key = digest_of([check.command, check.timeout_s, check.env])
        if key not in self._ends:
            self._ends[key] = self._run(check.command, check)
        end = self._ends[key]
        if isinstance(end, str):
            raise CannotJudge(end)
        shown = _shown(check.command)
        if end.how != "exited":
            why = f"{_ENDS.get(end.how, end.how)} (after {end.elapsed_s:.1f} s of at most {check.timeout_s:g} s)"
            raise CannotJudge(f"`{shown}` has judged nothing: {why}{_last_output(end)}")
        if end.signal is not None or end.exit_status is None:
            raise CannotJudge(f"`{shown}` was ended by signal {end.signal}{_last_output(end)}")
        if not end.all_gone:
            raise CannotJudge(f"`{shown}` left {end.left_behind} processes behind, so its end cannot be known")
        return end

    def _run(self, argv: Sequence[str], check: Check) -> ProcessRecord | str:
        if self._case.judged is None:
            return "there is no source in which to run it"
        try:
            return self._case.judged.run_command(argv, check.timeout_s, check.env)
        except Exception as error:
            return f"`{_shown(argv)}` could not be run: {type(error).__name__}: {error}"


def same_command(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two argument lists are of one command; ``python`` is the coordinator's interpreter."""
    return _plain(one) == _plain(other)


def _plain(argv: Sequence[str]) -> list[str]:
    return [sys.executable if argv[0] == "python" else argv[0], *argv[1:]] if argv else []


def _shown(argv: Sequence[str]) -> str:
    return one_line(shlex.join(argv), 200)


def _last_output(record: ProcessRecord) -> str:
    """The last lines, one after the other on a line of their own text."""
    lines = [
        _RULES.sub(r"\1\1\1", " ".join(line.split()))
        for line in _TERMINAL.sub("", record.output_tail[-4 * MAX_TAIL :]).splitlines()
    ]
    text = " | ".join(line for line in lines if line)
    if not text:
        return "; it wrote nothing"
    return f"; its last output: {text if len(text) <= MAX_TAIL else '...' + text[-MAX_TAIL:]}"
