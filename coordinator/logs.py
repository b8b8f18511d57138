"""JSON logs by structlog, one file a worker: run, task, attempt and generation on every line of a child, from every
thread.

The host program's own structlog configuration is neither used nor changed.
"""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from coordinator.redaction import Redactor
    from coordinator.store.records import Claim

__all__ = ["WorkerLog"]


class WorkerLog:
    """The log of one worker. Secrets are redacted here like everywhere else."""

    def __init__(self, path: Path, *, redactor: Redactor, owner: str) -> None:
        import structlog

        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1)

        def render(_logger: Any, _name: str, entry: Any) -> str:
            if self._file.closed:  # a function that cannot be killed may outlive its worker
                raise structlog.DropEvent
            said = {key: value if _is_json(value) else str(value) for key, value in entry.items() if key not in _OURS}
            return _ENCODER.encode({**redactor.value(said)[0], **{key: entry[key] for key in _OURS if key in entry}})

        self.logger: FilteringBoundLogger = structlog.wrap_logger(
            structlog.WriteLogger(cast("TextIO", _BestEffort(self._file))),
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.format_exc_info,
                render,
            ],
            wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        ).bind(owner=owner)

    def of(self, claim: Claim) -> FilteringBoundLogger:
        """A logger whose lines name the attempt."""
        return self.logger.bind(
            run=claim.run_id, task=claim.task_id, attempt=claim.attempt, generation=claim.generation
        )

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


_OURS = ("owner", "run", "task", "attempt", "generation", "event", "level", "timestamp")
"""What the coordinator says itself, in words of its own."""
_ENCODER = json.JSONEncoder(default=repr)


class _BestEffort:
    """A log that cannot be written (its disk is full) must not end the work that it tells of."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        """The file hands on each line as it comes."""


def bind_context(claim: Claim) -> None:
    """Let what a child logs through structlog itself name its attempt too (by ``merge_contextvars``)."""
    import structlog

    structlog.contextvars.bind_contextvars(
        run=claim.run_id, task=claim.task_id, attempt=claim.attempt, generation=claim.generation
    )


def _is_json(value: object) -> bool:
    return value is None or isinstance(value, (str, int, float, bool, list, dict))
