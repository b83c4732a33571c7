"""Encrypted tables through PyIceberg's interface, where PyIceberg's own tests (integration/) do not reach."""

from __future__ import annotations

import datetime
import decimal
import gc
import os
import re
import uuid
import warnings
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from pyiceberg_encryption import StaticTable
from pyiceberg_encryption.errors import ConfigurationError, FormatError, IntegrityError
from pyiceberg_encryption.table.file_io import FileKey
from tests.table_support import path_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyiceberg.table import Table

    from pyiceberg_encryption.catalogs import EncryptingCatalog
    from tests.table_support import Lake

LINEAGE = ("*", "_row_id", "_last_updated_sequence_number")
SIMPLE = pa.schema([("id", pa.int64()), ("text", pa.string())])


@pytest.fixture
def catalog(lake: Lake) -> EncryptingCatalog:
    return lake.catalog()


def new_table(catalog: EncryptingCatalog, schema: Any = SIMPLE, name: str = "db.t", **arguments: Any) -> Table:
    properties = {"encryption.key-id": "keyA", **arguments.pop("properties", {})}
    return catalog.create_table(name, schema, properties=properties, **arguments)


def simple(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "text": [f"row {number}" for number in ids]}, schema=SIMPLE)


def rows(table: Table, **arguments: Any) -> list[dict[str, Any]]:
    return sorted(table.scan(**arguments).to_arrow().to_pylist(), key=str)


def lineage(table: Table) -> dict[int, tuple[int, int]]:
    found = table.scan(selected_fields=LINEAGE).to_arrow().to_pylist()
    return {row["id"]: (row["_row_id"], row["_last_updated_sequence_number"]) for row in found}


# Creating


@pytest.mark.parametrize("length", [16, 24, 32])
def test_keys_have_the_length_that_the_table_asks_for(catalog: EncryptingCatalog, length: int) -> None:
    table = new_table(catalog, properties={"encryption.data-key-length": str(length)})
    table.append(simple(1, 2))
    (task,) = table.scan().plan_files()
    assert isinstance(task.file.key_metadata, FileKey)
    assert len(task.file.key_metadata.open().encryption_key) == length
    assert rows(catalog.load_table("db.t")) == simple(1, 2).to_pylist()


def test_a_table_is_v3_if_it_says_nothing_else(catalog: EncryptingCatalog) -> None:
    assert new_table(catalog).format_version == 3
    with pytest.raises(ConfigurationError, match="format version 2"):
        new_table(catalog, name="db.u", properties={"format-version": "2"})


def test_a_table_that_exists_is_not_made_again(catalog: EncryptingCatalog) -> None:
    table = new_table(catalog)
    with pytest.raises(TableAlreadyExistsError):
        new_table(catalog)
    assert catalog.create_table_if_not_exists("db.t", SIMPLE).metadata == table.metadata


def test_a_table_can_be_created_with_rows_in_one_transaction(catalog: EncryptingCatalog) -> None:
    properties = {"encryption.key-id": "keyA"}
    with catalog.create_table_transaction("db.t", SIMPLE, properties=properties) as transaction:
        transaction.append(simple(1))
        transaction.append(simple(2))
        assert not catalog.table_exists("db.t")
    table = catalog.load_table("db.t")
    assert lineage(table) == {1: (0, 1), 2: (1, 2)}


