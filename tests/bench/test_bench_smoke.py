"""The bench runs: every section once, with few children and without peers. No time is judged."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder to work in that other users may enter: as root, the PostgreSQL server runs as one of them."""
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="bench"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def bench(*options: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "bench", *options], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def facts_of(records: list[dict[str, Any]], section: str, subject: str) -> dict[str, Any]:
    [facts] = [record["facts"] for record in records if (record["section"], record["subject"]) == (section, subject)]
    return dict(facts)


def test_every_section_measures_and_its_tables_go_into_the_page(tmp_path: Path, disk: Path) -> None:
    report, page = tmp_path / "bench.json", tmp_path / "performance.md"
    shutil.copy(ROOT / "docs" / "performance.md", page)
    before, _, _ = page.read_text(encoding="utf-8").partition("<!--")

    bench("--quick", "--databases", "sqlite", "--media", "disk", "--disk", disk, "--json", report, "--page", page)

    records = json.loads(report.read_text(encoding="utf-8"))["records"]
    traced = [record for record in records if record["section"].endswith(" traced")]
    assert {record["section"] for record in records if record not in traced} == {
        "fan-out", "singly", "recovery", "workspaces", "startup",
    }  # fmt: skip
    assert facts_of(records, "fan-out", "this project")["accepted"] == 20
    killed = facts_of(records, "recovery", "this project")
    assert (killed["accepted"], killed["accepted_twice"]) == (20, 0)
    if traced:  # strace is there and may trace: the floor flushes once a transaction, the log's own start apart
        assert 4 * 20 <= facts_of(records, "fan-out traced", "raw sqlite3")["fsyncs"] <= 4 * 20 + 5
    assert list(disk.iterdir()) == []
    text = page.read_text(encoding="utf-8")
    assert text.startswith(before)
    assert text.count("### Fan-out of 20 on SQLite") == 1
    assert bench("--render", report) in text


@pytest.mark.slow
def test_postgres_is_measured_too_and_its_server_goes_with_the_run(tmp_path: Path, disk: Path) -> None:
    report = tmp_path / "bench.json"
    options = ["--quick", "--only", "fan-out,recovery", "--databases", "postgresql", "--media", "disk", "--disk", disk]

    shown = bench(*options, "--json", report)

    records = json.loads(report.read_text(encoding="utf-8"))["records"]
    assert facts_of(records, "fan-out", "this project")["accepted"] == 20
    assert facts_of(records, "recovery", "this project")["accepted_twice"] == 0
    assert "### Fan-out of 20 on PostgreSQL" in shown
    assert list(disk.iterdir()) == []


def test_what_the_bench_does_not_know_is_refused_before_anything_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--only", "fan-out,speed"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "speed: choose from fan-out, singly" in done.stderr
