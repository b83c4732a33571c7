from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, cast

from pyiceberg.catalog.rest import RestCatalog as PyIcebergRestCatalog
from pyiceberg.catalog.rest import TableResponse
from pyiceberg.exceptions import (
    BadRequestError,
    CommitStateUnknownException,
    RESTError,
    ValidationException,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCreate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    update_table_metadata,
)
from pyiceberg.typedef import EMPTY_DICT

from pyiceberg_encryption.catalogs.base import EncryptingCatalog, name_of
from pyiceberg_encryption.errors import ConfigurationError, EncryptionError, IntegrityError
from pyiceberg_encryption.table import policy
from pyiceberg_encryption.table.models import (
    AddEncryptionKeyUpdate,
    RemoveEncryptionKeyUpdate,
    StartEncryptionUpdate,
    encryption_keys,
    key_id,
)
from pyiceberg_encryption.table.table import StagedTable, Table
from pyiceberg_encryption.table.transaction import CreateTableTransaction

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table import CommitTableResponse
    from pyiceberg.table import CreateTableTransaction as PyIcebergCreateTableTransaction
    from pyiceberg.table import StagedTable as PyIcebergStagedTable
    from pyiceberg.table import Table as PyIcebergTable
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from pyiceberg.typedef import Identifier, Properties

    from pyiceberg_encryption.table.models import EncryptionKeyEntry

TableResponse.model_rebuild(force=True)  # with the fields that table.models adds to metadata
REFUSALS = (BadRequestError, NotImplementedError, RESTError)  # by servers that do not know what they are asked for


class KeysNotKeptError(ConfigurationError, ValidationException):
    """The server does not keep what decrypts a table. No snapshot was left, so PyIceberg removes the manifests."""


