"""What one task writes: each row in the file of its partition, each file with a key of its own."""

from __future__ import annotations

import math
import uuid
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
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
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros, time_to_micros

from pyiceberg_encryption.errors import UsageError
from pyiceberg_encryption.pipeline import data_writer
from pyiceberg_encryption.pipeline.commit import commit
from pyiceberg_encryption.pipeline.data_writer import check_columns
from pyiceberg_encryption.table.file_io import FileKey
from pyiceberg_encryption.table.read import ArrowScan
from tests.pipeline.support import JOB, append, new_table, writer, written
from tests.table_support import path_of

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.types import IcebergType

    from tests.table_support import Lake

MOMENTS = [datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(2024, 2, 29, 12), datetime(2024, 2, 29, 13), None]
IDS = [uuid.UUID(int=7), uuid.UUID(int=2**127), None]
COLUMNS: dict[str, tuple[IcebergType, list[Any]]] = {
    "a_boolean": (BooleanType(), [True, False, None]),
    "an_int": (IntegerType(), [-11, 0, 9, None]),
    "a_long": (LongType(), [-(2**40), 0, 9, None]),
    "a_float": (FloatType(), [0.5, math.nan, math.inf, None]),
    "a_double": (DoubleType(), [0.1, math.nan, -0.0, 0.0, None]),
    "a_decimal": (DecimalType(9, 2), [Decimal("-1.01"), Decimal("14.20"), None]),
    "a_date": (DateType(), [date(1969, 12, 31), date(2024, 2, 29), None]),
    "a_time": (TimeType(), [time(1, 2, 3), time(23, 59, 59, 999_999), None]),
    "a_timestamp": (TimestampType(), MOMENTS),
    "a_timestamptz": (TimestamptzType(), [one and one.replace(tzinfo=timezone.utc) for one in MOMENTS]),
    "a_string": (StringType(), ["", "äöü and more", "äö", "a/b c=%20?#", None]),
    "a_uuid": (UUIDType(), IDS),
    "a_fixed": (FixedType(3), [b"abc", b"\x00\x01\x02", None]),
    "a_binary": (BinaryType(), [b"", b"abcd", b"abce", None]),
}
TRANSFORMS: list[Transform[Any, Any]] = [
    *(IdentityTransform(), BucketTransform(3), TruncateTransform(3), VoidTransform()),
    *(YearTransform(), MonthTransform(), DayTransform(), HourTransform()),
]
CASES = [
    (column, transform)
    for column, (kind, _) in COLUMNS.items()
    for transform in TRANSFORMS
    if transform.can_transform(kind)
]


def by(*fields: tuple[int, Transform[Any, Any]]) -> PartitionSpec:
    return PartitionSpec(
        *(PartitionField(source, 1000 + number, kind, f"p{number}") for number, (source, kind) in enumerate(fields))
    )


def internal(value: Any) -> Any:
    """As Iceberg has it: what is a time is a number."""
    match value:
        case datetime():
            return datetime_to_micros(value)
        case date():
            return date_to_days(value)
        case time():
            return time_to_micros(value)
        case uuid.UUID():
            return value.bytes
    return value


