"""What all catalogs share: they load tables only after checking them, and give them a FileIO that has their keys."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from pyiceberg.catalog import Catalog, MetastoreCatalog, delete_data_files, delete_files
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, TableAlreadyExistsError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.table import TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadataV3, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import AddSnapshotUpdate
from pyiceberg.typedef import EMPTY_DICT
from pyiceberg.utils.config import Config

from pyiceberg_encryption import process
from pyiceberg_encryption.errors import IntegrityError
from pyiceberg_encryption.kek_cache import KekCache
from pyiceberg_encryption.kms import GuardedClient, load_kms_client
from pyiceberg_encryption.table import metadata_files, policy
from pyiceberg_encryption.table.file_io import EncryptedFileIO, plain_io
from pyiceberg_encryption.table.keys import TableKeys
from pyiceberg_encryption.table.metadata_json import to_json
from pyiceberg_encryption.table.models import FIRST_ROW_ID, VERSION
from pyiceberg_encryption.table.policy import Policy
from pyiceberg_encryption.table.table import StagedTable, Table
from pyiceberg_encryption.table.transaction import CreateTableTransaction

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table as PyIcebergTable
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from pyiceberg.typedef import Identifier, Properties, TableVersion

KMS_PREFIX = "kms."


class Vouched(NamedTuple):
    """What a catalog says of a table by itself, beside where its metadata is."""

    key_id: str | None
    data_key_length: str | None
    metadata_hash: str | None


class EncryptingCatalog(MetastoreCatalog):
    """Comes before one of PyIceberg's catalogs in the order of inheritance."""

    def __init__(self, name: str, **properties: str) -> None:
        configured = Config().get_catalog_config(name) or {}
        merged: dict[str, Any] = {**configured, **properties}
        self._policy = Policy.of(merged)
        self._keks = _Keks(merged)
        self._warned: set[Identifier] = set()
        super().__init__(name, **_without_secrets(merged))

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
        try:
            transaction.commit_transaction()
        except CommitFailedException:  # by another program, in between
            raise TableAlreadyExistsError(f"Table {_name(identifier)} already exists") from None
        return self.load_table(identifier)

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
            raise TableAlreadyExistsError(f"Table {_name(identifier)} already exists")
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
        self._load(Catalog.identifier_to_tuple(identifier), metadata_location)
        return super().register_table(identifier, metadata_location, overwrite)  # type: ignore[safe-super]

    # Loading

    def _load(self, identifier: Identifier, metadata_location: str, vouched: Vouched | None = None) -> Table:
        """What a catalog calls with what it knows of a table."""
        plain = self._load_file_io(location=metadata_location)
        expected_hash = vouched.metadata_hash if vouched else None
        metadata, is_proven = metadata_files.read(plain, metadata_location, expected_hash)
        key_id = self._policy.check_loaded(identifier, metadata)
        if vouched is not None:
            _check_vouched(identifier, metadata, vouched)
        if key_id is not None and not is_proven:
            warning = self._policy.warning_of_unverified(identifier, metadata_location)
            if identifier not in self._warned:
                self._warned.add(identifier)
                warnings.warn(warning, policy.UnverifiedMetadataWarning, stacklevel=4)
            policy.check_names_no_code(_name(identifier), metadata.properties)
        else:
            plain = self._load_file_io(metadata.properties, metadata_location)
        return Table(identifier, metadata, metadata_location, self._io(metadata, plain), self)

    def _io(self, metadata: TableMetadata, plain: FileIO) -> FileIO:
        key_id = metadata.properties.get(policy.KEY_ID)
        if not key_id:
            return plain
        length = policy.data_key_length(metadata.properties)
        keys = TableKeys(key_id, length, self._keks.cache(), admits_plaintext_data=self._policy.admits_plaintext_data)
        return EncryptedFileIO(plain, keys)

    # Committing

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
        policy.check_change(_name(table_identifier), before, metadata)
        self._policy.check_loaded(table_identifier, metadata)
        location = staged.metadata_location
        if metadata.properties.get(policy.KEY_ID):
            location = metadata_files.named_after(to_json(metadata), location)
        plain = plain_io(current_table.io if current_table else staged.io)
        return self._staged(table_identifier, metadata, location, plain)

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

    # Dropping

    def purge_table(self, identifier: str | Identifier) -> None:
        """Drops the table and deletes its files. What cannot be read is found out before anything is dropped."""
        table = self.load_table(identifier)
        metadata = table.metadata
        manifests = [manifest for snapshot in metadata.snapshots for manifest in snapshot.manifests(table.io)]
        self.drop_table(identifier)
        delete_data_files(table.io, manifests)
        delete_files(table.io, {manifest.manifest_path for manifest in manifests}, "manifest")
        delete_files(table.io, {snapshot.manifest_list for snapshot in metadata.snapshots}, "manifest list")
        delete_files(table.io, {entry.metadata_file for entry in metadata.metadata_log}, "previous metadata")
        delete_files(table.io, {table.metadata_location}, "metadata")


class _Keks:
    """The KEK cache of a catalog, on the KMS that its properties name. The KMS is not reached before it is needed."""

    _lock: threading.Lock

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._open: Callable[[], GuardedClient] = lambda: load_kms_client(properties)
        self._cache: KekCache | None = None
        process.give_lock(self)

    def cache(self) -> KekCache:
        with self._lock:
            if self._cache is None:
                self._cache = KekCache(self._open())
            return self._cache


def _check_vouched(identifier: Identifier, metadata: TableMetadata, vouched: Vouched) -> None:
    for label, expected in ((policy.KEY_ID, vouched.key_id), (policy.DATA_KEY_LENGTH, vouched.data_key_length)):
        found = metadata.properties.get(label)
        if found != expected:
            raise IntegrityError(
                f"The metadata of {_name(identifier)} says that {label} is {found!r}, but the catalog says "
                f"{expected!r}: the metadata was changed"
            )


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


def _without_secrets(properties: dict[str, Any]) -> dict[str, Any]:
    """A catalog's properties are passed on and shown in many places, where keys and passphrases have no business."""
    return {name: value for name, value in properties.items() if not name.startswith(KMS_PREFIX)}


def _version(properties: Mapping[str, Any]) -> TableVersion:
    version: Any = properties.get(TableProperties.FORMAT_VERSION, TableProperties.DEFAULT_FORMAT_VERSION)
    return int(version)  # type: ignore[return-value]


def _name(identifier: str | Identifier) -> str:
    return ".".join(Catalog.identifier_to_tuple(identifier))
