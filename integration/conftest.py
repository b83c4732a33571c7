from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from integration import servers
from integration import spark as java_spark
from integration.internet import LOOPBACK, Internet
from integration.java import Peer
from integration.tools import ToolUnavailableError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from integration.vault import Vault


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    return (yield from _skips_where_a_tool_is_missing())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    return (yield from _skips_where_a_tool_is_missing())


def _skips_where_a_tool_is_missing() -> Generator[None, object, object]:
    try:
        return (yield)
    except ToolUnavailableError as error:
        pytest.skip(f"left out: {error}")


@pytest.fixture(scope="session")
def java() -> Iterator[Peer]:
    """Iceberg Java."""
    with Peer() as peer:
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
    with Peer(*proxy, *trust, clouds=True) as peer:
        yield peer


@pytest.fixture(scope="session")
def localstack_endpoint() -> Iterator[str]:
    with servers.localstack() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def vault() -> Iterator[Vault]:
    with servers.vault() as server:
        yield server


class SparkOnHive(NamedTuple):
    session: Any
    uri: str  # of the metastore
    warehouse: Path


@pytest.fixture(scope="session")
def spark_on_hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkOnHive]:
    """One metastore and one Spark for all tests, since they take half a minute to start."""
    folder = tmp_path_factory.mktemp("spark")
    warehouse = folder / "warehouse"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", java_spark.QUICK_JAVA)
        with (
            java_spark.hive_metastore(folder / "metastore", anywhere=True) as uri,
            java_spark.session(uri, warehouse) as session,
        ):
            for name, value in java_spark.QUICK.items():
                session.conf.set(name, value)
            patch.delenv("JAVA_TOOL_OPTIONS")  # which others that start a Java would get too
            yield SparkOnHive(session, uri, warehouse)
