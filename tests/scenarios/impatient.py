"""The ``coordinator`` command, or the script that is named first, short of patience with the locks of others."""

from __future__ import annotations

import runpy
import sys

from coordinator import worker
from coordinator.cli import main
from coordinator.store import database

if __name__ == "__main__":
    database.BUSY_TIMEOUT_S = 1
    database.IDLE_IN_TRANSACTION_S = 2
    database.TRANSACTION_S = 10
    worker.STOP_PATIENCE_S = 2.0
    worker.HINDERED_PAUSE_S = 1.0
    if len(sys.argv) > 1 and sys.argv[1].endswith(".py"):
        sys.argv.pop(0)
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        sys.exit(main())
