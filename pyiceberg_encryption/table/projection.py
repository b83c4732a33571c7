"""Batches in another schema, by PyIceberg's projection, which does not get all nulls right: those of lists and maps of
structs become empty, and structs that a file has not are null in fields too that must not be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import ArrowAccessor, ArrowProjectionVisitor
from pyiceberg.schema import visit_with_partner
from pyiceberg.types import StructType, TimestampType, TimestamptzType

if TYPE_CHECKING:
    import builtins

    from pyiceberg.schema import Schema
    from pyiceberg.types import ListType, MapType, NestedField


def to_requested_schema(requested: Schema, file_schema: Schema, batch: pa.RecordBatch, **how: Any) -> pa.RecordBatch:
    """As PyIceberg's `_to_requested_schema`, with the same arguments."""
    visitor = _ProjectionVisitor(file_schema, **how)
    rows = visit_with_partner(requested, batch, visitor, ArrowAccessor(file_schema))
    return pa.RecordBatch.from_struct_array(rows)


class _ProjectionVisitor(ArrowProjectionVisitor):
    def struct(
        self, struct: StructType, struct_array: pa.Array | None, field_results: builtins.list[pa.Array | None]
    ) -> pa.Array | None:
        rows = super().struct(struct, struct_array, field_results)
        if rows is None or not any(_is_absent(*pair) for pair in zip(struct.fields, field_results, strict=True)):
            return rows
        columns = [
            _absent(field.type, len(rows)) if _is_absent(column, given) else rows.field(place)
            for place, (field, column, given) in enumerate(zip(rows.type, struct.fields, field_results, strict=True))
        ]
        return pa.StructArray.from_arrays(columns, fields=list(rows.type), mask=rows.is_null())

    def _cast_if_needed(self, field: NestedField, values: pa.Array) -> pa.Array:
        """Nanoseconds become the microsecond that they are in, as in Iceberg Java, before 1970 as well."""
        is_coarser = isinstance(field.field_type, (TimestampType, TimestamptzType))
        if is_coarser and self._downcast_ns_timestamp_to_us and pa.types.is_timestamp(values.type):
            values = pc.floor_temporal(values, unit="microsecond")
        return super()._cast_if_needed(field, values)

    def list(self, list_type: ListType, list_array: pa.Array | None, value_array: pa.Array | None) -> pa.Array | None:
        return _with_nulls_of(list_array, super().list(list_type, list_array, value_array))

    def map(
        self, map_type: MapType, map_array: pa.Array | None, key_result: pa.Array | None, value_result: pa.Array | None
    ) -> pa.Array | None:
        return _with_nulls_of(map_array, super().map(map_type, map_array, key_result, value_result))


def _is_absent(column: NestedField, given: pa.Array | None) -> bool:
    return given is None and isinstance(column.field_type, StructType) and column.initial_default is None


def _absent(kind: pa.DataType, length: int) -> pa.Array:
    """Nulls alone. Of a struct, fields that must not be null have values all the same, or Arrow refuses it later."""
    if not pa.types.is_struct(kind):
        return pa.nulls(length, kind)
    return pa.StructArray.from_arrays(_fields(kind, length), fields=list(kind), mask=pa.repeat(True, length))


def _fields(kind: pa.StructType, length: int) -> list[pa.Array]:
    return [(_absent if field.nullable else _zeros)(field.type, length) for field in kind]


def _zeros(kind: pa.DataType, length: int) -> pa.Array:
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays(_fields(kind, length), fields=list(kind))
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _zeros(kind.storage_type, length))
    nulls = pa.nulls(length, kind)
    inner = [nulls.values] if pa.types.is_list(kind) or pa.types.is_large_list(kind) else []
    if pa.types.is_map(kind):
        inner = [pa.StructArray.from_arrays([nulls.keys, nulls.items], names=["key", "value"])]
    return pa.Array.from_buffers(kind, length, [None, *nulls.buffers()[1 : kind.num_buffers]], children=inner)


def _with_nulls_of(given: pa.Array | None, projected: pa.Array | None) -> pa.Array | None:
    if given is None or projected is None or given.null_count == projected.null_count:
        return projected
    offsets = pc.add(projected.offsets, 0)  # a copy, for Arrow takes no part of an array here
    nulls = given.is_null()
    if isinstance(projected, pa.MapArray):
        return pa.MapArray.from_arrays(offsets, projected.keys, projected.items, type=projected.type, mask=nulls)
    return type(projected).from_arrays(offsets, projected.values, type=projected.type, mask=nulls)
