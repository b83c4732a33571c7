"""Parquet data files in Parquet's modular encryption, with one key for the columns and the footer."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet.encryption as pe
from pyiceberg.io.pyarrow import ONE_MEGABYTE, ParquetFormatModel, ParquetFormatWriter
from pyiceberg.types import DoubleType, FloatType, StructType

from pyiceberg_encryption.errors import IntegrityError
from pyiceberg_encryption.table.file_io import EncryptedOutputFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyiceberg.io import InputStream, OutputFile
    from pyiceberg.io.fileformat import DataFileStatistics
    from pyiceberg.schema import Schema
    from pyiceberg.typedef import Properties
    from pyiceberg.types import NestedField

    from pyiceberg_encryption.key_metadata import StandardKeyMetadata
    from pyiceberg_encryption.table.file_io import FileKey


# What Arrow says of files that are not what they should be, as opposed to those that cannot be fetched.
_SIGNS_OF_TAMPERING = (
    *("decrypt", "crypto", "magic bytes", "plaintext", "smaller than the minimum", "aad prefix", "thrift"),
    "file size is 0 bytes",
)


class ParquetDataFile:
    """Rows of a file, in order. With a key, a file that is not encrypted by this key is refused.

    `split` picks the row groups that begin within a range of offsets. `first_row` is the place in the file of the
    first row of these.
    """

    def __init__(
        self,
        stream: InputStream,
        key: FileKey | None,
        location: str,
        dictionary_columns: tuple[str, ...] = (),
        split: range | None = None,
    ) -> None:
        self._location = location
        self._is_encrypted = key is not None
        options: dict[str, Any] = {"pre_buffer": True, "buffer_size": 8 * ONE_MEGABYTE}
        if key is not None:
            options["decryption_properties"] = decryption(key)
        parquet = ds.ParquetFileFormat(
            dictionary_columns=dictionary_columns,
            coerce_int96_timestamp_unit="us",  # nanoseconds have no room for years before 1677 and after 2262
            default_fragment_scan_options=ds.ParquetFragmentScanOptions(**options),
        )
        with self._tampering_named():
            self._fragment = parquet.make_fragment(stream)
            self.schema: pa.Schema = self._fragment.physical_schema
            self.first_row = 0 if split is None else self._pick(split)

    def _pick(self, split: range) -> int:
        metadata = self._fragment.metadata
        picked = row_groups_within(metadata, split)
        self._fragment = self._fragment.subset(row_group_ids=picked)
        return sum(metadata.row_group(index).num_rows for index in range(picked[0])) if picked else 0

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
        self._nans: Counter[int] = Counter()

    @property
    def position(self) -> int:
        """How long the file is by now."""
        return 0 if self._fos is None else int(self._fos.tell())

    def write(self, table: pa.Table) -> None:
        super().write(table)
        for field_id, column in _float_columns(self._file_schema.fields, table.columns):
            self._nans[field_id] += pc.sum(pc.is_nan(column)).as_py() or 0

    def close(self) -> DataFileStatistics:
        """With counts of NaN, which PyIceberg leaves out. Bounds pass over NaN, so whoever goes by them alone, as both
        Iceberg Java and PyIceberg do, drops a file whole for a filter that matches all of its rows but those."""
        statistics = super().close()
        statistics.nan_value_counts.update(
            {field_id: count for field_id, count in self._nans.items() if field_id in statistics.value_counts}
        )
        return statistics


class EncryptingParquetModel(ParquetFormatModel):
    """As PyIceberg's own, but encrypts the files that are to be encrypted."""

    def create_writer(
        self, output_file: OutputFile, file_schema: Schema, properties: Properties
    ) -> ParquetFormatWriter:
        if isinstance(output_file, EncryptedOutputFile):
            return _EncryptedParquetWriter(output_file, file_schema, properties)
        return super().create_writer(output_file, file_schema, properties)


def row_groups_within(metadata: Any, split: range) -> list[int]:
    """Those that begin within a range of offsets, as PyIceberg and Iceberg Java say in the split offsets of a file."""
    groups = range(metadata.num_row_groups)
    return [index for index in groups if first_offset(metadata.row_group(index).column(0)) in split]


def first_offset(chunk: Any) -> int:
    """Where a column chunk begins."""
    if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
        return int(min(chunk.dictionary_page_offset, chunk.data_page_offset))
    return int(chunk.data_page_offset)


def _float_columns(
    fields: Iterable[NestedField], columns: Iterable[pa.ChunkedArray]
) -> Iterator[tuple[int, pa.ChunkedArray]]:
    """By field id. Not within lists and maps, where no filter reaches."""
    for field, column in zip(fields, columns, strict=True):
        if isinstance(field.field_type, (FloatType, DoubleType)):
            yield field.field_id, column
        elif isinstance(field.field_type, StructType):
            nested = field.field_type.fields
            yield from _float_columns(nested, [pc.struct_field(column, [index]) for index in range(len(nested))])


def _encryption(key_metadata: StandardKeyMetadata) -> Any:
    return pe.create_encryption_properties(
        footer_key=bytes(key_metadata.encryption_key.expose()),
        aad_prefix=key_metadata.aad_prefix,
        store_aad_prefix=False,
    )


def decryption(key: FileKey) -> Any:
    key_metadata = key.open()
    return pe.create_decryption_properties(
        footer_key=bytes(key_metadata.encryption_key.expose()), aad_prefix=key_metadata.aad_prefix
    )