def test_defaults_of_the_catalog_encrypt_every_table(lake: Lake) -> None:
    catalog = lake.catalog(**{"table-default.encryption.key-id": "keyB", "encryption.required": "true"})
    table = catalog.create_table("db.t", SIMPLE)
    assert table.properties["encryption.key-id"] == "keyB"
    without_default = lake.catalog(**{"encryption.required": "true"})
    with pytest.raises(IntegrityError, match=r"encryption\.required"):
        without_default.create_table("db.u", SIMPLE)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("encryption.require", "encryption.required"),
        ("encryption.unverified-metdata", "encryption.unverified-metadata"),
        ("encryption-required", "encryption.required"),
        ("encryption.key-id", "table-default.encryption.key-id"),
        ("encryption", "encryption."),
    ],
)
def test_a_misspelt_property_of_a_catalog_is_refused(lake: Lake, name: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{re.escape(name)} is no property .*{re.escape(meant)}"):
        lake.catalog(**{name: "true"})


@pytest.mark.parametrize("name", ["encryption.key_id", "encryption.keyid", "encryption.key-Id", "Encryption.key-id"])
def test_a_misspelt_property_makes_no_plain_table(lake: Lake, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Did you mean encryption\.key-id"):
        lake.catalog().create_table("db.t", SIMPLE, properties={name: "keyA"})
    with pytest.raises(ConfigurationError):
        lake.catalog(**{f"table-default.{name}": "keyA"}).create_table("db.t", SIMPLE)


def test_a_plain_table_stays_as_pyiceberg_makes_it(catalog: EncryptingCatalog) -> None:
    table = catalog.create_table("db.t", SIMPLE)
    table.append(simple(1, 2))
    table.delete("id = 1")
    assert (table.format_version, rows(table)) == (2, simple(2).to_pylist())


# Types

ALL_TYPES = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "a_boolean", BooleanType()),
    NestedField(3, "an_int", IntegerType()),
    NestedField(4, "a_float", FloatType()),
    NestedField(5, "a_double", DoubleType()),
    NestedField(6, "a_decimal", DecimalType(38, 9)),
    NestedField(7, "a_date", DateType()),
    NestedField(8, "a_time", TimeType()),
    NestedField(9, "a_timestamp", TimestampType()),
    NestedField(10, "a_timestamptz", TimestamptzType()),
    NestedField(11, "a_timestamp_ns", TimestampNanoType()),
    NestedField(12, "a_timestamptz_ns", TimestamptzNanoType()),
    NestedField(13, "a_string", StringType()),
    NestedField(14, "a_uuid", UUIDType()),
    NestedField(15, "a_fixed", FixedType(3)),
    NestedField(16, "a_binary", BinaryType()),
    NestedField(17, "a_list", ListType(18, StringType(), element_required=False)),
    NestedField(19, "a_map", MapType(20, StringType(), 21, LongType(), value_required=False)),
    NestedField(22, "a_struct", StructType(NestedField(23, "inner", DoubleType()))),
)


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_every_type_comes_back(catalog: EncryptingCatalog, file_format: str) -> None:
    table = new_table(catalog, ALL_TYPES, properties={"write.format.default": file_format})
    zone = datetime.timezone.utc
    value = {
        "id": 1,
        "a_boolean": True,
        "an_int": -5,
        "a_float": 0.5,
        "a_double": float("inf"),
        "a_decimal": decimal.Decimal("-12345678901234567890.123456789"),
        "a_date": datetime.date(1969, 7, 20),
        "a_time": datetime.time(1, 2, 3, 456),
        "a_timestamp": datetime.datetime(1960, 1, 2, 3, 4, 5, 6),
        "a_timestamptz": datetime.datetime(2020, 1, 2, 3, 4, 5, 6, zone),
        "a_timestamp_ns": 1_600_000_000_123_456_789,
        "a_timestamptz_ns": -1,
        "a_string": "Grüße 🔑",
        "a_uuid": uuid.UUID(int=7).bytes,
        "a_fixed": b"\x00\x01\x02",
        "a_binary": b"",
        "a_list": ["x", None],
        "a_map": [("k", 1), ("n", None)],
        "a_struct": {"inner": 0.25},
    }
    nothing = dict.fromkeys(value) | {"id": 2}
    written = pa.Table.from_pylist([value, nothing], schema=table.schema().as_arrow())
    table.append(written)
    read = catalog.load_table("db.t").scan().to_arrow()
    assert read.cast(written.schema).sort_by("id").to_pydict() == written.to_pydict()
    assert rows(table, row_filter="a_struct.inner = 0.25", selected_fields=("id",)) == [{"id": 1}]
    assert rows(table, row_filter="a_string is null", selected_fields=("id",)) == [{"id": 2}]


def test_nan_is_found_and_kept(catalog: EncryptingCatalog) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64())])
    table = new_table(catalog, schema)
    table.append(pa.table({"id": [1, 2, 3], "x": [float("nan"), 1.0, None]}, schema=schema))
    assert [row["id"] for row in rows(table, row_filter="x is nan")] == [1]
    table.delete("x = 1.0")
    assert sorted(row["id"] for row in rows(table)) == [1, 3]


# Writing


