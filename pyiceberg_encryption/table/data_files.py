"""Data files, in whichever format they are."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.manifest import FileFormat

from pyiceberg_encryption.table.avro_data import AvroDataFile, AvroFormatModel
from pyiceberg_encryption.table.file_io import open_data, stored_file
from pyiceberg_encryption.table.manifests import file_key
from pyiceberg_encryption.table.parquet_data import EncryptingParquetModel, ParquetDataFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile


@contextlib.contextmanager
def open_data_file(
    io: FileIO, file: DataFile, dictionary_columns: tuple[str, ...] = ()
) -> Iterator[ParquetDataFile | AvroDataFile]:
    key = file_key(file)
    if file.file_format == FileFormat.PARQUET:
        with stored_file(io, file.file_path, key).open() as stream:
            yield ParquetDataFile(stream, key, file.file_path, dictionary_columns)
    elif file.file_format == FileFormat.AVRO:
        with open_data(io, file.file_path, key) as stream:
            yield AvroDataFile(stream)
    else:
        raise NotImplementedError(
            f"{file.file_path}: {file.file_format.value} files of format V3 tables cannot be read"
        )


def _register_writers() -> None:
    """PyIceberg looks for the writer of a format here. Files of its own catalogs are written as before."""
    FileFormatFactory._registry[FileFormat.PARQUET] = EncryptingParquetModel()
    if FileFormat.AVRO not in FileFormatFactory.available_formats():
        FileFormatFactory.register(AvroFormatModel())


_register_writers()
