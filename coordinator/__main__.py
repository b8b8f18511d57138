"""``python -m coordinator``: the same as the ``coordinator`` command."""

from __future__ import annotations

from coordinator.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
