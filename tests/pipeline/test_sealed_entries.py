"""Files and manifests come out of their seal as they went in, with partitions of columns that are gone."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, cast

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform

from pyiceberg_encryption.pipeline.sealed import send
from tests.table_support import Lake, data_files, manifests

if TYPE_CHECKING:
    from pyiceberg_encryption.table.file_io import FileKey
    from pyiceberg_encryption.table.table import Table

ROWS = pa.table(
    {
        "id": pa.array([1, 2, None], pa.int64()),
        "day": [datetime.date(2026, 1, 1), datetime.date(1969, 1, 1), None],
        "price": pa.array([Decimal("1.50"), Decimal("-2.25"), None], pa.decimal128(9, 2)),
        "name": ["a", "b/c", None],
    }
)
SPEC = PartitionSpec(
    PartitionField(1, 1000, BucketTransform(4), "bucket"),
    PartitionField(2, 1001, DayTransform(), "on"),
    PartitionField(3, 1002, IdentityTransform(), "price"),
    PartitionField(4, 1003, IdentityTransform(), "name"),
)


def test_files_and_manifests(lake: Lake) -> None:
    catalog = lake.catalog()
    schema = assign_fresh_schema_ids(catalog._convert_schema_if_needed(ROWS.schema, 3))
    new = catalog.create_table("db.t", schema, partition_spec=SPEC, properties={"encryption.key-id": "keyA"})
    table = cast("Table", new)
    table.append(ROWS)
    with table.update_spec() as update:
        update.remove_field("name")
    with table.update_schema() as schema_update:
        schema_update.delete_column("name")
    table.append(ROWS.drop_columns("name"))
    _, here = send(table)

    listed = manifests(table)
    entries = [entry for manifest in listed for entry in manifest.fetch_manifest_entry(table.io)]
    opened = here.open_entries(here.seal_entries(entries))

    assert {file.spec_id for file in data_files(table)} == {0, 1}
    for sent, received in zip(entries, opened, strict=True):
        assert received == sent
        assert received.data_file.partition == sent.data_file.partition
        assert received.data_file.spec_id == sent.data_file.spec_id
        key = cast("FileKey", received.data_file.key_metadata)
        assert key.is_same_as(cast("FileKey", sent.data_file.key_metadata))
    assert here.open_manifests(here.seal_manifests(listed)) == listed
    assert here.open_manifests(here.seal_manifests([])) == []
