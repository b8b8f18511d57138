"""Programs as children and checks: started with nothing inherited, watched, ended with all their descendants."""

from __future__ import annotations

from agents.processes.environment import child_environment
from agents.processes.result_file import NamedFile, ResultFile, read_artifact_file, read_result_file
from agents.processes.running import ProcessEnd, ProcessSpec, run_process

__all__ = [
    "NamedFile",
    "ProcessEnd",
    "ProcessSpec",
    "ResultFile",
    "child_environment",
    "read_artifact_file",
    "read_result_file",
    "run_process",
]
