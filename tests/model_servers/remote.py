"""A fake model server in a process of its own, told what to do from here."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.model_servers.fake import Request
from tests.model_servers.script import Answer

TOP = Path(__file__).parents[2]


class FakeModelProcess:
    """Has the URL, the answers, and the requests of a `FakeModelServer`, and shares no thread or lock with the test."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.model_servers"]
        self._process = subprocess.Popen(command, cwd=TOP, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().decode().strip()
        self.openai_url = f"{self.url}/v1"
        self.pid = self._process.pid
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._process.communicate()

    def send(self, *answers: Answer) -> None:
        self._tell("send", *answers)

    def by_turn(self, *answers: Answer) -> None:
        self._tell("by_turn", *answers)

    @property
    def requests(self) -> Sequence[Request]:
        return self._tell("requests")  # type: ignore[no-any-return]

    @property
    def faults(self) -> Sequence[str]:
        return self._tell("faults")  # type: ignore[no-any-return]

    def _tell(self, name: str, *args: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((name, args), self._process.stdin)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)
