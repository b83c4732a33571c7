"""Parquet files, read to the last byte that anyone reads: pages of all columns, and the indexes that Arrow passes over.

The layout is that of Parquet's modular encryption: https://parquet.apache.org/docs/file-format/data-pages/encryption
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.parquet as pq

from pyiceberg_encryption.ciphers import OVERHEAD, AesGcm
from pyiceberg_encryption.errors import FormatError, IntegrityError
from pyiceberg_encryption.table.parquet_data import decryption, first_offset, row_groups_within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.io import InputStream

    from pyiceberg_encryption.table.file_io import FileKey

BATCH_ROWS = 65_536
BUFFER_LENGTH = 1024 * 1024  # of compressed pages, for each column that is read
MAGIC = b"PARE"
LENGTH_BYTES = 4
TAIL_LENGTH = LENGTH_BYTES + len(MAGIC)
MAX_CRYPTO_METADATA_LENGTH = 1024
# Thrift's compact form of FileCryptoMetaData: AES_GCM_V1, without a stored AAD prefix, and then aad_file_unique
_AES_GCM = b"\x1c\x1c\x28"
_COLUMN_INDEX, _OFFSET_INDEX, _BLOOM_HEADER, _BLOOM_BITS = 6, 7, 8, 9


class _Place(NamedTuple):
    """What a module is, and of which column chunk. Its AAD says so."""

    kind: int
    row_group: int
    column: int

    def aad(self) -> bytes:
        return bytes((self.kind,)) + self.row_group.to_bytes(2, "little") + self.column.to_bytes(2, "little")


def check_parquet(
    stream: InputStream, key: FileKey | None, location: str, record_count: int, split: range | None = None
) -> None:
    """Decodes all columns, of all row groups or of those that begin within `split`, a few rows at a time."""
    if key is not None:
        _check_magic(stream, location)
    parquet = pq.ParquetFile(
        stream,
        decryption_properties=None if key is None else decryption(key),
        pre_buffer=False,
        buffer_size=BUFFER_LENGTH,
    )
    metadata = parquet.metadata
    if metadata.num_rows != record_count:
        raise FormatError(f"{location} has {metadata.num_rows} rows, not {record_count}")
    groups = range(metadata.num_row_groups)
    for group in groups if split is None else row_groups_within(metadata, split):
        rows = sum(batch.num_rows for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[group], use_threads=False))
        if rows != metadata.row_group(group).num_rows:
            raise FormatError(f"{location}: row group {group} does not have as many rows as it says")
    if key is not None and (split is None or split.start == 0):
        _check_indexes(stream, key, location, metadata)


def _check_magic(stream: InputStream, location: str) -> None:
    """Arrow looks at the end only."""
    length = stream.seek(0, os.SEEK_END)
    if length < len(MAGIC) + TAIL_LENGTH or _read(stream, 0, len(MAGIC)) != MAGIC:
        raise IntegrityError(f"{location} is not a Parquet file with an encrypted footer")


def _check_indexes(stream: InputStream, key: FileKey, location: str, metadata: Any) -> None:
    """Between the last page and the footer, other readers find page indexes and Bloom filters."""
    key_metadata = key.open()
    cipher = AesGcm(key_metadata.encryption_key)
    end = stream.seek(0, os.SEEK_END)
    end -= TAIL_LENGTH + int.from_bytes(_read(stream, end - TAIL_LENGTH, LENGTH_BYTES), "little")
    aad = (key_metadata.aad_prefix or b"") + _file_unique(stream, end, location)
    chunks = [
        (group, index, metadata.row_group(group).column(index))
        for group in range(metadata.num_row_groups)
        for index in range(metadata.num_columns)
    ]
    expected = deque(_places(chunks))
    start = max((first_offset(chunk) + chunk.total_compressed_size for *_, chunk in chunks), default=len(MAGIC))
    for module in _modules(stream, start, end, location):
        for _ in range(len(expected)):
            if _opens(cipher, module, aad + expected[0].aad()):
                break
            expected.rotate(-1)
        else:
            raise IntegrityError(f"{location}: an index of its pages was changed, or is not of this file")
        expected.popleft()
    if expected:
        raise IntegrityError(f"{location}: an index of its pages is missing")


def _places(chunks: list[tuple[int, int, Any]]) -> Iterator[_Place]:
    """In the order in which Iceberg Java and Arrow write them."""
    for group, index, chunk in chunks:
        if chunk.has_column_index:
            yield _Place(_COLUMN_INDEX, group, index)
    for group, index, chunk in chunks:
        if chunk.has_offset_index:
            yield _Place(_OFFSET_INDEX, group, index)
    for group, index, chunk in chunks:
        if chunk.bloom_filter_offset is not None:
            yield _Place(_BLOOM_HEADER, group, index)
            yield _Place(_BLOOM_BITS, group, index)


def _modules(stream: InputStream, start: int, end: int, location: str) -> Iterator[bytes]:
    while start < end:
        length = int.from_bytes(_read(stream, start, LENGTH_BYTES), "little")
        start += LENGTH_BYTES
        if not OVERHEAD <= length <= end - start:
            raise IntegrityError(f"{location}: an index of its pages is not as long as it should be")
        yield _read(stream, start, length)
        start += length


def _opens(cipher: AesGcm, module: bytes, aad: bytes) -> bool:
    try:
        cipher.open(module, aad)
    except IntegrityError:
        return False
    return True


def _file_unique(stream: InputStream, footer: int, location: str) -> bytes:
    found = _read(stream, footer, MAX_CRYPTO_METADATA_LENGTH)
    if not found.startswith(_AES_GCM):
        raise FormatError(f"{location} is not encrypted by AES_GCM_V1, without which pages are not authenticated")
    length, start = found[len(_AES_GCM)], len(_AES_GCM) + 1
    return found[start : start + length]


def _read(stream: InputStream, offset: int, length: int) -> bytes:
    stream.seek(offset)
    return bytes(stream.read(length))
