"""Encrypted tables that Python and Iceberg Java, which is to say Spark, write and read in turn, in a Hive metastore."""

from __future__ import annotations

import base64
import gzip
import hashlib
import itertools
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlparse

import pyarrow as pa
import pytest
from pyiceberg.exceptions import ValidationException
from pyiceberg.expressions import parser
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow, schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortDirection, SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
)
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
    UUIDType,
)

from integration.golden_tables import COPY_ON_WRITE, MERGE_ON_READ, PARAMETERS, plain
from integration.kms_support import AWS_REGION, aws_admin
from integration.spark import QUICK_LOCKS
from pyiceberg_encryption.catalogs import load_catalog
from pyiceberg_encryption.errors import IntegrityError
from tests.support import MEMORY_PROPERTIES

pytest.importorskip("pyspark", reason="needs Spark: `pip install --group test`")

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyiceberg.table import Table
    from pyiceberg.types import IcebergType

    from integration.conftest import SparkOnHive
    from pyiceberg_encryption.catalogs import EncryptingCatalog

# PySpark leaves sockets to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NAMESPACE = "python"
LINEAGE = ("_row_id", "_last_updated_sequence_number")
ENCRYPTED = {"encryption.key-id": "keyA"}

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "data", StringType(), required=False),
    NestedField(3, "ts", TimestampType(), required=False),
    NestedField(4, "kind", StringType(), required=False),
)
FILTERS = ("id > 3", "id = 2", "data = 'row 5'", "data like 'row 1%'", "data is null", "kind in ('a', 'c')")
TIME_FILTERS = ("ts < '1970-01-01T00:00:00'", "ts >= '2024-01-02T00:00:00'", "ts is null")
START = datetime(2024, 1, 1)


def rows(first: int, last: int, data: str = "row") -> pa.Table:
    """Rows with these ids, of three kinds and as many days, of which one is before 1970. Some values are null."""
    ids = range(first, last + 1)
    days = [datetime(1969, 12, 31, 23, 59, 59, 999_999), START, START + timedelta(days=1, hours=5), None]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "data": [None if number % 7 == 0 else f"{data} {number}" for number in ids],
            "ts": pa.array([days[number % 4] for number in ids], pa.timestamp("us")),
            "kind": ["abc"[number % 3] for number in ids],
        }
    )


class Seen(NamedTuple):
    """What both read from a table."""

    rows: dict[Any, dict[str, Any]]
    next_row_id: int
    sequence_number: int


class Both:
    """One catalog, in Python and in Spark."""

    def __init__(self, spark: Any, catalog: EncryptingCatalog) -> None:
        self.spark = spark
        self.catalog = catalog

    def create(self, name: str, schema: Schema = SCHEMA, properties: dict[str, str] = ENCRYPTED, **more: Any) -> Table:
        return self.catalog.create_table((NAMESPACE, name), schema, properties=properties, **more)

    def table(self, name: str) -> Table:
        return self.catalog.load_table((NAMESPACE, name))

    def sql(self, name: str, statement: str) -> list[Any]:
        """In the statement, {t} is the table."""
        found: list[Any] = self.spark.sql(statement.replace("{t}", f"h.{NAMESPACE}.{name}")).collect()
        return found

    def insert(self, name: str, first: int, last: int, data: str = "java") -> None:
        self.spark.createDataFrame(rows(first, last, data)).writeTo(f"h.{NAMESPACE}.{name}").append()

    def agree(self, name: str, *filters: str | tuple[str, str], ref: str = "main", key: str = "id") -> Seen:
        """Whether both read the same rows, all of them and filtered, with the same lineage; and what these are.

        A filter is a pair where Python and Spark have other words for it.
        """
        table = self.table(name)
        self._check_metastore(table)
        source = f"h.{NAMESPACE}.{name}" if ref == "main" else f"h.{NAMESPACE}.{name} version as of '{ref}'"
        scan = table.scan(selected_fields=("*", *LINEAGE))
        if ref != "main":
            scan = scan.use_ref(ref)
        in_python = scan.to_arrow()
        in_spark = self.spark.sql(f"select *, {', '.join(LINEAGE)} from {source}").toArrow()
        seen = _by_key(in_python, key)
        assert _by_key(in_spark, key) == seen
        if filters:
            pairs = [(text, text) if isinstance(text, str) else text for text in filters]
            columns = ", ".join((key, *LINEAGE))
            queries = (f"select {n} as n, {columns} from {source} where {text}" for n, (_, text) in enumerate(pairs))
            found = self.spark.sql(" union all ".join(queries)).collect()
            schema = scan.projection()
            for number, (text, _) in enumerate(pairs):
                condition = expression_to_pyarrow(bind(schema, parser.parse(text), case_sensitive=True), schema)
                expected = [seen[name] for name in in_python.filter(condition)[key].to_pylist()]
                assert _by_key(scan.filter(text).to_arrow(), key) == {row[key]: row for row in expected}, text
                assert scan.filter(text).count() == len(expected), text
                places = {row[1:] for row in found if row.n == number}
                assert places == {tuple(row[name] for name in (key, *LINEAGE)) for row in expected}, text
        metadata: Any = table.metadata
        return Seen(seen, metadata.next_row_id or 0, metadata.last_sequence_number)

    def _check_metastore(self, table: Table) -> None:
        with self.catalog._client as client:  # type: ignore[attr-defined]
            parameters = client.get_table(*table.name()).parameters
        content = _path(table.metadata_location).read_bytes()
        if table.metadata_location.endswith(".gz.metadata.json"):
            content = gzip.decompress(content)
        expected = {name: table.properties.get(name) for name in PARAMETERS}
        if expected["encryption.key-id"]:
            expected["metadata_hash"] = base64.b64encode(hashlib.sha256(content).digest()).decode()
        assert {name: parameters.get(name) for name in PARAMETERS} == expected
        assert parameters["metadata_location"] == table.metadata_location


