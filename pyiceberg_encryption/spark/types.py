"""Spark's types for those of Iceberg, as Iceberg Java has them, and columns from one to the other."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as spark
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import SchemaVisitor, visit
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
    UnknownType,
    UUIDType,
)
from pyspark.sql.pandas.types import to_arrow_schema

from pyiceberg_encryption.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType, PrimitiveType

_PRIMITIVES: dict[type[IcebergType], Callable[[], spark.DataType]] = {
    BooleanType: spark.BooleanType,
    IntegerType: spark.IntegerType,
    LongType: spark.LongType,
    FloatType: spark.FloatType,
    DoubleType: spark.DoubleType,
    DateType: spark.DateType,
    TimeType: spark.TimeType,
    TimestampType: spark.TimestampNTZType,
    TimestamptzType: spark.TimestampType,
    StringType: spark.StringType,
    UUIDType: spark.StringType,
    FixedType: spark.BinaryType,
    BinaryType: spark.BinaryType,
    UnknownType: spark.NullType,
}


def to_spark_schema(schema: Schema) -> spark.StructType:
    converted = visit(schema, _ToSpark())
    if not isinstance(converted, spark.StructType):
        raise TypeError("a schema is a struct")
    return converted


class _ToSpark(SchemaVisitor[spark.DataType]):
    def schema(self, schema: Schema, struct_result: spark.DataType) -> spark.DataType:
        return struct_result

    def struct(self, struct: StructType, field_results: list[spark.DataType]) -> spark.DataType:
        pairs = zip(struct.fields, field_results, strict=True)
        return spark.StructType([spark.StructField(field.name, result, field.optional) for field, result in pairs])

    def field(self, field: NestedField, field_result: spark.DataType) -> spark.DataType:
        return field_result

    def list(self, list_type: ListType, element_result: spark.DataType) -> spark.DataType:
        return spark.ArrayType(element_result, not list_type.element_required)

    def map(self, map_type: MapType, key_result: spark.DataType, value_result: spark.DataType) -> spark.DataType:
        return spark.MapType(key_result, value_result, not map_type.value_required)

    def primitive(self, primitive: PrimitiveType) -> spark.DataType:
        if isinstance(primitive, DecimalType):
            return spark.DecimalType(primitive.precision, primitive.scale)
        if type(primitive) not in _PRIMITIVES:
            raise UsageError(f"Spark has no type for {primitive}: read the other columns, with the option columns")
        return _PRIMITIVES[type(primitive)]()


class ToSpark:
    """Batches of a scan, as Spark takes them."""

    def __init__(self, schema: spark.StructType) -> None:
        self._arrow = to_arrow_schema(schema)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [_as_type(batch[field.name], field.type) for field in self._arrow]
        return pa.RecordBatch.from_arrays(columns, schema=self._arrow)


class FromSpark:
    """Batches that Spark hands over, with the types that the table's columns have where Spark knows none of these."""

    def __init__(self, schema: Schema) -> None:
        self._types = {field.name: field.type for field in schema_to_pyarrow(schema, include_field_ids=False)}

    def schema(self, provided: pa.Schema) -> pa.Schema:
        return pa.schema([field.with_type(self._wanted(field.name, field.type)) for field in provided])

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema = self.schema(batch.schema)
        columns = [_as_type(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _wanted(self, name: str, provided: pa.DataType) -> pa.DataType:
        return _refined(provided, self._types[name]) if name in self._types else provided


def _refined(provided: pa.DataType, table: pa.DataType) -> pa.DataType:
    """The provided type, but with what Spark had to simplify as it is in the table."""
    if pa.types.is_struct(provided) and pa.types.is_struct(table):
        names = {field.name: field.type for field in table}
        return pa.struct(
            [field.with_type(_refined(field.type, names.get(field.name, field.type))) for field in provided]
        )
    if pa.types.is_list(provided) and (pa.types.is_list(table) or pa.types.is_large_list(table)):
        return pa.list_(provided.value_field.with_type(_refined(provided.value_type, table.value_type)))
    if pa.types.is_map(provided) and pa.types.is_map(table):
        return pa.map_(
            provided.key_field.with_type(_refined(provided.key_type, table.key_type)),
            provided.item_field.with_type(_refined(provided.item_type, table.item_type)),
        )
    if pa.types.is_timestamp(provided) and provided.tz is not None:
        return pa.timestamp(provided.unit, "UTC")  # the same moment, which Spark hands over in the session's zone
    is_simplified = (
        (pa.types.is_string(provided) and _is_uuid(table))
        or (pa.types.is_binary(provided) and pa.types.is_fixed_size_binary(table))
        or (pa.types.is_time64(provided) and pa.types.is_time64(table))
    )
    return table if is_simplified else provided


def _as_type(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Arrow casts all but UUIDs to text and back."""
    if column.type.equals(wanted):
        return column
    if not (_has_uuid(column.type) or _has_uuid(wanted)):
        return column.cast(wanted)
    if _is_uuid(column.type):
        return pa.array([None if value is None else str(value) for value in column.to_pylist()], wanted)
    if _is_uuid(wanted):
        return pa.array([None if text is None else _uuid(text).bytes for text in column.to_pylist()], wanted)
    nulls = column.is_null()
    if pa.types.is_struct(wanted):
        parts = [_as_type(pc.struct_field(column, field.name), field.type) for field in wanted]
        return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=nulls)
    start, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
    offsets = pc.subtract(column.offsets, start).cast(pa.int32())
    if pa.types.is_map(wanted):
        keys = _as_type(column.keys.slice(start, end - start), wanted.key_type)
        items = _as_type(column.items.slice(start, end - start), wanted.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items, type=wanted, mask=nulls)
    values = _as_type(column.values.slice(start, end - start), wanted.value_type)
    return pa.ListArray.from_arrays(offsets, values, type=wanted, mask=nulls)


def _has_uuid(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_uuid(field.type) for field in kind)
    if pa.types.is_map(kind):
        return _has_uuid(kind.key_type) or _has_uuid(kind.item_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _has_uuid(kind.value_type)
    return _is_uuid(kind)


def _is_uuid(kind: pa.DataType) -> bool:
    return bool(kind == pa.uuid())


def _uuid(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise UsageError("A column of UUIDs was given a text that is none") from None
