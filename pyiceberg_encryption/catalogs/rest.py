from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pyiceberg.catalog.rest import RestCatalog as PyIcebergRestCatalog
from pyiceberg.catalog.rest import TableResponse
from pyiceberg.exceptions import BadRequestError, CommitStateUnknownException, ValidationException
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCreate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    update_table_metadata,
)
from pyiceberg.typedef import EMPTY_DICT

from pyiceberg_encryption.catalogs.base import EncryptingCatalog, name_of
from pyiceberg_encryption.errors import ConfigurationError, IntegrityError
from pyiceberg_encryption.table import policy
from pyiceberg_encryption.table.models import (
    AddEncryptionKeyUpdate,
    RemoveEncryptionKeyUpdate,
    encryption_keys,
    key_id,
)
from pyiceberg_encryption.table.table import StagedTable, Table
from pyiceberg_encryption.table.transaction import CreateTableTransaction

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table import CommitTableResponse
    from pyiceberg.table import CreateTableTransaction as PyIcebergCreateTableTransaction
    from pyiceberg.table import StagedTable as PyIcebergStagedTable
    from pyiceberg.table import Table as PyIcebergTable
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from pyiceberg.typedef import Identifier, Properties

TableResponse.model_rebuild(force=True)  # with the fields that table.models adds to metadata


class KeysNotKeptError(ConfigurationError, ValidationException):
    """The server does not keep what decrypts a table. Nothing was committed, and so PyIceberg removes the files."""


