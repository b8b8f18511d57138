"""Command children: any program. Contract and projection travel as JSON files, the result comes back as one.

What a program's end means is one table, in ``docs/command-protocol.md``: the exit status proves nothing, and a result
file that it contradicts is no success.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.processes import (
    ProcessEnd,
    ProcessSpec,
    child_environment,
    read_artifact_file,
    read_result_file,
    run_process,
)
from agents.runtimes.errors import NoResult
from contracts.assignment import Assignment
from contracts.errors import BadInput
from contracts.results import ArtifactEntry, ProcessRecord, Result
from contracts.states import Outcome

__all__ = ["CommandRuntime", "Place", "process_record", "projection_document", "with_interpreter"]

ARTIFACT_BYTES_MAX = 256 * 1024 * 1024
TAIL_CHARS = 4_000
UNLIMITED_S = 31_536_000.0
"""The deadline is the coordinator's to keep; it ends the program by the cancel signal."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one attempt of a program lives.

    ``scratch``: a private folder that is deleted after it. ``workspace``: its working folder. ``output_path``: where
    its output can be followed. ``lock_path``: held by the supervisor until nothing of the program is left.
    ``credentials``: values of those granted by name.
    """

    scratch: Path
    workspace: Path
    output_path: Path
    lock_path: Path
    credentials: Mapping[str, str]


class CommandRuntime:
    """Runs a program under a supervisor; cancelling really ends it, with all its descendants."""

    stoppable = True
    kills = True

    def __init__(self, argv: Sequence[str], said: Sequence[str], place: Place) -> None:
        """``argv`` with the paths of pinned files, ``said`` as the contract has it: that is what is recorded."""
        self._said = list(said)
        self._argv = with_interpreter(argv)
        self._place = place
        self.processes: list[ProcessRecord] = []
        self.all_gone = True

    async def run(self, assignment: Assignment) -> Result:
        folders = self._prepare(assignment)
        environment = child_environment(
            home=folders["home"],
            tmp=folders["tmp"],
            passed=self._place.credentials,
            extra={
                "COORDINATOR_CONTRACT": str(self._place.scratch / "contract.json"),
                "COORDINATOR_PROJECTION": str(self._place.scratch / "projection.json"),
                "COORDINATOR_RESULT": str(folders["result"] / "result.json"),
                "COORDINATOR_ARTIFACTS": str(folders["artifacts"]),
                "COORDINATOR_WORKSPACE": str(self._place.workspace),
            },
        )
        self.all_gone = False  # until somebody has seen the end
        spec = ProcessSpec(
            argv=self._argv,
            cwd=self._place.workspace,
            env=environment,
            timeout_s=UNLIMITED_S,
            output_path=self._place.output_path,
            lock_path=self._place.lock_path,
        )
        try:
            end = await run_process(spec, assignment.cancel)
        except OSError as error:
            self.all_gone = True
            raise NoResult(f"the program could not be started: {error}") from error
        self.all_gone = end.all_gone
        self.processes.append(process_record(self._said, end))
        return self._judge_end(end, assignment, folders)

    def _prepare(self, assignment: Assignment) -> dict[str, Path]:
        scratch = self._place.scratch
        folders = {name: scratch / name for name in ("home", "tmp", "result", "artifacts", "needs")}
        for folder in (*folders.values(), self._place.output_path.parent):
            folder.mkdir(parents=True, exist_ok=True)
        (scratch / "contract.json").write_text(json.dumps(assignment.contract, indent=2), encoding="utf-8")
        document = projection_document(assignment, folders["needs"])
        (scratch / "projection.json").write_text(json.dumps(document, indent=2), encoding="utf-8")
        return folders

    def _judge_end(self, end: ProcessEnd, assignment: Assignment, folders: Mapping[str, Path]) -> Result:
        if not end.all_gone or end.how == "unknown":
            return Result(outcome=Outcome.UNKNOWN, message=f"nobody saw the program's end: {end.message or end.how}")
        if end.how == "cancelled":
            return assignment.cancelled("ended when told to stop")
        if end.how != "exited":
            return assignment.failed(end.message or f"the program was ended: {end.how}")
        how = f"signal {end.signal}" if end.signal is not None else f"exit status {end.exit_status}"
        try:
            handed_in = read_result_file(folders["result"] / "result.json")
        except BadInput as error:
            faults = "; ".join(str(fault) for fault in error.faults[:5])
            raise NoResult(f"the program handed in no result ({how}): {faults}") from None
        if end.exit_status != 0 and handed_in.outcome != "failed":
            return assignment.failed(f"contradictory: the result says {handed_in.outcome}, the program ended by {how}")
        stored = []
        for artifact in handed_in.artifacts:
            try:
                data = read_artifact_file(folders["artifacts"], artifact.path, max_bytes=ARTIFACT_BYTES_MAX)
            except BadInput as error:
                raise NoResult(f"artifact {artifact.name!r}: {error.faults[0]}") from None
            ref = assignment.artifacts.put(artifact.name, data, artifact.media_type)
            stored.append(
                ArtifactEntry(
                    name=ref.name,
                    digest=ref.digest,
                    size_bytes=ref.size_bytes,
                    media_type=ref.media_type,
                    redacted=ref.redacted,
                )
            )
        return handed_in.result(stored)


def with_interpreter(argv: Sequence[str]) -> list[str]:
    """``python`` is the coordinator's own interpreter, for children and checks alike."""
    return [sys.executable if argv[0] == "python" else argv[0], *argv[1:]]


