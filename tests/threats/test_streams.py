"""Attacks on encrypted files. The numbers are those of the threat table in docs/security.md."""

from __future__ import annotations

import io
import tracemalloc
from typing import Any

import pytest

from pyiceberg_encryption import StandardKeyMetadata
from pyiceberg_encryption.errors import FormatError, IntegrityError
from pyiceberg_encryption.stream import AesGcmInputStream, decrypt, layout
from tests.support import BLOCK, encrypted, key_metadata, pattern

CIPHER_BLOCK = layout.CIPHER_BLOCK_LENGTH
PLAIN = pattern(3 * BLOCK + 500)
FILE, METADATA = encrypted(PLAIN, key_metadata())
UNRECORDED = StandardKeyMetadata(METADATA.encryption_key, METADATA.aad_prefix)


def assert_refused(file: bytes, metadata: StandardKeyMetadata, error: Any = IntegrityError, **options: Any) -> None:
    """However it is read: in one piece, in parts, from memory, from a file."""
    for source in (file, io.BytesIO(file)):
        with pytest.raises(error):
            AesGcmInputStream(source, metadata, **options).read()
    with pytest.raises(error):
        stream = AesGcmInputStream(io.BytesIO(file), metadata, **options)
        while stream.read(1000):
            pass


def flipped(file: bytes, at: int) -> bytes:
    changed = bytearray(file)
    changed[at] ^= 0x01
    return bytes(changed)


def cipher_block(number: int) -> slice:
    return slice(8 + number * CIPHER_BLOCK, 8 + (number + 1) * CIPHER_BLOCK)


def test_01_any_byte_of_the_file_flipped() -> None:
    file, metadata = encrypted(b"some plaintext", key_metadata())
    for at in range(len(file)):
        with pytest.raises((IntegrityError, FormatError)):
            decrypt(flipped(file, at), metadata)


@pytest.mark.parametrize("block", range(4))
@pytest.mark.parametrize("at", [0, 11, 12, 500, -16, -1])
def test_01_a_byte_of_one_block_flipped(block: int, at: int) -> None:
    start, end = 8 + block * CIPHER_BLOCK, min(8 + (block + 1) * CIPHER_BLOCK, len(FILE))
    file = flipped(FILE, (start if at >= 0 else end) + at)
    assert_refused(file, METADATA)
    stream = AesGcmInputStream(io.BytesIO(file), METADATA, location="s3://bucket/file")
    if block > 0:
        assert stream.read(block * BLOCK) == PLAIN[: block * BLOCK]  # what is whole can be read
    with pytest.raises(IntegrityError, match=f"s3://bucket/file, block {block}"):
        stream.read(1)


@pytest.mark.parametrize("size", [500, BLOCK, 3 * BLOCK + 500])
def test_01_no_plaintext_is_left_in_the_buffer_of_a_failed_read(size: int) -> None:
    """OpenSSL decrypts into the caller's buffer before it knows whether the tag is right."""
    damaged = flipped(FILE, 8 + 3 * CIPHER_BLOCK - 1) if size > BLOCK else flipped(FILE, 8 + CIPHER_BLOCK - 1)
    bad = 2 if size > BLOCK else 0
    out = bytearray(size)
    with pytest.raises(IntegrityError):
        AesGcmInputStream(io.BytesIO(damaged), METADATA).readinto(out)
    assert not any(out[bad * BLOCK : (bad + 1) * BLOCK])


def test_01_a_failed_block_is_not_served_from_the_cache_afterwards() -> None:
    stream = AesGcmInputStream(io.BytesIO(flipped(FILE, 8 + CIPHER_BLOCK - 1)), METADATA)
    for _ in range(3):
        with pytest.raises(IntegrityError):
            stream.read(10)
        assert stream.tell() == 0


@pytest.mark.parametrize(("one", "other"), [(0, 1), (0, 2), (1, 2)])
def test_02_blocks_swapped(one: int, other: int) -> None:
    file = bytearray(FILE)
    file[cipher_block(one)], file[cipher_block(other)] = FILE[cipher_block(other)], FILE[cipher_block(one)]
    assert_refused(bytes(file), METADATA)


def test_02_a_block_dropped() -> None:
    file = FILE[: cipher_block(1).start] + FILE[cipher_block(1).stop :]
    assert_refused(file, METADATA)
    assert_refused(file, UNRECORDED, allow_unrecorded_length=True)


