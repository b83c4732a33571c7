from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from integration import servers
from integration.java import JavaUnavailableError, Peer
from integration.vault import Vault, VaultUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator


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
def localstack_endpoint() -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        try:
            endpoint = stack.enter_context(servers.localstack())
        except servers.ServerUnavailableError as error:
            pytest.skip(str(error))
        yield endpoint


@pytest.fixture(scope="session")
def vault() -> Iterator[Vault]:
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(servers.vault())
        except VaultUnavailableError as error:
            pytest.skip(f"tests against Vault were left out: {error}")
        yield server
