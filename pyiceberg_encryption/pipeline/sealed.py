"""What travels to other processes and back, sealed: who listens on the way, or reads what the engine keeps of it,
learns no key of a file and no credential of the storage.

The sender derives a key from a KEK of the table. The receiver gets that KEK in the form in which the table's metadata
has it, wrapped by the master key, and has it unwrapped by a KMS client of its own, with its own credentials.
"""

from __future__ import annotations

import io
import os
import pickle
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pyiceberg.io import load_file_io
from pyiceberg.typedef import Record
from pyiceberg.utils.config import Config

from pyiceberg_encryption.catalogs.base import checked
from pyiceberg_encryption.ciphers import AesGcm
from pyiceberg_encryption.errors import ConfigurationError, FormatError, UsageError
from pyiceberg_encryption.kek_cache import KekCache
from pyiceberg_encryption.kms import load_kms_client
from pyiceberg_encryption.kms.registry import public_properties
from pyiceberg_encryption.secret import Secret
from pyiceberg_encryption.table.file_io import EncryptedFileIO
from pyiceberg_encryption.table.keys import TableKeys
from pyiceberg_encryption.table.manifests import decode_entries, decode_manifests, encode_entries, encode_manifests

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestEntry, ManifestFile
    from pyiceberg.table.metadata import TableMetadata

    from pyiceberg_encryption.table.manifests import V3ManifestFile
    from pyiceberg_encryption.table.table import Table

SALT_LENGTH = 16
LENGTH_BYTES = 8
DERIVED_KEY_LENGTH = 32
_KINDS_OF_VALUES = (
    *(("decimal", "Decimal"), ("uuid", "UUID"), ("uuid", "SafeUUID")),
    *(("datetime", name) for name in ("date", "datetime", "time", "timedelta", "timezone")),
)
_PURPOSE = b"pyiceberg_encryption.pipeline"


@dataclass(frozen=True)
class Envelope:
    """How the receiver comes to the key. There is nothing secret in it."""

    catalog: str
    kms: tuple[tuple[str, str], ...]
    master_key_id: str
    wrapped_kek: bytes
    salt: bytes

    def cipher(self) -> AesGcm:
        return _derived(self.keks().unwrap(self.wrapped_kek, self.master_key_id), self.salt)

    def keks(self) -> KekCache:
        return _keks_of_process(self.catalog, self.kms)


@dataclass(frozen=True)
class SealedEntries:
    """Files with their keys, by the partition spec that they were written with."""

    groups: tuple[tuple[int, bytes], ...]  # spec id, sealed


@dataclass(frozen=True)
class SealedTable:
    """A table, as it is sent: without its history, and without keys but that in the envelope."""

    envelope: Envelope
    _sealed: bytes

    @property
    def remote(self) -> RemoteTable:
        """As this process has it, which may be the one that sent it."""
        return _sent.get(self) or _opened(self)


@dataclass(frozen=True)
class _Description:
    metadata: TableMetadata
    io_properties: Mapping[str, str]
    data_key_length: int
    admits_plaintext_data: bool


class RemoteFiles:
    """What either side knows of a table: what its files look like, how to reach and decrypt them."""

    def __init__(self, cipher: AesGcm, metadata: TableMetadata, io: FileIO) -> None:
        self._cipher = cipher
        self.metadata = metadata
        self.io = io

    def seal(self, content: Any) -> bytes:
        """Anything that can be pickled, which keys cannot."""
        return self._cipher.seal(pickle.dumps(content), _PURPOSE + b".content")

    def open(self, sealed: bytes) -> Any:
        return pickle.loads(self._cipher.open(sealed, _PURPOSE + b".content"))  # noqa: S301  # it is authentic

    def seal_entries(self, entries: Iterable[ManifestEntry]) -> SealedEntries:
        by_spec: dict[int, list[ManifestEntry]] = {}
        for entry in entries:
            by_spec.setdefault(entry.data_file.spec_id, []).append(entry)
        return SealedEntries(tuple((spec_id, self._seal_group(group)) for spec_id, group in by_spec.items()))

    def open_entries(self, sealed: SealedEntries) -> list[ManifestEntry]:
        """Those of each spec in the order in which they were."""
        return [entry for spec_id, group in sealed.groups for entry in self._open_group(spec_id, group)]

    def _seal_group(self, entries: list[ManifestEntry]) -> bytes:
        partitions = [tuple(_values(entry.data_file.partition)) for entry in entries]
        encoded = encode_entries(entries)
        length = len(encoded).to_bytes(LENGTH_BYTES, "big")
        return self._cipher.seal(length + encoded + pickle.dumps(partitions), _PURPOSE + b".entries")

    def _open_group(self, spec_id: int, sealed: bytes) -> list[ManifestEntry]:
        opened = memoryview(self._cipher.open(sealed, _PURPOSE + b".entries"))
        end = LENGTH_BYTES + int.from_bytes(opened[:LENGTH_BYTES], "big")
        partitions = _Values(io.BytesIO(opened[end:])).load()
        return decode_entries(bytes(opened[LENGTH_BYTES:end]), (Record(*values) for values in partitions), spec_id)

    def seal_note(self, name: str, content: bytes) -> bytes:
        """For storage, where it has a name, and cannot take the place of what has another."""
        return self._cipher.seal(content, _PURPOSE + b".note." + name.encode())

    def open_note(self, name: str, sealed: bytes) -> bytes:
        return bytes(self._cipher.open(sealed, _PURPOSE + b".note." + name.encode()))

    def seal_manifests(self, manifests: Iterable[ManifestFile]) -> bytes:
        return self._cipher.seal(encode_manifests(manifests), _PURPOSE + b".manifests")

    def open_manifests(self, sealed: bytes) -> list[V3ManifestFile]:
        return decode_manifests(self._cipher.open(sealed, _PURPOSE + b".manifests"))


