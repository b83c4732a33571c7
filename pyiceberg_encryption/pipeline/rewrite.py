"""Rows read from some files and written into others, each with a new key."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.exceptions import ValidationException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import schema_to_pyarrow

from pyiceberg_encryption.pipeline.data_writer import DataFileWriter
from pyiceberg_encryption.pipeline.splits import Projection, SealedTasks, open_tasks
from pyiceberg_encryption.table import lineage
from pyiceberg_encryption.table.replace import name_of_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask

    from pyiceberg_encryption.pipeline.sealed import SealedEntries, SealedTable


@dataclass(frozen=True)
class RewriteTask:
    """What one process reads and writes. `source` is sealed, and there if rows come from a table in plaintext."""

    table: SealedTable
    source: bytes | None
    files: SealedTasks
    name: str
    keeps_lineage: bool


@dataclass(frozen=True)
class Rewritten:
    files: SealedEntries
    rows: int


def rewrite(task: RewriteTask) -> Rewritten:
    table = task.table.remote
    source = table if task.source is None else table.open_plaintext(task.source)
    schema, target = source.metadata.schema(), table.metadata
    if task.keeps_lineage:
        schema, target = lineage.with_lineage(schema), lineage.for_rewriting(target)
    arrow = schema_to_pyarrow(schema, include_field_ids=False)  # a copy has ids of its own
    # Spark may try a task again while the first attempt still writes.
    writer = DataFileWriter(table.io, target, f"{task.name}-{secrets.token_hex(4)}")
    rows = 0
    try:
        for batch in Projection(schema, AlwaysTrue()).batches(source, open_tasks(source, task.files)):
            writer.write(batch.cast(arrow))
            rows += batch.num_rows
        return Rewritten(table.seal_entries(writer.finish()), rows)
    except BaseException:
        writer.abort()
        raise


def check_unchanged(planned: Iterable[FileScanTask], now: Iterable[FileScanTask]) -> None:
    """That the rows of files which were rewritten are still those that were read."""
    current = {task.file.file_path: deletes_of(task) for task in now}
    for task in planned:
        if current.get(task.file.file_path) != deletes_of(task):
            raise ValidationException(
                f"{task.file.file_path} was replaced, or rows of it deleted, by another writer. Run the job again: "
                "what it committed so far stays"
            )


def unused_deletes(replaced: Iterable[FileScanTask], now: Iterable[FileScanTask]) -> list[DataFile]:
    """The delete files that apply to none but the replaced files."""
    paths = {task.file.file_path for task in replaced}
    candidates = {name_of_file(file): file for task in replaced for file in task.delete_files}
    for task in now:
        if task.file.file_path not in paths:
            for file in task.delete_files:
                candidates.pop(name_of_file(file), None)
    return list(candidates.values())


def deletes_of(task: FileScanTask) -> frozenset[str]:
    return frozenset(name_of_file(file) for file in task.delete_files)
