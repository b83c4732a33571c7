from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from integration import servers
from integration.internet import LOOPBACK, Internet
from integration.java import JavaUnavailableError, Peer
from integration.tools import ToolUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from integration.vault import Vault


@pytest.fixture(scope="session")
def java() -> Iterator[Peer]:
    """Iceberg Java, or a skip that says how to get it."""
    try:
        peer = Peer()
    except JavaUnavailableError as error:
        pytest.skip(f"tests against Iceberg Java were left out: {error}")
    with peer:
        yield peer


@pytest.fixture(scope="session")
def aws_endpoint() -> Iterator[str]:
    with servers.moto() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def internet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Internet]:
    internet = Internet(tmp_path_factory.mktemp("internet"))
    yield internet
    internet.close()


@pytest.fixture
def in_the_cloud(internet: Internet, monkeypatch: pytest.MonkeyPatch) -> Internet:
    """This process reaches the servers of the tests, and nothing in its environment configures the clients."""
    for name in os.environ:
        if (
            name.upper().startswith(("AZURE_", "CLOUDSDK_", "GOOGLE_", "MSI_", "IDENTITY_"))
            or name.upper() == "NO_PROXY"
        ):
            monkeypatch.delenv(name)
    for name, value in internet.environment().items():
        monkeypatch.setenv(name, value)
    return internet


@pytest.fixture(scope="session")
def java_in_the_cloud(internet: Internet) -> Iterator[Peer]:
    """Iceberg Java with its clients for Google and Azure, on the internet of these tests."""
    proxy = [f"-Dhttps.proxyHost={LOOPBACK}", f"-Dhttps.proxyPort={internet.port}"]
    trust = [f"-Djavax.net.ssl.trustStore={internet.java_trust_store()}", "-Djavax.net.ssl.trustStorePassword=password"]
    try:
        peer = Peer(*proxy, *trust, clouds=True)
    except JavaUnavailableError as error:
        pytest.skip(f"tests against Iceberg Java were left out: {error}")
    with peer:
        yield peer


@pytest.fixture(scope="session")
def localstack_endpoint() -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        try:
            endpoint = stack.enter_context(servers.localstack())
        except ToolUnavailableError as error:
            pytest.skip(str(error))
        yield endpoint


@pytest.fixture(scope="session")
def vault() -> Iterator[Vault]:
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(servers.vault())
        except ToolUnavailableError as error:
            pytest.skip(f"tests against Vault were left out: {error}")
        yield server