def _by_key(read: pa.Table, key: str) -> dict[Any, dict[str, Any]]:
    by_key = {row[key]: _comparable(row) for row in read.to_pylist()}
    assert len(by_key) == len(read)
    return by_key


def _comparable(value: Any) -> Any:
    """Arrow has maps as lists of pairs, and Spark has UUIDs as text."""
    match value:
        case dict():
            return {name: _comparable(item) for name, item in value.items()}
        case list() | tuple():
            return [_comparable(item) for item in value]
        case uuid.UUID():
            return str(value)
        case _:
            return plain(value)


def _path(location: str) -> Path:
    return Path(urlparse(location).path)


def check_lineage(before: Seen, after: Seen, replaced: Collection[int] = ()) -> None:
    """Rows keep their ids unless they were replaced, and their sequence numbers unless they were changed too."""
    ids = [row["_row_id"] for row in after.rows.values()]
    assert len(set(ids)) == len(ids)
    for key, row in after.rows.items():
        was = before.rows.get(key)
        if was is None or key in replaced:
            assert before.next_row_id <= row["_row_id"] < after.next_row_id
        else:
            assert row["_row_id"] == was["_row_id"], key
        if was == row:
            continue
        assert before.sequence_number < row["_last_updated_sequence_number"] <= after.sequence_number, (was, row)


@pytest.fixture(scope="module")
def both(spark_on_hive: SparkOnHive) -> Both:
    kms = {"encryption.kms-type": "memory", **MEMORY_PROPERTIES}
    warehouse = f"file://{spark_on_hive.warehouse}"
    catalog = load_catalog("h", type="hive", uri=spark_on_hive.uri, warehouse=warehouse, **kms, **QUICK_LOCKS)
    spark_on_hive.session.sql(f"create database h.{NAMESPACE}")
    return Both(spark_on_hive.session, catalog)


COPIES_ON_WRITE = pytest.mark.filterwarnings("ignore:Merge on read is not yet supported")

# Python writes, Java reads


def by(transform: Transform[Any, Any], column: str) -> PartitionSpec:
    source = SCHEMA.find_field(column).field_id
    return PartitionSpec(PartitionField(source_id=source, field_id=1000, transform=transform, name=f"by_{column}"))


BY_ID = SortOrder(SortField(1, IdentityTransform(), SortDirection.DESC), order_id=1)
LAYOUTS: dict[str, dict[str, Any]] = {
    "unpartitioned": {},
    "by_identity": {"partition_spec": by(IdentityTransform(), "kind")},
    "by_bucket": {"partition_spec": by(BucketTransform(4), "id")},
    "by_day": {"partition_spec": by(DayTransform(), "ts")},
    "by_truncated": {"partition_spec": by(TruncateTransform(5), "data")},
    "sorted_key_24": {"sort_order": BY_ID, "properties": {**ENCRYPTED, "encryption.data-key-length": "24"}},
    "avro": {"properties": {**ENCRYPTED, "write.format.default": "avro"}},
    "object_storage_key_32": {
        "properties": {
            "encryption.key-id": "keyB",
            "encryption.data-key-length": "32",
            "write.object-storage.enabled": "true",
        },
        "partition_spec": by(IdentityTransform(), "kind"),
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_new_tables(both: Both, layout: str) -> None:
    both.create(layout, **LAYOUTS[layout])
    assert not both.agree(layout).rows
    both.table(layout).append(rows(1, 6))
    seen = both.agree(layout)
    both.table(layout).append(rows(7, 12))
    after = both.agree(layout, *FILTERS, *TIME_FILTERS)
    assert len(after.rows) == 12
    check_lineage(seen, after)
    both.insert(layout, 13, 15)
    both.sql(layout, "delete from {t} where id in (2, 9)")
    both.table(layout).append(rows(16, 17))
    last = both.agree(layout)
    assert last.rows.keys() == {*range(1, 18)} - {2, 9}
    check_lineage(after, last)


def test_a_table_created_in_a_transaction(both: Both) -> None:
    with both.catalog.create_table_transaction((NAMESPACE, "created"), SCHEMA, properties=ENCRYPTED) as transaction:
        with transaction.update_spec() as spec:
            spec.add_field("id", BucketTransform(2), "bucket")
        transaction.append(rows(1, 3))
        transaction.append(rows(4, 6))
        transaction.delete("id = 5")
    assert both.agree("created", *FILTERS).rows.keys() == {1, 2, 3, 4, 6}
    again = both.catalog.create_table_if_not_exists((NAMESPACE, "created"), SCHEMA, properties=ENCRYPTED)
    assert again.scan().count() == 5
    both.catalog.create_table_if_not_exists((NAMESPACE, "created_2"), SCHEMA, properties=ENCRYPTED).append(rows(1, 1))
    both.agree("created_2")


WRITES: dict[str, tuple[Callable[[Table], Any], set[int]]] = {
    "append": (lambda table: table.append(rows(1, 20)), set()),
    "append more": (lambda table: table.append(rows(21, 30)), set()),
    "delete a whole file": (lambda table: table.delete("id > 20 and id < 31"), set()),
    "append again": (lambda table: table.append(rows(21, 30)), set()),
    "delete parts": (lambda table: table.delete("id in (3, 4, 25)"), set()),
    "delete by null": (lambda table: table.delete("data is null"), set()),
    "upsert": (
        lambda table: table.upsert(pa.concat_tables([rows(5, 6), rows(19, 22, "upserted"), rows(40, 41)]), ["id"]),
        set(),
    ),
    "upsert once more": (lambda table: table.upsert(rows(20, 23, "again"), ["id"]), set()),
    "overwrite some": (lambda table: table.overwrite(rows(8, 12, "over"), "id >= 8 and id <= 12"), {*range(8, 13)}),
    "delete rows that were moved": (lambda table: table.delete("id in (5, 20, 22)"), set()),
}


@pytest.mark.parametrize("layout", ["unpartitioned", "by_identity", "avro"])
def test_writes(both: Both, layout: str) -> None:
    name = f"writes_{layout}"
    both.create(name, **LAYOUTS[layout])
    seen = both.agree(name)
    for write, replaced in WRITES.values():
        write(both.table(name))
        after = both.agree(name)
        check_lineage(seen, after, replaced)
        seen = after
    both.agree(name, *FILTERS, *TIME_FILTERS)
    both.table(name).overwrite(rows(1, 4))
    after = both.agree(name, *FILTERS)
    check_lineage(seen, after, {1, 2, 3, 4})
    assert after.rows.keys() == {1, 2, 3, 4}


def test_append_of_a_reader(both: Both) -> None:
    both.create("reader")
    both.table("reader").append(rows(1, 12).to_reader(max_chunksize=5))
    both.table("reader").append(rows(13, 14).to_reader())
    assert len(both.agree("reader", *FILTERS).rows) == 14


def test_dynamic_partition_overwrite(both: Both) -> None:
    both.create("dynamic", **LAYOUTS["by_identity"])
    both.table("dynamic").append(rows(1, 9))
    seen = both.agree("dynamic")
    both.table("dynamic").dynamic_partition_overwrite(rows(30, 30))
    after = both.agree("dynamic", *FILTERS)
    check_lineage(seen, after)
    assert after.rows.keys() == {1, 2, 4, 5, 7, 8, 30}


def test_schema_evolution(both: Both) -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "old_name", IntegerType(), required=False),
        NestedField(3, "dropped", StringType(), required=False),
        NestedField(4, "s", StructType(NestedField(5, "a", FloatType(), required=False)), required=False),
    )
    table = both.create("evolved", schema)
    structs = pa.struct([("a", pa.float32())])
    table.append(
        pa.table(
            {
                "id": [1, 2],
                "old_name": pa.array([1, None], pa.int32()),
                "dropped": ["gone", None],
                "s": [{"a": 1.5}, None],
            },
            pa.schema([("id", pa.int64()), ("old_name", pa.int32()), ("dropped", pa.string()), ("s", structs)]),
        )
    )
    seen = both.agree("evolved")
    with table.update_schema() as update:
        update.rename_column("old_name", "new_name")
        update.update_column("old_name", field_type=LongType())
        update.delete_column("dropped")
        update.add_column("added", DoubleType(), doc="new, “quoted”")
        update.add_column(("s", "b"), StringType())
        update.update_column(("s", "a"), field_type=DoubleType())
        update.move_first("added")
    filters = ("new_name = 1", "new_name is null", "added is null", "added > 0.2", "id > 2")
    after = both.agree("evolved", *filters)
    assert [row["_row_id"] for row in after.rows.values()] == [row["_row_id"] for row in seen.rows.values()]
    columns = {
        "added": [0.25, None],
        "id": [3, 4],
        "new_name": [5_000_000_000, None],
        "s": [{"a": 2.5, "b": "x"}, None],
    }
    table.append(pa.Table.from_pydict(columns, table.schema().as_arrow()))
    both.agree("evolved", *filters)
    both.sql("evolved", "alter table {t} add column late int after id")
    both.sql("evolved", "insert into {t} (id, late, s) values (5, 7, named_struct('a', 1d, 'b', 'java'))")
    table = both.table("evolved")
    seen = both.agree("evolved", *filters, "late = 7", "late is null")
    table.delete("id = 1")
    table.upsert(pa.Table.from_pydict({**columns, "id": [3, 6], "late": [8, 9]}, table.schema().as_arrow()), ["id"])
    check_lineage(seen, both.agree("evolved", *filters, "late = 7", "late is null"))