def ids_by_partition(table: Table) -> dict[str, set[int]]:
    """As readers of the table see it. There must be one file for each partition."""
    found: dict[str, set[int]] = {}
    for task in table.scan().plan_files():
        scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
        assert repr(task.file.partition) not in found
        found[repr(task.file.partition)] = set(scan.to_table([task])["id"].to_pylist())
    return found


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch is written at once."""
    monkeypatch.setattr(data_writer, "SMALL_BATCH_ROWS", 1)
    monkeypatch.setattr(data_writer, "ROW_GROUP_BYTES", 1)


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize(("column", "transform"), CASES, ids=str)
def test_each_row_is_in_the_file_of_its_partition(lake: Lake, column: str, transform: Transform[Any, Any]) -> None:
    kind, values = COLUMNS[column]
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "value", kind))
    table = new_table(lake, schema, partition_spec=by((2, transform)))
    arrow = pa.binary() if column == "a_binary" else schema_to_pyarrow(kind)  # binary is not large in Spark
    given = [value.bytes if isinstance(value, uuid.UUID) else value for value in values]
    count = len(values)
    apply = transform.transform(kind)
    expected: dict[str, set[int]] = {}
    for number, value in enumerate(values):
        expected.setdefault(repr(Record(apply(internal(value)))), set()).update((number, number + count))

    task = writer(table)
    for ids in (range(count), range(count, 2 * count)):
        task.write(pa.record_batch({"id": pa.array(ids), "value": pa.array(given, arrow)}))
    files = [entry.data_file for entry in task.finish()]
    assert commit(table, files)

    assert ids_by_partition(table) == expected
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [*range(2 * count)]
    for file in files:
        assert path_of(file.file_path).read_bytes()[:4] == b"PARE"


@pytest.mark.parametrize(("kind", "value", "text"), [(UUIDType(), IDS[0], f"'{IDS[0]}'"), (DoubleType(), 0.1, "0.1")])
def test_a_partition_is_found_by_its_value(lake: Lake, kind: IcebergType, value: Any, text: str) -> None:
    """PyIceberg reads other values of these types than it wrote."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "value", kind))
    table = new_table(lake, schema, partition_spec=by((2, IdentityTransform())))
    given = pa.array([internal(value), None], schema_to_pyarrow(kind))
    append(table, pa.table({"id": [1, 2], "value": given}))
    (task,) = table.scan(f"value = {text}").plan_files()
    assert task.file.partition[0] == internal(value)


def test_two_partition_fields_of_one_column(lake: Lake) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "at", TimestampType()))
    spec = by((1, BucketTransform(2)), (1, TruncateTransform(2)), (2, VoidTransform()))
    table = new_table(lake, schema, partition_spec=spec)
    append(table, pa.table({"id": [0, 1, 2, 3, None], "at": pa.nulls(5, pa.timestamp("us"))}))
    bucket = BucketTransform(2).transform(LongType())
    expected: dict[str, set[int | None]] = {}
    for number in (0, 1, 2, 3, None):
        group = None if number is None else number // 2 * 2
        expected.setdefault(repr(Record(bucket(number), group, None)), set()).add(number)
    assert ids_by_partition(table) == expected


def test_a_partition_field_within_a_struct(lake: Lake) -> None:
    schema = Schema(
        NestedField(1, "id", LongType()), NestedField(2, "s", StructType(NestedField(3, "kind", StringType())))
    )
    table = new_table(lake, schema, partition_spec=by((3, IdentityTransform())))
    append(table, pa.table({"id": [1, 2, 3, 4], "s": [{"kind": "a"}, {"kind": None}, None, {"kind": "a"}]}))
    assert ids_by_partition(table) == {"Record[a]": {1, 4}, "Record[None]": {2, 3}}


SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "kind", StringType()))
ID_AND_KIND = pa.schema([("id", pa.int64()), ("kind", pa.string())])
BY_KIND = by((2, IdentityTransform()))


def rows(first: int, last: int, kinds: str = "ab") -> pa.Table:
    ids = range(first, last + 1)
    return pa.table({"id": ids, "kind": [kinds[number % len(kinds)] for number in ids]}, schema=ID_AND_KIND)


def test_files_hold_rows_in_the_order_in_which_they_came(lake: Lake) -> None:
    table = new_table(lake, SCHEMA, partition_spec=BY_KIND)
    task = writer(table)
    for first in (0, 10, 20):
        for batch in rows(first, first + 9, "aab").to_batches(max_chunksize=3):
            task.write(batch)
    assert commit(table, [entry.data_file for entry in task.finish()])
    for kind, expected in {"a": [n for n in range(30) if n % 3 < 2], "b": [n for n in range(30) if n % 3 == 2]}.items():
        assert table.scan(f"kind = '{kind}'").to_arrow()["id"].to_pylist() == expected


