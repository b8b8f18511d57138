"""Programs that a child runs by a tool call, in its workspace and as a ``command`` child would be run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from contracts.errors import OperationUnsettled
from contracts.ports import CancelSignal
from coordinator.runtimes import load_agents

__all__ = ["WorkspaceCommands"]


class WorkspaceCommands:
    """Implements ``contracts.ports.CommandRunner``. Called from a thread; the loop that runs the program is another's.

    ``all_gone``: whether nothing of what was run is left.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        scratch: Path,
        working_folder: Path,
        output_path: Path,
        lock_path: Path,
        credentials: Mapping[str, str],
        pinned: Callable[[str], str],
        cancel: CancelSignal,
    ) -> None:
        """``pinned``: for an argument that names a pinned file the path of its exact bytes, else the argument."""
        self._loop = loop
        self._scratch = scratch
        self._working_folder = working_folder
        self._output_path = output_path
        self._lock_path = lock_path
        self._credentials = credentials
        self._pinned = pinned
        self._cancel = cancel
        self.all_gone = True

    def __call__(self, argv: Sequence[str], timeout_s: float) -> tuple[int | None, str]:
        """Raises ``OperationUnsettled`` when nobody saw its end, ``OSError`` when this machine cannot start it."""
        load_agents()
        from agents.processes import ProcessSpec, child_environment, run_process
        from agents.runtimes.command import with_interpreter

        folders = {name: self._scratch / name for name in ("home", "tmp")}
        for folder in (*folders.values(), self._output_path.parent):
            folder.mkdir(parents=True, exist_ok=True)
        spec = ProcessSpec(
            argv=with_interpreter([self._pinned(argument) for argument in argv]),
            cwd=self._working_folder,
            env=child_environment(
                **folders, passed=self._credentials, extra={"COORDINATOR_WORKSPACE": str(self._working_folder)}
            ),
            timeout_s=timeout_s,
            output_path=self._output_path,
            lock_path=self._lock_path,
        )
        end = asyncio.run_coroutine_threadsafe(run_process(spec, self._cancel), self._loop).result()
        if not end.all_gone or end.how == "unknown":
            self.all_gone = False
            raise OperationUnsettled(f"nobody saw the program's end: {end.message or end.how}")
        streams = [data.decode("utf-8", "replace") for data in (end.stdout, end.stderr) if data]
        words = [] if end.how == "exited" else [end.message or f"the program was ended: {end.how}"]
        if end.signal is not None:
            words.append(f"the program was ended by signal {end.signal}")
        return end.exit_status, "\n".join([*streams, *words])
