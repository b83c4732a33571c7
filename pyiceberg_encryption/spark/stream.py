"""Reads a table as a stream: the rows of its snapshots, each once, as they are appended.

An offset is the last snapshot that was read, or none, before the first. The first batch of a stream from the beginning
has all rows of the oldest snapshot that is left, and what was appended since. From a time on, it has what that snapshot
itself appended: its other rows are older, or nobody knows.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyiceberg_encryption.errors import ConfigurationError, UsageError
from pyiceberg_encryption.pipeline.commit import ancestors
from pyiceberg_encryption.spark import options as names
from pyiceberg_encryption.spark.read import load_table, read_partition, scan_of, sealed_partitions, with_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyiceberg.table import FileScanTask
    from pyiceberg.table.snapshots import Snapshot
    from pyspark.sql.types import StructType

    from pyiceberg_encryption.spark.options import Options
    from pyiceberg_encryption.spark.read import SealedPartition
    from pyiceberg_encryption.table.table import Table

SNAPSHOT = "snapshot-id"
_POINTS = (names.SNAPSHOT_ID, names.AS_OF_TIMESTAMP, names.TAG, names.START_SNAPSHOT_ID, names.END_SNAPSHOT_ID)


class StreamReader(DataSourceStreamReader):
    def __init__(self, options: Options, schema: StructType, tasks_at_once: int) -> None:
        for name in _POINTS:
            if name in options.own:
                raise ConfigurationError(f"{name} is for reads that end; a stream begins at {names.FROM_TIMESTAMP}")
        self._options = options
        self._schema = schema
        self._tasks_at_once = tasks_at_once
        self._branch = options.own.get(names.BRANCH, MAIN_BRANCH)
        self._loaded: Table | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def initialOffset(self) -> dict[str, int | None]:  # noqa: N802
        moment = self._options.number(names.FROM_TIMESTAMP)
        if moment is None:
            return {SNAPSHOT: None}
        before = (snapshot for snapshot in ancestors(self._table().metadata, self._branch))
        return {SNAPSHOT: next((found.snapshot_id for found in before if found.timestamp_ms < moment), None)}

    def latestOffset(self) -> dict[str, int | None]:  # noqa: N802
        head = self._table().snapshot_by_name(self._branch)
        return {SNAPSHOT: head.snapshot_id if head else None}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[SealedPartition]:
        table = self._table()
        scan = with_columns(scan_of(table, self._options), self._schema)
        tasks = self._tasks(table, start[SNAPSHOT], end[SNAPSHOT])
        return sealed_partitions(table, self._options, scan, list(tasks), self._tasks_at_once)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._schema)

    def _table(self) -> Table:
        if self._loaded is None:
            self._loaded = load_table(self._options)
        else:
            self._loaded.refresh()
        return self._loaded

    def _tasks(self, table: Table, start: int | None, end: int | None) -> Iterable[FileScanTask]:
        if end is None or start == end:
            return []
        appended = _between(table, start, end)
        scan = scan_of(table, self._options)
        arguments = {"row_filter": scan.row_filter, "case_sensitive": scan.case_sensitive}
        tasks: Iterable[FileScanTask] = []
        if start is None and names.FROM_TIMESTAMP not in self._options.own:
            first, *appended = appended
            start = first.snapshot_id
            tasks = table.scan(snapshot_id=start, **arguments).plan_files()  # type: ignore[arg-type]
        for snapshot in appended:
            self._check(snapshot)
        if start == end:
            return tasks
        added = table.incremental_append_scan(
            from_snapshot_id_exclusive=start, to_snapshot_id_inclusive=end, **arguments
        )
        return chain(tasks, added.plan_files())

    def _check(self, snapshot: Snapshot) -> None:
        """Rows that are gone or changed cannot be taken back from who has read them."""
        operation = snapshot.summary.operation if snapshot.summary else Operation.OVERWRITE
        option = {Operation.DELETE: names.SKIP_DELETES, Operation.OVERWRITE: names.SKIP_OVERWRITES}.get(operation)
        if option is not None and not self._options.flag(option, False):
            raise UsageError(
                f"Snapshot {snapshot.snapshot_id} has the operation {operation.value}, whose changes a stream cannot "
                f"pass on. Set {option} to true to leave it out"
            )


def _between(table: Table, start: int | None, end: int) -> list[Snapshot]:
    """The snapshots after `start` up to `end`, the oldest first."""
    found: list[Snapshot] = []
    snapshot = table.metadata.snapshot_by_id(end)
    while snapshot is not None and snapshot.snapshot_id != start:
        found.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = table.metadata.snapshot_by_id(parent) if parent is not None else None
    if not found or (start is not None and snapshot is None):
        raise UsageError(
            f"Snapshots after {start} up to {end} are not all there: they were expired, or the branch was set back. "
            "Begin a new stream, with a new checkpoint"
        )
    return found[::-1]