def test_partition_evolution(both: Both) -> None:
    both.create("repartitioned", **LAYOUTS["by_day"])
    both.table("repartitioned").append(rows(1, 6))
    with both.table("repartitioned").update_spec() as update:
        update.add_field("id", BucketTransform(3), "bucket")
    both.table("repartitioned").append(rows(7, 9))
    both.agree("repartitioned", *FILTERS, *TIME_FILTERS)
    with both.table("repartitioned").update_spec() as update:
        update.remove_field("by_ts")
        update.add_identity("kind")
    both.table("repartitioned").append(rows(10, 15))
    both.insert("repartitioned", 16, 18)
    seen = both.agree("repartitioned", *FILTERS, *TIME_FILTERS)
    both.table("repartitioned").delete("id in (2, 8, 13, 17)")
    both.sql("repartitioned", "delete from {t} where id in (3, 9)")
    both.table("repartitioned").upsert(rows(4, 5, "new"), ["id"])
    after = both.agree("repartitioned", *FILTERS, *TIME_FILTERS)
    check_lineage(seen, after)


# Values by type: what is usual, the ends of the range, and what has a sign of its own. The first row has nulls only.
TEXT = "long text that no bound holds as a whole \U0001f600"
VALUES: dict[str, tuple[IcebergType, list[Any]]] = {
    "a_boolean": (BooleanType(), [True, False]),
    "an_int": (IntegerType(), [0, -1, 2**31 - 1, -(2**31)]),
    "a_long": (LongType(), [0, -1, 2**63 - 1, -(2**63)]),
    "a_float": (FloatType(), [1.5, -0.0, float("nan"), float("-inf")]),
    "a_double": (DoubleType(), [1.5, float("nan"), -0.0, float("inf")]),
    "a_decimal": (DecimalType(9, 2), [Decimal("1.50"), Decimal("-9999999.99"), Decimal("0.00")]),
    "a_longer_decimal": (DecimalType(18, 3), [Decimal("1.500"), Decimal("-99999999999999.999"), Decimal("0.000")]),
    "the_longest_decimal": (DecimalType(38, 10), [Decimal("1.5000000000"), Decimal(f"-{'9' * 28}.{'9' * 10}")]),
    "a_string": (StringType(), ["plain", "", TEXT, "\U0010ffff" * 20, "z" * 40]),
    "some_binary": (BinaryType(), [b"plain", b"", b"\xff" * 40, bytes(range(256))]),
    "some_fixed": (FixedType(4), [b"four", b"\x00" * 4, b"\xff" * 4]),
    "a_uuid": (UUIDType(), [uuid.UUID(int=1), uuid.UUID(int=2**126)]),
    "a_date": (DateType(), [date(2024, 2, 29), date(1969, 12, 31), date(1, 1, 1), date(9999, 12, 31)]),
    "a_timestamp": (TimestampType(), [START, datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(1, 1, 1)]),
    "a_timestamptz": (
        TimestamptzType(),
        [moment.replace(tzinfo=timezone.utc) for moment in (START, datetime(1969, 12, 31, 23, 59, 59, 1))],
    ),
    "a_struct": (
        StructType(
            NestedField(101, "x", IntegerType(), required=False),
            NestedField(102, "y", StructType(NestedField(103, "z", StringType(), required=False)), required=False),
        ),
        [{"x": 1, "y": {"z": "deep"}}, {"x": None, "y": None}, {"x": -1, "y": {"z": None}}],
    ),
    "a_list": (ListType(104, StringType(), element_required=False), [["a", None, "b"], []]),
    "structs": (
        ListType(105, StructType(NestedField(106, "n", LongType(), required=False)), element_required=False),
        [[{"n": 1}, None, {"n": None}], []],
    ),
    "a_map": (
        MapType(107, StringType(), 108, DecimalType(5, 1), value_required=False),
        [[("k", Decimal("0.5")), ("none", None)], []],
    ),
    "lists_by_number": (
        MapType(109, IntegerType(), 110, ListType(111, DoubleType(), element_required=False), value_required=False),
        [[(1, [0.5, None, float("nan")]), (2, [])], [(-1, None)]],
    ),
}
ALL_TYPES = Schema(
    NestedField(1, "id", LongType(), required=True),
    *(NestedField(2 + n, name, kind, required=False) for n, (name, (kind, _)) in enumerate(VALUES.items())),
)
TYPE_FILTERS = (
    "a_boolean = true",
    "an_int < 0",
    "an_int = 2147483647",
    "a_long > 0",
    "a_float < 0.5",
    "a_double = 1.5",
    ("a_double is nan", "isnan(a_double)"),
    ("a_float is not nan and a_float is not null", "not isnan(a_float) and a_float is not null"),
    "a_decimal = '1.50'",
    "a_longer_decimal < '0.000'",
    "the_longest_decimal < '0.0000000000'",
    f"a_string = '{TEXT}'",
    "a_string > 'z'",
    "a_string = ''",
    "a_string like 'long text that no bound%'",
    "a_uuid is null",
    "a_date < '1970-01-01'",
    "a_date = '9999-12-31'",
    "a_timestamp < '1970-01-01T00:00:00'",
    "a_timestamptz < '1970-01-01T00:00:00+00:00'",
    "a_timestamptz >= '2024-01-01T00:00:00+00:00'",
    "a_struct.x = 1",
    "a_struct.y.z is null",
    "a_string is null",
)


