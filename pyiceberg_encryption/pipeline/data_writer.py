"""Writes rows into encrypted data files: one task's share, by partition, each file with a key of its own."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.io.pyarrow import (
    _check_pyarrow_schema_compatible,
    _get_field_from_arrow_table,
    pyarrow_to_schema,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestEntryStatus
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey, partition_record_value
from pyiceberg.schema import sanitize_column_names
from pyiceberg.table import DOWNCAST_NS_TIMESTAMP_TO_US_ON_WRITE, TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.utils.config import Config
from pyiceberg.utils.properties import property_as_int

from pyiceberg_encryption.errors import UsageError
from pyiceberg_encryption.table.data_files import READABLE, formats_of_v3
from pyiceberg_encryption.table.manifests import KEY_METADATA
from pyiceberg_encryption.table.projection import to_requested_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.io.fileformat import FileFormatWriter
    from pyiceberg.table.metadata import TableMetadata

    from pyiceberg_encryption.table.file_io import EncryptedFileIO

ROW_GROUP_BYTES = 128 * 1024 * 1024  # of Arrow's memory, which is no less than Iceberg Java's default on disk
BUFFERED_BYTES = 256 * 1024 * 1024  # of all partitions that one task writes to
SMALL_BATCH_ROWS = 65_536  # batches are looked at together until they have so many
_ROW = "__row"


@dataclass
class _Open:
    """A partition that is being written: rows that wait for their row group, and the file, once there is one."""

    key: PartitionKey | None
    waiting: list[pa.Table]
    waiting_bytes: int = 0
    file: _File | None = None


@dataclass
class _File:
    location: str
    output: Any
    writer: FileFormatWriter


class _Key(PartitionKey):
    """Of any spec, also of one that has two fields of the same column, or buckets of times, which PyIceberg's own
    refuses."""

    @cached_property
    def partition(self) -> Record:
        return Record(
            *(
                value.value
                if value.value is None or isinstance(value.value, int)
                else partition_record_value(value.field, value.value, self.schema)
                for value in self.field_values
            )
        )


def partition_name(partition: Record) -> str:
    """What tells partitions apart. As values they do not do, for NaN is not equal to itself, and -0.0 to 0.0."""
    return repr([partition[position] for position in range(len(partition))])


class DataFileWriter:
    """`name` is a part of every file's name, and unlike any other writer's: what begins with it is of this task.

    With `fanout`, rows come in any order, and a file is open for every partition. Without, they come sorted by
    partition, and one file is open at a time.
    """

    def __init__(self, io: EncryptedFileIO, metadata: TableMetadata, name: str, *, fanout: bool = True) -> None:
        self._io = io
        self._metadata = metadata
        self._name = name
        self._fanout = fanout
        self._counter = itertools.count(0)
        properties = metadata.properties
        self._format = _format_of(metadata)
        self._target = _number(
            metadata,
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES,
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT,
        )
        self._row_group_rows = _number(
            metadata, TableProperties.PARQUET_ROW_GROUP_LIMIT, TableProperties.PARQUET_ROW_GROUP_LIMIT_DEFAULT
        )
        self._locations = load_location_provider(metadata.location, properties)
        self._open: dict[str | None, _Open] = {}
        self._closed: set[str | None] = set()
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._written: list[DataFile] = []
        self._started: list[str] = []

    def write(self, batch: pa.RecordBatch) -> None:
        check_required(self._metadata, batch)
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        if self._pending_rows >= SMALL_BATCH_ROWS:
            self._sort_out_pending()

    def finish(self) -> list[ManifestEntry]:
        """The files, as entries to be added to the table."""
        self._sort_out_pending()
        for partition in list(self._open):
            self._close(partition)
        return [
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=None,
                sequence_number=None,
                file_sequence_number=None,
                data_file=file,
            )
            for file in self._written
        ]

    def abort(self) -> None:
        """Deletes what was written so far."""
        for partition in self._open.values():
            if partition.file is not None:
                with contextlib.suppress(Exception):
                    partition.file.writer.close()
        for location in self._started:
            with contextlib.suppress(Exception):
                self._io.delete(location)

    def _sort_out_pending(self) -> None:
        if not self._pending_rows:
            return
        rows = self._as_stored(pa.Table.from_batches(self._pending))
        self._pending, self._pending_rows = [], 0
        for key, part in partitions(self._metadata, rows):
            self._add(key, part)
        while sum(partition.waiting_bytes for partition in self._open.values()) > BUFFERED_BYTES:
            self._write_waiting(max(self._open.values(), key=lambda partition: partition.waiting_bytes))

    def _add(self, key: PartitionKey | None, rows: pa.Table) -> None:
        name = None if key is None else partition_name(key.partition)
        if name not in self._open:
            self._begin(name, key)
        partition = self._open[name]
        partition.waiting.append(rows)
        partition.waiting_bytes += rows.nbytes
        if partition.waiting_bytes >= ROW_GROUP_BYTES or sum(map(len, partition.waiting)) >= self._row_group_rows:
            self._write_waiting(partition)

    def _begin(self, name: str | None, key: PartitionKey | None) -> None:
        if not self._fanout:
            if name in self._closed:
                raise UsageError(
                    "Rows of a partition came after those of another one. Sort them by partition before they are "
                    "written, or set fanout-enabled to true"
                )
            for other in list(self._open):
                self._close(other)
        self._open[name] = _Open(key, [])

    def _write_waiting(self, partition: _Open) -> None:
        rows = pa.concat_tables(partition.waiting)
        partition.waiting, partition.waiting_bytes = [], 0
        if partition.file is None:
            partition.file = self._new_file(partition.key)
        partition.file.writer.write(rows)
        if partition.file.writer.position >= self._target:  # type: ignore[attr-defined]
            self._finish_file(partition)

    def _close(self, name: str | None) -> None:
        partition = self._open[name]
        if partition.waiting:
            self._write_waiting(partition)
        if partition.file is not None:
            self._finish_file(partition)
        del self._open[name]
        self._closed.add(name)

    def _new_file(self, key: PartitionKey | None) -> _File:
        with formats_of_v3():
            model = FileFormatFactory.get(self._format)
        name = f"{self._name}-{next(self._counter):05d}.{model.file_extension()}"
        location = self._locations.new_data_location(name, key)
        output = self._io.new_output(location)
        self._started.append(location)
        schema = sanitize_column_names(self._metadata.schema())
        return _File(location, output, model.create_writer(output, schema, self._metadata.properties))

    def _finish_file(self, partition: _Open) -> None:
        file, partition.file = partition.file, None
        if file is None:
            return
        with file.writer:
            pass
        data_file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=file.location,
            file_format=self._format,
            partition=partition.key.partition if partition.key else Record(),
            file_size_in_bytes=len(file.output),
            sort_order_id=None,
            spec_id=self._metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **file.writer.result().to_serialized_dict(),
        )
        data_file[KEY_METADATA] = self._io.take_key(file.location)
        data_file.spec_id = self._metadata.default_spec_id
        self._written.append(data_file)

    def _as_stored(self, rows: pa.Table) -> pa.Table:
        """In the order and with the types of the table's columns, as PyIceberg writes them."""
        schema = self._metadata.schema()
        downcast = _downcast()
        source = pyarrow_to_schema(
            rows.schema, schema.name_mapping, downcast, format_version=self._metadata.format_version
        )
        with formats_of_v3():
            model = FileFormatFactory.get(self._format)
        batches = [
            to_requested_schema(
                sanitize_column_names(schema),
                source,
                batch,
                downcast_ns_timestamp_to_us=downcast,
                include_field_ids=True,
                format_model=model,
            )
            for batch in rows.combine_chunks().to_batches()
        ]
        return pa.Table.from_batches(batches)