@pytest.mark.usefixtures("no_waiting")
def test_files_end_at_the_target_size(lake: Lake) -> None:
    table = new_table(lake, SCHEMA, properties={"write.target-file-size-bytes": "2000"})
    task = writer(table)
    for first in range(0, 1000, 100):
        for batch in rows(first, first + 99).to_batches():
            task.write(batch)
    files = [entry.data_file for entry in task.finish()]
    assert [file.record_count for file in files] == [300, 300, 300, 100]
    assert all(file.file_size_in_bytes == path_of(file.file_path).stat().st_size for file in files)
    assert commit(table, files)
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [*range(1000)]


def test_row_groups_end_at_the_limit(lake: Lake) -> None:
    table = new_table(lake, SCHEMA, properties={"write.parquet.row-group-limit": "30"})
    (file,) = append(table, rows(0, 99))
    assert file.split_offsets is not None
    assert len(file.split_offsets) == 4


def test_little_memory_is_enough_for_many_partitions(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_writer, "SMALL_BATCH_ROWS", 10)
    monkeypatch.setattr(data_writer, "BUFFERED_BYTES", 300)
    table = new_table(lake, SCHEMA, partition_spec=BY_KIND)
    task = writer(table)
    most = 0
    for batch in rows(0, 199, "abcdefgh").to_batches(max_chunksize=10):
        task.write(batch)
        most = max(most, sum(partition.waiting_bytes for partition in task._open.values()))
    assert 0 < most <= 300
    files = [entry.data_file for entry in task.finish()]
    assert len(files) == 8
    assert commit(table, files)
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [*range(200)]


@pytest.mark.usefixtures("no_waiting")
def test_without_fanout_rows_come_sorted_by_partition(lake: Lake) -> None:
    table = new_table(lake, SCHEMA, partition_spec=BY_KIND)
    task = writer(table, fanout=False)
    for kind in "abc":
        for batch in rows(0, 19, kind).to_batches(max_chunksize=7):
            task.write(batch)
            assert len(task._open) == 1
    assert len(task.finish()) == 3
    unsorted = writer(table, "unsorted", fanout=False)
    with pytest.raises(UsageError, match="Sort them by partition"):
        for kind in "aba":
            for batch in rows(0, 9, kind).to_batches():
                unsorted.write(batch)
    unsorted.abort()
    assert {file.name.partition("-0")[0] for file in lake.files(".parquet")} == {JOB}


@pytest.mark.usefixtures("no_waiting")
def test_what_is_aborted_leaves_no_file(lake: Lake) -> None:
    table = new_table(lake, SCHEMA, partition_spec=BY_KIND, properties={"write.target-file-size-bytes": "900"})
    (kept,) = append(table, rows(0, 0))
    task = writer(table, "other")
    for batch in rows(0, 99, "abc").to_batches(max_chunksize=40):
        task.write(batch)
    assert len(task._written) == len(task._open) == 3
    assert len(lake.files(".parquet")) == 1 + 3 + 3
    task.abort()
    assert lake.files(".parquet") == [path_of(kept.file_path)]
    empty = writer(table, "empty")
    assert not empty.finish()
    empty.abort()


STRUCT = StructType(NestedField(90, "x", LongType()), NestedField(91, "y", StringType()))
OF_STRUCTS = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "some", ListType(3, STRUCT, element_required=False)),
    NestedField(4, "named", MapType(5, StringType(), 6, STRUCT, value_required=False)),
    NestedField(7, "more", ListType(8, ListType(9, STRUCT, element_required=False), element_required=False)),
)