def all_values(first: int) -> pa.Table:
    """A row for each of VALUES, and one of nulls."""
    count = max(len(values) for _, values in VALUES.values())
    columns = {name: [None, *itertools.islice(itertools.cycle(values), count)] for name, (_, values) in VALUES.items()}
    columns["a_uuid"] = [value and value.bytes for value in columns["a_uuid"]]
    schema = schema_to_pyarrow(ALL_TYPES, include_field_ids=False)
    arrays = [pa.array([*range(first, first + count + 1)], pa.int64())]
    arrays += [
        pa.array(columns[name], _storage(schema.field(name).type)).cast(schema.field(name).type) for name in VALUES
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _storage(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


@pytest.mark.parametrize("data_format", ["parquet", "avro"])
def test_all_types(both: Both, data_format: str) -> None:
    name = f"all_types_{data_format}"
    both.create(name, ALL_TYPES, {**ENCRYPTED, "write.format.default": data_format})
    both.table(name).append(all_values(1))
    for row in range(6):  # each row in a file of its own, whose bounds are those of the row
        both.table(name).append(all_values(10).slice(row, 1))
    seen = both.agree(name, *TYPE_FILTERS)
    found = both.sql(name, f"select id from {{t}} where a_uuid = '{uuid.UUID(int=1)}'")  # which Arrow cannot filter
    assert {row.id for row in found} == {2, 4, 6, 11, 13, 15}
    both.table(name).delete("id = 2")  # has the others of its file written again
    check_lineage(seen, both.agree(name))


PARTITIONED_BY: dict[str, Transform[Any, Any]] = {
    "an_int": IdentityTransform(),
    "a_decimal": IdentityTransform(),
    "the_longest_decimal": BucketTransform(7),
    "a_longer_decimal": TruncateTransform(10),
    "a_long": TruncateTransform(10),
    "a_string": IdentityTransform(),
    "some_binary": BucketTransform(3),
    "a_uuid": BucketTransform(5),
    "a_date": IdentityTransform(),
    "a_timestamp": HourTransform(),
    "a_timestamptz": MonthTransform(),
    "a_boolean": IdentityTransform(),
}


def test_partitions_of_all_types(both: Both) -> None:
    fields = [
        PartitionField(
            source_id=ALL_TYPES.find_field(name).field_id, field_id=1000 + n, transform=transform, name=f"p{n}"
        )
        for n, (name, transform) in enumerate(PARTITIONED_BY.items())
    ]
    both.create("many_partitions", ALL_TYPES, partition_spec=PartitionSpec(*fields))
    both.table("many_partitions").append(all_values(1))
    seen = both.agree("many_partitions", *TYPE_FILTERS)
    both.table("many_partitions").delete("id in (2, 5)")
    both.table("many_partitions").append(all_values(11).slice(2, 2))
    check_lineage(seen, both.agree("many_partitions", *TYPE_FILTERS))


NAN = float("nan")
NUMBERS = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "x", DoubleType(), required=False),
    NestedField(3, "s", StructType(NestedField(4, "y", FloatType(), required=False)), required=False),
)


