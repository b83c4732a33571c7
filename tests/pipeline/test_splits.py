"""However a scan is cut and packed, each row is read once, with its lineage and without what was deleted."""

from __future__ import annotations

import itertools
import pickle
import zlib
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DATA_FILE_TYPE, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
from pyroaring import BitMap64

from pyiceberg_encryption.errors import ConfigurationError
from pyiceberg_encryption.pipeline.sealed import RemoteTable, SealedTable, _opened, send
from pyiceberg_encryption.pipeline.splits import Projection, SplitSizes, open_tasks, packed, seal_tasks
from pyiceberg_encryption.table.deletes import CRC_BYTES, DELETION_VECTOR_MAGIC, LENGTH_BYTES
from pyiceberg_encryption.table.file_io import FileKey
from pyiceberg_encryption.table.manifests import KEY_METADATA, V3DataFile
from pyiceberg_encryption.table.read import SplitTask
from tests.pipeline.support import append, new_table
from tests.table_support import append_as_is, data_files, delete_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask

    from pyiceberg_encryption.table.file_io import EncryptedFileIO
    from pyiceberg_encryption.table.table import Table
    from tests.table_support import Lake

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "kind", StringType()))
SMALL_ROW_GROUPS = {"write.parquet.row-group-limit": "10"}
LINEAGE = ("*", "_row_id", "_last_updated_sequence_number")
ALL = AlwaysTrue()
GONE = {0, 9, 10, 55, 94}
SPLIT_OFFSETS = [field.name for field in DATA_FILE_TYPE[3].fields].index("split_offsets")


def rows(first: int, last: int) -> pa.Table:
    ids = range(first, last + 1)
    return pa.table({"id": ids, "kind": ["abc"[number % 3] for number in ids]})


def sizes(target: int, open_file_cost: int = 1) -> SplitSizes:
    return SplitSizes(target, 10, open_file_cost)


def tasks_of(table: Table, row_filter: str | BooleanExpression = ALL) -> list[FileScanTask]:
    return list(table.scan(row_filter).plan_files())


def received(sealed: SealedTable) -> RemoteTable:
    """As another process has it, which knows no more than what was sent."""
    return _opened(pickle.loads(pickle.dumps(sealed)))


def read(table: Table, tasks: Iterable[FileScanTask], row_filter: BooleanExpression = ALL) -> list[dict[str, Any]]:
    """As another process does it."""
    sealed, here = send(table)
    there = received(sealed)
    opened = open_tasks(there, pickle.loads(pickle.dumps(seal_tasks(here, tasks))))
    projection = there.open(here.seal(Projection(table.scan(selected_fields=LINEAGE).projection(), row_filter)))
    return [row for batch in projection.batches(there, opened) for row in batch.to_pylist()]


def split(task: FileScanTask) -> range | None:
    return task.split if isinstance(task, SplitTask) else None


def blob(*positions: int) -> bytes:
    payload = DELETION_VECTOR_MAGIC + BitMap64(positions).serialize()
    return len(payload).to_bytes(LENGTH_BYTES, "big") + payload + zlib.crc32(payload).to_bytes(CRC_BYTES, "big")


def deletion_vectors(table: Table, positions: dict[DataFile, list[int]]) -> list[V3DataFile]:
    """All in one encrypted file."""
    io = cast("EncryptedFileIO", table.io)
    blobs = [blob(*deleted) for deleted in positions.values()]
    output = io.new_output(f"{table.location()}/data/deletes.puffin")
    with output.create() as stream:
        stream.write(b"".join(blobs))
    key, vectors = io.take_key(output.location), []
    for number, (file, deleted) in enumerate(positions.items()):
        place = {"content_offset": sum(map(len, blobs[:number])), "content_size_in_bytes": len(blobs[number])}
        counts = {"record_count": len(deleted), "partition": file.partition}
        vectors.append(delete_file(output.location, file, len(output), **place, **counts))
        vectors[-1][KEY_METADATA] = key
    return vectors


