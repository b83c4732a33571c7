"""What several tests need."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

from pyiceberg_encryption import KekCache, Keyring, StandardKeyMetadata
from pyiceberg_encryption.kms import GuardedClient
from pyiceberg_encryption.kms.guard import RetryPolicy
from pyiceberg_encryption.kms.memory import MemoryKeyManagementClient
from pyiceberg_encryption.stream import AesGcmOutputStream, layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyiceberg_encryption import EncryptedKey

BLOCK = layout.PLAIN_BLOCK_LENGTH

# The master keys of Iceberg Java's UnitestKMS
JAVA_MASTER_KEYS = {"keyA": b"0123456789012345", "keyB": b"1123456789012345"}
MEMORY_PROPERTIES = {
    f"kms.memory.key.{key_id}": base64.b64encode(key).decode() for key_id, key in JAVA_MASTER_KEYS.items()
}

NO_PAUSE = RetryPolicy(sleep=lambda seconds: None)


class RecordingClient(MemoryKeyManagementClient):
    """A client that keeps a list of its calls, and can be told to fail them."""

    def __init__(self, properties: Mapping[str, str] = MEMORY_PROPERTIES) -> None:
        super().__init__(properties)
        self.calls: list[tuple[str, str]] = []
        self.fail: Callable[[], None] = lambda: None

    def wrap_key(self, key: bytes, wrapping_key_id: str) -> bytes:
        self.calls.append(("wrap", wrapping_key_id))
        self.fail()
        return super().wrap_key(key, wrapping_key_id)

    def unwrap_key(self, wrapped_key: bytes, wrapping_key_id: str) -> bytes:
        self.calls.append(("unwrap", wrapping_key_id))
        self.fail()
        return super().unwrap_key(wrapped_key, wrapping_key_id)


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self, seconds: float = 1_800_000_000.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


DAY = 24 * 60 * 60


class Table:
    """A table's keys over several commits, each with a keyring of its own, as if in processes of their own."""

    def __init__(
        self, client: RecordingClient | None = None, *, master_key_id: str = "keyA", data_key_length: int = 16
    ) -> None:
        self.client = client or RecordingClient()
        self.master_key_id = master_key_id
        self.data_key_length = data_key_length
        self.clock = Clock()
        self.keys: list[EncryptedKey] = []
        self.snapshot_key_ids: list[str] = []

    def keyring(self, keys: Iterable[EncryptedKey] | None = None, policy: RetryPolicy = NO_PAUSE) -> Keyring:
        kms = GuardedClient(self.client, policy)
        return Keyring(
            self.keys if keys is None else keys,
            master_key_id=self.master_key_id,
            kek_cache=KekCache(kms),
            snapshot_key_ids=self.snapshot_key_ids,
            data_key_length=self.data_key_length,
            clock=self.clock,
        )

    def commit(self) -> tuple[str, StandardKeyMetadata]:
        """Adds a snapshot. Returns its key id, and what is sealed under it."""
        keyring = self.keyring()
        key_metadata = keyring.new_key_metadata().with_file_length(1234)
        key_id = keyring.seal_manifest_list_key(key_metadata)
        self.keys += keyring.added
        self.snapshot_key_ids.append(key_id)
        return key_id, key_metadata

    @property
    def keks(self) -> list[EncryptedKey]:
        return [key for key in self.keys if key.encrypted_by_id == self.master_key_id]


class KeptBytesIO(io.BytesIO):
    """A file in memory whose bytes outlive its closing."""

    written = b""

    def close(self) -> None:
        if not self.closed:
            self.written = self.getvalue()
        super().close()


def key_metadata(key_length: int = 16) -> StandardKeyMetadata:
    return StandardKeyMetadata.generate(key_length)


def encrypted(plain: bytes, metadata: StandardKeyMetadata) -> tuple[bytes, StandardKeyMetadata]:
    """The file that the writer makes of these bytes, and its key metadata."""
    sink = KeptBytesIO()
    with AesGcmOutputStream(sink, metadata) as stream:
        stream.write(plain)
    return sink.written, stream.key_metadata


def pattern(length: int) -> bytes:
    """Bytes that differ from block to block and from offset to offset."""
    unit = bytes(range(251))
    return (unit * (length // len(unit) + 1))[:length]