@pytest.mark.parametrize("writer", ["python", "java"])
def test_a_filter_that_all_rows_match_but_nan(both: Both, writer: str) -> None:
    """By its bounds alone, the whole file would match and be dropped."""
    name = f"nan_{writer}"
    both.create(name, NUMBERS)
    columns = {"id": [1, 2, 3, 4], "x": [1.0, NAN, 2.0, 2.0], "s": [{"y": 1.0}, {"y": 1.0}, {"y": NAN}, None]}
    both.table(name).append(pa.Table.from_pydict(columns, schema_to_pyarrow(NUMBERS, include_field_ids=False)))
    seen = both.agree(name, "x < 5", ("x is nan", "isnan(x)"), "s.y < 5", ("s.y is nan", "isnan(s.y)"), "s.y is null")
    assert repr(both.sql(name, "select max(x) from {t}")) == "[Row(max(x)=nan)]"
    if writer == "python":
        both.table(name).delete("x < 5 and s.y < 5")
        both.table(name).delete("s.y < 5")
    else:
        both.sql(name, "delete from {t} where x < 5 and s.y < 5")
        both.sql(name, "delete from {t} where s.y < 5")
    after = both.agree(name)
    check_lineage(seen, after)
    assert after.rows.keys() == {3, 4}


@pytest.mark.parametrize("writer", ["python", "java"])
def test_deletes_of_whole_partitions(both: Both, writer: str) -> None:
    name = f"dropped_{writer}"
    by_day = PartitionField(source_id=3, field_id=1001, transform=DayTransform(), name="day")
    both.create(name, partition_spec=PartitionSpec(*by(IdentityTransform(), "kind").fields, by_day))
    both.table(name).append(rows(1, 12))
    both.insert(name, 13, 20)
    seen = both.agree(name)
    for condition in ("kind = 'c'", "ts >= '2024-01-02T00:00:00'", "data is null"):
        if writer == "python":
            both.table(name).delete(condition)
        else:
            both.sql(name, f"delete from {{t}} where {condition}")
    after = both.agree(name, *TIME_FILTERS)
    check_lineage(seen, after)
    assert after.rows.keys() == {n for n in range(1, 21) if n % 3 != 2 and n % 4 != 2 and n % 7 != 0}


@COPIES_ON_WRITE
@pytest.mark.filterwarnings("ignore:Parquet writer option")
def test_row_groups(both: Both) -> None:
    """A filter lets row groups be skipped, and the rows after them keep their places all the same."""
    small = {"write.parquet.row-group-limit": "100", "write.parquet.row-group-size-bytes": "4000"}
    both.create("groups", properties={**ENCRYPTED, **MERGE_ON_READ, **small})
    both.table("groups").append(rows(1, 1000))
    both.sql("groups", "alter table {t} set tblproperties ('write.parquet.row-group-check-min-record-count' = '100')")
    both.insert("groups", 1001, 3000)
    seen = both.agree("groups", "id > 990", "id = 555", "id >= 2440 and id < 2450")
    both.sql("groups", "delete from {t} where id % 100 = 55")
    filters = ("id > 950 and id < 960", "id >= 2350 and id < 2450", "data = 'row 956'", "data = 'java 2956'")
    after = both.agree("groups", *filters)
    check_lineage(seen, after)
    both.table("groups").delete("id in (300, 2300)")
    last = both.agree("groups", *filters)
    check_lineage(after, last)
    assert len(last.rows) == 2968


def test_settings_of_a_table(both: Both) -> None:
    """Properties, the sort order and manifests that are merged."""
    both.create(
        "settings", properties={**ENCRYPTED, "gone": "later", "comment": "caf\u00e9 \u201c\x01/\u201d \U0001f600"}
    )
    with both.table("settings").transaction() as transaction:
        transaction.set_properties(
            {
                "commit.manifest-merge.enabled": "true",
                "commit.manifest.min-count-to-merge": "2",
                "write.metadata.delete-after-commit.enabled": "true",
                "write.metadata.previous-versions-max": "3",
            }
        )
        transaction.remove_properties("gone")
    with both.table("settings").update_sort_order() as update:
        update.desc("data", IdentityTransform())
    seen = both.agree("settings")
    for number in range(5):
        both.table("settings").append(rows(4 * number, 4 * number + 3))
        after = both.agree("settings")
        check_lineage(seen, after)
        seen = after
        if number == 2:
            both.insert("settings", 100, 101)
            both.table("settings").delete("id = 5")
            seen = both.agree("settings")
    assert len(both.sql("settings", "select * from {t}.manifests")) == 1
    both.agree("settings", *FILTERS)
    assert len(list((_path(both.table("settings").location()) / "metadata").glob("*.metadata.json"))) == 4


def test_branches_and_tags(both: Both) -> None:
    table = both.create("branches")
    table.append(rows(1, 4))
    first = table.metadata.snapshots[0].snapshot_id
    table.manage_snapshots().create_tag(first, "first").commit()
    table.manage_snapshots().create_branch(first, "side", max_ref_age_ms=10**11).commit()
    table.append(rows(100, 101), branch="side")
    table.delete("id = 2", branch="side")
    table.upsert(rows(1, 3, "side"), ["id"], branch="side")
    table.append(rows(5, 6))
    side, main = both.agree("branches", ref="side"), both.agree("branches", *FILTERS)
    assert side.rows.keys() == {1, 2, 3, 4, 100, 101}
    assert main.rows.keys() == {*range(1, 7)}
    assert side.rows[3]["_row_id"] == main.rows[3]["_row_id"]
    assert side.rows[2]["_row_id"] not in {row["_row_id"] for row in main.rows.values()}
    assert both.agree("branches", ref="first").rows.keys() == {1, 2, 3, 4}

    both.sql("branches", "insert into {t}.branch_side (id) values (200)")
    both.sql("branches", "update {t}.branch_side set data = 'java' where id = 3")
    both.sql("branches", f"alter table {{t}} create branch javas as of version {first}")
    both.sql("branches", "delete from {t}.branch_javas where id = 1")
    both.table("branches").append(rows(300, 301), branch="side")
    both.table("branches").delete("id = 3", branch="javas")
    check_lineage(side, both.agree("branches", ref="side"))
    assert both.agree("branches", ref="javas").rows.keys() == {2, 4}
    both.sql("branches", f"alter table {{t}} create branch early as of version {first}")
    both.sql("branches", f"call h.system.fast_forward('{NAMESPACE}.branches', 'early', 'main')")
    assert both.agree("branches", ref="early").rows == main.rows
    both.sql("branches", "alter table {t} drop tag first")
    both.table("branches").manage_snapshots().remove_branch("javas").commit()
    assert both.agree("branches").rows == main.rows


