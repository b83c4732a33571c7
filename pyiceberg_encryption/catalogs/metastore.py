"""Catalogs that keep where a table's metadata is, and leave it to the client to write it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import ICEBERG, METADATA_LOCATION, TABLE_TYPE, Catalog, MetastoreCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchIcebergTableError,
    NoSuchNamespaceError,
    NoSuchPropertyException,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.table import CommitTableResponse, TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadataV3, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import AddSnapshotUpdate
from pyiceberg.typedef import EMPTY_DICT

from pyiceberg_encryption.catalogs.base import EncryptingCatalog, name_of
from pyiceberg_encryption.table import metadata_files, policy
from pyiceberg_encryption.table.file_io import plain_io
from pyiceberg_encryption.table.metadata_json import to_json
from pyiceberg_encryption.table.models import FIRST_ROW_ID, VERSION
from pyiceberg_encryption.table.table import StagedTable
from pyiceberg_encryption.table.transaction import CreateTableTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table as PyIcebergTable
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from pyiceberg.typedef import Identifier, Properties, TableVersion


class EncryptingMetastoreCatalog(EncryptingCatalog, MetastoreCatalog):
    def create_table(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> PyIcebergTable:
        chosen = self._policy.properties_of_new_table(Catalog.identifier_to_tuple(identifier), properties)
        if _version(chosen) < VERSION:
            return super().create_table(  # type: ignore[safe-super]  # of the catalog that comes after
                identifier, schema, location, partition_spec, sort_order, chosen
            )
        namespace = Catalog.namespace_from(identifier)
        if not self.namespace_exists(namespace):
            raise NoSuchNamespaceError(f"Namespace does not exist: {namespace}")
        transaction = self.create_table_transaction(
            identifier, schema, location, partition_spec, sort_order, properties
        )
        return self._commit_creation(identifier, transaction)

    def create_table_transaction(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> CreateTableTransaction:
        if self.table_exists(identifier):
            raise TableAlreadyExistsError(f"Table {name_of(identifier)} already exists")
        staged = self._create_staged_table(identifier, schema, location, partition_spec, sort_order, properties)
        return CreateTableTransaction(staged)

    def _create_staged_table(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> StagedTable:
        names = Catalog.identifier_to_tuple(identifier)
        chosen = self._policy.properties_of_new_table(names, properties)
        version = _version(chosen)
        namespace = Catalog.namespace_to_string(Catalog.namespace_from(names))
        table_location = self._resolve_table_location(location, namespace, names[-1])
        metadata = new_table_metadata(
            schema=self._convert_schema_if_needed(schema, version),
            partition_spec=partition_spec,
            sort_order=sort_order,
            location=table_location,
            properties=chosen,
        )
        if version >= VERSION:
            metadata = metadata.model_copy(update={"next_row_id": FIRST_ROW_ID})
        metadata_location = load_location_provider(table_location, chosen).new_table_metadata_file_location()
        plain = self._load_file_io(metadata.properties, metadata_location)
        return self._staged(names, metadata, metadata_location, plain)

    def register_table(
        self, identifier: str | Identifier, metadata_location: str, overwrite: bool = False
    ) -> PyIcebergTable:
        """Only metadata that this catalog would load is registered."""
        names = Catalog.identifier_to_tuple(identifier)
        self._check_storage(names, self._load(names, metadata_location).metadata)
        return super().register_table(identifier, metadata_location, overwrite)  # type: ignore[safe-super]

    def _update_and_stage_table(
        self,
        current_table: PyIcebergTable | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        before = current_table.metadata if current_table else None
        if before is not None:
            _check_comes_next(before, updates)
        staged = super()._update_and_stage_table(current_table, table_identifier, requirements, updates)
        metadata = staged.metadata
        policy.check_change(name_of(table_identifier), before, metadata, updates)
        self._policy.check_loaded(table_identifier, metadata)
        location = staged.metadata_location
        if metadata.properties.get(policy.KEY_ID):
            location = metadata_files.named_after(to_json(metadata), location)
        plain = plain_io(current_table.io if current_table else staged.io)
        return self._staged(table_identifier, metadata, location, plain)

    def _check_storage(self, identifier: Identifier, metadata: TableMetadata) -> None:
        """For catalogs whose storage does not suit every table."""

    def _commit(
        self,
        current: PyIcebergTable | None,
        identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
        point_to: Callable[[StagedTable], None],
    ) -> CommitTableResponse:
        """For catalogs of PyIceberg that cannot commit. `point_to` fails if the table is not what it was."""
        staged = self._update_and_stage_table(current, identifier, requirements, updates)
        if current is not None and staged.metadata == current.metadata:
            return CommitTableResponse(metadata=current.metadata, metadata_location=current.metadata_location)
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        point_to(staged)
        return CommitTableResponse(metadata=staged.metadata, metadata_location=staged.metadata_location)

    def _staged(self, identifier: Identifier, metadata: TableMetadata, location: str, plain: FileIO) -> StagedTable:
        return StagedTable(identifier, metadata, location, self._io(metadata, plain), self)

    def _write_metadata(  # type: ignore[override]  # static in PyIceberg, which calls it on the catalog all the same
        self, metadata: TableMetadata, io: FileIO, metadata_path: str
    ) -> None:
        if metadata.format_version < VERSION:
            super()._write_metadata(metadata, io, metadata_path)
            return
        with plain_io(io).new_output(metadata_path).create() as stream:
            stream.write(to_json(metadata))


def metadata_location_of(name: str, parameters: Mapping[str, str]) -> str:
    """Where an entry of a catalog says that the metadata of an Iceberg table is."""
    kind = parameters.get(TABLE_TYPE)
    if (kind or "").lower() != ICEBERG:
        raise NoSuchIcebergTableError(f"{name} is not an Iceberg table: {TABLE_TYPE} is {kind!r}")
    if not parameters.get(METADATA_LOCATION):
        raise NoSuchPropertyException(f"{name} has no {METADATA_LOCATION}")
    return parameters[METADATA_LOCATION]


def _check_comes_next(metadata: TableMetadata, updates: tuple[TableUpdate, ...]) -> None:
    """A commit to another branch is no conflict, but it took the numbers of this one, which has to be made again.

    PyIceberg checks the sequence number for format V2 alone.
    """
    added = next((update.snapshot for update in updates if isinstance(update, AddSnapshotUpdate)), None)
    if added is None or not isinstance(metadata, TableMetadataV3):
        return
    row_id, next_row_id = added.first_row_id or FIRST_ROW_ID, metadata.next_row_id or FIRST_ROW_ID
    if (added.sequence_number or 0) <= metadata.last_sequence_number or row_id < next_row_id:
        raise CommitFailedException(
            f"Sequence number {added.sequence_number} or first row id {added.first_row_id} was taken by another commit"
        )


def _version(properties: Mapping[str, Any]) -> TableVersion:
    version: Any = properties.get(TableProperties.FORMAT_VERSION, TableProperties.DEFAULT_FORMAT_VERSION)
    return int(version)  # type: ignore[return-value]
