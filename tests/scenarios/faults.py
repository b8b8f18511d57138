"""What the tests of database faults share: a command that can be listened to, and a network that cuts."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class Listened:
    """A ``coordinator`` command whose words can be read while it runs."""

    def __init__(self, place: Any, *arguments: str, url: str | None = None, **env: str) -> None:
        self._place = place
        self._file = place.folder / f"said-{len(list(place.folder.glob('said-*')))}"
        self._file.touch()
        shell = 'exec "$@" 2>"$SAID"'  # a pipe that nobody reads would stop it
        self.process: subprocess.Popen[str] = place.process(
            "sh", "-c", shell, "sh", sys.executable, str(HERE / "impatient.py"), *arguments,
            "--store", url or place.url, "--home", str(place.home), SAID=str(self._file), **env,
        )  # fmt: skip

    @property
    def said(self) -> str:
        return self._file.read_text() if self._file.exists() else ""

    def waits(self) -> bool:
        assert self.process.poll() is None, self.said
        return "waits, starts nothing new and tries again by itself" in self.said

    def ended(self, code: int = 0) -> str:
        self._place.ended(self.process, None)
        assert self.process.returncode == code, f"ended with {self.process.returncode}\n{self.said}"
        assert "Traceback" not in self.said
        return self.said


class Cutter:
    """A loopback connection to a server's Unix socket that can be cut.

    ``cuts``: whether to cut after these bytes of the client have reached the server and it has answered, before the
    answer goes back.
    """

    def __init__(self, server: str, cuts: Callable[[bytes], bool]) -> None:
        self._server = server
        self._cuts = cuts
        self.cut = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, contextlib.suppress(OSError):
            server.connect(self._server)
            last = threading.Event()

            def back() -> None:
                with contextlib.suppress(OSError):
                    while data := server.recv(65536):
                        if last.is_set():
                            break
                        client.sendall(data)
                for end in (client, server):
                    with contextlib.suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)

            answers = threading.Thread(target=back, daemon=True)
            answers.start()
            while data := client.recv(65536):
                if self._cuts(data):
                    self.cut += 1
                    last.set()
                server.sendall(data)
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            answers.join()
