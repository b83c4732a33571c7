"""Unwrapped KEKs, kept for a while so that a scan of a thousand files costs one call of the KMS."""

from __future__ import annotations

import hashlib
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

from pyiceberg_encryption import process

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg_encryption.kms.guard import GuardedClient
    from pyiceberg_encryption.secret import Secret

TTL_SECONDS_DEFAULT = 3600.0  # Iceberg Java: StandardEncryptionManager.unwrappedKeyCache
MAX_ENTRIES = 1000


class _Entry(NamedTuple):
    kek: Secret
    ends: float


class KekCache:
    """Belongs to one KMS client. Safe to use from several threads, and across a fork.

    However many threads ask for a KEK at once, the KMS is called once, and all of them get its answer or its error.
    Entries are found by the wrapped bytes and the master key, not by the KEK's id: who can change a table's metadata
    cannot make an id stand for another table's KEK.
    """

    def __init__(
        self, kms: GuardedClient, ttl_seconds: float = TTL_SECONDS_DEFAULT, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kms = kms
        self._ttl = ttl_seconds
        self._clock = clock
        self._entries: dict[bytes, _Entry] = {}
        self._reset()

    def unwrap(self, wrapped_kek: bytes, master_key_id: str) -> Secret:
        name = _name(wrapped_kek, master_key_id)
        with self._locked():
            self._drop_ended()
            if name in self._entries:
                return self._entries[name].kek
            flight = self._flights.get(name)
            leading = flight is None
            if flight is None:
                flight = self._flights[name] = Future()
        if leading:
            self._fly(flight, name, wrapped_kek, master_key_id)
        return flight.result()

    def put(self, kek: Secret, wrapped_kek: bytes, master_key_id: str) -> None:
        """Remembers a KEK that was just made."""
        with self._locked():
            self._remember(_name(wrapped_kek, master_key_id), kek)

    def _fly(self, flight: Future[Secret], name: bytes, wrapped_kek: bytes, master_key_id: str) -> None:
        try:
            kek = self._kms.unwrap_key(wrapped_kek, master_key_id)
        except BaseException as error:
            with self._locked():
                self._flights.pop(name, None)
            flight.set_exception(error)
        else:
            with self._locked():
                self._remember(name, kek)
                self._flights.pop(name, None)
            flight.set_result(kek)

    def _remember(self, name: bytes, kek: Secret) -> None:
        if self._ttl > 0:
            while len(self._entries) >= MAX_ENTRIES:
                del self._entries[next(iter(self._entries))]
            self._entries[name] = _Entry(kek, self._clock() + self._ttl)

    def _drop_ended(self) -> None:
        now = self._clock()
        for name in [name for name, entry in self._entries.items() if entry.ends <= now]:
            del self._entries[name]

    def _locked(self) -> threading.Lock:
        if self._process != process.generation():
            self._reset()
        return self._lock

    def _reset(self) -> None:
        """A lock or a call under way in another thread at the moment of a fork never ends in the child."""
        self._process = process.generation()
        self._lock = threading.Lock()
        self._flights: dict[bytes, Future[Secret]] = {}


def _name(wrapped_kek: bytes, master_key_id: str) -> bytes:
    return hashlib.sha256(wrapped_kek).digest() + master_key_id.encode()
