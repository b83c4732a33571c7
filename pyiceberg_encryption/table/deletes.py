"""Deleted rows: deletion vectors, which are blobs in Puffin files, and files of positions."""

from __future__ import annotations

import math
import os
import zlib
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFileContent, FileFormat
from pyroaring import BitMap64

from pyiceberg_encryption.errors import FormatError
from pyiceberg_encryption.table.avro_data import AvroDataFile
from pyiceberg_encryption.table.data_files import open_data_file
from pyiceberg_encryption.table.file_io import check_has_key, open_data
from pyiceberg_encryption.table.manifests import (
    V3DataFile,
    file_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestEntry

# Iceberg spec, "Puffin", blob type deletion-vector-v1: length, then magic and vector, then the CRC of both
DELETION_VECTOR_MAGIC = b"\xd1\xd3\x39\x64"
LENGTH_BYTES = 4
CRC_BYTES = 4
FILE_PATH_ID = 2147483546  # Iceberg spec, "Position Delete Files"
POSITION_ID = 2147483545


class DeleteIndex:
    """Which delete files apply to a data file: its deletion vector, or else the position deletes written after it."""

    def __init__(self) -> None:
        self._vectors: dict[str, ManifestEntry] = {}
        self._by_path: dict[str, list[ManifestEntry]] = {}
        self._by_partition: dict[tuple[Any, ...], list[ManifestEntry]] = {}

    def add(self, entry: ManifestEntry) -> None:
        file = entry.data_file
        referenced = _referenced(file)
        if file.file_format == FileFormat.PUFFIN:
            if referenced is None or self._vectors.setdefault(referenced, entry) is not entry:
                raise FormatError(f"{file.file_path}: a data file has no, or more than one, deletion vector")
        elif referenced is not None:
            self._by_path.setdefault(referenced, []).append(entry)
        else:
            self._by_partition.setdefault(_partition(file), []).append(entry)

    def for_data_file(self, entry: ManifestEntry) -> set[DataFile]:
        file = entry.data_file
        vector = self._vectors.get(file.file_path)
        if vector is not None and _sequence_number(vector) >= _sequence_number(entry):
            return {vector.data_file}
        candidates = self._by_path.get(file.file_path, [])
        if self._by_partition:
            candidates = candidates + self._by_partition.get(_partition(file), [])
        return {deletes.data_file for deletes in candidates if _sequence_number(deletes) >= _sequence_number(entry)}


def deleted_positions(io: FileIO, data_file: DataFile, delete_files: Iterable[DataFile]) -> list[int]:
    """In ascending order."""
    positions = BitMap64()
    for file in delete_files:
        check_has_key(io, file.file_path, file_key(file))
        if file.content != DataFileContent.POSITION_DELETES:
            raise NotImplementedError(f"{file.file_path}: equality deletes cannot be read")
        if file.file_format == FileFormat.PUFFIN and isinstance(file, V3DataFile):
            positions |= deletion_vector(io, file)
        else:
            positions |= _position_deletes(io, file, data_file.file_path)
    if len(positions) > data_file.record_count:
        raise FormatError(f"{data_file.file_path}: more rows are deleted than the file has")
    return list(positions)


def remaining(batch: pa.RecordBatch, start: int, deleted: list[int]) -> pa.Array:
    """A mask of the batch, which begins at row `start` of its file."""
    keep = bytearray(b"\x01") * batch.num_rows
    for position in deleted[bisect_left(deleted, start) : bisect_left(deleted, start + batch.num_rows)]:
        keep[position - start] = 0
    return pc.cast(pa.Array.from_buffers(pa.uint8(), batch.num_rows, [None, pa.py_buffer(keep)]), pa.bool_())


def deletion_vector(io: FileIO, file: V3DataFile) -> BitMap64:
    offset, size = file.content_range
    with open_data(io, file.file_path, file_key(file)) as stream:
        if offset + size > stream.seek(0, os.SEEK_END):
            raise FormatError(f"{file.file_path}: a deletion vector is said to be behind the end of the file")
        stream.seek(offset)
        blob = stream.read(size)
    payload = blob[LENGTH_BYTES:-CRC_BYTES]
    if len(blob) != size or int.from_bytes(blob[:LENGTH_BYTES], "big") != len(payload):
        raise FormatError(f"{file.file_path}: a deletion vector is not as long as it should be")
    if payload[:4] != DELETION_VECTOR_MAGIC or zlib.crc32(payload) != int.from_bytes(blob[-CRC_BYTES:], "big"):
        raise FormatError(f"{file.file_path}: a deletion vector is damaged")
    try:
        vector = BitMap64.deserialize(payload[4:])
    except (IndexError, ValueError, MemoryError) as error:
        raise FormatError(f"{file.file_path}: a deletion vector cannot be read: {error}") from None
    if len(vector) != file.record_count:
        raise FormatError(f"{file.file_path}: a deletion vector has {len(vector)} rows, not {file.record_count}")
    return vector


def _position_deletes(io: FileIO, file: DataFile, path: str) -> BitMap64:
    positions = BitMap64()
    with open_data_file(io, file) as deletes:
        if isinstance(deletes, AvroDataFile):
            batches = deletes.batches({FILE_PATH_ID, POSITION_ID})
        else:
            batches = deletes.batches(["file_path", "pos"])
        for batch in batches:
            positions |= BitMap64(batch.filter(pc.equal(batch["file_path"], path))["pos"].to_pylist())
    return positions


def _referenced(file: DataFile) -> str | None:
    """The one data file that these deletes are for, if it says so, or its bounds do."""
    if isinstance(file, V3DataFile) and file.referenced_data_file is not None:
        return file.referenced_data_file
    lower = (file.lower_bounds or {}).get(FILE_PATH_ID)
    upper = (file.upper_bounds or {}).get(FILE_PATH_ID)
    return lower.decode() if lower is not None and lower == upper else None


def _partition(file: DataFile) -> tuple[Any, ...]:
    """NaN is not equal to itself, but one and the same object is, in a tuple."""
    values = (file.partition[position] for position in range(len(file.partition)))
    return file.spec_id, *(math.nan if value != value else value for value in values)


def _sequence_number(entry: ManifestEntry) -> int:
    return entry.sequence_number or 0
