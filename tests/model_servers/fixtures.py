"""The fixtures of the model servers, for every test."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.model_servers.fake import FakeModelServer

LOCAL = Path(__file__).with_name("local") / "serve.py"
STARTS_WITHIN_S = 120.0
STOPS_WITHIN_S = 30.0


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "model: talks to a real, very small language model that runs on this machine")


@pytest.fixture
def fake_model() -> Iterator[FakeModelServer]:
    """A fake model server; fails the test for each request that a real API would have refused.

    A test that makes such requests on purpose clears `fake_model.faults`.
    """
    # Imported here: the SDKs whose types it checks take seconds to import.
    from tests.model_servers.fake import FakeModelServer

    with FakeModelServer() as server:
        yield server
    assert server.faults == []


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A real model: its answers are well-formed, and their content is nonsense. Any model name and key will do."""

    url: str  # the base URL for the SDK `anthropic`
    openai_url: str  # the base URL for the SDK `openai`


@pytest.fixture(scope="session")
def local_model() -> Iterator[LocalModel]:
    """A real model server, in a process of its own for all the tests of this process; for tests marked `model`.

    It has one thread and two slots: ask for few tokens, bound every string and list of a schema, and be patient.
    """
    with tempfile.TemporaryFile() as log:  # not a pipe, which would fill
        command = [sys.executable, str(LOCAL)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        assert process.stdout is not None
        try:
            url = process.stdout.readline().decode().strip()
            if not url:
                log.seek(0)
                pytest.fail(f"the local model did not start: {log.read()[-2000:].decode(errors='replace')}")
            _wait_until_healthy(url)
            yield LocalModel(url, f"{url}/v1")
        finally:
            process.terminate()
            try:
                process.wait(STOPS_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


def _wait_until_healthy(url: str) -> None:
    give_up = time.monotonic() + STARTS_WITHIN_S
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except urllib.error.URLError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.05)
