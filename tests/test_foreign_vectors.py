"""Files and keys that other implementations wrote."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest

from pyiceberg_encryption import EncryptedKey, KekCache, Keyring, StandardKeyMetadata, load_kms_client
from pyiceberg_encryption.errors import FormatError
from pyiceberg_encryption.stream import decrypt
from tests.support import MEMORY_PROPERTIES

VECTORS = Path(__file__).parent / "vectors"
JAVA = json.loads((VECTORS / "iceberg-java" / "streams.json").read_text())


def keyring(entries: list[dict[str, Any]], master_key_id: str, **properties: str) -> Keyring:
    kms = load_kms_client({"encryption.kms-type": "memory", **MEMORY_PROPERTIES, **properties})
    keys = [EncryptedKey.from_json(entry) for entry in entries]
    return Keyring(keys, master_key_id=master_key_id, kek_cache=KekCache(kms))


@pytest.mark.parametrize("vector", JAVA["streams"], ids=lambda v: f"{len(v['plain']) // 2}-{len(v['metadata'])}")
def test_streams_of_iceberg_java(vector: dict[str, str]) -> None:
    metadata = StandardKeyMetadata.decode(bytes.fromhex(vector["metadata"]))
    assert metadata.encode().hex() == vector["metadata"]
    assert decrypt(bytes.fromhex(vector["encrypted"]), metadata) == bytes.fromhex(vector["plain"])


@pytest.mark.parametrize("vector", JAVA["keyrings"], ids=lambda v: f"{v['master-key-id']}-{len(v['metadata'])}")
def test_keyrings_of_iceberg_java(vector: dict[str, Any]) -> None:
    ring = keyring(vector["keys"], vector["master-key-id"])
    assert ring.open_manifest_list_key(vector["key-id"]).encode().hex() == vector["metadata"]
    ring.seal_manifest_list_key(ring.new_key_metadata().with_file_length(99))
    assert len(ring.added) == 1  # under the KEK that Java made
    assert [EncryptedKey.from_json(entry).to_json() for entry in vector["keys"]] == vector["keys"]


def test_a_manifest_list_of_iceberg_rust() -> None:
    """Its key metadata records no file length. Iceberg Java refuses that, and so does this package, unless told."""
    folder = VECTORS / "iceberg-rust"
    file = (folder / "manifest-list-v3-encrypted.avro").read_bytes()
    table = json.loads((folder / "TableMetadataV3ValidEncryption.json").read_text())
    ring = keyring(
        table["encryption-keys"],
        table["properties"]["encryption.key-id"],
        **{"kms.memory.key.master-1": "AAECAwQFBgcICQoLDA0ODw=="},
    )
    metadata = ring.open_manifest_list_key(table["snapshots"][0]["key-id"])
    assert metadata.file_length is None
    with pytest.raises(FormatError, match="does not record a file length"):
        decrypt(file, metadata)
    plain = decrypt(file, metadata, allow_unrecorded_length=True)
    records = fastavro.reader(io.BytesIO(plain))
    assert records.writer_schema is not None
    assert "manifest_path" in json.dumps(records.writer_schema)
    assert list(records) == []
