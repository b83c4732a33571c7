"""Iceberg's reference server of the REST catalog, as a process on the loopback interface."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.typedef import EMPTY_DICT

from integration import java, servers
from integration.spark import pyspark_jars

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping


def folder_of_warehouse(folder: Path) -> Path:
    """For a server with local files, which may be one that others started."""
    return Path(servers.started_by_others("REST_WAREHOUSE") or folder / "warehouse")


@contextlib.contextmanager
def server(
    folder: Path, warehouse: str, properties: Mapping[str, str] = EMPTY_DICT, port: int | None = None
) -> Iterator[str]:
    """Its tables are in a SQLite file in this folder, so that it can be ended and started again. Yields its URI."""
    uri = servers.started_by_others("REST_URI")
    if uri and not properties and port is None and warehouse == f"file://{folder_of_warehouse(folder)}":
        yield uri
        return
    with running_server(folder, warehouse, properties, port) as (uri, _):
        yield uri


@contextlib.contextmanager
def running_server(
    folder: Path, warehouse: str, properties: Mapping[str, str] = EMPTY_DICT, port: int | None = None
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Its URI, and the process."""
    settings = {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:sqlite:{folder / 'catalog.db'}",
        "jdbc.schema-version": "V1",
        "clients": "1",  # SQLite has one writer
        "warehouse": warehouse,
        **properties,
    }
    libraries = [*java.jars("rest"), *pyspark_jars("hadoop-client-")]
    classes = java.compiled(java.HERE / "java" / "rest", libraries)
    port = port or servers.free_port()
    command = [java.java_command(), "-cp", java.joined([classes, *libraries]), "org.apache.iceberg.rest.RestServer"]
    arguments = [str(port), *(f"{name}={value}" for name, value in settings.items())]
    with servers.running([*command, *arguments], port) as process:
        yield f"http://127.0.0.1:{port}", process
