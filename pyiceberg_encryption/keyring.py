"""The keys of one table: what its metadata keeps under `encryption-keys`, and what it takes to use and extend it.

Two kinds of entries are in that list. A KEK is wrapped by the table's master key, and carries the time at which it was
made. The key metadata of a snapshot's manifest list is sealed by a KEK, with that KEK's time as AAD; the snapshot's
`key-id` names this entry.
"""

from __future__ import annotations

import base64
import binascii
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyiceberg_encryption import process
from pyiceberg_encryption.ciphers import KEY_LENGTHS, AesGcm
from pyiceberg_encryption.errors import ConfigurationError, FormatError, IntegrityError
from pyiceberg_encryption.key_metadata import StandardKeyMetadata
from pyiceberg_encryption.secret import Secret

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Mapping

    from pyiceberg_encryption.kek_cache import KekCache

KEY_TIMESTAMP = "KEY_TIMESTAMP"  # Iceberg Java: StandardEncryptionManager; epoch milliseconds in decimal
KEY_ID_LENGTH = 16
DATA_KEY_LENGTH_DEFAULT = 16  # Iceberg Java: TableProperties.ENCRYPTION_DEK_LENGTH_DEFAULT
MILLIS_PER_DAY = 24 * 60 * 60 * 1000
KEK_LIFESPAN_DAYS_DEFAULT = 730  # NIST SP 800-57 part 1 rev. 5, section 5.3.6.7.b
MAX_CLOCK_SKEW_MILLIS = 5 * 60 * 1000  # between the machines that write to one table
MAX_TIMESTAMP_DIGITS = 15


@dataclass(frozen=True)
class EncryptedKey:
    """An entry of `encryption-keys`."""

    key_id: str
    encrypted_key_metadata: bytes = field(repr=False)
    encrypted_by_id: str | None
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, entry: Any) -> EncryptedKey:
        """From an object of the table metadata's JSON."""
        if not isinstance(entry, dict):
            raise FormatError("An entry of encryption-keys is not an object")
        key_id, encrypted_by_id = entry.get("key-id"), entry.get("encrypted-by-id")
        if not isinstance(key_id, str) or not key_id:
            raise FormatError("An entry of encryption-keys has no key-id")
        if encrypted_by_id is not None and not isinstance(encrypted_by_id, str):
            raise FormatError(f"Entry {key_id!r} of encryption-keys has an encrypted-by-id that is not a string")
        properties = {} if entry.get("properties") is None else entry["properties"]
        if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
            raise FormatError(f"Entry {key_id!r} of encryption-keys has properties that are not strings")
        try:
            metadata = base64.b64decode(entry["encrypted-key-metadata"], validate=True)
        except (binascii.Error, KeyError, TypeError, ValueError):
            raise FormatError(f"Entry {key_id!r} of encryption-keys holds no base64") from None
        return cls(key_id, metadata, encrypted_by_id, dict(properties))

    def to_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "key-id": self.key_id,
            "encrypted-key-metadata": base64.b64encode(self.encrypted_key_metadata).decode(),
        }
        if self.encrypted_by_id is not None:
            entry["encrypted-by-id"] = self.encrypted_by_id
        if self.properties:
            entry["properties"] = dict(self.properties)
        return entry


