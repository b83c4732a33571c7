"""Timestamps of tables in microseconds, which files by pandas and Spark have in nanoseconds, or as INT96."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StructType, TimestampNanoType, TimestampType, TimestamptzType

from pyiceberg_encryption.pipeline.encrypt import encrypt_in_place, encrypt_into
from tests.table_support import Lake, path_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.table import Table

ZONE = datetime.timezone.utc
TIMES = [
    datetime.datetime(1, 1, 1),
    datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    datetime.datetime(2020, 1, 2, 3, 4, 5, 6),
    datetime.datetime(9999, 12, 31),
    None,
]
AWARE = [None if time is None else time.replace(tzinfo=ZONE) for time in TIMES]
SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "ts", TimestampType()), NestedField(3, "tz", TimestamptzType())
)
NESTED = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "ts", TimestampType()),
    NestedField(3, "tz", TimestamptzType()),
    NestedField(4, "inner", StructType(NestedField(5, "ts", TimestampType()))),
)
NANOSECONDS = [-1, 1_001, 1_600_000_000_123_456_789, None]
FLOORED = [-1, 1, 1_600_000_000_123_456, None]


def plain_table(lake: Lake, schema: Schema, rows: list[dict[str, Any]], version: str = "2") -> tuple[Table, Path]:
    """With a file whose columns have no ids. PyIceberg adds none with nanoseconds, so these come in afterwards."""
    table = lake.catalog().create_table("db.plain", schema, properties={"format-version": version})
    path = path_of(f"{table.location()}/data/foreign.parquet")
    path.parent.mkdir(parents=True)
    fields = schema_to_pyarrow(schema, include_field_ids=False)
    pq.write_table(pa.Table.from_pylist(rows, schema=fields), path)
    table.add_files([f"file://{path}"])
    return table, path


def of_int96(lake: Lake, version: str = "2") -> Table:
    rows = [
        {"id": number, "ts": time, "tz": aware} for number, (time, aware) in enumerate(zip(TIMES, AWARE, strict=True))
    ]
    table, path = plain_table(lake, SCHEMA, rows, version)
    pq.write_table(pq.read_table(path), path, use_deprecated_int96_timestamps=True)
    return table


def of_nanoseconds(lake: Lake) -> Table:
    rows = [{"id": number, "ts": time, "tz": time, "inner": {"ts": time}} for number, time in enumerate(FLOORED)]
    table, path = plain_table(lake, NESTED, rows)
    exact = pa.array(NANOSECONDS, pa.timestamp("ns"))
    inner = pa.StructArray.from_arrays([exact], names=["ts"])
    columns = {"id": range(len(exact)), "ts": exact, "tz": exact.cast(pa.timestamp("ns", "UTC")), "inner": inner}
    pq.write_table(pa.table(columns), path)
    return table


def upgraded(table: Table) -> Table:
    with table.transaction() as transaction:
        transaction.upgrade_table_version(3)
    return table.refresh()


def column(table: Table, name: str, **arguments: Any) -> pa.ChunkedArray:
    return table.scan(**arguments).to_arrow().sort_by("id")[name]


@pytest.mark.parametrize("version", ["1", "2"])
def test_int96_in_tables_that_are_encrypted(lake: Lake, version: str) -> None:
    encrypt_into(of_int96(lake, version), lake.catalog(), "db.copy", properties={"encryption.key-id": "keyA"})
    encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
    for name in ("db.copy", "db.plain"):
        assert column(lake.load(name), "ts").to_pylist() == TIMES
        assert column(lake.load(name), "tz").to_pylist() == AWARE


def test_int96_with_a_filter(lake: Lake) -> None:
    table = upgraded(of_int96(lake))
    assert column(table, "id", row_filter="ts < '1970-01-01T00:00:00'").to_pylist() == [0, 1]
    assert column(table, "id", row_filter="tz >= '2020-01-02T03:04:05.000006+00:00'").to_pylist() == [2, 3]


def test_nanoseconds_become_the_microsecond_they_are_in(lake: Lake) -> None:
    plain = of_nanoseconds(lake)
    encrypt_into(plain, lake.catalog(), "db.copy", properties={"encryption.key-id": "keyA"})
    for table in (lake.load("db.copy"), upgraded(plain)):
        assert column(table, "ts").cast(pa.int64()).to_pylist() == FLOORED
        assert column(table, "tz").cast(pa.int64()).to_pylist() == FLOORED
        assert [row["ts"] for row in column(table, "inner").to_pylist()] == column(table, "ts").to_pylist()
        assert column(table, "id", row_filter="ts = '1970-01-01T00:00:00.000001'").to_pylist() == [1]
        assert column(table, "id", row_filter="ts > '2020-09-13T12:26:40.123456'").to_pylist() == []


def test_nanoseconds_of_the_table_stay(lake: Lake) -> None:
    table = upgraded(of_nanoseconds(lake))
    (path,) = lake.files("foreign.parquet")
    with table.update_schema() as update:
        update.add_column("ns", TimestampNanoType())
    exact = pa.array([NANOSECONDS[2]], pa.timestamp("ns"))
    table.append(pa.table({"id": [9], "ns": exact}))
    assert column(table, "ns").cast(pa.int64()).to_pylist() == [*[None] * 4, NANOSECONDS[2]]
    assert column(table, "ts").cast(pa.int64()).to_pylist() == [*FLOORED, None]
    both = pq.read_table(path)
    pq.write_table(both.append_column("ns", both["ts"]), path)
    assert column(table, "ns").cast(pa.int64()).to_pylist() == [*NANOSECONDS, NANOSECONDS[2]]
    assert column(table, "ts").cast(pa.int64()).to_pylist() == [*FLOORED, None]