@pytest.fixture
def table(lake: Lake) -> Table:
    """Files with ten row groups, with three, with one and without rows; of the first, rows at the edges are deleted."""
    table = new_table(lake, SCHEMA, properties=SMALL_ROW_GROUPS)
    append(table, rows(0, 94))
    append(table, rows(95, 119))
    append(table, rows(120, 122))
    (first,) = (file for file in data_files(table) if file.record_count == 95)
    append_as_is(table, *deletion_vectors(table, {first: sorted(GONE)}))
    table.refresh()
    return table


@pytest.mark.parametrize("target", [1, 1000, 2000, 5000, 10**9])
@pytest.mark.parametrize("row_filter", [ALL, "id >= 50", "kind = 'b'"])
def test_each_row_is_read_once(table: Table, target: int, row_filter: str | BooleanExpression) -> None:
    scan = table.scan(row_filter, selected_fields=LINEAGE)
    bins = packed(tasks_of(table, row_filter), sizes(target))
    found = [row for tasks in bins for row in read(table, tasks, scan.row_filter)]
    expected = scan.to_arrow().to_pylist()
    assert sorted(found, key=lambda row: int(row["id"])) == sorted(expected, key=lambda row: int(row["id"]))
    assert all(row["_row_id"] == row["id"] for row in found)
    if row_filter is ALL:
        assert {row["id"] for row in found} == {*range(123)} - GONE


def test_large_files_are_split_by_row_groups(table: Table) -> None:
    (large,) = (task for task in tasks_of(table) if task.file.record_count == 95)
    parts = [part for tasks in packed([large], sizes(1)) for part in tasks]
    assert len(parts) == len(large.file.split_offsets or ()) == 10
    assert sorted(len(read(table, [part])) for part in parts) == [4, 8, 9, 9, *[10] * 6]
    assert all(part.delete_files == large.delete_files for part in parts)


def test_splits_cover_the_file_without_gap_and_keep_to_the_target(table: Table) -> None:
    (large,) = (task for task in tasks_of(table) if task.file.record_count == 95)
    offsets = list(large.file.split_offsets or ())
    group = max(after - before for before, after in itertools.pairwise([*offsets, large.file.file_size_in_bytes]))
    for target in range(100, large.file.file_size_in_bytes, 333):
        ranges = sorted((split(part) for tasks in packed([large], sizes(target)) for part in tasks), key=str)
        found = sorted((one for one in ranges if one is not None), key=lambda one: one.start)
        assert [one.start for one in found] == [0, *(one.stop for one in found[:-1])]
        assert found[-1].stop == large.file.file_size_in_bytes
        assert all(len(one) <= max(target, group) + offsets[0] for one in found)
    assert [split(part) for tasks in packed([large], sizes(10**6)) for part in tasks] == [None]


def test_small_files_are_read_together(lake: Lake) -> None:
    table = new_table(lake, SCHEMA)
    for number in range(9):
        append(table, rows(number, number))
    length = tasks_of(table)[0].file.file_size_in_bytes
    assert [len(tasks) for tasks in packed(tasks_of(table), sizes(length * 3 + 10))] == [3, 3, 3]
    assert [len(tasks) for tasks in packed(tasks_of(table), sizes(10**6))] == [9]
    # opening a file costs as much as reading so many bytes
    assert [len(tasks) for tasks in packed(tasks_of(table), sizes(10**6, 5 * 10**5))] == [2, 2, 2, 2, 1]


@pytest.mark.parametrize("offsets", [None, [], [4], [4, 4], [9, 4], [4, 10**9], [-5, 4]])
def test_offsets_that_are_none_are_not_used(table: Table, offsets: list[int] | None) -> None:
    (large,) = (task for task in tasks_of(table) if task.file.record_count == 95)
    large.file[SPLIT_OFFSETS] = offsets
    assert [split(part) for tasks in packed([large], sizes(1)) for part in tasks] == [None]


