"""The tables that PyIceberg's integration tests read, as its `dev/provision.py` makes them with Spark.

Those with delete files or nested types are left out: what Spark itself wrote is read in `test_spark_tables.py`.
"""

from __future__ import annotations

from datetime import date, datetime, timezone
from math import nan
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    DateType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    UUIDType,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.types import IcebergType

PARTITIONS: dict[str, tuple[str, Transform[Any, Any]]] = {
    "test_partitioned_by_identity": ("ts", IdentityTransform()),
    "test_partitioned_by_years": ("dt", YearTransform()),
    "test_partitioned_by_months": ("dt", MonthTransform()),
    "test_partitioned_by_days": ("ts", DayTransform()),
    "test_partitioned_by_hours": ("ts", HourTransform()),
    "test_partitioned_by_truncate": ("letter", TruncateTransform(1)),
    "test_partitioned_by_bucket": ("number", BucketTransform(16)),
}
UUIDS_AND_FIXED = {
    "102cb62f-e6f8-4eb0-9973-d9b012ff0967": b"1234567890123456789012345",
    "ec33e4b2-a834-4cc3-8c4a-a1d3bfc2f226": b"1231231231231231231231231",
    "639cccce-c9d2-494a-a78c-278ab234f024": b"12345678901234567ass12345",
    "c1b0d8e0-0b0e-4b1e-9b0a-0e0b0d0c0a0b": b"asdasasdads12312312312111",
    "923dae77-83d6-47cd-b4b0-d383e64ee57e": b"qweeqwwqq1231231231231111",
}


def _floats(catalog: Catalog, name: str) -> None:
    values = {1: nan, 2: None, 3: 1.0}
    table = _create(catalog, name, {"idx": IntegerType(), "col_numeric": FloatType()})
    _insert(table, *({"idx": idx, "col_numeric": value} for idx, value in values.items()))


def _partitioned(catalog: Catalog, name: str) -> None:
    columns = {"dt": DateType(), "ts": TimestamptzType(), "number": IntegerType(), "letter": StringType()}
    days = [(number, 2022 if number < 5 else 2023) for number in range(1, 13)]
    rows = [
        {
            "dt": date(year, 3, number),
            "ts": datetime(year, 3, number, number, 22, tzinfo=timezone.utc),
            "number": number,
            "letter": "abcdefghijkl"[number - 1],
        }
        for number, year in days
    ]
    column, transform = PARTITIONS[name]
    field = PartitionField(list(columns).index(column) + 1, 1000, transform, f"{column}_part")
    _insert(_create(catalog, name, columns, PartitionSpec(field)), *rows)


def _evolved(catalog: Catalog, name: str) -> None:
    table = _create(catalog, name, {"a": StringType()})
    _insert(table, {"a": "1"})
    table.update_schema().add_column("b", StringType()).commit()
    _insert(table, {"a": "2", "b": "2"})


def _nested(catalog: Catalog, name: str) -> None:
    number = IntegerType()
    columns = {
        "col_list": ListType(11, number),
        "col_map": MapType(12, number, 13, number),
        "col_struct": StructType(NestedField(14, "test", number)),
        "col_list_with_struct": ListType(15, StructType(NestedField(16, "test", number))),
    }
    values = dict(zip(columns, ([], [], {"test": 1}, [{"test": 1}]), strict=True))
    _insert(_create(catalog, name, columns), dict.fromkeys(columns), values)


def _numbers(catalog: Catalog, name: str) -> None:
    _insert(_create(catalog, name, {"idx": IntegerType()}), *({"idx": idx} for idx in range(1, 11)))


def _odd_name(catalog: Catalog, name: str) -> None:
    _insert(_create(catalog, name, {"letter/abc": StringType()}), {"letter/abc": "123"})


def _strings(catalog: Catalog, name: str) -> None:
    _insert(_create(catalog, name, {"id": StringType()}), {"id": "a"}, {"id": "c"})


def _uuids(catalog: Catalog, name: str) -> None:
    table = _create(catalog, name, {"uuid_col": UUIDType(), "fixed_col": FixedType(25)})
    _insert(table, *({"uuid_col": UUID(key).bytes, "fixed_col": value} for key, value in UUIDS_AND_FIXED.items()))


def _changed(catalog: Catalog, name: str) -> None:
    table = _create(catalog, name, {"number": IntegerType()})
    _insert(table, {"number": 1})
    _insert(table, {"number": 2})
    table.delete("number = 2")
    _insert(table, {"number": 3})
    _insert(table, {"number": 4})


def _incremental(catalog: Catalog, name: str) -> None:
    """Snapshot 3 is an overwrite, where Spark's is a replace, and at the end nothing replaces the table."""
    by_letter = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "letter"))
    table = _create(catalog, name, {"number": IntegerType(), "letter": StringType()}, by_letter)
    _insert(table, {"number": 1, "letter": "a"})
    _insert(table, {"number": 2, "letter": "b"})
    _insert(table, {"number": 3, "letter": "c"}, {"number": 4, "letter": "b"})
    compacted = table.scan("letter = 'b'")
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as rewrite:
        for task in compacted.plan_files():
            rewrite.delete_data_file(task.file)
        for file in _dataframe_to_data_files(table.metadata, compacted.to_arrow(), table.io):
            rewrite.append_data_file(file)
    table.delete("number = 2")
    table.update_schema().add_column("extra", IntegerType()).commit()
    _insert(table, {"number": 5, "letter": "d", "extra": 100})


def _create(
    catalog: Catalog, name: str, columns: Mapping[str, IcebergType], spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC
) -> Table:
    fields = [NestedField(position, *column, required=False) for position, column in enumerate(columns.items(), 1)]
    return catalog.create_table(f"default.{name}", Schema(*fields), partition_spec=spec)


def _insert(table: Table, *rows: Mapping[str, object]) -> None:
    table.append(pa.Table.from_pylist(list(rows), schema=table.schema().as_arrow()))


MAKERS = {
    "test_empty_scan_ordered_str": _strings,
    "test_incremental_read": _incremental,
    "test_limit": _numbers,
    "test_null_nan": _floats,
    "test_null_nan_rewritten": _floats,
    "test_table_add_column": _evolved,
    "test_table_empty_list_and_map": _nested,
    "test_table_sanitized_character": _odd_name,
    "test_table_snapshot_operations": _changed,
    "test_uuid_and_fixed_unpartitioned": _uuids,
    **dict.fromkeys(PARTITIONS, _partitioned),
}
