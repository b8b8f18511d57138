"""The fake model server as a process: prints its URL, then obeys what comes on stdin, until that ends.

Each command is a pickled (name of a method or attribute, arguments); each answer is the pickled result.
"""

from __future__ import annotations

import pickle
import sys

from tests.model_servers.fake import FakeModelServer


def main() -> None:
    with FakeModelServer() as server:
        print(server.url, flush=True)
        while True:
            try:
                name, args = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            named = getattr(server, name)
            pickle.dump(named(*args) if callable(named) else named, sys.stdout.buffer)
            sys.stdout.buffer.flush()


main()