def test_avro_files_are_read_whole(lake: Lake) -> None:
    table = new_table(lake, SCHEMA, properties={"write.format.default": "avro"})
    append(table, rows(0, 99))
    (task,) = tasks_of(table)
    assert task.file.file_format == FileFormat.AVRO
    assert [split(part) for tasks in packed([task], sizes(1)) for part in tasks] == [None]
    assert [row["_row_id"] for row in read(table, [task])] == [*range(100)]


def fields(file: DataFile) -> list[Any]:
    return [file[place] for place in range(len(file)) if place != KEY_METADATA]


def test_entries_keep_what_a_reader_needs(lake: Lake) -> None:
    table = new_table(lake, SCHEMA)
    append(table, rows(0, 9))
    append_as_is(table, *deletion_vectors(table, {file: [1] for file in data_files(table)}))
    with table.update_spec() as spec:
        spec.add_field("kind", IdentityTransform(), "kind")
    append(table, rows(10, 18))
    sealed, here = send(table)
    tasks = tasks_of(table)
    opened = open_tasks(received(sealed), seal_tasks(here, tasks))
    assert len(tasks) == 4
    for before, after in zip(tasks, opened, strict=True):
        for one, other in ((before.file, after.file), *zip(before.delete_files, after.delete_files, strict=True)):
            assert isinstance(one, V3DataFile)
            assert isinstance(other, V3DataFile)
            assert fields(one) == fields(other)
            assert (one.spec_id, one.sequence_number) == (other.spec_id, other.sequence_number)
            assert isinstance(one.key_metadata, FileKey)
            assert isinstance(other.key_metadata, FileKey)
            assert one.key_metadata.open() == other.key_metadata.open()
    assert {task.file.spec_id for task in opened} == {0, 1}
    assert sum(len(task.delete_files) for task in opened) == 1


def test_each_file_is_sent_once(table: Table) -> None:
    sealed, here = send(table)
    (large,) = (task for task in tasks_of(table) if task.file.record_count == 95)
    (parts,) = packed([large], sizes(10**9))
    assert parts == [large]
    parts = [part for tasks in packed([large], sizes(1)) for part in tasks]
    one, all_of_it = seal_tasks(here, [large]), seal_tasks(here, parts)
    assert len(all_of_it.entries.groups[0][1]) == len(one.entries.groups[0][1])
    assert [split(task) for task in open_tasks(received(sealed), all_of_it)] == [split(task) for task in parts]


def test_several_deletion_vectors_lie_in_one_file(lake: Lake) -> None:
    table = new_table(lake, SCHEMA, partition_spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "kind")))
    append(table, rows(0, 11))
    vectors = deletion_vectors(table, {file: [number] for number, file in enumerate(data_files(table))})
    append_as_is(table, *vectors)
    table.refresh()
    expected = sorted(table.scan().to_arrow()["id"].to_pylist())
    assert len(expected) == 9
    assert sorted(row["id"] for row in read(table, tasks_of(table))) == expected


def test_sizes_come_from_options_and_properties() -> None:
    assert SplitSizes.of({}, {}) == SplitSizes(128 * 1024**2, 10, 4 * 1024**2)
    properties = {"read.split.target-size": "5", "read.split.planning-lookback": "6", "read.split.open-file-cost": "7"}
    assert SplitSizes.of(properties, {}) == SplitSizes(5, 6, 7)
    assert SplitSizes.of(properties, {"split-size": "8", "lookback": "9"}) == SplitSizes(8, 9, 7)
    for wrong in ("0", "-1", "many"):
        with pytest.raises(ConfigurationError, match="split-size must be a number above 0"):
            SplitSizes.of(properties, {"split-size": wrong})


def test_a_remote_table_has_no_history(table: Table) -> None:
    sealed, _ = send(table)
    remote = received(sealed)
    assert not remote.metadata.snapshots
    assert not remote.metadata.refs
    assert remote.metadata.schema() == table.schema()
