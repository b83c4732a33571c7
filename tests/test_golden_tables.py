"""Whole tables that Iceberg Java wrote through Spark: from metadata.json down to the rows, every file that they reach
is opened with nothing but the master keys.

`python -m integration.golden_tables` makes them anew. The test KMS is Java's UnitestKMS.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import fastavro
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from pyiceberg_encryption import (
    AesGcmInputStream,
    EncryptedKey,
    KekCache,
    Keyring,
    StandardKeyMetadata,
    load_kms_client,
)
from tests.support import MEMORY_PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLES = Path(__file__).parent / "vectors" / "iceberg-java" / "tables"
DELETED = 2  # status of a manifest entry

pytestmark = pytest.mark.parametrize("name", sorted(table.name for table in TABLES.iterdir()))


class GoldenTable:
    def __init__(self, name: str) -> None:
        self.folder = TABLES / name
        self.expected = json.loads((self.folder / "expected.json").read_text())
        self.metadata_file = self.local(self.expected["metadata-location"])
        self.metadata = json.loads(self.metadata_file.read_text())
        kms = load_kms_client({"encryption.kms-type": "memory", **MEMORY_PROPERTIES})
        self.keyring = Keyring(
            [EncryptedKey.from_json(entry) for entry in self.metadata.get("encryption-keys", [])],
            master_key_id=self.expected["metastore-parameters"]["encryption.key-id"],
            kek_cache=KekCache(kms),
            snapshot_key_ids=[snapshot["key-id"] for snapshot in self.snapshots],
            data_key_length=int(self.expected["metastore-parameters"].get("encryption.data-key-length", 16)),
        )

    @property
    def snapshots(self) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", self.metadata.get("snapshots", []))

    def local(self, location: str) -> Path:
        """Where a file of the table lies here."""
        return self.folder / location.split(f"/{self.folder.name}/", 1)[1]

    def manifests(self, snapshot: dict[str, Any]) -> list[dict[str, Any]]:
        metadata = self.keyring.open_manifest_list_key(snapshot["key-id"])
        return self.avro(snapshot["manifest-list"], metadata)

    def entries(self, snapshot: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for manifest in self.manifests(snapshot):
            metadata = StandardKeyMetadata.decode(manifest["key_metadata"])
            assert manifest["manifest_length"] == metadata.file_length
            yield from self.avro(manifest["manifest_path"], metadata)

    def files(self) -> Iterator[tuple[dict[str, Any], StandardKeyMetadata]]:
        """All data and delete files that the table's snapshots reach."""
        for snapshot in self.snapshots:
            for entry in self.entries(snapshot):
                if entry["status"] != DELETED:
                    yield entry["data_file"], StandardKeyMetadata.decode(entry["data_file"]["key_metadata"])

    def avro(self, location: str, metadata: StandardKeyMetadata) -> list[dict[str, Any]]:
        with self.stream(location, metadata) as stream:
            return cast("list[dict[str, Any]]", list(fastavro.reader(cast("IO[Any]", stream))))

    def stream(self, location: str, metadata: StandardKeyMetadata) -> AesGcmInputStream:
        return AesGcmInputStream(self.local(location).open("rb"), metadata, location=location)


@pytest.fixture
def table(name: str) -> GoldenTable:
    return GoldenTable(name)


def test_keys_have_the_length_that_the_table_asks_for(table: GoldenTable) -> None:
    expected = int(table.expected["metastore-parameters"].get("encryption.data-key-length", 16))
    assert {len(metadata.encryption_key) for _, metadata in table.files()} <= {expected}


def test_every_file_opens_with_the_key_that_its_parent_holds(table: GoldenTable) -> None:
    formats = set()
    for file, metadata in table.files():
        formats.add(file["file_format"])
        assert file["file_size_in_bytes"] == table.local(file["file_path"]).stat().st_size
        if file["file_format"] == "PARQUET":
            assert len(parquet_rows(table, file, metadata)) == file["record_count"]
        elif file["file_format"] == "AVRO":
            assert len(table.avro(file["file_path"], metadata)) == file["record_count"]
        else:
            with table.stream(file["file_path"], metadata) as stream:
                puffin = stream.read()
            assert puffin[:4] == puffin[-4:] == b"PFA1"
    if table.snapshots:
        assert formats == {"deletion_vectors": {"PARQUET", "PUFFIN"}, "avro": {"AVRO"}}.get(
            table.folder.name, {"PARQUET"}
        )


def parquet_rows(table: GoldenTable, file: dict[str, Any], metadata: StandardKeyMetadata) -> list[dict[str, Any]]:
    path = table.local(file["file_path"])
    assert path.read_bytes()[:4] == path.read_bytes()[-4:] == b"PARE"
    properties = pe.create_decryption_properties(
        bytes(metadata.encryption_key.expose()), aad_prefix=metadata.aad_prefix
    )
    return cast("list[dict[str, Any]]", pq.ParquetFile(path, decryption_properties=properties).read().to_pylist())


def test_no_file_but_the_metadata_is_in_the_clear(table: GoldenTable) -> None:
    for path in table.folder.rglob("*"):
        if path.is_file() and path.suffix != ".json":
            assert path.read_bytes()[:4] in (b"AGS1", b"PARE"), path


def test_a_commit_from_here_goes_on_with_javas_kek(table: GoldenTable) -> None:
    table.keyring.seal_manifest_list_key(table.keyring.new_key_metadata().with_file_length(99))
    assert len(table.keyring.added) == (1 if table.snapshots else 2)  # an empty table has no KEK yet


def test_the_metastores_hash_is_that_of_the_metadata_file(table: GoldenTable) -> None:
    digest = hashlib.sha256(table.metadata_file.read_bytes()).digest()
    assert base64.b64encode(digest).decode() == table.expected["metastore-parameters"]["metadata_hash"]
