"""The keys of one table, as long as a program has it loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg_encryption import process
from pyiceberg_encryption.errors import IntegrityError
from pyiceberg_encryption.key_metadata import StandardKeyMetadata
from pyiceberg_encryption.keyring import EncryptedKey, Keyring
from pyiceberg_encryption.table.models import encryption_keys, key_id

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable

    from pyiceberg.table.metadata import TableMetadata

    from pyiceberg_encryption.kek_cache import KekCache
    from pyiceberg_encryption.secret import Secret


class TableKeys:
    """`master_key_id` and `data_key_length` come from where they can be trusted.

    Entries of `encryption-keys` are learnt and never forgotten: a scan that was planned before other snapshots came or
    went needs its own. What a commit may build upon is another matter; that is `keyring`.
    """

    _lock: threading.Lock

    def __init__(
        self, master_key_id: str, data_key_length: int, kek_cache: KekCache, *, admits_plaintext_data: bool = False
    ) -> None:
        self.master_key_id = master_key_id
        self.data_key_length = data_key_length
        self.admits_plaintext_data = admits_plaintext_data
        self._kek_cache = kek_cache
        self._known: dict[str, EncryptedKey] = {}
        self._opener: Keyring | None = None
        process.give_lock(self)

    def learn(self, keys: Iterable[EncryptedKey]) -> None:
        with self._lock:
            for key in keys:
                if self._known.setdefault(key.key_id, key) != key:
                    raise IntegrityError(f"Key {key.key_id!r} in encryption-keys is not what it was before")
            self._opener = None

    def open_manifest_list_key(self, key_id: str) -> StandardKeyMetadata:
        with self._lock:
            if self._opener is None:
                self._opener = self._keyring(self._known.values())
            opener = self._opener
        return opener.open_manifest_list_key(key_id)

    def keyring(self, metadata: TableMetadata) -> Keyring:
        """What a commit on top of this metadata seals its keys with."""
        snapshot_key_ids = []
        for snapshot in metadata.snapshots:
            name = key_id(snapshot)
            if name is None:
                raise IntegrityError(
                    f"Snapshot {snapshot.snapshot_id} has no key-id, but the table is encrypted: its metadata was "
                    "changed, or written by software that does not know encryption"
                )
            snapshot_key_ids.append(name)
        return self._keyring(encryption_keys(metadata), snapshot_key_ids)

    def unwrap(self, wrapped_kek: bytes) -> Secret:
        return self._kek_cache.unwrap(wrapped_kek, self.master_key_id)

    def new_key_metadata(self) -> StandardKeyMetadata:
        return StandardKeyMetadata.generate(self.data_key_length)

    def check_may_be_plaintext(self, location: str) -> None:
        if not self.admits_plaintext_data:
            raise IntegrityError(
                f"{location} has no key, but belongs to an encrypted table. If the table is being converted, set the "
                "catalog property encryption.plaintext-data-files to admit"
            )

    def _keyring(self, keys: Iterable[EncryptedKey], snapshot_key_ids: Iterable[str] = ()) -> Keyring:
        return Keyring(
            keys,
            master_key_id=self.master_key_id,
            kek_cache=self._kek_cache,
            snapshot_key_ids=snapshot_key_ids,
            data_key_length=self.data_key_length,
        )
