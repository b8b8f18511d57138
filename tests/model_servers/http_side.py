"""The HTTP of the fake model server: how an answer travels, whole or cut."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from tests.model_servers.chat_api import ChatApi
from tests.model_servers.conversation import JSON, Conversation
from tests.model_servers.messages_api import MessagesApi
from tests.model_servers.responses_api import ResponsesApi
from tests.model_servers.script import Answer, Failure, Raw, Wire
from tests.model_servers.wire import Api, Event, Ids, pieces

APIS: Mapping[str, Api] = {api.path: api for api in (MessagesApi(), ResponsesApi(), ChatApi())}


class Script(Protocol):
    """What says how each request is answered."""

    stopping: threading.Event
    ids: Ids
    faults: list[str]

    def answer(self, api: Api, body: JSON, headers: Mapping[str, str]) -> tuple[Conversation, Answer]: ...


class HttpSide(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, script: Script) -> None:
        self.script = script
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # the client was faster

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no error; errors of a script are answered where they happen."""


class _Cut(Exception):
    """The connection is to end here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: HttpSide

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the base class
        pass

    def do_GET(self) -> None:
        self._whole(404, "application/json", b'{"error": {"message": "not found"}}', {}, Wire())

    def do_POST(self) -> None:
        script = self.server.script
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        api = APIS.get(self.path.partition("?")[0])
        if api is None:
            self.do_GET()
            return
        try:
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked, answer = script.answer(api, json.loads(content), headers)
            form = self._form(api, asked, answer)
        except Exception as error:
            script.faults.append(f"{api.name}: {type(error).__name__}: {error}")
            form = self._form(api, None, Failure(500, message=f"the fake server failed: {error}"))
        try:
            if isinstance(form, Raw):
                self._whole(form.status, form.content_type, form.body, form.headers, form.wire)
            else:
                self._stream(*form)
        except _Cut:
            self.close_connection = True

    def _form(self, api: Api, asked: Conversation | None, answer: Answer) -> Raw | tuple[Api, list[Event], Wire]:
        ids = self.server.script.ids
        if isinstance(answer, Raw):
            return answer
        if isinstance(answer, Failure):
            request_id = ids.new("req_")
            body = json.dumps(api.error(answer.status, answer.code, answer.message, request_id)).encode()
            headers = {api.request_id_header: request_id, **answer.headers}
            return Raw(body, answer.status, "application/json", headers, answer.wire)
        assert asked is not None
        if asked.stream:
            return api, list(api.events(answer, asked, ids)), answer.wire
        if answer.wire.cut == "error_event":
            raise ValueError("only a stream can have an error event")
        body = json.dumps(api.plain(answer, asked, ids)).encode()
        return Raw(body, 200, "application/json", {api.request_id_header: ids.new("req_")}, answer.wire)

    # -- on the wire

    def _whole(self, status: int, kind: str, body: bytes, headers: Mapping[str, str], wire: Wire) -> None:
        if wire.cut == "no_end":
            body = body[: len(body) // 2]
        self._head(status, {"Content-Type": kind, "Content-Length": str(len(body)), **headers}, wire)
        if wire.cut == "first_event":
            body = body[:1]
        elif wire.cut == "mid_event":
            body = body[: len(body) // 2]
        for piece in pieces(body, 8 if wire.between_events_s else 1):
            self.wfile.write(piece)
            self._wait(wire.between_events_s)
        if wire.cut in ("first_event", "mid_event"):
            raise _Cut

    def _stream(self, api: Api, events: list[Event], wire: Wire) -> None:
        headers = {"Content-Type": "text/event-stream; charset=utf-8", "Transfer-Encoding": "chunked"}
        self._head(200, {**headers, api.request_id_header: self.server.script.ids.new("req_")}, wire)
        first_end = next(number for number, event in enumerate(events) if event.ends)
        if wire.cut == "no_end":
            events = events[:first_end]
        elif wire.cut == "error_event":
            events = [*events[: (first_end + 1) // 2], api.error_event()]
        for number, event in enumerate(events):
            data = event.encode()
            if wire.cut == "mid_event" and number == (first_end + 1) // 2:
                self._chunk(data[: len(data) // 2])
                raise _Cut
            self._chunk(data)
            if wire.cut == "first_event":
                raise _Cut
            self._wait(wire.between_events_s)
        self._chunk(b"")

    def _head(self, status: int, headers: Mapping[str, str], wire: Wire) -> None:
        self._wait(wire.first_byte_after_s)
        if wire.cut == "no_bytes":
            raise _Cut
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if wire.cut == "no_body":
            raise _Cut

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _wait(self, seconds: float) -> None:
        if seconds and self.server.script.stopping.wait(seconds):
            raise _Cut
