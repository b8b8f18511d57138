"""How long the command line and the import take."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

from bench.plan import Plan, Step
from bench.programs import environment
from bench.records import Record

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import coordinator": ["-c", "import coordinator"],
    "coordinator --help": ["-m", "coordinator", "--help"],
}


def startup_steps(plan: Plan) -> Iterator[Step]:
    for number in range(plan.repeats):
        for name, words in COMMANDS.items():

            def run(name: str = name, words: list[str] = words, number: int = number) -> Record:
                began = time.perf_counter()
                subprocess.run([sys.executable, *words], env=environment(), check=True, capture_output=True)
                return Record("startup", name, 1, number, {"seconds": time.perf_counter() - began})

            yield Step(f"startup round {number + 1}: {name}", run)
