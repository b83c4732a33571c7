"""Parquet data files in Parquet's modular encryption, with one key for the columns and the footer."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet.encryption as pe
from pyiceberg.io.pyarrow import ONE_MEGABYTE, ParquetFormatModel, ParquetFormatWriter

from pyiceberg_encryption.errors import IntegrityError
from pyiceberg_encryption.table.file_io import EncryptedOutputFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.io import InputStream, OutputFile
    from pyiceberg.schema import Schema
    from pyiceberg.typedef import Properties

    from pyiceberg_encryption.key_metadata import StandardKeyMetadata
    from pyiceberg_encryption.table.file_io import FileKey


# What Arrow says of files that are not what they should be, as opposed to those that cannot be fetched.
_SIGNS_OF_TAMPERING = (
    *("decrypt", "crypto", "magic bytes", "plaintext", "smaller than the minimum", "aad prefix", "thrift"),
    "file size is 0 bytes",
)


class ParquetDataFile:
    """Rows of a file, in order. With a key, a file that is not encrypted by this key is refused."""

    def __init__(
        self, stream: InputStream, key: FileKey | None, location: str, dictionary_columns: tuple[str, ...] = ()
    ) -> None:
        self._location = location
        self._is_encrypted = key is not None
        options: dict[str, Any] = {"pre_buffer": True, "buffer_size": 8 * ONE_MEGABYTE}
        if key is not None:
            options["decryption_properties"] = _decryption(key)
        parquet = ds.ParquetFileFormat(
            dictionary_columns=dictionary_columns,
            default_fragment_scan_options=ds.ParquetFragmentScanOptions(**options),
        )
        with self._tampering_named():
            self._fragment = parquet.make_fragment(stream)
            self.schema: pa.Schema = self._fragment.physical_schema

    def batches(self, columns: list[str], row_filter: pc.Expression | None = None) -> Iterator[pa.RecordBatch]:
        with self._tampering_named():
            scanner = ds.Scanner.from_fragment(self._fragment, schema=self.schema, columns=columns, filter=row_filter)
            yield from scanner.to_batches()

    @contextlib.contextmanager
    def _tampering_named(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowInvalid) as error:
            if self._is_encrypted and any(sign in str(error).lower() for sign in _SIGNS_OF_TAMPERING):
                raise IntegrityError(
                    f"{self._location} is not what was written with its key: it was changed, replaced or cut ({error})"
                ) from None
            raise


class _EncryptedParquetWriter(ParquetFormatWriter):
    def __init__(self, output_file: EncryptedOutputFile, file_schema: Schema, properties: Properties) -> None:
        super().__init__(output_file.plain, file_schema, properties)
        self._parquet_writer_kwargs["encryption_properties"] = _encryption(output_file.key_metadata)


class EncryptingParquetModel(ParquetFormatModel):
    """As PyIceberg's own, but encrypts the files that are to be encrypted."""

    def create_writer(
        self, output_file: OutputFile, file_schema: Schema, properties: Properties
    ) -> ParquetFormatWriter:
        if isinstance(output_file, EncryptedOutputFile):
            return _EncryptedParquetWriter(output_file, file_schema, properties)
        return super().create_writer(output_file, file_schema, properties)


def _encryption(key_metadata: StandardKeyMetadata) -> Any:
    return pe.create_encryption_properties(
        footer_key=bytes(key_metadata.encryption_key.expose()),
        aad_prefix=key_metadata.aad_prefix,
        store_aad_prefix=False,
    )


def _decryption(key: FileKey) -> Any:
    key_metadata = key.open()
    return pe.create_decryption_properties(
        footer_key=bytes(key_metadata.encryption_key.expose()), aad_prefix=key_metadata.aad_prefix
    )
