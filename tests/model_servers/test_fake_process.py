"""The fake model server in a process of its own outlives the processes that ask it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable

from tests.model_servers.asking import Asker
from tests.model_servers.remote import FakeModelProcess
from tests.model_servers.script import Reply, Say, Wire

ASKS = """
import sys
from openai import OpenAI
client = OpenAI(base_url=sys.argv[1], api_key="k", max_retries=0)
client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])
"""


def test_a_client_that_is_killed_while_it_waits_leaves_the_server_answering(make_asker: Callable[..., Asker]) -> None:
    with FakeModelProcess() as server:
        server.send(Reply((Say("never heard"),), wire=Wire(first_byte_after_s=600)))
        server.by_turn(Reply((Say("hello"),)))
        client = subprocess.Popen([sys.executable, "-c", ASKS, server.openai_url])
        while not server.requests:
            assert client.poll() is None
            time.sleep(0.02)
        client.kill()
        assert client.wait() == -signal.SIGKILL
        assert make_asker("messages", url=server.url).ask().text == "hello"
        assert [request.api for request in server.requests] == ["chat", "messages"]
        assert server.faults == []
