"""Batches in another schema, by PyIceberg's projection. There, lists and maps of structs that are null become empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import ArrowAccessor, ArrowProjectionVisitor
from pyiceberg.schema import visit_with_partner

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import ListType, MapType


def to_requested_schema(requested: Schema, file_schema: Schema, batch: pa.RecordBatch, **how: Any) -> pa.RecordBatch:
    """As PyIceberg's `_to_requested_schema`, with the same arguments."""
    visitor = _ProjectionVisitor(file_schema, **how)
    rows = visit_with_partner(requested, batch, visitor, ArrowAccessor(file_schema))
    return pa.RecordBatch.from_struct_array(rows)


class _ProjectionVisitor(ArrowProjectionVisitor):
    def list(self, list_type: ListType, list_array: pa.Array | None, value_array: pa.Array | None) -> pa.Array | None:
        return _with_nulls_of(list_array, super().list(list_type, list_array, value_array))

    def map(
        self, map_type: MapType, map_array: pa.Array | None, key_result: pa.Array | None, value_result: pa.Array | None
    ) -> pa.Array | None:
        return _with_nulls_of(map_array, super().map(map_type, map_array, key_result, value_result))


def _with_nulls_of(given: pa.Array | None, projected: pa.Array | None) -> pa.Array | None:
    if given is None or projected is None or given.null_count == projected.null_count:
        return projected
    offsets = pc.add(projected.offsets, 0)  # a copy, for Arrow takes no part of an array here
    nulls = given.is_null()
    if isinstance(projected, pa.MapArray):
        return pa.MapArray.from_arrays(offsets, projected.keys, projected.items, type=projected.type, mask=nulls)
    return type(projected).from_arrays(offsets, projected.values, type=projected.type, mask=nulls)
