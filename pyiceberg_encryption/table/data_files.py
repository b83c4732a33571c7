"""Data files, in whichever format they are."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING

from pyiceberg.io.fileformat import FileFormatFactory, FileFormatModel
from pyiceberg.manifest import FileFormat

from pyiceberg_encryption.table.avro_data import AvroDataFile, AvroFormatModel
from pyiceberg_encryption.table.file_io import open_data, stored_file
from pyiceberg_encryption.table.manifests import file_key
from pyiceberg_encryption.table.parquet_data import EncryptingParquetModel, ParquetDataFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile


READABLE = (FileFormat.PARQUET, FileFormat.AVRO)


@contextlib.contextmanager
def open_data_file(
    io: FileIO, file: DataFile, dictionary_columns: tuple[str, ...] = (), split: range | None = None
) -> Iterator[ParquetDataFile | AvroDataFile]:
    key = file_key(file)
    if file.file_format == FileFormat.PARQUET:
        with stored_file(io, file.file_path, key).open() as stream:
            yield ParquetDataFile(stream, key, file.file_path, dictionary_columns, split)
    elif file.file_format == FileFormat.AVRO:
        with open_data(io, file.file_path, key) as stream:
            yield AvroDataFile(stream)
    else:
        raise NotImplementedError(
            f"{file.file_path}: {file.file_format.value} files of format V3 tables cannot be read"
        )


_in_v3 = ContextVar("_in_v3", default=False)


class _Writers(dict[FileFormat, FileFormatModel]):
    """PyIceberg's registry of writers. Avro is in it for tables of format V3 alone: nothing could read it of others."""

    def __contains__(self, file_format: object) -> bool:
        return super().__contains__(file_format) or (file_format == FileFormat.AVRO and _in_v3.get())

    def __missing__(self, file_format: FileFormat) -> FileFormatModel:
        if file_format not in self:
            raise KeyError(file_format)
        return AvroFormatModel()


@contextlib.contextmanager
def formats_of_v3() -> Iterator[None]:
    """What PyIceberg writes within is for a table of format V3."""
    token = _in_v3.set(True)
    try:
        yield
    finally:
        _in_v3.reset(token)


def _install_writers() -> None:
    """PyIceberg looks for the writer of a format here. Files of its own catalogs are written as before."""
    parquet = EncryptingParquetModel()
    FileFormatFactory._registry = _Writers({**FileFormatFactory._registry, FileFormat.PARQUET: parquet})


_install_writers()
