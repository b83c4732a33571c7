"""Stands in front of a server, changes what passes, answers in its place, or breaks off."""

from __future__ import annotations

import contextlib
import http.client
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

OF_CONNECTION = {"connection", "content-length", "transfer-encoding"}


class BreakOffError(Exception):
    """Raised by a hook: the connection ends without an answer."""


@dataclass
class Request:
    method: str
    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Answer:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class Proxy:
    """`on_request` may change a request, or answer it in place of the server. `on_answer` may change an answer."""

    def __init__(
        self,
        target: str,
        on_request: Callable[[Request], Answer | None] = lambda request: None,
        on_answer: Callable[[Request, Answer], None] = lambda request, answer: None,
    ) -> None:
        self.on_request = on_request
        self.on_answer = on_answer
        self._target = urlsplit(target).netloc
        self._port = 0
        self._server: ThreadingHTTPServer | None = None
        self.start()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """On the same port as before, if there was one."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 60

            def _pass_on(self) -> None:
                self.close_connection = True
                request = Request(self.command, self.path, self._body(), dict(self.headers.items()))
                try:
                    answer = proxy._answer(request)
                except BreakOffError:
                    return
                self.send_response(answer.status)
                length = len(answer.body)
                for name, value in answer.headers.items():
                    if name.lower() == "content-length" and self.command == "HEAD":
                        length = int(value)
                    elif name.lower() not in OF_CONNECTION:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(length))
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(answer.body)

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                chunks: list[bytes] = []
                while not chunks or chunks[-1]:
                    chunks.append(self.rfile.read(int(self.rfile.readline(), 16)))
                    self.rfile.readline()
                return b"".join(chunks)

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _pass_on  # noqa: N815

            def log_message(self, *arguments: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *arguments: Any) -> None:
                pass  # a client that went away

        self._server = Server(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        """From now on, nobody listens."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        self.stop()

    def _answer(self, request: Request) -> Answer:
        answer = self.on_request(request)
        if answer is not None:
            return answer
        answer = self.ask(request)
        self.on_answer(request, answer)
        return answer

    def ask(self, request: Request) -> Answer:
        """What the server says."""
        with contextlib.closing(http.client.HTTPConnection(self._target, timeout=60)) as connection:
            headers = {name: value for name, value in request.headers.items() if name.lower() not in OF_CONNECTION}
            try:
                connection.request(request.method, request.path, request.body or None, headers)
                response = connection.getresponse()
                return Answer(response.status, response.read(), dict(response.getheaders()))
            except OSError:
                raise BreakOffError from None
