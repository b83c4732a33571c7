"""Batch writes and jobs of Spark whose driver is killed before and after their commits, and which are run again."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog as load_plain_catalog
from pyiceberg.table.snapshots import Operation

from integration import killed_driver, streaming_soak
from integration.killed_driver import AFTER, BEFORE, CATALOG, LAKE, ROWS, WRITTEN
from pyiceberg_encryption import load_catalog
from pyiceberg_encryption.jobs import remove_orphan_files, verify
from pyiceberg_encryption.table.table import checked
from tests.table_support import path_of

if TYPE_CHECKING:
    from pathlib import Path

# At an append and an overwrite; at a re-keying; and at the first commit of an encryption
FAULTS = (BEFORE, AFTER, BEFORE, AFTER, AFTER, BEFORE)
LAKE_ROWS = pa.table({"id": range(ROWS)})


@pytest.mark.timeout(900)
def test_each_commit_is_made_once(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="needs Spark: `pip install --group test`")
    properties = streaming_soak.properties(tmp_path)
    with load_plain_catalog(CATALOG, **properties) as plain_catalog:
        plain_catalog.create_namespace("db")
        plain_catalog.create_table(LAKE, LAKE_ROWS.schema).append(LAKE_ROWS)
    with load_catalog(CATALOG, **properties) as catalog:
        catalog.create_table(WRITTEN, LAKE_ROWS.schema, properties=streaming_soak.PROPERTIES)
        for fault in FAULTS:
            assert not ended(tmp_path, fault)
        assert ended(tmp_path, "")

        table = checked(catalog.load_table(WRITTEN))
        assert ids(table) == [*range(ROWS // 2, 2 * ROWS)]
        operations = [snapshot.summary.operation for snapshot in table.snapshots() if snapshot.summary]
        assert operations == [Operation.APPEND, Operation.OVERWRITE, Operation.REPLACE]
        stored = {path for path in (path_of(table.location()) / "data").rglob("*") if path.is_file()}
        assert stored == {path_of(path) for path in table.inspect.all_files()["file_path"].to_pylist()}

        lake = checked(catalog.load_table(LAKE))
        assert ids(lake) == [*range(ROWS)]
        assert remove_orphan_files(table, older_than=timedelta(0), no_commits_under_way=True)  # lists of manifests
        for each in (table, lake):
            assert verify(each, older_than=timedelta(0)).ok


def ended(folder: Path, fault: str) -> bool:
    code = killed_driver.run(folder, fault)
    assert code in (0, -9), (folder / "output").read_text()[-3000:]
    return code == 0


def ids(table: Any) -> list[int]:
    return sorted(table.scan().to_arrow()["id"].to_pylist())