def test_rows_keep_their_lineage_when_they_move(catalog: EncryptingCatalog) -> None:
    table = new_table(catalog)
    table.append(simple(1, 2, 3))
    table.append(simple(4))
    before = lineage(table)
    table.delete("id = 2")
    assert lineage(table) == {number: before[number] for number in (1, 3, 4)}
    table.upsert(pa.table({"id": [3, 4, 5], "text": ["changed", "row 4", "new"]}), join_cols=["id"])
    after = lineage(table)
    assert (after[1], after[4]) == (before[1], before[4])  # the same value is no update
    assert after[3][0] == before[3][0]
    assert after[3][1] > before[3][1]
    assert after[5][0] > max(row_id for row_id, _ in before.values())
    assert rows(table, row_filter="id = 3") == [{"id": 3, "text": "changed"}]


def test_row_ids_are_never_given_twice(catalog: EncryptingCatalog) -> None:
    table = new_table(catalog)
    for number in range(6):
        table.append(simple(10 * number, 10 * number + 1))
        table.delete(f"id = {10 * number}")
    ids = [row_id for row_id, _ in lineage(table).values()]
    assert len(set(ids)) == len(ids) == 6
    assert getattr(table.metadata, "next_row_id", 0) > max(ids)


def test_merged_manifests_keep_lineage(catalog: EncryptingCatalog) -> None:
    merging = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
    table = new_table(catalog, properties=merging)
    before: dict[int, tuple[int, int]] = {}
    for number in range(5):
        table.append(simple(number))
        after = lineage(table)
        assert {row: after[row] for row in before} == before
        assert len({row_id for row_id, _ in after.values()}) == number + 1
        before = after
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) < 5


def test_partitions_overwrite_and_filters(catalog: EncryptingCatalog) -> None:
    schema = Schema(
        NestedField(1, "id", LongType()), NestedField(2, "day", TimestampType()), NestedField(3, "g", StringType())
    )
    spec = PartitionSpec(
        PartitionField(3, 1000, IdentityTransform(), "g"),
        PartitionField(2, 1001, DayTransform(), "day_day"),
        PartitionField(1, 1002, BucketTransform(4), "id_bucket"),
    )
    table = new_table(catalog, schema, partition_spec=spec)
    days = [datetime.datetime(2024, 1, day) for day in (1, 1, 2, 3)]
    table.append(pa.table({"id": [1, 2, 3, 4], "day": days, "g": ["a", "b", "a", None]}, schema=schema.as_arrow()))
    assert [row["id"] for row in rows(table, row_filter="day >= '2024-01-02T00:00:00'")] == [3, 4]
    table.overwrite(
        pa.table({"id": [9], "day": days[:1], "g": ["a"]}, schema=schema.as_arrow()), overwrite_filter="g = 'a'"
    )
    assert sorted(row["id"] for row in rows(table)) == [2, 4, 9]
    assert table.inspect.partitions().num_rows == 3


def test_dynamic_partition_overwrite(catalog: EncryptingCatalog) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "text"))
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "text", StringType()))
    table = new_table(catalog, schema, partition_spec=spec)
    table.append(simple(1, 2, 3))
    table.dynamic_partition_overwrite(pa.table({"id": [20], "text": ["row 2"]}, schema=SIMPLE))
    assert sorted(row["id"] for row in rows(table)) == [1, 3, 20]


def test_streams_of_batches_are_written_and_read(catalog: EncryptingCatalog) -> None:
    table = new_table(catalog, properties={"write.target-file-size-bytes": "1000"})
    batches = simple(*range(500)).to_batches(max_chunksize=100)
    table.append(pa.RecordBatchReader.from_batches(SIMPLE, batches))
    assert len(list(table.scan().plan_files())) > 1
    with table.scan().to_arrow_batch_reader() as reader:
        assert sum(batch.num_rows for batch in reader) == 500
    assert table.scan(limit=7).to_arrow().num_rows == 7


def test_a_stream_holds_batches_and_not_the_table(catalog: EncryptingCatalog) -> None:
    schema = pa.schema([("id", pa.int64()), ("noise", pa.binary())])
    table = new_table(catalog, schema, properties={"write.parquet.row-group-limit": "1000"})
    for number in range(8):
        noise = [os.urandom(1000) for _ in range(4000)]
        table.append(pa.table({"id": range(number * 4000, number * 4000 + 4000), "noise": noise}, schema=schema))
    size = sum(task.file.file_size_in_bytes for task in table.scan().plan_files())
    before = pa.total_allocated_bytes()
    most = seen = 0
    with table.scan().to_arrow_batch_reader() as reader:
        for batch in reader:
            seen += batch.num_rows
            most = max(most, pa.total_allocated_bytes() - before)
    assert seen == 32_000
    assert most < size / 2, (most, size)


