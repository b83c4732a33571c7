"""Reads in batches: planned where the reader is asked for partitions, and done wherever Spark has them read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression
from pyiceberg.expressions.visitors import bind, extract_field_ids
from pyiceberg.table import _parse_row_filter
from pyiceberg.table.refs import SnapshotRefType
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from pyiceberg_encryption.errors import ConfigurationError, UsageError
from pyiceberg_encryption.pipeline.sealed import SealedTable, send
from pyiceberg_encryption.pipeline.splits import Projection, SealedTasks, SplitSizes, open_tasks, packed, seal_tasks
from pyiceberg_encryption.spark import options as names
from pyiceberg_encryption.spark.filters import to_expression, with_one_meaning
from pyiceberg_encryption.spark.types import ToSpark, to_spark_schema
from pyiceberg_encryption.spark.worker import make_ready_for_next_task
from pyiceberg_encryption.table.table import checked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyiceberg.table import FileScanTask
    from pyspark.sql.types import StructType

    from pyiceberg_encryption.spark.options import Options
    from pyiceberg_encryption.table.scan import DataScan, IncrementalAppendScan
    from pyiceberg_encryption.table.table import Table


TASKS_PER_SLOT = 2  # so that what is short of work finds some


@dataclass
class SealedPartition(InputPartition):
    table: SealedTable
    projection: bytes
    tasks: SealedTasks


class Reader(DataSourceReader):
    def __init__(self, options: Options, schema: StructType, tasks_at_once: int) -> None:
        self._options = options
        self._schema = schema
        self._tasks_at_once = tasks_at_once
        self._filters: list[Filter] = []

    def partitions(self) -> list[SealedPartition]:
        table = load_table(self._options)
        scan = with_columns(scan_of(table, self._options), self._schema)
        columns = with_one_meaning(scan.projection(), table.schema())
        scan = scan.update(row_filter=And(scan.row_filter, to_expression(self._filters, columns)))
        return sealed_partitions(table, self._options, scan, list(scan.plan_files()), self._tasks_at_once)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._schema)


class ReaderWithFilters(Reader):
    """Is offered the filters of a query."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """All are returned, for Spark to apply them once more: files are read with somewhat wider ones."""
        self._filters = filters
        return filters


def load_table(options: Options) -> Table:
    table = checked(options.load_catalog().load_table(options.table))
    make_ready_for_next_task()
    return table


def scan_of(table: Table, options: Options) -> DataScan | IncrementalAppendScan:
    """What the options ask for, with all columns or those that they name."""
    scan = _scan_of(table, options)
    _check_row_filter(scan)
    return scan


def _scan_of(table: Table, options: Options) -> DataScan | IncrementalAppendScan:
    columns = options.own.get(names.COLUMNS)
    arguments = {
        "row_filter": _row_filter(options),
        "selected_fields": tuple(part.strip() for part in columns.split(",")) if columns else ("*",),
        "case_sensitive": options.flag(names.CASE_SENSITIVE, True),
    }
    start, end = options.number(names.START_SNAPSHOT_ID), options.number(names.END_SNAPSHOT_ID)
    points = (names.SNAPSHOT_ID, names.AS_OF_TIMESTAMP, names.BRANCH, names.TAG)
    which = [name for name in points if name in options.own]
    if len(which) + (start is not None or end is not None) > 1:
        raise ConfigurationError(f"Only one of {', '.join(points)} and {names.START_SNAPSHOT_ID} can be set")
    if start is not None or end is not None:
        if start is None:
            raise ConfigurationError(f"{names.END_SNAPSHOT_ID} needs {names.START_SNAPSHOT_ID}")
        return table.incremental_append_scan(  # type: ignore[return-value]
            from_snapshot_id_exclusive=start, to_snapshot_id_inclusive=end, **arguments
        )
    scan: DataScan = table.scan(snapshot_id=_snapshot_id(table, options), **arguments)  # type: ignore
    for name, kind in ((names.BRANCH, SnapshotRefType.BRANCH), (names.TAG, SnapshotRefType.TAG)):
        if name in options.own:
            reference = table.metadata.refs.get(options.own[name])
            if reference is None or reference.snapshot_ref_type != kind:
                raise ConfigurationError(f"{options.table} has no {name} {options.own[name]!r}")
            return scan.use_ref(options.own[name])
    return scan


def with_columns(scan: DataScan | IncrementalAppendScan, schema: StructType) -> DataScan | IncrementalAppendScan:
    """With the columns of a schema that Spark was given, or got from here before."""
    chosen = scan.update(selected_fields=tuple(schema.names))
    known = {field.name: field.dataType.simpleString() for field in to_spark_schema(chosen.projection())}
    for field in schema:
        wanted = field.dataType.simpleString()
        if field.name not in known:
            raise UsageError(f"The table has no column {field.name!r}; it has {', '.join(map(repr, known))}")
        if known[field.name] != wanted:
            raise UsageError(
                f"Column {field.name!r} is {known[field.name]}, and cannot be read as {wanted}: cast what is read"
            )
    return chosen


def sealed_partitions(
    table: Table,
    options: Options,
    scan: DataScan | IncrementalAppendScan,
    tasks: list[FileScanTask],
    tasks_at_once: int,
) -> list[SealedPartition]:
    sizes = SplitSizes.of(table.properties, options.own)
    if names.SPLIT_SIZE not in options.own:
        sizes = sizes.for_parallelism(tasks, TASKS_PER_SLOT * tasks_at_once)
    bins = packed(tasks, sizes)
    if not bins:
        return []
    sealed, here = send(table)
    projection = here.seal(Projection(scan.projection(), scan.row_filter, scan.case_sensitive))
    return [SealedPartition(sealed, projection, seal_tasks(here, tasks)) for tasks in bins]


def read_partition(partition: InputPartition | None, schema: StructType) -> Iterator[pa.RecordBatch]:
    """In the order of this schema, for Spark takes columns by their place."""
    if not isinstance(partition, SealedPartition):  # Spark asks for one at least
        return
    table = partition.table.remote
    projection: Projection = table.open(partition.projection)
    to_spark = ToSpark(schema)
    for batch in projection.batches(table, open_tasks(table, partition.tasks)):
        yield to_spark(batch)
    make_ready_for_next_task()


def _row_filter(options: Options) -> BooleanExpression:
    text = options.own.get(names.ROW_FILTER)
    return AlwaysTrue() if text is None else _parse_row_filter(text)


def _check_row_filter(scan: DataScan | IncrementalAppendScan) -> None:
    """PyIceberg looks for a filter's names in the current schema, also where an older state is read."""
    current, read = scan.table_metadata.schema(), scan.update(selected_fields=("*",)).projection()
    if read == current:
        return
    try:
        filtered = extract_field_ids(bind(current, scan.row_filter, scan.case_sensitive))
        fits = all(read.find_column_name(field_id) == current.find_column_name(field_id) for field_id in filtered)
    except ValueError:
        fits = False
    if not fits:
        raise UsageError(
            f"{names.ROW_FILTER} names a column that is not there both now and in the snapshot that is read, or was "
            f"another one then. Leave {names.ROW_FILTER} out, and filter what load() returns by where()"
        )


def _snapshot_id(table: Table, options: Options) -> int | None:
    moment = options.number(names.AS_OF_TIMESTAMP)
    if moment is None:
        return options.number(names.SNAPSHOT_ID)
    snapshot = table.snapshot_as_of_timestamp(moment)
    if snapshot is None:
        raise ConfigurationError(f"{options.table} has no snapshot that is as old as {names.AS_OF_TIMESTAMP} {moment}")
    return snapshot.snapshot_id
