"""A table as a stream: what the reader says to Spark, without Spark."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType

from pyiceberg_encryption.errors import ConfigurationError, UsageError
from pyiceberg_encryption.jobs import rekey
from pyiceberg_encryption.spark.options import Options
from pyiceberg_encryption.spark.stream import StreamReader

if TYPE_CHECKING:
    from pyiceberg.table import Table

SCHEMA = StructType().add("id", LongType())


def append(table: Table, *ids: int) -> int:
    table.append(pa.table({"id": list(ids)}))
    return head_of(table)


def head_of(table: Table) -> int:
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def expire_all_but_the_last(table: Table) -> int:
    head = head_of(table)
    expiration = table.maintenance.expire_snapshots()
    for snapshot in table.snapshots():
        if snapshot.snapshot_id != head:
            expiration = expiration.by_id(snapshot.snapshot_id)
    expiration.commit()
    return head


def reader(**options: str) -> StreamReader:
    given = {"catalog": "streamed", "table": "db.t", **{name.replace("_", "-"): text for name, text in options.items()}}
    return StreamReader(Options.of(given), SCHEMA, 2)


def ids(stream: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    start, end = (json.loads(json.dumps(offset)) for offset in (start, end))
    batches = [batch for partition in stream.partitions(start, end) for batch in stream.read(partition)]
    return sorted(value for batch in batches for value in batch["id"].to_pylist())


def test_all_rows_and_then_those_that_are_appended(table: Table) -> None:
    stream = reader()
    beginning = stream.initialOffset()
    assert ids(stream, beginning, stream.latestOffset()) == []
    append(table, 1, 2)
    append(table, 3)
    first = stream.latestOffset()
    assert ids(stream, beginning, first) == [1, 2, 3]
    append(table, 4)
    append(table, 5)
    second = stream.latestOffset()
    assert ids(stream, first, second) == [4, 5]
    assert ids(stream, second, stream.latestOffset()) == []
    assert ids(reader(), first, second) == [4, 5]  # a batch that is tried again by another process
    assert ids(reader(row_filter="id > 4"), beginning, second) == [5]


def test_from_a_time_on(table: Table) -> None:
    append(table, 1)
    moment = table.metadata.snapshots[-1].timestamp_ms + 1
    time.sleep(0.002)
    append(table, 2)
    append(table, 3)
    stream = reader(stream_from_timestamp=str(moment))
    assert ids(stream, stream.initialOffset(), stream.latestOffset()) == [2, 3]
    everything = reader(stream_from_timestamp="0")
    assert everything.initialOffset() == reader().initialOffset()


def test_from_a_time_on_when_the_snapshots_before_it_are_gone(table: Table) -> None:
    append(table, 1)
    append(table, 2)
    second = expire_all_but_the_last(table)
    append(table, 3)
    stream = reader(stream_from_timestamp=str(table.metadata.snapshots[0].timestamp_ms))
    assert ids(stream, stream.initialOffset(), {"snapshot-id": second}) == [2]
    assert ids(stream, stream.initialOffset(), stream.latestOffset()) == [2, 3]
    assert ids(reader(), reader().initialOffset(), stream.latestOffset()) == [1, 2, 3]


def test_from_a_time_on_when_the_oldest_snapshot_only_moved_rows(table: Table) -> None:
    append(table, 1)
    rekey(table)
    moved = expire_all_but_the_last(table)
    append(table, 2)
    stream = reader(stream_from_timestamp="0")
    assert ids(stream, stream.initialOffset(), {"snapshot-id": moved}) == []
    assert ids(stream, stream.initialOffset(), stream.latestOffset()) == [2]


def test_from_a_time_on_when_the_oldest_snapshot_overwrote_rows(table: Table) -> None:
    append(table, 1, 2)
    table.delete("id = 2")
    expire_all_but_the_last(table)
    append(table, 3)
    stream = reader(stream_from_timestamp="0")
    with pytest.raises(UsageError, match="skip-overwrite"):
        stream.partitions(stream.initialOffset(), stream.latestOffset())
    skipping = reader(stream_from_timestamp="0", streaming_skip_overwrite_snapshots="true")
    assert ids(skipping, stream.initialOffset(), stream.latestOffset()) == [3]


def test_rows_deleted_or_overwritten_stop_it_unless_told_otherwise(table: Table) -> None:
    start = {"snapshot-id": append(table, 1, 2, 3)}
    table.delete("id = 2")
    append(table, 4)
    stream = reader()
    end = stream.latestOffset()
    with pytest.raises(UsageError, match=r"the operation overwrite, whose.*skip-overwrite"):
        stream.partitions(start, end)
    with pytest.raises(UsageError, match="skip-overwrite"):
        reader(streaming_skip_delete_snapshots="true").partitions(start, end)
    assert ids(reader(streaming_skip_overwrite_snapshots="true"), start, end) == [4]
    start = {"snapshot-id": head_of(table)}
    table.delete("id = 4")
    with pytest.raises(UsageError, match="skip-delete"):
        stream.partitions(start, stream.latestOffset())
    assert ids(reader(streaming_skip_delete_snapshots="true"), start, stream.latestOffset()) == []


def test_rows_that_only_move_are_not_read_again(table: Table) -> None:
    start = {"snapshot-id": append(table, 1, 2)}
    rekey(table)
    append(table, 3)
    stream = reader()
    assert ids(stream, start, stream.latestOffset()) == [3]


def test_snapshots_that_are_gone(table: Table) -> None:
    start = {"snapshot-id": append(table, 1)}
    append(table, 2)
    append(table, 3)
    table.maintenance.expire_snapshots().by_id(table.metadata.snapshots[1].snapshot_id).commit()
    stream = reader()
    with pytest.raises(UsageError, match="expired, or the branch was set back"):
        stream.partitions(start, stream.latestOffset())


def test_a_branch(table: Table) -> None:
    first = append(table, 1)
    table.manage_snapshots().create_branch(first, "audit").commit()
    table.append(pa.table({"id": [2]}), branch="audit")
    append(table, 3)
    stream = reader(branch="audit")
    assert ids(stream, stream.initialOffset(), stream.latestOffset()) == [1, 2]


def test_options_of_reads_that_end(table: Table) -> None:
    with pytest.raises(ConfigurationError, match="stream begins at stream-from-timestamp"):
        reader(snapshot_id="1")
