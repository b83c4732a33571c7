"""Rows of data files: without what was deleted, filtered, in the requested schema, and with their lineage."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.expressions.visitors import bind, translate_column_names
from pyiceberg.io.pyarrow import ArrowScan as PyIcebergArrowScan
from pyiceberg.io.pyarrow import (
    _get_column_projection_values,
    expression_to_pyarrow,
)
from pyiceberg.schema import prune_columns
from pyiceberg.table import FileScanTask
from pyiceberg.utils.concurrent import ExecutorFactory

from pyiceberg_encryption.table import lineage
from pyiceberg_encryption.table.avro_data import AvroDataFile
from pyiceberg_encryption.table.data_files import open_data_file
from pyiceberg_encryption.table.deletes import deleted_positions, remaining
from pyiceberg_encryption.table.file_schema import FileSchema
from pyiceberg_encryption.table.manifests import V3DataFile
from pyiceberg_encryption.table.projection import to_requested_schema

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    import pyarrow.compute as pc

    from pyiceberg_encryption.table.parquet_data import ParquetDataFile


class SplitTask(FileScanTask):
    """A part of a Parquet file: the row groups that begin within `split`."""

    def __init__(self, task: FileScanTask, split: range) -> None:
        super().__init__(task.file, task.delete_files, task.residual)
        self.split = split


class ArrowScan(PyIcebergArrowScan):
    """PyIceberg's scan of tasks, over files that it could not read itself."""

    def to_record_batches(self, tasks: Iterable[FileScanTask]) -> Iterator[pa.RecordBatch]:
        """Several files at once, for a caller that wants all rows anyway."""
        if self._limit is not None:
            return self.stream(tasks)
        return self._in_parallel(tasks)

    def _in_parallel(self, tasks: Iterable[FileScanTask]) -> Iterator[pa.RecordBatch]:
        executor = ExecutorFactory.get_or_create()
        for batches in executor.map(lambda task: list(self._batches(task)), tasks):
            yield from batches

    def stream(self, tasks: Iterable[FileScanTask]) -> Iterator[pa.RecordBatch]:
        """One file after the other, so that memory holds a few batches of one file. Arrow itself reads ahead."""
        left = self._limit
        for task in tasks:
            if left == 0:
                return
            with closing(self._batches(task)) as batches:
                for batch in batches:
                    if left is not None:
                        batch = batch.slice(0, left)
                        left -= batch.num_rows
                    yield batch
                    if left == 0:
                        return

    def _batches(self, task: FileScanTask) -> Generator[pa.RecordBatch, None, None]:
        deleted = deleted_positions(self._io, task.file, task.delete_files)
        split = task.split if isinstance(task, SplitTask) else None
        with open_data_file(self._io, task.file, self._dictionary_columns, split) as file:
            yield from _TaskReader(self, task, file, deleted).batches()


class _TaskReader:
    """How the rows of one file become those that were asked for."""

    def __init__(
        self, scan: ArrowScan, task: FileScanTask, file: ParquetDataFile | AvroDataFile, deleted: list[int]
    ) -> None:
        metadata = scan._table_metadata
        self._task = task
        self._file = file
        self._deleted = deleted
        self._requested = scan._projected_schema
        self._lineage = [field for field in self._requested.fields if field.field_id in lineage.IDS]
        schema = FileSchema(file.schema, metadata)
        self._file_schema = schema.in_table
        self._constants = _get_column_projection_values(
            task.file,
            self._requested,
            metadata.schema(),
            metadata.specs().get(task.file.spec_id),
            self._file_schema.field_ids,
        )
        self._filter = self._arrow_filter(scan)
        self._read_schema = prune_columns(self._file_schema, scan._projected_field_ids, select_full_types=False)
        self._is_finer = schema.is_finer_than(self._read_schema)

    def batches(self) -> Iterator[pa.RecordBatch]:
        has_places = bool(self._deleted or self._lineage)
        # A filter that Arrow applies while it reads would hide at which place of the file a row stands, and would
        # compare nanoseconds.
        early = None if has_places or self._is_finer else self._filter
        late = self._filter if early is None or isinstance(self._file, AvroDataFile) else None
        schema = self._read_schema
        if self._lineage:
            schema = lineage.with_lineage(lineage.without_lineage(schema), self._lineage)
        start = 0 if isinstance(self._file, AvroDataFile) else self._file.first_row
        for read in self._read(early):
            batch = self._with_lineage(read, start)
            if self._deleted:
                batch = batch.filter(remaining(batch, start, self._deleted))
            if late is not None:
                batch = batch.filter(late)
            start += read.num_rows
            if batch.num_rows:
                yield to_requested_schema(
                    self._requested,
                    schema,
                    batch,
                    projected_missing_fields=self._constants,
                    allow_timestamp_tz_mismatch=True,
                )

    def _read(self, row_filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        for batch in self._as_in_file(row_filter):
            if self._is_finer:
                yield to_requested_schema(self._read_schema, self._read_schema, batch, downcast_ns_timestamp_to_us=True)
            else:
                yield batch

    def _as_in_file(self, row_filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        if isinstance(self._file, AvroDataFile):
            return self._file.batches(set(self._read_schema.field_ids))
        return self._file.batches([column.name for column in self._read_schema.columns], row_filter)

    def _with_lineage(self, batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
        """The batch, which begins at row `start` of its file, with its lineage columns filled in."""
        if not self._lineage:
            return batch
        file, rows = self._task.file, batch.num_rows
        first, number = (file.first_row_id, file.sequence_number) if isinstance(file, V3DataFile) else (None, None)
        columns = {column.name: batch[column.name] for column in self._read_schema.columns}
        for field in self._lineage:
            written = next((column.name for column in self._read_schema.columns if column == field), None)
            values = None if written is None else columns.pop(written)
            if field == lineage.ROW_ID:
                columns[field.name] = lineage.row_ids(values, first, start, rows)
            else:
                columns[field.name] = lineage.sequence_numbers(values, first, number, rows)
        return pa.RecordBatch.from_pydict(columns)

    def _arrow_filter(self, scan: ArrowScan) -> pc.Expression | None:
        row_filter = scan._bound_row_filter
        if row_filter == AlwaysTrue():
            return None
        translated = translate_column_names(
            row_filter, self._file_schema, case_sensitive=scan._case_sensitive, projected_field_values=self._constants
        )
        return expression_to_pyarrow(
            bind(self._file_schema, translated, case_sensitive=scan._case_sensitive), self._file_schema
        )
