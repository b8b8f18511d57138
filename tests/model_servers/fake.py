"""A model server on loopback that answers as it is told, well or badly, in three APIs, plain and streamed.

    with FakeModelServer() as server:
        server.reply(Say("I look."), Call("read_file", {"path": "a.txt"}))
        server.reply(Call("submit_result", {...}), usage=Usage(input=900, cached=800, output=20))
        Anthropic(base_url=server.url, api_key="k") ... OpenAI(base_url=server.openai_url, api_key="k") ...
        assert len(server.requests) == 2

A request that an API would refuse is answered with 400 and remembered in `server.faults`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tests.model_servers.conversation import JSON, Conversation
from tests.model_servers.http_side import HttpSide
from tests.model_servers.script import Answer, Failure, Part, Reply, Usage, Wire
from tests.model_servers.wire import Api, Ids


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came; `asked` is what it says, in words that belong to no provider."""

    number: int  # from 0
    api: str  # messages, responses or chat
    body: JSON
    headers: Mapping[str, str]  # names in lower case
    asked: Conversation


Chooser = Callable[[Request], Answer]


PLAINLY = Wire()
SOME = Usage()


class FakeModelServer:
    """A server for one test. All that it is told may be told while it runs, from any thread."""

    def __init__(self, api_key: str | None = None) -> None:
        """With a key given, any other one is answered with 401; without, any key will do."""
        self.api_key = api_key
        self.faults: list[str] = []
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._queue: deque[Answer] = deque()
        self._chooser: Chooser | None = None
        self._paused = False
        self.ids = Ids()
        self.stopping = threading.Event()
        self._http = HttpSide(self)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    # -- life

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stopping.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
        self._http.close_connections()

    @property
    def url(self) -> str:
        """The base URL for the SDK `anthropic`."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def openai_url(self) -> str:
        """The base URL for the SDK `openai`."""
        return f"{self.url}/v1"

    # -- what it is told

    def reply(
        self,
        *parts: Part,
        stop: str | None = None,
        usage: Usage | None = SOME,
        extra: Mapping[str, object] | None = None,
        wire: Wire = PLAINLY,
    ) -> None:
        """The next request that no earlier answer was for is answered with this."""
        self.send(Reply(parts, stop, usage, extra or {}, wire))

    def fail(
        self,
        status: int,
        *,
        headers: Mapping[str, str] | None = None,
        code: str | None = None,
        message: str | None = None,
    ) -> None:
        self.send(Failure(status, headers or {}, code, message))

    def send(self, *answers: Answer) -> None:
        with self._lock:
            self._queue.extend(answers)

    def choose(self, chooser: Chooser) -> None:
        """Every request for which no answer is queued is answered with what this gives for it."""
        self._chooser = chooser

    def by_turn(self, *answers: Answer) -> None:
        """Answers a conversation by how often the model spoke in it: a repeated request gets the same answer again."""
        self.choose(lambda request: answers[request.asked.turns])

    # -- what it saw

    @property
    def requests(self) -> Sequence[Request]:
        with self._lock:
            return list(self._requests)

    @property
    def left(self) -> int:
        """How many queued answers nobody has asked for."""
        return len(self._queue)

    # -- for the side that speaks HTTP

    def answer(self, api: Api, body: JSON, headers: Mapping[str, str]) -> tuple[Conversation, Answer]:
        with self._lock:
            asked = api.read(body, paused=self._paused)
            request = Request(len(self._requests), api.name, body, headers, asked)
            self._requests.append(request)
            key = api.key_of(headers)
            if not key or (self.api_key is not None and key != self.api_key):
                return asked, Failure(401)
            if asked.faults:
                self.faults += [f"request {request.number} ({api.name}): {fault}" for fault in asked.faults]
                return asked, Failure(400, message="; ".join(asked.faults))
            if self._queue:
                answer = self._queue.popleft()
            elif self._chooser is not None:
                answer = self._chooser(request)
            else:
                raise LookupError("no answer is left")
            self._paused = self._paused or (isinstance(answer, Reply) and answer.stops == "pause")
            return asked, answer
