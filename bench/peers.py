"""The environment in which the peers live: made once for each list of versions, outside of the repository."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "peers.txt"


def cache_folder() -> Path:
    """Where the bench keeps what it makes."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "delegation-coordinator" / "bench"


def peers_interpreter() -> Path:
    """The Python of the peers' environment, which is made if it is not there."""
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = cache_folder() / f"peers-{wanted}"
    interpreter = folder / "bin" / "python"
    ready = folder / "ready"
    if not ready.exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(interpreter), "-m", "pip", "--disable-pip-version-check", "-qq", "install", "-r", str(REQUIREMENTS)]
        subprocess.run(pip, check=True)
        ready.touch()
    return interpreter


def peer_versions() -> dict[str, str]:
    """Pinned versions of the systems that are compared with."""
    pins = dict(line.split("==") for line in REQUIREMENTS.read_text(encoding="utf-8").split("\n") if "==" in line)
    return {name: pins[name] for name in ("dbos", "langgraph", "langgraph-checkpoint-sqlite", "procrastinate")}
