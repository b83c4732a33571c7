"""Scans cut into tasks of about the same size: large files by their row groups, small files together.

Sizes and their defaults are those of Iceberg Java.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from pyiceberg.manifest import FileFormat, ManifestEntry, ManifestEntryStatus
from pyiceberg.table import FileScanTask
from pyiceberg.utils.bin_packing import PackingIterator
from pyiceberg.utils.properties import property_as_int

from pyiceberg_encryption.errors import ConfigurationError
from pyiceberg_encryption.table.manifests import V3DataFile
from pyiceberg_encryption.table.read import ArrowScan, SplitTask
from pyiceberg_encryption.table.replace import name_of_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema

    from pyiceberg_encryption.pipeline.sealed import RemoteFiles, SealedEntries

# Table properties, each with the read option that takes precedence. Iceberg Java: TableProperties, SparkReadOptions
SPLIT_SIZE = ("read.split.target-size", "split-size", 128 * 1024 * 1024)
LOOKBACK = ("read.split.planning-lookback", "lookback", 10)
SMALLEST_SPLIT = 16 * 1024 * 1024
OPEN_FILE_COST = ("read.split.open-file-cost", "file-open-cost", 4 * 1024 * 1024)


@dataclass(frozen=True)
class SplitSizes:
    target: int
    lookback: int
    open_file_cost: int

    @classmethod
    def of(cls, table_properties: Mapping[str, str], options: Mapping[str, str]) -> SplitSizes:
        return cls(*(_setting(table_properties, options, *name) for name in (SPLIT_SIZE, LOOKBACK, OPEN_FILE_COST)))

    def for_parallelism(self, tasks: Iterable[FileScanTask], parallelism: int) -> SplitSizes:
        """Smaller, where there would be less tasks than could run at once. Iceberg Java: adaptive split size"""
        total = sum(task.file.file_size_in_bytes for task in tasks)
        if total >= self.target * parallelism:
            return self
        return replace(self, target=min(self.target, max(SMALLEST_SPLIT, total // parallelism)))


@dataclass(frozen=True)
class SealedTasks:
    """What one process reads: parts of files, and the delete files that apply to them."""

    entries: SealedEntries
    places: bytes  # sealed: for each part, where its file and deletes are among the entries, and its split


@dataclass(frozen=True)
class Projection:
    """Which rows and columns are read of every file."""

    schema: Schema
    row_filter: BooleanExpression
    case_sensitive: bool = True

    def batches(self, table: RemoteFiles, tasks: Iterable[FileScanTask]) -> Iterator[pa.RecordBatch]:
        scan = ArrowScan(table.metadata, table.io, self.schema, self.row_filter, self.case_sensitive)
        return scan.stream(tasks)


def packed(tasks: Iterable[FileScanTask], sizes: SplitSizes, *, splits: bool = True) -> list[list[FileScanTask]]:
    """What each process reads. Without `splits`, no file is read by several."""
    parts = (part for task in tasks for part in (_split(task, sizes.target) if splits else [task]))

    def weight(part: FileScanTask) -> int:
        deletes = sum(_size(file) for file in part.delete_files)
        return max(_length(part) + deletes, (1 + len(part.delete_files)) * sizes.open_file_cost)

    return list(PackingIterator(parts, sizes.target, sizes.lookback, weight, largest_bin_first=True))


def seal_tasks(table: RemoteFiles, tasks: Iterable[FileScanTask]) -> SealedTasks:
    """Each file is sent once, however many parts of it there are."""
    entries: dict[int, list[ManifestEntry]] = {}
    known: dict[str, tuple[int, int]] = {}

    def place(file: DataFile) -> tuple[int, int]:
        name = name_of_file(file)
        if name not in known:
            group = entries.setdefault(file.spec_id, [])
            known[name] = file.spec_id, len(group)
            group.append(_entry(file))
        return known[name]

    places = [
        (place(task.file), [place(file) for file in task.delete_files], getattr(task, "split", None)) for task in tasks
    ]
    sealed = table.seal_entries(entry for group in entries.values() for entry in group)
    return SealedTasks(sealed, table.seal(places))


def open_tasks(table: RemoteFiles, tasks: SealedTasks) -> list[FileScanTask]:
    files: dict[int, list[DataFile]] = {}
    for entry in table.open_entries(tasks.entries):
        files.setdefault(entry.data_file.spec_id, []).append(entry.data_file)
    opened: list[FileScanTask] = []
    for (spec_id, index), deletes, split in table.open(tasks.places):
        task = FileScanTask(files[spec_id][index], {files[spec][number] for spec, number in deletes})
        opened.append(task if split is None else SplitTask(task, split))
    return opened


def _split(task: FileScanTask, target: int) -> Iterator[FileScanTask]:
    file = task.file
    offsets = list(file.split_offsets or ())
    end = file.file_size_in_bytes
    is_split = (
        file.file_format == FileFormat.PARQUET
        and end > target
        and len(offsets) > 1
        and all(before < after for before, after in pairwise([-1, *offsets, end]))
    )
    if not is_split:
        yield task
        return
    start = 0
    for offset, following in pairwise([*offsets, end]):
        if following - start > target and offset > start and offset != offsets[0]:
            yield SplitTask(task, range(start, offset))
            start = offset
    yield SplitTask(task, range(start, end))


def _length(part: FileScanTask) -> int:
    return len(part.split) if isinstance(part, SplitTask) else _size(part.file)


def _size(file: DataFile) -> int:
    """As Iceberg Java's ScanTaskUtil.contentSizeInBytes."""
    if file.file_format == FileFormat.PUFFIN and isinstance(file, V3DataFile):
        return file.content_range[1]
    return file.file_size_in_bytes


def _entry(file: DataFile) -> ManifestEntry:
    number = file.sequence_number if isinstance(file, V3DataFile) else None
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.EXISTING,
        snapshot_id=None,
        sequence_number=number,
        file_sequence_number=number,
        data_file=file,
    )


def _setting(
    table_properties: Mapping[str, str], options: Mapping[str, str], property_name: str, option: str, default: int
) -> int:
    name = option if option in options else property_name
    try:
        value = property_as_int({**table_properties, **options}, name, default)
    except ValueError:
        value = None
    if value is None or value <= 0:
        raise ConfigurationError(f"{name} must be a number above 0")
    return value
