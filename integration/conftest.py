from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from integration import servers
from integration.java import JavaUnavailableError, Peer

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