def check_columns(metadata: TableMetadata, provided: pa.Schema) -> None:
    """That rows of this schema can be written. Whether a required column has nulls is seen when they are."""
    required = {field.name for field in metadata.schema().fields if field.required}
    fields = [field.with_nullable(field.nullable and field.name not in required) for field in provided]
    _check_pyarrow_schema_compatible(
        metadata.schema(), pa.schema(fields), _downcast(), format_version=metadata.format_version
    )


def check_can_be_written(metadata: TableMetadata) -> None:
    """Whatever its rows."""
    _format_of(metadata)
    schema = schema_to_pyarrow(sanitize_column_names(metadata.schema()), include_field_ids=False)
    row = pa.table([pa.nulls(1, field.type) for field in schema], schema=schema)
    for _ in partitions(metadata, row):
        pass


def check_required(metadata: TableMetadata, batch: pa.RecordBatch) -> None:
    for field in metadata.schema().fields:
        if field.required and batch[field.name].null_count:
            raise UsageError(f"Column {field.name} is required, but a row has no value for it")


def partitions(metadata: TableMetadata, rows: pa.Table) -> Iterator[tuple[PartitionKey | None, pa.Table]]:
    """The rows of each partition, in the order in which they came. Columns have the names that they have in files."""
    spec, schema = metadata.spec(), sanitize_column_names(metadata.schema())
    if spec.is_unpartitioned():
        yield None, rows
        return
    names = [f"__partition_{field.field_id}" for field in spec.fields]
    values = []
    for field in spec.fields:
        if isinstance(field.transform, VoidTransform):  # what is left in format V1 of a field that was removed
            values.append(pa.nulls(len(rows), pa.int32()))
            continue
        column = schema.find_column_name(field.source_id)
        if column is None:
            raise UsageError(f"The table is partitioned by {field.name}, whose column is gone: evolve its spec first")
        transform = field.transform.pyarrow_transform(schema.find_field(field.source_id).field_type)
        transformed = transform(_get_field_from_arrow_table(rows, column))
        # Arrow groups by no UUIDs, but by what they are stored as.
        is_uuid = isinstance(transformed.type, pa.UuidType)
        values.append(transformed.cast(transformed.type.storage_type) if is_uuid else transformed)
    keys = pa.table([*values, pa.arange(0, len(rows))], names=[*names, _ROW])
    groups = keys.group_by(names, use_threads=False).aggregate([(_ROW, "list")])
    for group in range(len(groups)):
        key = _Key(
            [
                PartitionFieldValue(field, groups[name][group].as_py())
                for field, name in zip(spec.fields, names, strict=True)
            ],
            spec,
            schema,
        )
        places = groups[f"{_ROW}_list"][group].values
        is_one_run = pc.subtract(places[-1], places[0]).as_py() == len(places) - 1
        yield key, rows.slice(places[0].as_py(), len(places)) if is_one_run else rows.take(places)


def _format_of(metadata: TableMetadata) -> FileFormat:
    name = TableProperties.WRITE_FILE_FORMAT
    text = metadata.properties.get(name, TableProperties.WRITE_FILE_FORMAT_DEFAULT).lower()
    if text not in {file_format.value.lower() for file_format in READABLE}:
        raise UsageError(f"The table has {name} {text!r}, which cannot be written: set it to parquet or avro")
    return FileFormat(text)


def _downcast() -> bool:
    return Config().get_bool(DOWNCAST_NS_TIMESTAMP_TO_US_ON_WRITE) or False


def _number(metadata: TableMetadata, name: str, default: int) -> int:
    return property_as_int(metadata.properties, name, default) or default