class RestCatalog(EncryptingCatalog, PyIcebergRestCatalog):
    """Tables of a server, which is trusted with their metadata: it delivers that itself, not from the storage."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        self._policy = self._policy.with_settings_of_server(self.properties)

    # Creating

    def create_table(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> PyIcebergTable:
        """In two steps, so that a server which would make another table than was asked for makes none."""
        chosen = self._policy.properties_of_new_table(self.identifier_to_tuple(identifier), properties)
        if not chosen.get(policy.KEY_ID):
            stock = super().create_table(identifier, schema, location, partition_spec, sort_order, chosen)
            return cast("Table", stock)
        self.create_table_transaction(
            identifier, schema, location, partition_spec, sort_order, properties
        ).commit_transaction()
        return cast("Table", self.load_table(identifier))

    def create_table_transaction(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> PyIcebergCreateTableTransaction:
        chosen = self._policy.properties_of_new_table(self.identifier_to_tuple(identifier), properties)
        stock = super().create_table_transaction(identifier, schema, location, partition_spec, sort_order, chosen)
        staged = stock._table
        for label in (policy.KEY_ID, policy.DATA_KEY_LENGTH):
            if staged.properties.get(label) != chosen.get(label):
                raise ConfigurationError(
                    f"The server would create {name_of(identifier)} with {label} {staged.properties.get(label)!r} in "
                    f"place of {chosen.get(label)!r}"
                )
        return CreateTableTransaction(staged)

    def register_table(
        self, identifier: str | Identifier, metadata_location: str, overwrite: bool = False
    ) -> PyIcebergTable:
        """Only metadata that this catalog would load is registered: from then on the server vouches for it."""
        checked = self._load(self.identifier_to_tuple(identifier), metadata_location)
        table = super().register_table(identifier, metadata_location, overwrite)
        if _what_decrypts(table.metadata) != _what_decrypts(checked.metadata):
            self.drop_table(identifier)
            raise IntegrityError(f"The server read another content of {metadata_location} than was checked before")
        return cast("Table", table)

    # Loading

    def _response_to_table(self, identifier_tuple: tuple[str, ...], table_response: TableResponse) -> Table:
        self._policy.check_loaded(identifier_tuple, table_response.metadata)
        stock = super()._response_to_table(identifier_tuple, table_response)
        io = self._io(stock.metadata, stock.io)
        return Table(identifier_tuple, stock.metadata, stock.metadata_location, io, self, stock.config)

    def _response_to_staged_table(
        self, identifier_tuple: tuple[str, ...], table_response: TableResponse
    ) -> PyIcebergStagedTable:
        self._policy.check_loaded(identifier_tuple, table_response.metadata)
        stock = super()._response_to_staged_table(identifier_tuple, table_response)
        io = self._io(stock.metadata, stock.io)
        return StagedTable(identifier_tuple, stock.metadata, stock.metadata_location, io, self)

    # Committing

    def commit_table(
        self,
        table: PyIcebergTable,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        name = name_of(table.name())
        is_new = any(isinstance(requirement, AssertCreate) for requirement in requirements)
        if not is_new:
            policy.check_change(name, table.metadata, update_table_metadata(table.metadata, updates))
        if not encryption_keys(table.metadata) and not is_new:
            self._try_out(table, updates)
        try:
            response = super().commit_table(table, requirements, updates)
        except BadRequestError as error:
            if is_new and any(isinstance(update, AddEncryptionKeyUpdate) for update in updates):
                raise _not_kept(name, f"It refused to create the table: {error}") from None
            raise
        if _is_kept(response.metadata, updates):
            return cast("CommitTableResponse", response)
        if is_new:
            self.drop_table(table.name())
        else:
            self._undo(table, updates)
        raise _not_kept(name, "The commit was undone")

    def _try_out(self, table: PyIcebergTable, updates: tuple[TableUpdate, ...]) -> None:
        """Whether the server keeps keys is found out with a KEK alone, before anything is encrypted by it."""
        master_key_id = table.properties.get(policy.KEY_ID)
        keks: tuple[Any, ...] = tuple(
            update
            for update in updates
            if isinstance(update, AddEncryptionKeyUpdate) and update.encryption_key.encrypted_by_id == master_key_id
        )
        if not keks:
            return
        try:
            response = super().commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid),), keks)
        except BadRequestError as error:
            raise _not_kept(name_of(table.name()), f"It refused the key: {error}") from None
        if not _is_kept(response.metadata, keks):
            raise _not_kept(name_of(table.name()), "Nothing was committed")

    def _undo(self, table: PyIcebergTable, updates: tuple[TableUpdate, ...]) -> None:
        added = {update.snapshot.snapshot_id for update in updates if isinstance(update, AddSnapshotUpdate)}
        undo: list[Any] = []
        requirements: list[TableRequirement] = []
        for update in updates:
            if isinstance(update, SetSnapshotRefUpdate) and update.snapshot_id in added:
                requirements.append(AssertRefSnapshotId(ref=update.ref_name, snapshot_id=update.snapshot_id))
                before = table.metadata.refs.get(update.ref_name)
                if before is None:
                    undo.append(RemoveSnapshotRefUpdate(ref_name=update.ref_name))
                else:
                    undo.append(update.model_copy(update={"snapshot_id": before.snapshot_id}))
            elif isinstance(update, AddEncryptionKeyUpdate):
                undo.append(RemoveEncryptionKeyUpdate(key_id=update.encryption_key.key_id))
        undo.append(RemoveSnapshotsUpdate(snapshot_ids=sorted(added)))
        try:
            super().commit_table(table, tuple(requirements), tuple(undo))
        except Exception as error:
            raise CommitStateUnknownException(
                f"The server committed snapshots {sorted(added)} of {name_of(table.name())}, but did not keep their "
                f"keys, and could not undo that: {error}. Nobody can read these snapshots. Roll the table back, and "
                "use a server that supports table encryption"
            ) from error

    # Dropping

    def purge_table(self, identifier: str | Identifier) -> None:
        """A server without keys does not find the files of an encrypted table, so these are deleted from here."""
        table = self.load_table(identifier)
        if isinstance(table, Table) and table.is_encrypted:
            super().purge_table(identifier)
        else:
            PyIcebergRestCatalog.purge_table(self, identifier)


def _is_kept(metadata: TableMetadata, updates: tuple[TableUpdate, ...]) -> bool:
    """Whether what the server has now decrypts what was committed."""
    kept = {key.key_id: key for key in encryption_keys(metadata)}
    for update in updates:
        if isinstance(update, AddEncryptionKeyUpdate):
            key = update.encryption_key.key()
            if kept.get(key.key_id) != key:
                return False
        elif isinstance(update, AddSnapshotUpdate):
            snapshot = metadata.snapshot_by_id(update.snapshot.snapshot_id)
            if snapshot is None or key_id(snapshot) != key_id(update.snapshot):
                return False
    return True


def _not_kept(name: str, what_happened: str) -> KeysNotKeptError:
    return KeysNotKeptError(
        f"The REST server does not keep the encryption keys of {name}: nobody could read what is written to it. "
        f"{what_happened}. Use a server that knows format version 3 with encryption-keys and key-id (Iceberg Java's "
        "does from 1.10 on)"
    )


def _what_decrypts(metadata: TableMetadata) -> tuple[Any, ...]:
    snapshots = [(s.snapshot_id, s.manifest_list, key_id(s)) for s in metadata.snapshots]
    key = metadata.properties.get(policy.KEY_ID)
    return metadata.table_uuid, key, encryption_keys(metadata), snapshots, metadata.refs
