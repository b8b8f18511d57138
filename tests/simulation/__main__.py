"""Play seeds: ``python -m tests.simulation --seed N --trace``, or many with ``--seeds FIRST:LAST --processes 2``."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator

from tests.simulation.playing import played


def results(seeds: range, processes: int) -> Iterator[str | None]:
    if processes == 1:
        yield from map(played, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(played, seeds, chunksize=20)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--trace", action="store_true", help="print every step of --seed")
    parser.add_argument("--seeds", default="0:1000", help="FIRST:LAST, LAST not among them")
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    if given.seed is not None:
        wrong = played(given.seed, trace=given.trace)
        print(wrong or f"seed {given.seed}: every invariant held")
        return 1 if wrong else 0
    first, last = (int(part) for part in given.seeds.split(":"))
    began, faulty = time.monotonic(), 0
    for wrong in results(range(first, last), given.processes):
        if wrong is not None:
            faulty += 1
            print(wrong, flush=True)
    print(f"{last - first} seeds in {time.monotonic() - began:.0f} s, {faulty} of them wrong")
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