class Keyring:
    """Opens and adds the manifest-list keys of one table.

    `keys` are the entries of the table's metadata, and `snapshot_key_ids` the `key-id`s of its snapshots: all of these
    must be there, so that entries which were taken away are missed before anything is written. `master_key_id` is the
    table's `encryption.key-id`, from a source that is trusted: no other master key is ever used.
    """

    _lock: threading.Lock

    def __init__(
        self,
        keys: Iterable[EncryptedKey],
        *,
        master_key_id: str,
        kek_cache: KekCache,
        snapshot_key_ids: Iterable[str] = (),
        data_key_length: int = DATA_KEY_LENGTH_DEFAULT,
        kek_lifespan_days: float = KEK_LIFESPAN_DAYS_DEFAULT,
        clock: Callable[[], float] = time.time,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        if not master_key_id:
            raise ConfigurationError("An encrypted table needs the id of a master key (encryption.key-id)")
        if data_key_length not in KEY_LENGTHS:
            raise ConfigurationError(f"encryption.data-key-length is {data_key_length}; it must be 16, 24 or 32")
        if not kek_lifespan_days > 0:
            raise ConfigurationError(f"A KEK cannot live for {kek_lifespan_days} days")
        self._keys: dict[str, EncryptedKey] = {}
        for key in keys:
            if key.key_id in self._keys:
                raise IntegrityError(f"encryption-keys has two entries {key.key_id!r}")
            self._keys[key.key_id] = key
        self._added: list[EncryptedKey] = []
        self._master_key_id = master_key_id
        self._kek_cache = kek_cache
        self._snapshot_key_ids = tuple(snapshot_key_ids)
        self._data_key_length = data_key_length
        self._kek_lifespan = kek_lifespan_days * MILLIS_PER_DAY
        self._clock = clock
        self._entropy = entropy
        process.give_lock(self)

    @property
    def added(self) -> tuple[EncryptedKey, ...]:
        """The entries made here, which a commit must add to the table's metadata."""
        with self._lock:
            return tuple(self._added)

    def new_key_metadata(self) -> StandardKeyMetadata:
        """A fresh key for a file to be written."""
        return StandardKeyMetadata.generate(self._data_key_length, self._entropy)

    def open_manifest_list_key(self, key_id: str) -> StandardKeyMetadata:
        """The key metadata of the manifest list of the snapshot whose `key-id` this is."""
        entry = self._entry(key_id)
        if entry.encrypted_by_id == self._master_key_id:
            raise IntegrityError(f"Snapshot key {key_id!r} is a KEK, not the key of a manifest list")
        kek_entry = self._kek_entry(entry)
        return StandardKeyMetadata.decode(self._open(entry, kek_entry, self._unwrap(kek_entry)).expose())

    def seal_manifest_list_key(self, key_metadata: StandardKeyMetadata) -> str:
        """Adds an entry for the manifest list of a new snapshot, and a KEK where none can be used. Returns its key id.

        The key metadata must have the length of the finished manifest list.
        """
        if key_metadata.file_length is None:
            raise FormatError("The key metadata of a manifest list must record the length of the file")
        with self._lock:
            kek_entry, kek = self._kek_to_seal_with()
            sealed = AesGcm(kek, self._entropy).seal(key_metadata.encode(), _timestamp_aad(kek_entry))
            return self._add(EncryptedKey(self._new_id(), sealed, kek_entry.key_id)).key_id

    def kek_for_transport(self) -> tuple[bytes, Secret]:
        """A KEK, wrapped and in the clear, for what is sealed on its way to another process and kept nowhere."""
        with self._lock:
            kek_entry, kek = self._kek_to_seal_with()
            return kek_entry.encrypted_key_metadata, kek

    def _entry(self, key_id: str) -> EncryptedKey:
        if key_id not in self._keys:
            raise IntegrityError(
                f"Key {key_id!r} is missing from the table's encryption-keys: its metadata was changed, or written by "
                "software that does not know encryption. Restore a metadata file that has this key"
            )
        return self._keys[key_id]

    def _kek_entry(self, entry_of_manifest_list: EncryptedKey) -> EncryptedKey:
        kek_id = entry_of_manifest_list.encrypted_by_id
        if kek_id is None:
            raise IntegrityError(f"Key {entry_of_manifest_list.key_id!r} does not say which KEK sealed it")
        entry = self._entry(kek_id)
        if entry.encrypted_by_id != self._master_key_id:
            raise IntegrityError(
                f"KEK {kek_id!r} is wrapped by {entry.encrypted_by_id!r}, but the master key of this table is "
                f"{self._master_key_id!r}. If that is the right encryption.key-id, the table's metadata was changed"
            )
        return entry

    def _unwrap(self, kek_entry: EncryptedKey) -> Secret:
        try:
            kek = self._kek_cache.unwrap(kek_entry.encrypted_key_metadata, self._master_key_id)
        except IntegrityError as error:
            raise IntegrityError(f"KEK {kek_entry.key_id!r}: {error}") from None
        if len(kek) not in KEY_LENGTHS:
            raise IntegrityError(
                f"KEK {kek_entry.key_id!r} has {len(kek)} bytes once unwrapped; an AES key has 16, 24 or 32"
            )
        return kek

    def _open(self, entry: EncryptedKey, kek_entry: EncryptedKey, kek: Secret) -> Secret:
        """The encoded key metadata. That it opens proves the KEK, its time and the entry."""
        try:
            return Secret(AesGcm(kek).open(entry.encrypted_key_metadata, _timestamp_aad(kek_entry)))
        except (IntegrityError, FormatError):
            raise IntegrityError(
                f"Key {entry.key_id!r} does not open with KEK {kek_entry.key_id!r}: one of them, or the "
                f"{KEY_TIMESTAMP} of the KEK, was changed"
            ) from None

    def _kek_to_seal_with(self) -> tuple[EncryptedKey, Secret]:
        self._check_complete()
        return self._usable_kek() or self._new_kek()

    def _check_complete(self) -> None:
        """Nothing is added to a list from which something was taken: that would hide it."""
        for key_id in self._snapshot_key_ids:
            self._kek_entry(self._entry(key_id))

    def _usable_kek(self) -> tuple[EncryptedKey, Secret] | None:
        """The newest KEK that is young enough, long enough, and proven to have the time that it claims.

        The proof is a manifest-list key that opens with it, since its time is the AAD there. It comes before the time
        is looked at: nobody shall be able to have a new KEK made by making an old one look older. A KEK without proof
        is left alone, and so is one whose proven time lies in the future, since a writer's clock was wrong. Other
        writers choose differently among the KEKs that are not expired: Iceberg Java goes on with the first one,
        iceberg-rust with the newest.
        """
        now = self._now()
        keks = [(_timestamp(key), key) for key in self._keys.values() if key.encrypted_by_id == self._master_key_id]
        for made, kek_entry in sorted(keks, key=lambda kek: kek[0], reverse=True):
            proof = next((key for key in self._keys.values() if key.encrypted_by_id == kek_entry.key_id), None)
            if proof is not None:
                kek = self._unwrap(kek_entry)
                self._open(proof, kek_entry, kek)
                in_use = now - self._kek_lifespan < made <= now + MAX_CLOCK_SKEW_MILLIS
                if in_use and len(kek) >= self._data_key_length:
                    return kek_entry, kek
        return None

    def _new_kek(self) -> tuple[EncryptedKey, Secret]:
        kek, wrapped = self._kek_cache.make(self._master_key_id, self._data_key_length, self._entropy)
        properties = {KEY_TIMESTAMP: str(self._now())}
        return self._add(EncryptedKey(self._new_id(), wrapped, self._master_key_id, properties)), kek

    def _add(self, entry: EncryptedKey) -> EncryptedKey:
        self._keys[entry.key_id] = entry
        self._added.append(entry)
        return entry

    def _new_id(self) -> str:
        return base64.b64encode(self._entropy(KEY_ID_LENGTH)).decode()

    def _now(self) -> int:
        return int(self._clock() * 1000)


def _timestamp(kek_entry: EncryptedKey) -> int:
    text = kek_entry.properties.get(KEY_TIMESTAMP, "")
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_TIMESTAMP_DIGITS):
        raise IntegrityError(f"KEK {kek_entry.key_id!r} has no valid {KEY_TIMESTAMP}: the table's metadata was changed")
    return int(text)


def _timestamp_aad(kek_entry: EncryptedKey) -> bytes:
    _timestamp(kek_entry)
    return kek_entry.properties[KEY_TIMESTAMP].encode()
