"""Schemas of data files. Other software writes nanoseconds into columns that have microseconds in the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.types import TimestampNanoType, TimestamptzNanoType

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table.metadata import TableMetadata


class FileSchema:
    def __init__(self, file: pa.Schema, metadata: TableMetadata) -> None:
        self._file = file
        self._metadata = metadata
        self._exact = self._converted(to_microseconds=False)
        self._nanoseconds = _nanoseconds(self._exact)

    @property
    def in_table(self) -> Schema:
        """With nanoseconds only where the table has them."""
        if not self._nanoseconds:
            return self._exact
        wanted = {field_id for schema in self._metadata.schemas for field_id in _nanoseconds(schema)}
        if self._nanoseconds <= wanted:
            return self._exact
        pairs = zip(self._exact.columns, self._converted(to_microseconds=True).columns, strict=True)
        return Schema(*(coarse if wanted.isdisjoint(_nanoseconds(Schema(fine))) else fine for fine, coarse in pairs))

    def is_finer_than(self, part: Schema) -> bool:
        """Whether some of these columns, a part of `in_table`, have to be read from nanoseconds."""
        return not self._nanoseconds.isdisjoint(set(part.field_ids) - _nanoseconds(part))

    def _converted(self, *, to_microseconds: bool) -> Schema:
        # Tables of any version can have nanoseconds in their files, but PyIceberg knows of them since V3 only.
        return pyarrow_to_schema(
            self._file, self._metadata.name_mapping(), downcast_ns_timestamp_to_us=to_microseconds, format_version=3
        )


def _nanoseconds(schema: Schema) -> set[int]:
    return {
        field_id
        for field_id, field in index_by_id(schema).items()
        if isinstance(field.field_type, (TimestampNanoType, TimestamptzNanoType))
    }