def test_02_a_block_repeated() -> None:
    file = FILE[: cipher_block(1).stop] + FILE[cipher_block(1).start :]
    assert_refused(file, METADATA)
    assert_refused(file, UNRECORDED, allow_unrecorded_length=True)
    in_place_of_another = bytearray(FILE)
    in_place_of_another[cipher_block(2)] = FILE[cipher_block(1)]
    assert_refused(bytes(in_place_of_another), METADATA)


def test_03_two_whole_files_swapped() -> None:
    other, other_metadata = encrypted(pattern(len(PLAIN))[::-1], key_metadata())
    assert len(other) == len(FILE)
    assert_refused(other, METADATA)
    assert_refused(FILE, other_metadata)


def test_03_two_whole_files_of_one_key_swapped() -> None:
    """Even where a writer used one key for two files, the AAD prefix tells them apart."""
    key = key_metadata().encryption_key
    first, first_metadata = encrypted(b"first file", StandardKeyMetadata(key, b"prefix of file 1"))
    second, second_metadata = encrypted(b"other file", StandardKeyMetadata(key, b"prefix of file 2"))
    assert_refused(second, first_metadata)
    assert_refused(first, second_metadata)


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_04_truncated_at_a_block_boundary(blocks: int) -> None:
    file = FILE[: 8 + blocks * CIPHER_BLOCK]
    assert decrypt(file, UNRECORDED, allow_unrecorded_length=True) == PLAIN[: blocks * BLOCK]  # hence the length
    with pytest.raises(IntegrityError, match="cut or extended"):
        AesGcmInputStream(file, METADATA)


def test_04_key_metadata_without_a_length() -> None:
    with pytest.raises(FormatError, match="does not record a file length"):
        AesGcmInputStream(FILE, UNRECORDED)


@pytest.mark.parametrize("more", [b"x", bytes(28), b"x" * 1000, FILE[cipher_block(3)], bytes(CIPHER_BLOCK)])
def test_05_bytes_appended(more: bytes) -> None:
    with pytest.raises(IntegrityError, match="cut or extended"):
        AesGcmInputStream(FILE + more, METADATA)
    assert_refused(FILE + more, UNRECORDED, (IntegrityError, FormatError), allow_unrecorded_length=True)


@pytest.mark.parametrize("length", [0, 1, BLOCK - 1, BLOCK + 1, 2 * BLOCK, 2**31 - 1, 2**31, 2**32 - 1])
def test_06_a_block_length_other_than_1_mib(length: int) -> None:
    file, metadata = encrypted(b"short", key_metadata())
    forged = file[:4] + length.to_bytes(4, "little") + file[8:]
    tracemalloc.start()
    try:
        for source in (forged, io.BytesIO(forged)):
            with pytest.raises(FormatError, match=f"blocks have {length} bytes"):
                AesGcmInputStream(source, metadata).read()
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("position", [0, 2 * BLOCK])
@pytest.mark.parametrize("magic", [b"AGS2", b"PAR1", b"Obj\x01", bytes(4)])
def test_06_another_magic(magic: bytes, position: int) -> None:
    stream = AesGcmInputStream(io.BytesIO(magic + FILE[4:]), METADATA)
    stream.seek(position)
    with pytest.raises(FormatError, match="not an AGS1 stream"):
        stream.read(1)


@pytest.mark.parametrize("length", [0, 1, 4, 8, 35])
def test_07_a_stream_shorter_than_any(length: int) -> None:
    for metadata in (METADATA.with_file_length(length), UNRECORDED):
        with pytest.raises(FormatError, match="too few"):
            AesGcmInputStream(FILE[:length], metadata, allow_unrecorded_length=True)


@pytest.mark.parametrize("rest", [1, 12, 27, 28])
def test_07_a_last_block_shorter_than_any(rest: int) -> None:
    length = 8 + 2 * CIPHER_BLOCK + rest
    for metadata in (METADATA.with_file_length(length), UNRECORDED):
        with pytest.raises(FormatError, match=f"has {rest}: too few"):
            AesGcmInputStream(FILE[:length], metadata, allow_unrecorded_length=True)


def test_07_an_empty_stream_is_authenticated_too() -> None:
    file, metadata = encrypted(b"", key_metadata())
    with pytest.raises(IntegrityError):
        AesGcmInputStream(flipped(file, 35), metadata).read()
    with pytest.raises(IntegrityError):
        AesGcmInputStream(flipped(file, 35), metadata).readinto(bytearray(10))