def test_several_statements_are_one_commit(catalog: EncryptingCatalog) -> None:
    table = new_table(catalog)
    table.append(simple(1, 2))
    before = table.metadata_location
    with table.transaction() as transaction:
        transaction.append(simple(3))
        transaction.delete("id = 1")
        transaction.set_properties(owner="me")
        with transaction.update_schema() as schema:
            schema.add_column("more", StringType())
        transaction.append(simple(4).append_column("more", pa.array(["x"])))
        assert catalog.load_table("db.t").metadata_location == before
    assert sorted(row["id"] for row in rows(table)) == [2, 3, 4]
    assert len(table.metadata.metadata_log) == 2


def test_a_failed_transaction_leaves_nothing(catalog: EncryptingCatalog, tmp_path: Path) -> None:
    table = new_table(catalog)
    table.append(simple(1))
    stale = catalog.load_table("db.t")
    with stale.transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "0"})
    stale, other = catalog.load_table("db.t"), catalog.load_table("db.t")
    other.append(simple(2))
    before = sorted(path.name for path in (tmp_path / "warehouse").rglob("*.avro"))
    with pytest.raises(CommitFailedException):
        stale.append(simple(3))
    assert sorted(path.name for path in (tmp_path / "warehouse").rglob("*.avro")) == before
    keys = catalog.load_table("db.t").metadata.encryption_keys  # type: ignore[union-attr]  # added by this package
    assert len(keys) == 3  # a KEK, and the lists of two snapshots
    assert sorted(row["id"] for row in rows(catalog.load_table("db.t"))) == [1, 2]


def test_a_commit_that_lost_a_race_is_tried_again(catalog: EncryptingCatalog) -> None:
    table = new_table(catalog)
    table.append(simple(1))
    stale = catalog.load_table("db.t")
    table.append(simple(2))
    stale.append(simple(3))
    assert lineage(stale) == {1: (0, 1), 2: (1, 2), 3: (2, 3)}
    assert len(stale.metadata.encryption_keys) == 4  # type: ignore[union-attr]


def test_commits_to_two_branches_at_once_get_their_own_numbers(catalog: EncryptingCatalog) -> None:
    table = new_table(catalog)
    table.append(simple(1))
    table.append(simple(2))
    head = table.current_snapshot()
    assert head is not None
    table.manage_snapshots().create_branch(head.snapshot_id, "side").commit()
    stale = catalog.load_table("db.t")
    table.delete("id = 1")
    stale.append(simple(3), branch="side")
    numbers = [snapshot.sequence_number for snapshot in catalog.load_table("db.t").snapshots()]
    assert len(set(numbers)) == len(numbers) == 4


def test_a_delete_leaves_rows_whose_value_is_nan(catalog: EncryptingCatalog) -> None:
    """Bounds pass over NaN, so a file would look as if all of its rows matched."""
    schema = pa.schema([("x", pa.float64())])
    table = new_table(catalog, schema)
    table.append(pa.table({"x": [1.0, float("nan")]}, schema=schema))
    table.delete("x < 5")
    assert table.scan().to_pandas()["x"].isna().to_list() == [True]