@pytest.mark.parametrize("nulls", [{0}, {2, 3}, {0, 1, 4}, set(range(5)), set()])
def test_what_is_null_is_not_empty(lake: Lake, nulls: set[int]) -> None:
    """Nor is what PyIceberg reads of it: a part of a batch, and columns that were added or moved."""
    one = {"x": 1, "y": "a"}
    kinds: list[tuple[Any, Any, Any]] = [
        ([], [], []),
        ([one], [("k", one)], [[one], None]),
        ([None], [("k", None)], [None]),
        ([one, None, one], [("k", one), ("l", None)], [[None], []]),
        ([one], [], [[]]),
    ]
    given = [(None, None, None) if number in nulls else kind for number, kind in enumerate(kinds)]
    rows = [
        {"id": number, "some": some, "named": named, "more": more} for number, (some, named, more) in enumerate(given)
    ]
    table = new_table(lake, OF_STRUCTS)
    arrow = schema_to_pyarrow(OF_STRUCTS, include_field_ids=False)
    (batch,) = pa.Table.from_pylist([rows[0], *rows, rows[0]], arrow).to_batches()
    append(table, pa.Table.from_batches([batch.slice(1, 5)]))
    assert table.scan().to_arrow().to_pylist() == rows
    assert table.scan("id > 1").to_arrow().to_pylist() == rows[2:]
    with table.update_schema() as update:
        update.add_column(("some", "z"), LongType())
        update.move_first(("some", "y"))
    evolved = table.scan().to_arrow()["some"].to_pylist()
    assert [some is None for some in evolved] == [row["some"] is None for row in rows]
    assert evolved[3] in (None, [{"y": "a", "x": 1, "z": None}, None, {"y": "a", "x": 1, "z": None}])


def test_every_file_has_a_key_of_its_own(lake: Lake) -> None:
    table = new_table(lake, SCHEMA, partition_spec=BY_KIND, properties={"encryption.data-key-length": "32"})
    files = [*written(table, rows(0, 9, "abc")), *written(table, rows(0, 9, "abc"), "other")]
    keys = [file.key_metadata.open() for file in files if isinstance(file.key_metadata, FileKey)]
    assert len({bytes(key.encryption_key.expose()) for key in keys}) == len(files) == 6
    assert len({key.aad_prefix for key in keys}) == 6
    assert {len(key.encryption_key) for key in keys} == {32}
    with pytest.raises(OSError, match="encrypted"):
        pq.read_table(path_of(files[0].file_path))


REQUIRED = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "kind", StringType()))


def test_a_row_without_a_required_value_is_refused(lake: Lake) -> None:
    table = new_table(lake, REQUIRED)
    check_columns(table.metadata, ID_AND_KIND)
    append(table, rows(0, 3))
    task = writer(table, "other")
    with pytest.raises(UsageError, match="id is required"):
        task.write(pa.record_batch({"id": [1, None], "kind": ["a", "b"]}, schema=ID_AND_KIND))
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "provided",
    [
        pa.schema([("kind", pa.string())]),
        pa.schema([("id", pa.string()), ("kind", pa.string())]),
        pa.schema([*ID_AND_KIND, ("more", pa.int64())]),
    ],
)
def test_rows_of_another_schema_are_refused(lake: Lake, provided: pa.Schema) -> None:
    table = new_table(lake, REQUIRED)
    with pytest.raises(ValueError, match=r"Mismatch|incompatible|more columns"):
        check_columns(table.metadata, provided)


def test_columns_in_another_order_and_of_smaller_types_fit(lake: Lake) -> None:
    table = new_table(lake, Schema(*REQUIRED.fields, NestedField(3, "more", DoubleType())))
    given = pa.schema([("kind", pa.string()), ("id", pa.int32())])
    check_columns(table.metadata, given)
    append(table, pa.table({"kind": ["a"], "id": [1]}, schema=given))
    assert table.scan().to_arrow().to_pylist() == [{"id": 1, "kind": "a", "more": None}]


def test_a_table_whose_partition_column_is_gone(lake: Lake) -> None:
    table = new_table(lake, SCHEMA, partition_spec=BY_KIND)
    metadata = table.metadata.model_copy(update={"schemas": [REQUIRED.select("id")]})
    with pytest.raises(UsageError, match="p0, whose column is gone"):
        list(data_writer.partitions(metadata, rows(0, 1)))
