"""The `encryption-keys` of a table, between Iceberg Java's StandardEncryptionManager and this package's keyring.

Both sides have the master keys of Iceberg Java's UnitestKMS.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from integration.java import JavaError
from pyiceberg_encryption import EncryptedKey, KekCache, Keyring, Secret, StandardKeyMetadata, load_kms_client
from tests.support import MEMORY_PROPERTIES

if TYPE_CHECKING:
    from integration.java import Peer

KEY_LENGTHS = [16, 24, 32]
MASTER_KEY_IDS = ["keyA", "keyB"]


class SharedTable:
    """A table's keys as JSON, to which Java and Python add in turns."""

    def __init__(self, java: Peer, master_key_id: str, data_key_length: int) -> None:
        self._java = java
        self._common = {"masterKeyId": master_key_id, "dataKeyLength": data_key_length}
        self.master_key_id = master_key_id
        self.data_key_length = data_key_length
        self.keys: list[dict[str, Any]] = []
        self.sealed: dict[str, StandardKeyMetadata] = {}

    def keyring(self) -> Keyring:
        kms = load_kms_client({"encryption.kms-type": "memory", **MEMORY_PROPERTIES})
        return Keyring(
            [EncryptedKey.from_json(entry) for entry in self.keys],
            master_key_id=self.master_key_id,
            kek_cache=KekCache(kms),
            snapshot_key_ids=self.sealed,
            data_key_length=self.data_key_length,
        )

    def python_commits(self) -> None:
        keyring = self.keyring()
        metadata = keyring.new_key_metadata().with_file_length(4000 + len(self.sealed))
        self.sealed[keyring.seal_manifest_list_key(metadata)] = metadata
        self.keys += [key.to_json() for key in keyring.added]

    def java_commits(self) -> None:
        metadata = self.keyring().new_key_metadata().with_file_length(4000 + len(self.sealed))
        answer = self._java.ask("seal-key", keys=self.keys, metadata=metadata.encode().hex(), **self._common)
        self.keys = answer["keys"]
        self.sealed[answer["id"]] = metadata

    def assert_both_open_all(self) -> None:
        keyring = self.keyring()
        for key_id, metadata in self.sealed.items():
            assert keyring.open_manifest_list_key(key_id) == metadata
            answer = self._java.ask("open-key", keys=self.keys, id=key_id, **self._common)
            assert bytes.fromhex(answer["metadata"]) == metadata.encode()

    @property
    def keks(self) -> list[dict[str, Any]]:
        return [key for key in self.keys if key["encrypted-by-id"] == self.master_key_id]


@pytest.fixture(params=[(m, k) for m in MASTER_KEY_IDS for k in KEY_LENGTHS], ids=lambda p: f"{p[0]}-{p[1]}")
def table(java: Peer, request: pytest.FixtureRequest) -> SharedTable:
    return SharedTable(java, *request.param)


def test_java_begins_and_python_goes_on(table: SharedTable) -> None:
    table.java_commits()
    table.python_commits()
    table.java_commits()
    table.assert_both_open_all()
    assert len(table.keks) == 1


def test_python_begins_and_java_goes_on(table: SharedTable) -> None:
    table.python_commits()
    table.java_commits()
    table.python_commits()
    table.assert_both_open_all()
    assert len(table.keks) == 1


def test_java_refuses_what_is_tampered_with(java: Peer) -> None:
    """So the tests above would fail if Java did not verify what it opens."""
    table = SharedTable(java, "keyA", 16)
    table.python_commits()
    table.keks[0]["properties"]["KEY_TIMESTAMP"] = str(int(time.time() * 1000) - 5)
    with pytest.raises(JavaError, match="GCM tag check failed"):
        java.ask("open-key", keys=table.keys, id=next(iter(table.sealed)), masterKeyId="keyA", dataKeyLength=16)


def test_the_memory_client_opens_what_unitest_kms_wrapped_and_the_other_way_round(java: Peer) -> None:
    kms = load_kms_client({"encryption.kms-type": "memory", **MEMORY_PROPERTIES})
    client = {"encryption.kms-impl": "org.apache.iceberg.encryption.UnitestKMS"}
    for key_id in MASTER_KEY_IDS:
        for length in KEY_LENGTHS:
            key = bytes(range(length))
            wrapped = java.ask("kms", properties=client, keyId=key_id, wrap=True, bytes=key.hex())["bytes"]
            assert kms.unwrap_key(bytes.fromhex(wrapped), key_id) == Secret(key)
            ours = kms.wrap_key(Secret(key), key_id).hex()
            assert java.ask("kms", properties=client, keyId=key_id, wrap=False, bytes=ours)["bytes"] == key.hex()