class RemoteTable(RemoteFiles):
    """An encrypted table."""

    io: EncryptedFileIO

    def __init__(self, cipher: AesGcm, metadata: TableMetadata, io: EncryptedFileIO) -> None:
        super().__init__(cipher, metadata, io)

    def plaintext(self, metadata: TableMetadata, plain: FileIO) -> RemoteFiles:
        """Of a table that is not encrypted, whose tasks travel under the key of this one."""
        return RemoteFiles(self._cipher, _without_history(metadata), plain)

    def seal_plaintext(self, metadata: TableMetadata, plain: FileIO) -> bytes:
        return self.seal((_without_history(metadata), dict(plain.properties)))

    def open_plaintext(self, sealed: bytes) -> RemoteFiles:
        metadata, io_properties = self.open(sealed)
        return self.plaintext(metadata, load_file_io(io_properties, metadata.location))


class _Values(pickle.Unpickler):
    """Of partitions, and no code: entries lie in storage too, sealed by what other holders of a KEK know as well."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KINDS_OF_VALUES:
            raise FormatError(f"A partition cannot have a value of type {module}.{name}")
        return super().find_class(module, name)


_sent: WeakValueDictionary[SealedTable, RemoteTable] = WeakValueDictionary()


def send(table: Table, metadata: TableMetadata | None = None) -> tuple[SealedTable, RemoteTable]:
    """The table as it can be sent, and as this side has it, which seals tasks and opens their results.

    `metadata` takes the place of what the table has. Its snapshots must be there with all their keys.
    """
    metadata = metadata or table.metadata
    io, catalog = table.io, table.catalog
    if not isinstance(io, EncryptedFileIO):
        raise UsageError(
            f"{'.'.join(table.name())} is not encrypted, and there is no key by which its tasks could be sealed. Use "
            "Iceberg's own runtime for it, or encrypt it first"
        )
    wrapped_kek, kek = io.keys.keyring(metadata).kek_for_transport()
    salt = os.urandom(SALT_LENGTH)
    envelope = Envelope(catalog.name, kms_of(catalog), io.keys.master_key_id, wrapped_kek, salt)
    here = RemoteTable(_derived(kek, salt), _without_history(metadata), io)
    description = _Description(
        here.metadata, dict(io.plain.properties), io.keys.data_key_length, io.keys.admits_plaintext_data
    )
    sealed = SealedTable(envelope, here.seal(description))
    _sent[sealed] = here
    return sealed, here


def opened_here(envelope: Envelope, table: Table) -> RemoteTable:
    """For what comes back to where the table is loaded."""
    if not isinstance(table.io, EncryptedFileIO):
        raise UsageError(f"{'.'.join(table.name())} is not encrypted")
    kek = table.io.keys.unwrap(envelope.wrapped_kek)
    return RemoteTable(_derived(kek, envelope.salt), table.metadata, table.io)


def kms_of(catalog: Catalog) -> tuple[tuple[str, str], ...]:
    """The settings of a catalog's KMS that are no secrets."""
    return tuple(sorted(public_properties(checked(catalog).kms_properties).items()))


@lru_cache(maxsize=16)
def _opened(table: SealedTable) -> RemoteTable:
    envelope = table.envelope
    cipher = envelope.cipher()
    description: _Description = pickle.loads(cipher.open(table._sealed, _PURPOSE + b".content"))  # noqa: S301
    keys = TableKeys(
        envelope.master_key_id,
        description.data_key_length,
        envelope.keks(),
        admits_plaintext_data=description.admits_plaintext_data,
    )
    plain = load_file_io(dict(description.io_properties), description.metadata.location)
    return RemoteTable(cipher, description.metadata, EncryptedFileIO(plain, keys))


@lru_cache(maxsize=16)
def _keks_of_process(catalog: str, sent: tuple[tuple[str, str], ...]) -> KekCache:
    """What this process is configured with counts most: it has the credentials, and may have to go another way."""
    configured: Mapping[str, Any] = Config().get_catalog_config(catalog) or {}
    properties = {**dict(sent), **configured}
    try:
        return KekCache.from_properties(load_kms_client(properties), properties)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{error}. This process, which works for another, has its own connection to the KMS: credentials are "
            f"never sent to it. Set what is secret where it runs, in .pyiceberg.yaml or in variables "
            f"PYICEBERG_CATALOG__{catalog.upper()}__…"
        ) from None


def _values(record: Record) -> Iterator[Any]:
    return (record[position] for position in range(len(record)))


def _derived(kek: Secret, salt: bytes) -> AesGcm:
    """A key for this one job: what is sealed on the way shares no nonce with what the table keeps."""
    derive = HKDF(SHA256(), DERIVED_KEY_LENGTH, salt, _PURPOSE)
    return AesGcm(Secret(derive.derive(kek.expose())))


def _without_history(metadata: TableMetadata) -> TableMetadata:
    """Readers and writers of files need schemas, partition specs and properties."""
    nothing: dict[str, Any] = {
        "snapshots": [],
        "snapshot_log": [],
        "metadata_log": [],
        "refs": {},
        "statistics": [],
        "partition_statistics": [],
        "current_snapshot_id": None,
    }
    if hasattr(metadata, "encryption_keys"):
        nothing["encryption_keys"] = None
    return metadata.model_copy(update=nothing)