def test_rollback_and_expiry(both: Both) -> None:
    table = both.create("expired")
    for number in range(4):
        table.append(rows(10 * number, 10 * number + 2))
    table.delete("id = 1")
    seen = both.agree("expired")
    table.append(rows(50, 51))
    table.manage_snapshots().rollback_to_snapshot(table.metadata.snapshots[-2].snapshot_id).commit()
    after = both.agree("expired")
    assert after.rows == seen.rows
    assert after.next_row_id == seen.next_row_id + 2
    table.append(rows(60, 61))
    check_lineage(after, both.agree("expired"))
    table.maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()
    assert len(both.table("expired").metadata.snapshots) == 1
    seen = both.agree("expired", *FILTERS)
    both.insert("expired", 70, 71)
    both.table("expired").append(rows(80, 81))
    both.sql("expired", "call h.system.expire_snapshots('python.expired', timestamp'2100-01-01')")
    both.table("expired").append(rows(90, 91))
    check_lineage(seen, both.agree("expired"))


def test_several_changes_in_one_transaction(both: Both) -> None:
    table = both.create("transactions", **LAYOUTS["by_identity"])
    table.append(rows(1, 9))
    seen = both.agree("transactions")
    with table.transaction() as transaction:
        transaction.delete("id = 2")
        transaction.append(rows(20, 22))
        transaction.upsert(rows(21, 24, "upserted"), ["id"])
        with transaction.update_schema() as update:
            update.add_column("extra", StringType())
        transaction.set_properties(note="kept")
        transaction.overwrite(rows(5, 5, "over"), "id = 5")
    check_lineage(_with_column(seen, "extra"), both.agree("transactions", *FILTERS), {5})


def _with_column(seen: Seen, column: str) -> Seen:
    return seen._replace(rows={key: {**row, column: None} for key, row in seen.rows.items()})


@COPIES_ON_WRITE
@pytest.mark.parametrize("writer", ["python", "java"])
def test_upgrade_of_a_plain_table(both: Both, writer: str) -> None:
    """From format version 2, where Java leaves files with the positions of deleted rows. Plain tables stay plain."""
    name = f"upgraded_by_{writer}"
    both.create(name, properties={"format-version": "2", **MERGE_ON_READ})
    both.table(name).append(rows(1, 9))
    both.table(name).append(rows(10, 12))
    if writer == "java":
        both.sql(name, "delete from {t} where id in (2, 11)")
        both.sql(name, "update {t} set data = 'moved' where id = 3")
    else:
        both.table(name).delete("id in (2, 11)")
    with both.table(name).transaction() as transaction:
        transaction.upgrade_table_version(3)
    seen = both.agree(name, *FILTERS)
    assert {row["_row_id"] for row in seen.rows.values()} == {None}
    both.table(name).append(rows(20, 21))
    first = both.agree(name)
    both.table(name).delete("id = 5")
    second = both.agree(name)
    check_lineage(first, second)
    both.sql(name, "delete from {t} where id in (6, 20)")
    both.table(name).upsert(rows(7, 8, "new"), ["id"])
    check_lineage(second, both.agree(name, *FILTERS))


# Java writes too

IN_JAVA = {
    "insert": "insert into {t} (id, data, kind) values (100, 'java', 'a'), (101, null, 'b')",
    "delete with a vector": "delete from {t} where id in (3, 8, 14)",
    "delete with another vector": "delete from {t} where id in (4, 9)",
    "update with a vector": "update {t} set data = 'updated' where id in (5, 15, 100)",
    "merge": """merge into {t} using (select explode(array(6L, 16L, 110L)) as id) s on {t}.id = s.id when matched and
        s.id = 6 then delete when matched then update set data = 'merged' when not matched then insert (id, kind)
        values (s.id, 'c')""",
    "rewrite manifests": "call h.system.rewrite_manifests('{n}')",
    "compact": "call h.system.rewrite_data_files(table => '{n}', options => map('rewrite-all', 'true'))",
    "delete after that": "delete from {t} where id in (1, 17)",
    "rewrite deletes": "call h.system.rewrite_position_delete_files('{n}', map('rewrite-all', 'true'))",
    "statistics": "call h.system.compute_table_stats('{n}')",
    "expire": "call h.system.expire_snapshots('{n}', timestamp'2100-01-01')",
    "property": "alter table {t} set tblproperties ('a \u201cnote\u201d' = 'of java')",
    "sort order": "alter table {t} write ordered by id",
    "insert at last": "insert into {t} (id, data, kind) values (120, 'java', 'a')",
}
IN_PYTHON: list[Callable[[Table, int], Any]] = [
    lambda table, n: table.append(rows(1000 + 10 * n, 1003 + 10 * n)),
    lambda table, n: table.delete(f"id in ({20 + n}, {991 + 10 * n})"),
    lambda table, n: table.upsert(rows(30 + n, 31 + n, f"round {n}"), ["id"]),
]