class RestCatalog(EncryptingCatalog, PyIcebergRestCatalog):
    """Tables of a server, which is believed in what it says of them."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        self._policy = self._policy.with_settings_of_server(self.properties)
        self._registering: dict[Identifier, TableMetadata] = {}

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
        names = self.identifier_to_tuple(identifier)
        checked = self._load(names, metadata_location)
        replaced = self.load_table(identifier) if overwrite and self.table_exists(identifier) else None
        self._registering[names] = checked.metadata
        try:
            return cast("Table", super().register_table(identifier, metadata_location, overwrite))
        except EncryptionError:
            if replaced is None:
                self.drop_table(identifier)
            else:
                del self._registering[names]
                super().register_table(identifier, replaced.metadata_location, overwrite=True)
            raise
        finally:
            self._registering.pop(names, None)

    # Loading

    def _response_to_table(self, identifier_tuple: tuple[str, ...], table_response: TableResponse) -> Table:
        self._check(identifier_tuple, table_response.metadata)
        stock = super()._response_to_table(identifier_tuple, table_response)
        io = self._io(stock.metadata, stock.io)
        return Table(identifier_tuple, stock.metadata, stock.metadata_location, io, self, stock.config)

    def _response_to_staged_table(
        self, identifier_tuple: tuple[str, ...], table_response: TableResponse
    ) -> PyIcebergStagedTable:
        self._check(identifier_tuple, table_response.metadata)
        stock = super()._response_to_staged_table(identifier_tuple, table_response)
        io = self._io(stock.metadata, stock.io)
        return StagedTable(identifier_tuple, stock.metadata, stock.metadata_location, io, self)

    def _check(self, identifier: Identifier, metadata: TableMetadata) -> None:
        """Before anything is done that the metadata asks for."""
        checked = self._registering.get(identifier)
        if checked is not None and _essence(metadata) != _essence(checked):
            raise IntegrityError(f"The server read another content of the metadata of {name_of(identifier)} than this")
        if self._policy.check_loaded(identifier, metadata) is None:
            return
        policy.check_names_no_code(name_of(identifier), metadata.properties)
        if self._policy.refuses_unverified_metadata:
            raise IntegrityError(
                f"The metadata of {name_of(identifier)} comes from a REST server, and nothing proves that the server "
                f"did not read it from the storage as somebody had changed it. ({policy.UNVERIFIED_METADATA} is set to "
                "refuse)"
            )

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
            policy.check_change(name, table.metadata, update_table_metadata(table.metadata, updates), updates)
            if not encryption_keys(table.metadata):
                self._try_out(table, updates)
        try:
            response = super().commit_table(table, requirements, updates)
        except BadRequestError as error:
            if is_new and _added_keys(updates) and "encryption" in str(error):
                raise _not_kept(name, f"It refused to create the table: {error}") from None
            raise
        if not _is_kept(response.metadata, updates):
            if is_new:
                self._drop_created(table.name(), response.metadata)
                raise _not_kept(name, "The new table was dropped again")
            self._undo(table, updates)
            raise _not_kept(name, "The new snapshots were removed again")
        if not is_new:
            _check_nothing_lost(table, response.metadata)
        return cast("CommitTableResponse", response)

    def _try_out(self, table: PyIcebergTable, updates: tuple[TableUpdate, ...]) -> None:
        """Whether the server keeps keys is found out with a KEK alone, before there is a snapshot that needs it."""
        master_key_id = table.properties.get(policy.KEY_ID)
        keks: tuple[Any, ...] = tuple(
            AddEncryptionKeyUpdate(encryption_key=key)
            for key in _added_keys(updates)
            if key.encrypted_by_id == master_key_id
        )
        if not keks:
            return
        try:
            response = super().commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid),), keks)
        except REFUSALS as error:
            if type(error) not in REFUSALS:  # but a kind of them, which says nothing of what was asked for
                raise
            raise _not_kept(name_of(table.name()), f"It refused the key: {error}") from None
        if not _is_kept(response.metadata, keks):
            raise _not_kept(name_of(table.name()), "Nothing was committed")

    def _undo(self, table: PyIcebergTable, updates: tuple[TableUpdate, ...]) -> None:
        """Unless others have committed to the same branches since."""
        added = {update.snapshot.snapshot_id for update in updates if isinstance(update, AddSnapshotUpdate)}
        heads = {
            update.ref_name: update
            for update in updates
            if isinstance(update, SetSnapshotRefUpdate) and update.snapshot_id in added
        }
        undo: list[Any] = []
        for name, update in heads.items():
            before = table.metadata.refs.get(name)
            if before is None:
                undo.append(RemoveSnapshotRefUpdate(ref_name=name))
            else:
                undo.append(update.model_copy(update={"snapshot_id": before.snapshot_id}))
        undo.append(RemoveSnapshotsUpdate(snapshot_ids=sorted(added)))
        started = [update for update in updates if isinstance(update, StartEncryptionUpdate)]
        undo += [RemovePropertiesUpdate(removals=list(update.updates)) for update in started]
        undo += [RemoveEncryptionKeyUpdate(key_id=key.key_id) for key in _added_keys(updates)]
        requirements = tuple(AssertRefSnapshotId(ref=name, snapshot_id=u.snapshot_id) for name, u in heads.items())
        failure: Exception | None = None
        try:
            response = super().commit_table(table, requirements, tuple(undo))
            left = added & {snapshot.snapshot_id for snapshot in response.metadata.snapshots}
        except Exception as error:
            left, failure = added, error
        if left:
            raise CommitStateUnknownException(
                f"The server committed snapshots {sorted(left)} of {name_of(table.name())}, but did not keep their "
                f"keys, and could not undo that{f': {failure}' if failure else ''}. Nobody can read these snapshots. "
                "Roll the table back, and use a server that supports table encryption"
            ) from failure

    def _drop_created(self, identifier: Identifier, created: TableMetadata) -> None:
        """Not what others may have put in its place."""
        with contextlib.suppress(EncryptionError):  # it is as bad as it was when it was created
            if self.load_table(identifier).metadata.table_uuid != created.table_uuid:
                return
        self.drop_table(identifier)

    # Dropping

    def purge_table(self, identifier: str | Identifier) -> None:
        """A server without keys does not find the files of an encrypted table, so these are deleted from here."""
        table = self.load_table(identifier)
        if isinstance(table, Table) and table.is_encrypted:
            super().purge_table(identifier)
        else:
            PyIcebergRestCatalog.purge_table(self, identifier)


def _added_keys(updates: Iterable[Any]) -> list[EncryptionKeyEntry]:
    return [update.encryption_key for update in updates if isinstance(update, AddEncryptionKeyUpdate)]


def _is_kept(metadata: TableMetadata, updates: tuple[TableUpdate, ...]) -> bool:
    """Whether what the server has now decrypts what was committed."""
    kept = {key.key_id: key for key in encryption_keys(metadata)}
    if any(kept.get(key.key_id) != key.key() for key in _added_keys(updates)):
        return False
    for update in updates:
        if isinstance(update, AddSnapshotUpdate) and key_id(update.snapshot):
            snapshot = metadata.snapshot_by_id(update.snapshot.snapshot_id)
            if snapshot is not None and key_id(snapshot) != key_id(update.snapshot):
                return False
    return True


def _check_nothing_lost(table: PyIcebergTable, metadata: TableMetadata) -> None:
    """Of what decrypts snapshots that were there before."""
    kept = {key.key_id for key in encryption_keys(metadata)}
    lost = {key.key_id for key in encryption_keys(table.metadata)} - kept
    for snapshot in table.metadata.snapshots:
        now = metadata.snapshot_by_id(snapshot.snapshot_id)
        if now is not None and key_id(now) != key_id(snapshot):
            lost.add(key_id(snapshot) or "")
    if lost:
        raise IntegrityError(
            f"The REST server has committed, but lost the encryption keys {sorted(lost)} of {name_of(table.name())} "
            f"that it had before. They are in {table.metadata_location}: restore the table from there"
        )


def _not_kept(name: str, what_happened: str) -> KeysNotKeptError:
    return KeysNotKeptError(
        f"The REST server does not keep the encryption keys of {name}: nobody could read what is written to it. "
        f"{what_happened}. Use a server that knows format version 3 with encryption-keys and key-id (Iceberg Java's "
        "does from 1.10 on)"
    )


def _essence(metadata: TableMetadata) -> dict[str, Any]:
    """All but what a server may add when it registers a table."""
    fields = metadata.model_dump(exclude={"properties", "last_updated_ms", "metadata_log"})
    properties = {label: metadata.properties.get(label) for label in (policy.KEY_ID, policy.DATA_KEY_LENGTH)}
    return fields | {"properties": properties, "keys": encryption_keys(metadata)}
