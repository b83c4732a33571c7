"""A server on loopback that notes what it is asked, and answers by itself or passes on what another server answers."""

from __future__ import annotations

import http.client
import http.server
import json
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self


@dataclass
class Answer:
    status: int
    body: Any = None  # of JSON, unless it is bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    path: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128  # as many as a test has threads


class Relay:
    """Gives its answers one after the other, the last of them for ever; without answers, those of `to`."""

    def __init__(self, *answers: Answer, to: str = "", tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self._answers = list(answers)
        self._to = urlsplit(to)
        self._server = _Server(("127.0.0.1", 0), self._handler())
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.address = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def _handler(relay) -> type[http.server.BaseHTTPRequestHandler]:  # noqa: N805 (`self` is the handler)
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                request = Request(self.path, dict(self.headers), body)
                relay.requests.append(request)
                answer = relay._answer(self.command, request)
                content = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
                self.send_response(answer.status)
                for name, value in {**answer.headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_POST  # noqa: N815 (their names in the base class)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name in the base class)
                """Not on the tests' output."""

        return Handler

    def _answer(self, method: str, request: Request) -> Answer:
        if self._answers:
            return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        connection = http.client.HTTPConnection(self._to.hostname or "", self._to.port, timeout=30)
        connection.request(method, request.path, request.body, dict(request.headers))
        response = connection.getresponse()
        answer = Answer(response.status, response.read(), {"Content-Type": "application/json"})
        connection.close()
        return answer

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