@COPIES_ON_WRITE
@pytest.mark.parametrize(("layout", "mode"), [("by_identity", "copy-on-write"), ("avro", "merge-on-read")])
def test_turns(both: Both, layout: str, mode: str) -> None:
    """Java changes what Python wrote, Python changes what is then there, and both read the same after each."""
    name = f"turns_{layout}_{mode.replace('-', '_')}"
    modes = MERGE_ON_READ if mode == "merge-on-read" else COPY_ON_WRITE
    options = LAYOUTS[layout]
    both.create(name, **{**options, "properties": {**ENCRYPTED, **options.get("properties", {}), **modes}})
    both.table(name).append(rows(1, 10))
    both.table(name).append(rows(11, 60))
    seen = both.agree(name)
    for number, statement in enumerate(IN_JAVA.values()):
        both.sql(name, statement.replace("{n}", f"{NAMESPACE}.{name}"))
        after = both.agree(name)
        check_lineage(seen, after)
        seen = after
        IN_PYTHON[number % len(IN_PYTHON)](both.table(name), number)
    if layout == "by_identity":
        both.sql(name, f"call h.system.compute_partition_stats('{NAMESPACE}.{name}')")
        both.table(name).append(rows(2000, 2001))
    both.agree(name, *FILTERS)
    both.table(name).delete("id < 1000")
    both.sql(name, "insert into {t} (id) values (1)")
    both.agree(name, "id < 10")


@COPIES_ON_WRITE
def test_a_deletion_vector_whose_file_python_drops(both: Both) -> None:
    """It is left behind, and nobody minds."""
    both.create("dangling", properties={**ENCRYPTED, **MERGE_ON_READ})
    both.table("dangling").append(rows(1, 10))
    both.table("dangling").append(rows(11, 20))
    both.sql("dangling", "delete from {t} where id in (3, 13)")
    seen = both.agree("dangling")
    both.table("dangling").delete("id <= 10")
    both.table("dangling").delete("id = 14")
    after = both.agree("dangling")
    check_lineage(seen, after)
    assert after.rows.keys() == {*range(11, 21)} - {13, 14}
    both.sql("dangling", "delete from {t} where id = 15")
    both.sql("dangling", "update {t} set data = 'java' where id = 16")
    both.table("dangling").append(rows(1, 10))
    both.sql("dangling", "delete from {t} where id = 5")
    both.sql("dangling", f"call h.system.rewrite_manifests('{NAMESPACE}.dangling')")
    both.sql(
        "dangling", f"call h.system.rewrite_data_files('{NAMESPACE}.dangling', options => map('rewrite-all', 'true'))"
    )
    both.table("dangling").upsert(rows(15, 18, "python"), ["id"])
    last = both.agree("dangling", *FILTERS)
    assert last.rows.keys() == {1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 15, 16, 17, 18, 19, 20}


def test_a_table_that_was_loaded_before_java_changed_it(both: Both) -> None:
    both.create("stale").append(rows(1, 5))
    table = both.table("stale")
    both.insert("stale", 6, 8)
    table.append(rows(9, 10))
    table = both.table("stale")
    both.sql("stale", f"call h.system.rewrite_data_files('{NAMESPACE}.stale', options => map('rewrite-all', 'true'))")
    table.append(rows(11, 12))
    assert both.agree("stale", *FILTERS).rows.keys() == {*range(1, 13)}
    table = both.table("stale")
    both.sql("stale", "delete from {t} where id = 2")
    with pytest.raises(ValidationException):
        table.delete("id = 3")
    assert both.agree("stale").rows.keys() == {*range(1, 13)} - {2}


def test_both_write_at_once(both: Both) -> None:
    """The lock in the metastore is the same for both."""
    both.create("at_once", properties={**ENCRYPTED, "commit.retry.num-retries": "50"})
    with ThreadPoolExecutor() as threads:
        inserts = threads.map(lambda n: both.insert("at_once", n, n), range(10, 14))
        for number in range(4):
            both.table("at_once").append(rows(number, number))
        assert len(list(inserts)) == 4
    assert both.agree("at_once").rows.keys() == {*range(4), *range(10, 14)}


def test_tables_that_are_renamed_registered_and_purged(both: Both) -> None:
    table = both.create("old")
    table.append(rows(1, 5))
    both.catalog.rename_table((NAMESPACE, "old"), (NAMESPACE, "newer"))
    both.insert("newer", 6, 7)
    both.sql("newer", f"alter table {{t}} rename to h.{NAMESPACE}.newest")
    both.table("newest").delete("id = 2")
    seen = both.agree("newest")
    location = both.table("newest").metadata_location
    both.catalog.drop_table((NAMESPACE, "newest"))
    both.catalog.register_table((NAMESPACE, "by_python"), location)
    assert both.agree("by_python").rows == seen.rows
    both.catalog.drop_table((NAMESPACE, "by_python"))
    both.spark.sql(f"call h.system.register_table('{NAMESPACE}.by_java', '{location}')")
    assert both.agree("by_java").rows == seen.rows
    both.table("by_java").append(rows(2, 2))
    both.agree("by_java", *FILTERS)
    both.catalog.purge_table((NAMESPACE, "by_java"))
    left = {file for file in _path(table.location()).rglob("*") if file.is_file() and file.suffix != ".crc"}
    assert not left


def test_java_finds_no_orphans(both: Both) -> None:
    """Whatever Python's table needs is reached from its metadata."""
    table = both.create("orphans")
    table.append(rows(1, 5))
    table.delete("id = 2")
    both.sql("orphans", "delete from {t} where id = 3")
    files = [file for file in _path(table.location()).rglob("*") if file.is_file()]
    stray = _path(table.location()) / "data" / "stray.parquet"
    stray.touch()
    for file in (*files, stray):
        os.utime(file, (0, 0))
    removed = both.sql("orphans", f"call h.system.remove_orphan_files('{NAMESPACE}.orphans', timestamp'2020-01-01')")
    assert [_path(row.orphan_file_location) for row in removed] == [stray]
    both.agree("orphans")


METADATA_TABLES = ("history", "snapshots", "files", "manifests", "partitions", "entries", "all_entries", "refs")


