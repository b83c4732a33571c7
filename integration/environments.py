"""Every catalog on every storage: what `load_catalog` needs for each. Servers are started when they are needed."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from typing import TYPE_CHECKING, TypeVar, cast
from unittest import mock

from integration import bigquery, rest, servers, spark, storage
from integration.proxy import Answer, Proxy, Request
from integration.storage import ARROW, FSSPEC, Storage
from tests.support import MEMORY_PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

CATALOGS = ("SQL (SQLite)", "SQL (PostgreSQL)", "in-memory", "Hive", "REST", "Glue", "DynamoDB", "BigQuery")
STORAGES = (*(f"{place}, {file_io}" for place in ("local", "S3", "Azure Blob") for file_io in ("PyArrow", "fsspec")),)
T = TypeVar("T")
LEFT_OUT = {("REST", "Azure Blob")}  # because the server writes metadata itself, and has nothing to reach it with here
COMBINATIONS = [
    (catalog, storage)
    for catalog in CATALOGS
    for storage in STORAGES
    if (catalog, storage.partition(",")[0]) not in LEFT_OUT
]
AWS_CREDENTIALS = {"region": storage.REGION, "access-key-id": "testing", "secret-access-key": "testing"}


class GlueVersions:
    """Refuses an update of another version than the newest. Glue does that, but moto does not."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def check(self, request: Request) -> Answer | None:
        if request.headers.get("X-Amz-Target") != "AWSGlue.UpdateTable":
            return None
        body = json.loads(request.body)
        table = (body["DatabaseName"], body["TableInput"]["Name"])
        updated = int(body["VersionId"])
        with self._lock:
            if updated < self._newest.get(table, 0):
                text = json.dumps({"__type": "ConcurrentModificationException", "Message": "another version"})
                return Answer(400, text.encode(), {"Content-Type": "application/x-amz-json-1.1"})
            self._newest[table] = updated + 1
        return None


@contextlib.contextmanager
def _bigquery_client(url: str) -> Iterator[None]:
    """What PyIceberg has no properties for."""
    from google.auth.credentials import AnonymousCredentials

    variables = {"BIGQUERY_EMULATOR_HOST": url, "PYICEBERG_LEGACY_CURRENT_SNAPSHOT_ID": "true"}
    nobody = (AnonymousCredentials(), bigquery.PROJECT)  # type: ignore[no-untyped-call]
    with mock.patch.dict(os.environ, variables), mock.patch("google.auth.default", return_value=nobody):
        yield


class Environments:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._started: dict[str, object] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        self._stack.close()

    def storage(self, name: str) -> Storage:
        place, _, file_io = name.partition(", ")
        io = ARROW if file_io == "PyArrow" else FSSPEC
        if place == "S3":
            client, folder = self._once("s3", lambda: storage.s3(self._folder / "s3"))
            return storage.on_s3(folder, client, io)
        if place == "Azure Blob":
            client = self._once("azure", lambda: storage.azure(self._folder / "azure"))
            return storage.on_azure(self._folder / "azure", client, io)
        return storage.local(self._folder / "local", io)

    def properties(self, catalog: str, on: Storage) -> dict[str, str]:
        """For `load_catalog`."""
        own = self._catalog(catalog, on)
        kms = {"encryption.kms-type": "memory", **MEMORY_PROPERTIES}
        return {"warehouse": f"{on.warehouse}/{own['type']}", **on.properties, **kms, **own}

    def _catalog(self, name: str, on: Storage) -> dict[str, str]:
        if name == "SQL (SQLite)":
            return {"type": "sql", "uri": f"sqlite:///{self._folder}/{on.name.replace(' ', '')}.db"}
        if name == "SQL (PostgreSQL)":
            return {"type": "sql", "uri": self._once("postgres", servers.postgres)}
        if name == "in-memory":
            return {"type": "in-memory"}
        if name == "Hive":
            return {"type": "hive", "uri": self._metastore(on), **spark.QUICK_LOCKS}
        if name == "REST":
            return {"type": "rest", "uri": self._rest(on)}
        if name == "BigQuery":
            url = self._once("bigquery", bigquery.server)
            self._once("client of BigQuery", lambda: _bigquery_client(url))
            return {"type": "bigquery", "gcp.bigquery.project-id": bigquery.PROJECT}
        endpoint = self._once("aws", servers.moto)
        if name == "Glue":
            glue = self._once("glue", lambda: Proxy(endpoint, GlueVersions().check))
            credentials = {f"glue.{label}": value for label, value in AWS_CREDENTIALS.items()}
            return {"type": "glue", "glue.endpoint": glue.uri, **credentials}
        # PyIceberg has no property for its endpoint
        self._once("endpoint", lambda: mock.patch.dict(os.environ, AWS_ENDPOINT_URL_DYNAMODB=endpoint))
        return {"type": "dynamodb", **{f"dynamodb.{label}": value for label, value in AWS_CREDENTIALS.items()}}

    def _metastore(self, on: Storage) -> str:
        anywhere = bool(servers.started_by_others("HIVE_URI")) and on.place != "local"
        folder = self._folder / ("hive-anywhere" if anywhere else "hive")
        return self._once(folder.name, lambda: spark.hive_metastore(folder, anywhere=anywhere))

    def _rest(self, on: Storage) -> str:
        place = on.place
        s3 = {
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "s3.path-style-access": "true",
            "client.region": storage.REGION,
            **{label: value for label, value in on.properties.items() if label in storage.S3_CLIENT},
        }
        folder = self._folder / f"rest-{place}"
        folder.mkdir(exist_ok=True)
        return self._once(f"rest on {place}", lambda: rest.server(folder, on.warehouse, s3 if place == "S3" else {}))

    def _once(self, name: str, start: Callable[[], contextlib.AbstractContextManager[T]]) -> T:
        if name not in self._started:
            self._started[name] = self._stack.enter_context(start())
        return cast("T", self._started[name])
