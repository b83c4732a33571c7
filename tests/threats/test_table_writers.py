"""21: many writers at once. Each has a catalog of its own, as if it were a program of its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from pyiceberg_encryption.table.models import encryption_keys, key_id
from tests.table_support import ROWS, Lake, ids, path_of, snapshots

RETRIES = {"commit.retry.num-retries": "200", "commit.retry.min-wait-ms": "5", "commit.retry.max-wait-ms": "100"}


def assert_whole(lake: Lake, rows: list[int], commits: int) -> None:
    table = lake.load()
    assert ids(table) == rows
    assert len(snapshots(table)) == commits
    sequence = [snapshot.sequence_number for snapshot in snapshots(table)]
    assert sequence == list(range(1, commits + 1))
    keys = encryption_keys(table.metadata)
    keks = {key.key_id for key in keys if key.encrypted_by_id == "keyA"}
    listed = {key.key_id for key in keys if key.key_id not in keks}
    assert listed == {key_id(snapshot) for snapshot in snapshots(table)}  # none is lost, and none is left over
    assert len(listed) == commits
    assert {key.encrypted_by_id for key in keys if key.key_id in listed} == keks
    assert len(keks) == 1
    reached = set()
    for snapshot in snapshots(table):
        reached |= {snapshot.manifest_list, *(manifest.manifest_path for manifest in snapshot.manifests(table.io))}
    assert {path_of(location) for location in reached} == set(lake.files(".avro"))  # what did not get in is deleted


@pytest.mark.parametrize("writers", [2, 8, 32])
def test_21_many_writers_at_once(lake: Lake, writers: int) -> None:
    """None of them knew of the others when it began."""
    lake.create(appends=0, properties=RETRIES)
    tables = [lake.load() for _ in range(writers)]

    def append(number: int) -> None:
        tables[number].append(pa.table({"id": [number], "s": [f"row {number}"]}, schema=ROWS.schema))

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(append, range(writers)))
    assert_whole(lake, list(range(writers)), writers)
