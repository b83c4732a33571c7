"""AGS1 files and key metadata, between Iceberg Java's own classes and this package."""

from __future__ import annotations

import io
import random
from typing import TYPE_CHECKING

import pytest

from integration.java import JavaError
from pyiceberg_encryption import AesGcmInputStream, AesGcmOutputStream, Secret, StandardKeyMetadata
from pyiceberg_encryption.stream import decrypt
from pyiceberg_encryption.stream.layout import PLAIN_BLOCK_LENGTH as BLOCK

if TYPE_CHECKING:
    from pathlib import Path

    from integration.java import Peer

LENGTHS = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + BLOCK // 2]
KEY_LENGTHS = [16, 24, 32]


def ranges(length: int, rng: random.Random) -> list[tuple[int, int]]:
    """Parts of a file to read in random order, with the edges of blocks among them."""
    edges = [at for at in (0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, length - 1) if 0 <= at < length]
    starts = [*edges, *(rng.randrange(length) for _ in range(20 if length else 0))]
    rng.shuffle(starts)
    return [(start, min(rng.choice([1, 100, 5000, BLOCK + 7]), length - start)) for start in starts]


@pytest.mark.parametrize("key_length", KEY_LENGTHS)
@pytest.mark.parametrize("length", LENGTHS)
def test_java_writes_and_python_reads(java: Peer, tmp_path: Path, length: int, key_length: int) -> None:
    rng = random.Random(length + key_length)
    plain = rng.randbytes(length)
    (tmp_path / "plain").write_bytes(plain)
    made = StandardKeyMetadata.generate(key_length)
    assert made.aad_prefix is not None
    answer = java.ask(
        "write-stream",
        plain=str(tmp_path / "plain"),
        encrypted=str(tmp_path / "encrypted"),
        key=bytes(made.encryption_key.expose()).hex(),
        aadPrefix=made.aad_prefix.hex(),
    )
    metadata = StandardKeyMetadata.decode(bytes.fromhex(answer["metadata"]))
    file = (tmp_path / "encrypted").read_bytes()
    assert metadata == made.with_file_length(len(file))

    assert decrypt(file, metadata) == plain
    with AesGcmInputStream((tmp_path / "encrypted").open("rb"), metadata) as stream:
        assert stream.read() == plain
        for start, count in ranges(length, rng):
            stream.seek(start)
            assert stream.read(count) == plain[start : start + count]
    with AesGcmInputStream(io.BytesIO(file), metadata) as stream:
        assert b"".join(iter(lambda: stream.read(70_001), b"")) == plain


@pytest.mark.parametrize("key_length", KEY_LENGTHS)
@pytest.mark.parametrize("length", LENGTHS)
def test_python_writes_and_java_reads(java: Peer, tmp_path: Path, length: int, key_length: int) -> None:
    rng = random.Random(length + key_length)
    plain = rng.randbytes(length)
    with AesGcmOutputStream((tmp_path / "encrypted").open("wb"), StandardKeyMetadata.generate(key_length)) as stream:
        at = 0
        while at < length:
            at += stream.write(plain[at : at + rng.choice([1, 1000, 300_000, 2 * BLOCK])])
    parts = ranges(length, rng)
    answer = java.ask(
        "read-stream",
        metadata=stream.key_metadata.encode().hex(),
        encrypted=str(tmp_path / "encrypted"),
        plain=str(tmp_path / "plain"),
        ranges=parts,
    )
    assert answer["length"] == length
    assert (tmp_path / "plain").read_bytes() == plain
    assert answer["parts"] == [plain[start : start + count].hex() for start, count in parts]


def test_java_notices_when_python_wrote_under_another_key(java: Peer, tmp_path: Path) -> None:
    """So the tests above would fail if Java did not verify what it reads."""
    metadata = StandardKeyMetadata.generate(16)
    with AesGcmOutputStream((tmp_path / "encrypted").open("wb"), metadata) as stream:
        stream.write(b"text")
    other = StandardKeyMetadata(Secret(bytes(16)), metadata.aad_prefix, stream.key_metadata.file_length)
    with pytest.raises(JavaError, match="GCM tag check failed"):
        java.ask(
            "read-stream",
            metadata=other.encode().hex(),
            encrypted=str(tmp_path / "encrypted"),
            plain=str(tmp_path / "plain"),
            ranges=[],
        )


@pytest.mark.parametrize("file_length", [None, 0, 36, 63, 64, 8191, 8192, 1_048_612, 2**31, 2**63 - 1])
@pytest.mark.parametrize("prefix_length", [0, 16, 63, 64, 200])
@pytest.mark.parametrize("key_length", KEY_LENGTHS)
def test_key_metadata_byte_for_byte(java: Peer, key_length: int, prefix_length: int, file_length: int | None) -> None:
    rng = random.Random(key_length * prefix_length)
    key, prefix = rng.randbytes(key_length), rng.randbytes(prefix_length)
    ours = StandardKeyMetadata(Secret(key), prefix, file_length)
    fields = {"key": key.hex(), "aadPrefix": prefix.hex(), "fileLength": file_length}
    javas = bytes.fromhex(java.ask("encode-metadata", **fields)["metadata"])
    assert ours.encode() == javas
    assert StandardKeyMetadata.decode(javas) == ours
    assert java.ask("decode-metadata", metadata=ours.encode().hex()) == fields


def test_java_reads_key_metadata_without_a_prefix(java: Peer) -> None:
    ours = StandardKeyMetadata(Secret(b"k" * 16))
    assert java.ask("decode-metadata", metadata=ours.encode().hex()) == {
        "key": (b"k" * 16).hex(),
        "aadPrefix": None,
        "fileLength": None,
    }
