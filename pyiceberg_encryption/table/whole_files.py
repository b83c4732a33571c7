"""Data and delete files, read from the first byte to the last: is each what was written?"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from pyiceberg.manifest import FileFormat

from pyiceberg_encryption.errors import FormatError, IntegrityError
from pyiceberg_encryption.table.avro_data import AvroDataFile
from pyiceberg_encryption.table.deletes import deletion_vector
from pyiceberg_encryption.table.file_io import EncryptedFileIO, open_data, stored_file
from pyiceberg_encryption.table.manifests import V3DataFile, file_key
from pyiceberg_encryption.table.whole_parquet import check_parquet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.io import InputStream
    from pyiceberg.manifest import DataFile

PUFFIN_MAGIC = b"PFA1"
READ_LENGTH = 8 * 1024 * 1024
_PLAIN_BEGINNINGS = (b"PAR1", b"Obj\x01", PUFFIN_MAGIC, b"ORC")
_MAGIC_LENGTH = 4


def check_rows(io: EncryptedFileIO, file: DataFile, split: range | None = None) -> None:
    """A Parquet or Avro file, or those row groups of a Parquet file that begin within `split`."""
    key = file_key(file)
    if file.file_format == FileFormat.PARQUET:
        with stored_file(io, file.file_path, key).open() as stored:
            _check_length(file, stored.seek(0, os.SEEK_END))
            check_parquet(stored, key, file.file_path, file.record_count, split)
    elif file.file_format == FileFormat.AVRO:
        with open_data(io, file.file_path, key) as stream:
            _check_stream_length(file, stream)
            rows = sum(batch.num_rows for batch in AvroDataFile(stream).batches())
            if rows != file.record_count:
                raise FormatError(f"{file.file_path} has {rows} rows, not {file.record_count}")
    else:
        raise NotImplementedError(f"{file.file_path}: {file.file_format.value} files cannot be read")


def check_puffin(io: EncryptedFileIO, vectors: Iterable[V3DataFile]) -> None:
    """A Puffin file, and these deletion vectors in it."""
    listed = list(vectors)
    file = listed[0]
    with open_data(io, file.file_path, file_key(file)) as stream:
        _check_stream_length(file, stream)
        stream.seek(0)
        begin = end = b""
        while read := stream.read(READ_LENGTH):
            begin = begin or read[:_MAGIC_LENGTH]
            end = (end + read)[-_MAGIC_LENGTH:]
    if begin != PUFFIN_MAGIC or end != PUFFIN_MAGIC:
        raise FormatError(f"{file.file_path} is not a Puffin file")
    for vector in listed:
        deletion_vector(io, vector)


def looks_plain(io: EncryptedFileIO, location: str) -> bool:
    """Whether a file begins as one that is not encrypted."""
    with contextlib.suppress(Exception), io.plain.new_input(location).open() as stream:
        return bytes(stream.read(_MAGIC_LENGTH)).startswith(_PLAIN_BEGINNINGS)
    return False


def _check_stream_length(file: DataFile, stream: InputStream) -> None:
    key = file_key(file)
    recorded: Any = stream.seek(0, os.SEEK_END) if key is None else key.open().file_length
    stream.seek(0)
    _check_length(file, recorded)


def _check_length(file: DataFile, length: int) -> None:
    if length != file.file_size_in_bytes:
        raise IntegrityError(
            f"{file.file_path} has {length} bytes, but its manifest says {file.file_size_in_bytes}: it was cut or "
            "extended"
        )
