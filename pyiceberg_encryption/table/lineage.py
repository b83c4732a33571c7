"""Row lineage: the id that a row keeps for its life, and the sequence number of the commit that last changed it.

A row has both without a column for them, from its file and its place in it. When a row moves to another file, they are
written as columns, where null means that the file and the place say it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.table.metadata import TableMetadata

# Iceberg spec, "Reserved Field IDs"
ROW_ID = NestedField(2147483540, "_row_id", LongType(), required=False)
LAST_UPDATED_SEQUENCE_NUMBER = NestedField(2147483539, "_last_updated_sequence_number", LongType(), required=False)
FIELDS = (ROW_ID, LAST_UPDATED_SEQUENCE_NUMBER)
IDS = frozenset(field.field_id for field in FIELDS)


def with_lineage(schema: Schema, fields: Iterable[NestedField] = FIELDS) -> Schema:
    """The schema with the lineage columns at its end. A column of the table that has the name of one stays in place."""
    taken = {column.name for column in schema.fields}
    added = [field for field in fields if field.name not in taken]
    return Schema(*schema.fields, *added, schema_id=schema.schema_id, identifier_field_ids=schema.identifier_field_ids)


def without_lineage(schema: Schema) -> Schema:
    columns = [column for column in schema.fields if column.field_id not in IDS]
    return Schema(*columns, schema_id=schema.schema_id)


def for_rewriting(metadata: TableMetadata) -> TableMetadata:
    """Metadata by which PyIceberg writes files that have the lineage columns."""
    schemas = [
        with_lineage(schema) if schema.schema_id == metadata.current_schema_id else schema
        for schema in metadata.schemas
    ]
    return metadata.model_copy(update={"schemas": schemas})


def row_ids(written: pa.Array | None, first_row_id: int | None, start: int, rows: int) -> pa.Array:
    """The ids of `rows` rows that begin at `start` of a file, of which `written` has the column, if there is one."""
    if first_row_id is None:
        return pa.nulls(rows, pa.int64())
    inherited = pa.arange(first_row_id + start, first_row_id + start + rows)
    return inherited if written is None else pc.coalesce(written, inherited)


def sequence_numbers(
    written: pa.Array | None, first_row_id: int | None, sequence_number: int | None, rows: int
) -> pa.Array:
    if first_row_id is None or sequence_number is None:
        return pa.nulls(rows, pa.int64())
    inherited = pa.repeat(pa.scalar(sequence_number, pa.int64()), rows)
    return inherited if written is None else pc.coalesce(written, inherited)
