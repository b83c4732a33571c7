"""Servers that end, hang or fail while tables are written and read: nothing is lost, in plaintext or half committed.

Each test prints how many of its operations failed, and with which message: `pytest integration/test_faults.py -rP`.
"""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections import Counter
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from integration import rest, servers, storage
from integration.kms_support import AWS_CREDENTIALS, AWS_REGION, aws_admin
from integration.proxy import Answer, BreakOffError, Proxy, Request
from pyiceberg_encryption import load_catalog
from pyiceberg_encryption.errors import KmsUnavailableError
from tests.support import MEMORY_PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyiceberg.table import Table


# Connections that were broken off are left to the garbage collector by the libraries that had opened them.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
MARKER = "plaintext-nobody-may-see"
MEMORY = {"encryption.kms-type": "memory", **MEMORY_PROPERTIES}


def row(number: int) -> pa.Table:
    return pa.table({"id": [number], "text": [MARKER]}, schema=SCHEMA)


def ids(table: Table) -> list[int]:
    return sorted(table.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist())


class Tally:
    """Of operations that may fail."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self._lock = threading.Lock()

    def try_(self, name: str, operation: Callable[[], object]) -> bool:
        try:
            operation()
        except Exception as error:
            message = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d{4,}", "…", f"{type(error).__name__}: {error}")
            with self._lock:
                self.failures[f"{name}: {' '.join(message.split())[:200]}"] += 1
            return False
        with self._lock:
            self.done[name] += 1
        return True

    def show(self) -> None:
        for name, count in self.done.items():
            print(f"{count} done: {name}")
        for message, count in self.failures.items():
            print(f"{count} failed: {message}")


def check_whole(table: Table, acknowledged: set[int], attempted: set[int], folder: Path) -> None:
    """What was acknowledged is there once; what failed is there once or not at all; every snapshot opens."""
    found = ids(table)
    assert len(found) == len(set(found))
    assert acknowledged <= set(found) <= attempted
    for snapshot in table.snapshots():
        assert len(table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()) > 0
    contents = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert not any(MARKER.encode() in content for content in contents)


@pytest.mark.timeout(120)
def test_a_kms_that_ends_and_starts_again_under_load(tmp_path: Path, aws_endpoint: str) -> None:
    """Every operation asks the KMS, since nothing is cached. Calls are not tried again, so that outages show."""
    admin = aws_admin(aws_endpoint)
    key_id = admin.create_key()["KeyMetadata"]["Arn"]
    admin.close()
    tally = Tally()
    acknowledged: set[int] = set()
    attempted: set[int] = set()
    with Proxy(aws_endpoint) as kms:
        properties = {
            "encryption.kms-type": "aws",
            "kms.endpoint": kms.uri,
            "kms.max-attempts": "1",
            "kms.request-timeout": "2",
            "uri": f"sqlite:///{tmp_path}/catalog.db",
            "warehouse": f"file://{tmp_path}/warehouse",
            "client.region": AWS_REGION,
            **AWS_CREDENTIALS,
        }
        with load_catalog("c", type="sql", **properties) as catalog:
            catalog.create_namespace("db")
            catalog.create_table("db.t", SCHEMA, properties={"encryption.key-id": key_id})
        ended = threading.Event()

        def work(first: int) -> None:
            number = first
            while not ended.is_set():
                attempted.add(number)

                def append(number: int = number) -> None:
                    with load_catalog("c", type="sql", **properties) as catalog:  # with an empty cache
                        catalog.load_table("db.t").append(row(number))

                def scan() -> None:
                    with load_catalog("c", type="sql", **properties) as catalog:
                        ids(catalog.load_table("db.t"))

                if tally.try_("append", append):
                    acknowledged.add(number)
                tally.try_("scan", scan)
                number += 1

        workers = [threading.Thread(target=work, args=(first,)) for first in (0, 1000)]
        for worker in workers:
            worker.start()
        for _ in range(3):
            time.sleep(1)
            kms.stop()
            time.sleep(0.7)
            kms.start()
        time.sleep(1)
        ended.set()
        for worker in workers:
            worker.join()
        with load_catalog("c", type="sql", **properties) as catalog:
            table = catalog.load_table("db.t")
            table.append(row(9999))
            check_whole(table, acknowledged | {9999}, attempted | {9999}, tmp_path / "warehouse")
    tally.show()
    assert tally.done["append"] > 0
    kinds = {failure.split(": ")[1] for failure in tally.failures}
    assert KmsUnavailableError.__name__ in kinds
    assert kinds <= {KmsUnavailableError.__name__, "CommitFailedException"}  # two writers on SQLite


@pytest.mark.parametrize("moment", ["before it is asked", "before it answers"])
def test_a_catalog_killed_at_the_commit(tmp_path: Path, moment: str) -> None:
    tally = Tally()
    port = servers.free_port()
    warehouse = f"file://{tmp_path}/warehouse"
    armed = False

    def at_commit(request: Request) -> bool:
        return armed and request.method == "POST" and b"add-snapshot" in request.body

    def kill(process: Any) -> None:
        nonlocal armed
        armed = False
        os.kill(process.pid, signal.SIGKILL)
        raise BreakOffError

    with rest.running_server(tmp_path, warehouse, port=port) as (uri, process), Proxy(uri) as proxy:

        def on_request(request: Request) -> Answer | None:
            if moment == "before it is asked" and at_commit(request):
                kill(process)
            return None

        def on_answer(request: Request, answer: Answer) -> None:
            if moment == "before it answers" and at_commit(request):
                kill(process)

        proxy.on_request, proxy.on_answer = on_request, on_answer
        with load_catalog("c", type="rest", uri=proxy.uri, **MEMORY) as catalog:
            catalog.create_namespace("db")
            table = catalog.create_table("db.t", SCHEMA, properties={"encryption.key-id": "keyA"})
            table.append(row(1))
            armed = True
            assert not tally.try_("append", lambda: table.append(row(2)))
        tally.show()
    with (
        rest.server(tmp_path, warehouse, port=port) as uri,
        load_catalog("c", type="rest", uri=uri, **MEMORY) as catalog,
    ):
        table = catalog.load_table("db.t")
        assert ids(table) == ([1] if moment == "before it is asked" else [1, 2])
        table.append(row(3))
        check_whole(table, {1, 3}, {1, 2, 3}, tmp_path / "warehouse")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("fault", ["error", "broken off"])
@pytest.mark.parametrize(
    ("file_io", "one_in", "rounds"),
    [(storage.ARROW, 60, 12), (storage.FSSPEC, 5, 4)],  # of which only the first can be kept from trying again
)
def test_an_s3_that_fails_now_and_then(tmp_path: Path, file_io: str, one_in: int, rounds: int, fault: str) -> None:
    tally = Tally()
    requests = failed = 0
    lock = threading.Lock()
    chance = random.Random(1)

    def on_request(request: Request) -> Answer | None:
        nonlocal requests, failed
        with lock:
            requests += 1
            fails = is_failing and chance.random() < 1 / one_in
            failed += fails
        if not fails:
            return None
        if fault == "broken off":
            raise BreakOffError
        body = b"<Error><Code>InternalError</Code><Message>We encountered an internal error</Message></Error>"
        return Answer(HTTPStatus.INTERNAL_SERVER_ERROR, body, {"Content-Type": "application/xml"})

    is_failing = False
    with storage.s3(tmp_path / "s3") as (client, folder), Proxy(client["s3.endpoint"], on_request) as proxy:
        on = storage.on_s3(folder, {**client, "s3.endpoint": proxy.uri}, file_io)
        properties = {
            **on.properties,
            **MEMORY,
            "s3.retry-strategy-impl": "integration.storage.OneAttempt",
            "uri": f"sqlite:///{tmp_path}/catalog.db",
            "warehouse": on.warehouse,
        }
        with load_catalog("c", type="sql", **properties) as catalog:
            catalog.create_namespace("db")
            catalog.create_table("db.t", SCHEMA, properties={"encryption.key-id": "keyA"}).append(row(0))
            is_failing = True
            acknowledged = {0}
            for number in range(1, rounds):
                if tally.try_("append", lambda: catalog.load_table("db.t").append(row(number))):  # noqa: B023
                    acknowledged.add(number)
                tally.try_("scan", lambda: ids(catalog.load_table("db.t")))
            is_failing = False
            check_whole(catalog.load_table("db.t"), acknowledged, set(range(rounds)), folder)
    print(f"{failed} of {requests} requests failed")
    tally.show()
    assert failed > 0
    assert tally.done["append"] > 0
