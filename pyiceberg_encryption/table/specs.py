"""Partition specs of columns that are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import PrivateAttr
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.types import NestedField, StructType, UnknownType

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata


class LastingSpec(PartitionSpec):
    """Remembers the types of columns that are gone. PyIceberg's own takes them from one schema, or does not know."""

    _schemas: list[Schema] = PrivateAttr(default_factory=list)

    @classmethod
    def of(cls, metadata: TableMetadata, spec_id: int) -> LastingSpec:
        spec = metadata.specs()[spec_id]
        lasting = cls(*spec.fields, spec_id=spec_id)
        lasting._schemas = list(reversed(metadata.schemas))
        return lasting

    def partition_type(self, schema: Schema) -> StructType:
        found = super().partition_type(schema)
        if not has_unknown_types(found):
            return found
        earlier = [super(LastingSpec, self).partition_type(schema).fields for schema in self._schemas]
        return StructType(*map(_known, zip(found.fields, *earlier, strict=True)))


def has_unknown_types(partition_type: StructType) -> bool:
    return any(map(_is_unknown, partition_type.fields))


def _known(versions: tuple[NestedField, ...]) -> NestedField:
    known = (field for field in versions if not _is_unknown(field))
    return next(known, versions[0]).model_copy(update={"required": False})


def _is_unknown(field: NestedField) -> bool:
    return isinstance(field.field_type, UnknownType)
