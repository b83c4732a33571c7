"""Columns on their way to Spark and back, which has no UUIDs, no fixed lengths and no large lists."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
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
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

pytest.importorskip("pyspark", reason="needs Spark: `pip install --group test`")

import pyspark.sql.types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from pyiceberg_encryption.errors import UsageError
from pyiceberg_encryption.spark.types import FromSpark, ToSpark, to_spark_schema

if TYPE_CHECKING:
    from pyiceberg.types import IcebergType

IDS = [uuid.UUID(int=number) for number in range(4)]
WITH_IDS = StructType(
    NestedField(20, "one", UUIDType()),
    NestedField(21, "some", ListType(22, UUIDType(), element_required=False)),
    NestedField(23, "named", MapType(24, UUIDType(), 25, UUIDType(), value_required=False)),
    NestedField(26, "text", StringType()),
)
NESTED = {"one": IDS[0], "some": [IDS[1], None], "named": [(IDS[2], IDS[3]), (IDS[0], None)], "text": "x"}
UTC = datetime.timezone.utc
MOMENT = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999)
TYPES: dict[str, tuple[IcebergType, str, list[Any]]] = {
    "a_boolean": (BooleanType(), "boolean", [True, False]),
    "an_int": (IntegerType(), "int", [-(2**31), 7]),
    "a_long": (LongType(), "bigint", [-(2**63), 7]),
    "a_float": (FloatType(), "float", [0.5, float("inf")]),
    "a_double": (DoubleType(), "double", [0.1, -0.0]),
    "a_decimal": (DecimalType(38, 9), "decimal(38,9)", [decimal.Decimal("-1.500000000")]),
    "a_date": (DateType(), "date", [datetime.date(1969, 7, 20)]),
    "a_time": (TimeType(), "time(6)", [datetime.time(1, 2, 3, 4)]),
    "a_timestamp": (TimestampType(), "timestamp_ntz", [MOMENT]),
    "a_timestamptz": (TimestamptzType(), "timestamp", [MOMENT.replace(tzinfo=UTC)]),
    "a_string": (StringType(), "string", ["", "Grüße 🔑"]),
    "a_uuid": (UUIDType(), "string", IDS),
    "a_fixed": (FixedType(3), "binary", [b"abc"]),
    "a_binary": (BinaryType(), "binary", [b"", b"\x00"]),
    "a_list": (ListType(11, FixedType(2), element_required=False), "array<binary>", [[], [b"ab", None]]),
    "a_map": (MapType(12, StringType(), 13, LongType(), value_required=False), "map<string,bigint>", [[("k", None)]]),
    "ids": (ListType(14, UUIDType(), element_required=False), "array<string>", [[], IDS, [None, IDS[1]]]),
    "structs": (
        ListType(15, WITH_IDS, element_required=False),
        "array<struct<one:string,some:array<string>,named:map<string,string>,text:string>>",
        [[NESTED, None, dict.fromkeys(NESTED)], []],
    ),
    "unknown": (UnknownType(), "void", [None]),
}
SCHEMA = Schema(*(NestedField(50 + number, name, TYPES[name][0]) for number, name in enumerate(TYPES)))


def without_extension(kind: pa.DataType) -> pa.DataType:
    """Arrow makes no arrays of UUIDs within something from Python's values."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(without_extension(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(without_extension(kind.key_type), without_extension(kind.item_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(without_extension(kind.value_type)))
    return kind.storage_type if isinstance(kind, pa.UuidType) else kind


def as_stored(value: Any) -> Any:
    """Arrow's Python takes UUIDs as bytes."""
    match value:
        case uuid.UUID():
            return value.bytes
        case dict():
            return {name: as_stored(item) for name, item in value.items()}
        case list() | tuple():
            return type(value)(as_stored(item) for item in value)
    return value


def as_text(value: Any) -> Any:
    match value:
        case uuid.UUID():
            return str(value)
        case dict():
            return {name: as_text(item) for name, item in value.items()}
        case list() | tuple():
            return type(value)(as_text(item) for item in value)
    return value


def column(name: str) -> list[Any]:
    """With nulls between the values, and rows at both ends that are cut off."""
    values = TYPES[name][2]
    between = [part for value in values for part in (value, None)]
    return [*values, None, *between, *values]