@COPIES_ON_WRITE
def test_metadata_tables(both: Both) -> None:
    name = "inspected"
    both.create(name, properties={**ENCRYPTED, **MERGE_ON_READ}, **LAYOUTS["by_identity"])
    both.table(name).append(rows(1, 9))
    both.table(name).delete("id in (4, 5, 8)")
    both.table(name).upsert(rows(9, 10, "new"), ["id"])
    both.sql(name, "delete from {t} where id = 3")
    for table in METADATA_TABLES:
        assert both.sql(name, f"select * from {{t}}.{table}")
    files = {row.file_path: row.first_row_id for row in both.sql(name, "select * from {t}.files where content = 0")}
    scan = both.table(name).scan()
    assert {task.file.file_path: task.file.first_row_id for task in scan.plan_files()} == files  # type: ignore[attr-defined]
    partitions = both.sql(name, "select * from {t}.partitions")
    live = sum(row.record_count - row.position_delete_record_count for row in partitions)
    assert live == len(both.agree(name).rows) == 6
    snapshots = both.sql(name, "select * from {t}.snapshots order by committed_at")
    assert int(snapshots[-1].summary["total-records"]) == sum(row.record_count for row in partitions)
    first = both.sql(name, f"select count(*) as n from {{t}} version as of {snapshots[0].snapshot_id}")
    assert first[0].n == 9


@COPIES_ON_WRITE
def test_ten_rounds(both: Both) -> None:
    """On a table that Java created, whose metadata it compresses."""
    properties = {**ENCRYPTED, **MERGE_ON_READ, "format-version": "3", "write.metadata.compression-codec": "gzip"}
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    columns = "id bigint, data string, ts timestamp_ntz, kind string"
    both.sql("rounds", f"create table {{t}} ({columns}) using iceberg partitioned by (kind) tblproperties ({listed})")
    both.table("rounds").append(rows(1, 40))
    seen = both.agree("rounds")
    for number in range(10):
        IN_PYTHON[number % len(IN_PYTHON)](both.table("rounds"), number)
        after = both.agree("rounds")
        check_lineage(seen, after)
        both.sql("rounds", [*IN_JAVA.values()][number].replace("{n}", f"{NAMESPACE}.rounds"))
        seen = both.agree("rounds")
        check_lineage(after, seen)
    both.agree("rounds", *FILTERS, *TIME_FILTERS)


def test_changed_metadata_is_refused(both: Both) -> None:
    table = both.create("tampered")
    table.append(rows(1, 3))
    both.agree("tampered")
    file = _path(table.metadata_location)
    content = file.read_bytes()
    changed = content.replace(b'"total-records":"3"', b'"total-records":"4"')
    assert changed != content
    file.write_bytes(changed)
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    with pytest.raises(IntegrityError, match="changed or replaced"):
        both.table("tampered")
    with pytest.raises(Exception, match="hash"):
        both.sql("tampered", "select * from {t}")
    file.write_bytes(content)
    both.agree("tampered")


def test_a_table_sealed_by_aws_kms_with_one_configuration_for_both(
    both: Both, aws_endpoint: str, tmp_path: Path
) -> None:
    """Java's own AWS client beside the one here, which both read these properties, on one KMS."""
    properties = {"encryption.kms-type": "aws", "kms.endpoint": aws_endpoint, "client.region": AWS_REGION}
    credentials = {"aws.accessKeyId": "testing", "aws.secretAccessKey": "testing"}
    admin = aws_admin(aws_endpoint)
    key_id = admin.create_key()["KeyMetadata"]["Arn"]
    admin.close()
    for name, value in credentials.items():  # where both look for them outside of the configuration
        both.spark._jvm.java.lang.System.setProperty(name, value)
    java_catalog = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "hive",
        ".uri": both.catalog.properties["uri"],
        ".warehouse": str(tmp_path),
        ".cache-enabled": "false",
        **{f".{name}": value for name, value in properties.items()},
    }
    for name, value in java_catalog.items():
        both.spark.conf.set(f"spark.sql.catalog.aws{name}", value)
    both.spark.sql(
        f"create table aws.{NAMESPACE}.of_java (id bigint) using iceberg location 'file://{tmp_path}/of_java' "
        f"tblproperties ('format-version'='3', 'encryption.key-id'='{key_id}')"
    )
    both.spark.sql(f"insert into aws.{NAMESPACE}.of_java values (1), (2)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        uri = both.catalog.properties["uri"]
        with load_catalog("h", type="hive", uri=uri, warehouse=f"file://{tmp_path}", **properties) as catalog:
            of_java = catalog.load_table((NAMESPACE, "of_java"))
            assert sorted(of_java.scan().to_arrow()["id"].to_pylist()) == [1, 2]
            of_java.append(pa.table({"id": [3]}))
            of_python = catalog.create_table(
                (NAMESPACE, "of_python"), of_java.schema(), properties={"encryption.key-id": key_id}
            )
            of_python.append(pa.table({"id": [1, 2]}))
            both.spark.sql(f"insert into aws.{NAMESPACE}.of_python values (3)")
            for table in ("of_java", "of_python"):
                found = both.spark.sql(f"select id from aws.{NAMESPACE}.{table}").collect()
                assert sorted(row.id for row in found) == [1, 2, 3]
                python = catalog.load_table((NAMESPACE, table)).scan().to_arrow()
                assert sorted(python["id"].to_pylist()) == [1, 2, 3]


def test_threads_share_a_catalog(both: Both) -> None:
    retries = {"commit.retry.num-retries": "30", "commit.retry.min-wait-ms": "10", "commit.retry.max-wait-ms": "200"}
    both.create("threads", properties={**ENCRYPTED, **retries})

    def write(writer: int) -> None:
        for number in range(3):
            both.catalog.load_table((NAMESPACE, "threads")).append(rows(10 * writer + number, 10 * writer + number))

    with ThreadPoolExecutor(4) as writers:
        list(writers.map(write, range(1, 5)))
    seen = both.agree("threads")
    assert seen.rows.keys() == {10 * writer + number for writer in range(1, 5) for number in range(3)}
