"""As much of BigQuery's REST API as its metastore needs, on the loopback interface: datasets, and tables with ETags."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import uuid
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

PROJECT = "project"
PATH = re.compile(rf"/bigquery/v2/projects/{PROJECT}/datasets(?:/([^/?]+)(/tables)?(?:/([^/?]+))?)?(?:\?.*)?")


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Yields its URL. Who asks is not checked."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(_Store()))
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}"
    finally:
        http.shutdown()
        http.server_close()


class _Store:
    def __init__(self) -> None:
        self.datasets: dict[str, dict[str, Any]] = {}
        self.tables: dict[tuple[str, str], dict[str, Any]] = {}
        self.lock = threading.Lock()

    def answer(self, method: str, path: str, body: dict[str, Any], etag: str | None) -> tuple[int, dict[str, Any]]:
        found = PATH.fullmatch(path)
        if found is None:
            return HTTPStatus.NOT_FOUND, {}
        dataset, is_table, table = found.groups()
        with self.lock:
            if is_table:
                return self._table(method, dataset, table, body, etag)
            return self._dataset(method, dataset, body)

    def _dataset(self, method: str, name: str | None, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if method == "POST":
            name = body["datasetReference"]["datasetId"]
            if name in self.datasets:
                return HTTPStatus.CONFLICT, {}
            self.datasets[name] = body
            return HTTPStatus.OK, body
        if name is None:
            return HTTPStatus.OK, {"datasets": list(self.datasets.values())}
        if name not in self.datasets:
            return HTTPStatus.NOT_FOUND, {}
        if method == "DELETE":
            return HTTPStatus.NO_CONTENT, self.datasets.pop(name) and {}
        return HTTPStatus.OK, self.datasets[name]

    def _table(
        self, method: str, dataset: str, name: str | None, body: dict[str, Any], etag: str | None
    ) -> tuple[int, dict[str, Any]]:
        if dataset not in self.datasets:
            return HTTPStatus.NOT_FOUND, {}
        if method == "POST":
            key = (dataset, body["tableReference"]["tableId"])
            if key in self.tables:
                return HTTPStatus.CONFLICT, {}
            self.tables[key] = {**body, "etag": uuid.uuid4().hex}
            return HTTPStatus.OK, self.tables[key]
        if name is None:
            return HTTPStatus.OK, {"tables": [table for key, table in self.tables.items() if key[0] == dataset]}
        key = (dataset, name)
        if key not in self.tables:
            return HTTPStatus.NOT_FOUND, {}
        if method == "DELETE":
            return HTTPStatus.NO_CONTENT, self.tables.pop(key) and {}
        if method == "PATCH":
            if etag not in (None, self.tables[key]["etag"]):
                return HTTPStatus.PRECONDITION_FAILED, {}
            self.tables[key] = {**self.tables[key], **body, "etag": uuid.uuid4().hex}
        return HTTPStatus.OK, self.tables[key]


def _handler(store: _Store) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _respond(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.loads(text) if text else {}
            status, answer = store.answer(self.command, self.path, body, self.headers.get("If-Match"))
            content = b"" if status == HTTPStatus.NO_CONTENT else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_DELETE = _respond  # noqa: N815

        def log_message(self, *arguments: Any) -> None:
            pass

    return Handler
