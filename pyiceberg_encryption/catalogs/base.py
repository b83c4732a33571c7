"""What all catalogs share: they load tables only after checking them, and give them a FileIO that has their keys."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from pyiceberg.catalog import Catalog, delete_files
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.utils.config import Config

from pyiceberg_encryption import process
from pyiceberg_encryption.errors import IntegrityError, UsageError
from pyiceberg_encryption.kek_cache import KekCache
from pyiceberg_encryption.kms import load_kms_client
from pyiceberg_encryption.table import metadata_files, policy, reached
from pyiceberg_encryption.table.file_io import EncryptedFileIO
from pyiceberg_encryption.table.keys import TableKeys
from pyiceberg_encryption.table.policy import Policy
from pyiceberg_encryption.table.table import Table

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

    from pyiceberg.io import FileIO
    from pyiceberg.table import Table as PyIcebergTable
    from pyiceberg.table import Transaction
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.typedef import Identifier

KMS_PREFIX = "kms."


class Vouched(NamedTuple):
    """What a catalog says of a table by itself, beside where its metadata is."""

    key_id: str | None
    data_key_length: str | None
    metadata_hash: str | None


class EncryptingCatalog(Catalog):
    """Comes before one of PyIceberg's catalogs in the order of inheritance."""

    def __init__(self, name: str, **properties: str) -> None:
        configured = Config().get_catalog_config(name) or {}
        merged: dict[str, Any] = {**configured, **properties}
        self._policy = Policy.of(merged)
        self._keks = _Keks(merged)
        self._warned: set[Identifier] = set()
        super().__init__(name, **_without_secrets(merged))

    @property
    def kms_properties(self) -> Mapping[str, str]:
        """All that its KMS client was configured with, secrets included."""
        return self._keks.properties

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
            policy.check_names_no_code(name_of(identifier), metadata.properties)
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

    def _commit_creation(self, identifier: str | Identifier, transaction: Transaction) -> PyIcebergTable:
        try:
            transaction.commit_transaction()
        except CommitFailedException:
            if not self.table_exists(identifier):
                raise
            raise TableAlreadyExistsError(f"Table {name_of(identifier)} already exists") from None
        return self.load_table(identifier)

    def purge_table(self, identifier: str | Identifier) -> None:
        """Drops the table and deletes its files. What cannot be read is found out before anything is dropped."""
        table = self.load_table(identifier)
        metadata = table.metadata
        manifests = reached.manifests(metadata, table.io)
        files = {entry.data_file.file_path for entry in reached.entries(manifests, table.io, discard_deleted=False)}
        self.drop_table(identifier)
        delete_files(table.io, files, "data")
        delete_files(table.io, {manifest.manifest_path for manifest in manifests}, "manifest")
        delete_files(table.io, {snapshot.manifest_list for snapshot in metadata.snapshots}, "manifest list")
        delete_files(table.io, set(reached.statistics_files(metadata)), "statistics")
        delete_files(table.io, set(reached.metadata_files(metadata, table.metadata_location)), "metadata")


class _Keks:
    """The KEK cache of a catalog, on the KMS that its properties name. The KMS is not reached before it is needed."""

    _lock: threading.Lock

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.properties = properties
        self._cache: KekCache | None = None
        process.give_lock(self)

    def cache(self) -> KekCache:
        with self._lock:
            if self._cache is None:
                self._cache = KekCache.from_properties(load_kms_client(self.properties), self.properties)
            return self._cache


def _check_vouched(identifier: Identifier, metadata: TableMetadata, vouched: Vouched) -> None:
    for label, expected in ((policy.KEY_ID, vouched.key_id), (policy.DATA_KEY_LENGTH, vouched.data_key_length)):
        found = metadata.properties.get(label)
        if found != expected:
            raise IntegrityError(
                f"The metadata of {name_of(identifier)} says that {label} is {found!r}, but the catalog says "
                f"{expected!r}: the metadata was changed"
            )


def _without_secrets(properties: dict[str, Any]) -> dict[str, Any]:
    """A catalog's properties are passed on and shown in many places, where keys and passphrases have no business."""
    return {name: value for name, value in properties.items() if not name.startswith(KMS_PREFIX)}


def checked(catalog: Catalog) -> EncryptingCatalog:
    if not isinstance(catalog, EncryptingCatalog):
        raise UsageError(f"Catalog {catalog.name!r} has to be loaded by pyiceberg_encryption.load_catalog")
    return catalog


def name_of(identifier: str | Identifier) -> str:
    return ".".join(Catalog.identifier_to_tuple(identifier))
