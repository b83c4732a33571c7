"""Starts the servers that the tests talk to, as processes on the loopback interface. No containers."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from integration import vault as vault_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CACHE = Path(__file__).parent.parent / ".cache"
READY_WITHIN_SECONDS = 60
LOCALSTACK_VERSION = "4.9.2"  # later ones want an account
LOCALSTACK = [
    f"localstack-core[base-runtime]=={LOCALSTACK_VERSION}",
    # what it needs and does not pin, as new as it can take
    "cbor2==5.7.0",
    "cryptography==45.0.7",
    "psutil==7.0.0",
    "pyOpenSSL==25.1.0",
    "service_identity==24.2.0",
]
# It listens on all interfaces, whatever GATEWAY_LISTEN says
LOCALSTACK_ON_LOOPBACK = """
import functools, runpy
from twisted.internet import endpoints
endpoints.TCP4ServerEndpoint = functools.partial(endpoints.TCP4ServerEndpoint, interface="127.0.0.1")
runpy.run_module("localstack.runtime.main", run_name="__main__")
"""


class ServerUnavailableError(Exception):
    """Says what is missing, and how to get it."""


@contextlib.contextmanager
def moto() -> Iterator[str]:
    """AWS KMS and STS. Yields their endpoint."""
    endpoint = os.environ.get("PYICEBERG_ENCRYPTION_TEST_AWS_ENDPOINT")
    if endpoint:  # of docker-compose.yml, for one
        yield endpoint
        return
    port = free_port()
    with running([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def localstack() -> Iterator[str]:
    """AWS KMS once more, by others: it minds which key is used, and in which state. Yields its endpoint."""
    endpoint = os.environ.get("PYICEBERG_ENCRYPTION_TEST_LOCALSTACK_ENDPOINT")
    if endpoint:
        yield endpoint
        return
    python = _localstack_python()
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


def _localstack_python() -> Path:
    """In an environment of its own, since it wants older packages than this project."""
    folder = CACHE / f"localstack-{LOCALSTACK_VERSION}"
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    is_installed = folder / ".installed"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        if not is_installed.exists():
            venv.create(folder, with_pip=True)
            command = [str(python), "-m", "pip", "install", "--quiet", *LOCALSTACK]
            installed = subprocess.run(command, capture_output=True, text=True, check=False)
            if installed.returncode != 0:
                raise ServerUnavailableError(f"LocalStack could not be installed: {installed.stderr[-1000:]}")
            is_installed.touch()
    return python


@contextlib.contextmanager
def vault() -> Iterator[vault_server.Vault]:
    """HashiCorp Vault with its secrets engine `transit`, and AppRole and Kubernetes to log in with."""
    address = os.environ.get("PYICEBERG_ENCRYPTION_TEST_VAULT_ADDRESS")
    if address:
        yield vault_server.Vault(address, os.environ.get("PYICEBERG_ENCRYPTION_TEST_VAULT_TOKEN", "root"))
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