def batch(name: str) -> tuple[pa.RecordBatch, list[Any]]:
    schema = schema_to_pyarrow(SCHEMA.select(name), include_field_ids=False)
    values = column(name)
    wanted = schema.field(0).type
    whole = pa.record_batch([pa.array(as_stored(values), without_extension(wanted)).cast(wanted)], schema=schema)
    return whole.slice(1, len(values) - 2), values[1:-1]


@pytest.mark.parametrize("name", TYPES)
def test_every_type_has_its_name_in_spark(name: str) -> None:
    (field,) = to_spark_schema(SCHEMA.select(name))
    assert (field.dataType.simpleString(), field.nullable) == (TYPES[name][1], True)


@pytest.mark.parametrize("name", TYPES)
def test_values_go_to_spark_and_come_back(name: str) -> None:
    given, values = batch(name)
    schema = to_spark_schema(SCHEMA.select(name))
    in_spark = ToSpark(schema)(given)
    assert in_spark.schema == to_arrow_schema(schema)
    in_spark.validate(full=True)
    assert in_spark[name].to_pylist() == as_text(values)
    back = FromSpark(SCHEMA)(in_spark)
    back.validate(full=True)
    assert back[name].cast(given[name].type).equals(given[name])


def test_required_fields_stay_so() -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "l", ListType(3, LongType(), element_required=True)),
        NestedField(4, "m", MapType(5, LongType(), 6, LongType(), value_required=True)),
    )
    assert to_spark_schema(schema) == spark.StructType(
        [
            spark.StructField("id", spark.LongType(), False),
            spark.StructField("l", spark.ArrayType(spark.LongType(), False)),
            spark.StructField("m", spark.MapType(spark.LongType(), spark.LongType(), False)),
        ]
    )


def test_columns_are_in_the_order_that_spark_asks_for() -> None:
    """It takes them by their place."""
    given = pa.record_batch({"a": ["a"], "b": ["b"], "c": ["c"]})
    wanted = to_spark_schema(Schema(NestedField(1, "c", StringType()), NestedField(2, "a", StringType())))
    assert ToSpark(wanted)(given).to_pydict() == {"c": ["c"], "a": ["a"]}
    assert ToSpark(wanted)(given).schema.names == ["c", "a"]


def test_moments_come_in_the_zone_of_the_session() -> None:
    """Spark hands them over with that zone, and Iceberg knows UTC alone."""
    schema = Schema(
        NestedField(1, "at", TimestamptzType()),
        NestedField(
            2, "more", ListType(3, StructType(NestedField(4, "at", TimestamptzType())), element_required=False)
        ),
    )
    moment = datetime.datetime(2024, 1, 1, tzinfo=ZoneInfo("America/New_York"))
    zoned = pa.timestamp("us", "America/New_York")
    types = pa.schema([("at", zoned), ("more", pa.list_(pa.struct([("at", zoned)])))])
    given = pa.Table.from_pylist([{"at": moment, "more": [{"at": moment}, None]}], types).to_batches()[0]
    converted = FromSpark(schema)(given)
    assert converted.schema.field("at").type == pa.timestamp("us", "UTC")
    assert converted.schema.field("more").type.value_type.field("at").type == pa.timestamp("us", "UTC")
    assert converted.to_pylist() == [{"at": moment, "more": [{"at": moment}, None]}]


def test_what_spark_cannot_hold_is_named() -> None:
    with pytest.raises(UsageError, match="Spark has no type for timestamp_ns"):
        to_spark_schema(Schema(NestedField(1, "at", TimestampNanoType())))


def test_a_text_that_is_no_uuid() -> None:
    schema = Schema(NestedField(1, "id", UUIDType()))
    with pytest.raises(UsageError, match="given a text that is none"):
        FromSpark(schema)(pa.record_batch({"id": ["no"]}))


def test_bytes_that_are_too_long_for_a_fixed_column() -> None:
    schema = Schema(NestedField(1, "f", FixedType(2)))
    with pytest.raises(pa.ArrowInvalid):
        FromSpark(schema)(pa.record_batch({"f": [b"abc"]}))


def test_columns_that_the_table_lacks_stay_for_the_check_of_the_schema() -> None:
    given = pa.record_batch({"other": [1]})
    assert FromSpark(SCHEMA)(given).equals(given)
