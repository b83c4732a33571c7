"""Unwrapped KEKs, kept for a while so that a scan of a thousand files costs one call of the KMS."""

from __future__ import annotations

import hashlib
import os
import time
from typing import TYPE_CHECKING, NamedTuple

from pyiceberg_encryption import process
from pyiceberg_encryption.ciphers import KEY_LENGTHS
from pyiceberg_encryption.errors import ConfigurationError, EncryptionError, UsageError
from pyiceberg_encryption.kms.guard import GuardedClient, number
from pyiceberg_encryption.secret import Secret

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

TTL = "kms.kek-cache-ttl"
MAX_TTL_SECONDS = 7 * 24 * 3600
TTL_SECONDS_DEFAULT = 3600.0  # Iceberg Java: StandardEncryptionManager.unwrappedKeyCache
MAX_ENTRIES = 1000


class _Entry(NamedTuple):
    kek: Secret
    ends: float


class _Flight:
    """A call of the KMS that one thread makes and others wait for, by waiting for the lock."""

    _lock: threading.Lock

    def __init__(self) -> None:
        process.give_lock(self)
        self.kek: Secret | None = None
        self.error: EncryptionError | None = None


class KekCache:
    """The KEKs of all tables under one KMS client: make one, and share it between keyrings.

    It is safe to use from several threads, and across a fork. However many threads ask for a KEK at once, the KMS is
    called once, and all of them get its answer or its error.

    Entries are found by the wrapped bytes and the master key, not by the KEK's id: who can change a table's metadata
    cannot make an id stand for another table's KEK.
    """

    _lock: threading.Lock

    def __init__(
        self, kms: GuardedClient, ttl_seconds: float = TTL_SECONDS_DEFAULT, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if not isinstance(kms, GuardedClient):
            raise UsageError("A KMS client is used through its guard: take what load_kms_client returns")
        self._kms = kms
        self._ttl = ttl_seconds
        self._clock = clock
        process.give_lock(self)
        self._entries: dict[bytes, _Entry] = {}
        self._flights: dict[bytes, _Flight] = {}

    @classmethod
    def from_properties(cls, kms: GuardedClient, properties: Mapping[str, str]) -> KekCache:
        return cls(kms, number(properties, TTL, TTL_SECONDS_DEFAULT, float, MAX_TTL_SECONDS, may_be_zero=True))

    def unwrap(self, wrapped_kek: bytes, master_key_id: str) -> Secret:
        name = _name(wrapped_kek, master_key_id)
        with self._lock:
            self._drop_ended()
            if name in self._entries:
                return self._entries[name].kek
            flight = self._flights.setdefault(name, _Flight())
        with flight._lock:
            if flight.error is not None:
                raise type(flight.error)(*flight.error.args)
            if flight.kek is None:  # nobody called yet, or who did was interrupted or left behind by a fork
                try:
                    kek = self._kms.unwrap_key(wrapped_kek, master_key_id)
                except EncryptionError as error:
                    self._flights.pop(name, None)  # before it has an outcome, which nobody shall find there later
                    flight.error = error
                    raise
                self._put(kek, wrapped_kek, master_key_id)
                self._flights.pop(name, None)
                flight.kek = kek
            return flight.kek

    def make(
        self, master_key_id: str, length: int, entropy: Callable[[int], bytes] = os.urandom
    ) -> tuple[Secret, bytes]:
        """A new KEK of at least this length, in the clear and wrapped. The KMS makes it if it can."""
        generated = self._kms.generate_key(master_key_id)
        if generated is None:
            kek = Secret.random(length, entropy)
            wrapped = self._kms.wrap_key(kek, master_key_id)
        else:
            kek, wrapped = generated
            if len(kek) not in KEY_LENGTHS or len(kek) < length:
                raise ConfigurationError(
                    f"The KMS generates keys of {len(kek)} bytes, but this table's data keys have {length}. Have it "
                    "generate longer ones (for AWS: kms.data-key-spec, for Vault: kms.vault.data-key-bits)"
                )
        self._put(kek, wrapped, master_key_id)
        return kek, wrapped

    def _put(self, kek: Secret, wrapped_kek: bytes, master_key_id: str) -> None:
        if self._ttl > 0:
            with self._lock:
                while len(self._entries) >= MAX_ENTRIES:
                    del self._entries[next(iter(self._entries))]
                self._entries[_name(wrapped_kek, master_key_id)] = _Entry(kek, self._clock() + self._ttl)

    def _drop_ended(self) -> None:
        now = self._clock()
        for name in [name for name, entry in self._entries.items() if entry.ends <= now]:
            del self._entries[name]


def _name(wrapped_kek: bytes, master_key_id: str) -> bytes:
    return hashlib.sha256(wrapped_kek).digest() + master_key_id.encode()