@pytest.mark.parametrize(
    ("row_filter", "expected"),
    [
        ("text > 'a' or id = 3", [2, 3]),
        ("text <= 'a' or id = 7", [1]),
        ("text is null or text > 'a'", [2, 3]),
        ("text != 'a'", [2]),
        ("not text = 'a'", [2]),
        ("text not like 'a%'", [2]),
        ("text = 'b' or text is null", [2, 3]),
    ],
)
def test_null_partitions_are_filtered(catalog: EncryptingCatalog, row_filter: str, expected: list[int]) -> None:
    """As their rows are: a comparison with null is not true."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "text", StringType()))
    by_text = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "text"))
    table = new_table(catalog, schema, partition_spec=by_text)
    table.append(pa.table({"id": [1, 2, 3], "text": ["a", "b", None]}))
    scan = table.scan(row_filter)
    assert sorted(scan.to_arrow()["id"].to_pylist()) == expected
    assert scan.count() == len(expected)
    table.append(pa.table({"id": [1, 2, 3], "text": ["a", "b", None]}))
    first, _ = table.snapshots()
    added = table.incremental_append_scan(row_filter=row_filter, from_snapshot_id_exclusive=first.snapshot_id)
    assert sorted(added.to_arrow()["id"].to_pylist()) == expected


def test_a_null_partition_is_not_counted_among_what_is_not_nan(catalog: EncryptingCatalog) -> None:
    schema = Schema(NestedField(1, "x", DoubleType()))
    table = new_table(catalog, schema, partition_spec=PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "x")))
    table.append(pa.table({"x": [1.0, 2.0, None]}))
    scan = table.scan("x is not nan")
    assert scan.count() == len(scan.to_arrow()) == 2


# Evolving and time


def test_schemas_evolve(catalog: EncryptingCatalog) -> None:
    table = new_table(catalog)
    table.append(simple(1))
    with table.update_schema() as update:
        update.rename_column("text", "words").add_column("n", IntegerType()).move_first("n")
    table.append(pa.table({"n": pa.array([7], pa.int32()), "id": [2], "words": ["two"]}))
    with table.update_schema() as update:
        update.update_column("n", LongType()).delete_column("words")
    assert rows(catalog.load_table("db.t")) == [{"n": 7, "id": 2}, {"n": None, "id": 1}]


def test_branches_tags_and_times(catalog: EncryptingCatalog) -> None:
    table = new_table(catalog)
    table.append(simple(1))
    first = table.current_snapshot()
    assert first is not None
    with table.manage_snapshots() as manage:
        manage.create_branch(first.snapshot_id, "side").create_tag(first.snapshot_id, "start")
    table.append(simple(2), branch="side")
    table.append(simple(3))
    assert [row["id"] for row in rows(table)] == [1, 3]
    assert [row["id"] for row in rows_at(table, "side")] == [1, 2]
    assert [row["id"] for row in rows_at(table, "start")] == [1]
    assert [row["id"] for row in rows(table, snapshot_id=first.snapshot_id)] == [1]
    table.delete("id = 1", branch="side")
    assert [row["id"] for row in rows_at(table, "side")] == [2]
    with table.manage_snapshots() as manage:
        manage.rollback_to_snapshot(first.snapshot_id)
    assert [row["id"] for row in rows(table)] == [1]
    appended = table.incremental_append_scan(to_snapshot_id_inclusive=first.snapshot_id, selected_fields=LINEAGE)
    assert appended.to_arrow().to_pylist() == [
        {"id": 1, "text": "row 1", "_row_id": 0, "_last_updated_sequence_number": 1}
    ]


def rows_at(table: Table, ref: str) -> list[dict[str, Any]]:
    return sorted(table.scan().use_ref(ref).to_arrow().to_pylist(), key=str)


def test_expired_snapshots_leave_the_rest_readable(catalog: EncryptingCatalog) -> None:
    table = new_table(catalog)
    for number in range(4):
        table.append(simple(number))
    first = table.metadata.snapshots[0]
    table.maintenance.expire_snapshots().by_id(first.snapshot_id).commit()
    assert len(catalog.load_table("db.t").metadata.snapshots) == 3
    table.append(simple(9))
    assert [row["id"] for row in rows(catalog.load_table("db.t"))] == [0, 1, 2, 3, 9]


@pytest.mark.parametrize("version", [1, 2])
def test_a_plain_table_is_upgraded_to_v3(catalog: EncryptingCatalog, version: int) -> None:
    table = catalog.create_table("db.t", SIMPLE, properties={"format-version": str(version)})
    table.append(simple(1, 2))
    with table.transaction() as transaction:
        transaction.upgrade_table_version(3)
    assert {row: None not in ids for row, ids in lineage(table).items()} == {1: False, 2: False}
    table.append(simple(3))
    table.delete("id = 1")
    table = catalog.load_table("db.t")
    assert table.format_version == 3
    assert {number: row_id is not None for number, (row_id, _) in lineage(table).items()} == {2: True, 3: True}
    assert len({row_id for row_id, _ in lineage(table).values()}) == 2


# Tables as a whole


@pytest.mark.parametrize("format_version", ["2", "3"])
def test_a_transaction_that_creates_a_table_cannot_change_its_key(lake: Lake, format_version: str) -> None:
    """Or else what it had written before would be plaintext, or sealed by another key."""
    catalog = lake.catalog()
    encrypted = {"encryption.key-id": "keyA"}
    plain = {"format-version": format_version}
    changes: list[tuple[dict[str, str], Callable[[Any], Any]]] = [
        (plain, lambda t: t.set_properties(encrypted)),
        (encrypted, lambda t: t.set_properties({"encryption.key-id": "keyB"})),
        (encrypted, lambda t: t.set_properties({"encryption.data-key-length": "32"})),
        (encrypted, lambda t: t.remove_properties("encryption.key-id")),
    ]
    for properties, change in changes:
        transaction = catalog.create_table_transaction("db.t", SIMPLE, properties=properties)
        with pytest.raises(ConfigurationError, match="cannot be changed"):
            change(transaction)
        transaction.append(simple(1))
        transaction.commit_transaction()
        table = catalog.load_table("db.t")
        assert [row["id"] for row in rows(table)] == [1]
        assert table.properties.get("encryption.key-id") == properties.get("encryption.key-id")
        catalog.drop_table("db.t")


def test_a_table_that_cannot_be_read_is_not_purged(catalog: EncryptingCatalog) -> None:
    table = new_table(catalog)
    table.append(simple(1))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    (manifest,) = snapshot.manifests(table.io)
    path_of(manifest.manifest_path).write_bytes(b"AGS1 but not really")
    with pytest.raises((IntegrityError, FormatError)):
        catalog.purge_table("db.t")
    assert catalog.table_exists("db.t")


def test_rename_drop_and_purge(catalog: EncryptingCatalog, tmp_path: Path) -> None:
    new_table(catalog).append(simple(1))
    table = catalog.rename_table("db.t", "db.renamed")
    table.append(simple(2))
    assert [row["id"] for row in rows(catalog.load_table("db.renamed"))] == [1, 2]
    location = table.metadata_location
    catalog.drop_table("db.renamed")
    assert [row["id"] for row in rows(catalog.register_table("db.again", location))] == [1, 2]
    catalog.purge_table("db.again")
    with pytest.raises(NoSuchTableError):
        catalog.load_table("db.again")
    assert [path for path in (tmp_path / "warehouse").rglob("*") if path.is_file()] == []


def test_a_static_table_needs_the_key_id_that_is_expected(lake: Lake) -> None:
    table = new_table(lake.catalog())
    table.append(simple(1))
    static = StaticTable.from_metadata(table.metadata_location, {**lake.kms, "encryption.key-id": "keyA"})
    assert rows(static) == simple(1).to_pylist()
    with pytest.raises(ConfigurationError, match=r"encryption\.key-id"):
        StaticTable.from_metadata(table.metadata_location, lake.kms)


def test_statistics_files_are_kept(catalog: EncryptingCatalog) -> None:
    from pyiceberg.table.statistics import StatisticsFile

    table = new_table(catalog)
    table.append(simple(1))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    file = StatisticsFile(
        snapshot_id=snapshot.snapshot_id,
        statistics_path="file:///x.puffin",
        file_size_in_bytes=10,
        file_footer_size_in_bytes=4,
        blob_metadata=[],
    )
    with table.update_statistics() as update:
        update.set_statistics(file)
    table.append(simple(2))
    assert catalog.load_table("db.t").metadata.statistics == [file]


def test_object_storage_paths(catalog: EncryptingCatalog) -> None:
    table = new_table(catalog, properties={"write.object-storage.enabled": "true"})
    table.append(simple(1))
    assert rows(catalog.load_table("db.t")) == simple(1).to_pylist()


# Other libraries


def test_rows_in_other_libraries(catalog: EncryptingCatalog) -> None:
    table = new_table(catalog)
    table.append(simple(1, 2, 3))
    assert list(table.scan().to_pandas()["id"]) == [1, 2, 3]
    assert table.scan().to_polars()["id"].to_list() == [1, 2, 3]
    assert table.scan().to_duckdb("t").sql("select sum(id) from t").fetchall() == [(6,)]
    import polars as pl

    assert table.to_polars().filter(pl.col("id") > 1).select("text").collect()["text"].to_list() == ["row 2", "row 3"]
    assert table.to_polars().head(2).collect().height == 2
    for method in (table.to_daft, table.to_bodo):
        with pytest.raises(ValueError, match="cannot decrypt"):
            method()


def test_planning_leaves_the_collector_as_it_was(catalog: EncryptingCatalog) -> None:
    table = new_table(catalog)
    table.append(simple(1))
    list(table.scan().plan_files())
    assert gc.isenabled()
    gc.disable()
    try:
        list(table.scan().plan_files())
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_delete_that_matches_nothing_says_so(catalog: EncryptingCatalog) -> None:
    table = new_table(catalog)
    table.append(simple(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="did not match any records"):
            table.delete("id = 7")