def process_record(argv: Sequence[str], end: ProcessEnd) -> ProcessRecord:
    """What is kept of a program's end."""
    streams = [data.decode("utf-8", "replace") for data in (end.stdout, end.stderr) if data]
    return ProcessRecord(
        argv=list(argv),
        how=end.how,
        exit_status=end.exit_status,
        signal=end.signal,
        all_gone=end.all_gone,
        left_behind=end.killed_left_behind,
        started_at=end.started_at.isoformat(),
        elapsed_s=round(end.elapsed_s, 3),
        stdout_digest=end.stdout_digest,
        stderr_digest=end.stderr_digest,
        output_tail="\n".join([*streams, end.message] if end.message else streams)[-TAIL_CHARS:],
    )


def projection_document(assignment: Assignment, needs_folder: Path) -> dict[str, Any]:
    """The projection as JSON. Artifacts of needed results are written below ``needs_folder``, read-only."""
    needs: dict[str, Any] = {}
    for task_id, need in assignment.needs.items():
        artifacts = {}
        for position, (name, digest) in enumerate(sorted(need.artifacts.items())):
            path = needs_folder / task_id / f"{position}-{_file_name(name)}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(assignment.artifacts.get(digest))
            path.chmod(0o444)
            artifacts[name] = {"digest": digest, "path": str(path)}
        needs[task_id] = {
            "output": need.output,
            "artifacts": artifacts,
            "manifest_digest": need.manifest_digest,
            "partial": need.partial,
            "gaps": list(need.gaps),
        }
    feedback = assignment.feedback
    return {
        "schema": "coordinator/projection/v1",
        "run_id": assignment.run_id,
        "task_id": assignment.task_id,
        "child_run_id": assignment.child_run_id,
        "attempt": assignment.attempt,
        "generation": assignment.generation,
        "deadline_at": assignment.deadline_at.isoformat(),
        "objective": assignment.objective,
        "inputs": dict(assignment.inputs),
        "needs": needs,
        "feedback": None
        if feedback is None
        else {
            "attempt": feedback.attempt,
            "reason": feedback.reason,
            "findings": [finding.model_dump(mode="json") for finding in feedback.findings],
            "manifest_digest": feedback.manifest_digest,
        },
        "answers": [
            {"question": question, "approved": reply.approved, "message": reply.message}
            for question, reply in assignment.answers
        ],
        "left_out": list(assignment.left_out),
    }


def _file_name(name: str) -> str:
    """The last part of an artifact's name, as long as file names can be; its suffix is kept."""
    return Path(name).name.encode()[-200:].decode("utf-8", "ignore")
