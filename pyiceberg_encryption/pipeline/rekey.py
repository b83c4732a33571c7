"""Rewrites the data of an encrypted table under new keys."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.table.refs import MAIN_BRANCH

from pyiceberg_encryption.errors import UsageError
from pyiceberg_encryption.pipeline.commit import ancestors, sweep
from pyiceberg_encryption.pipeline.engine import engine_for
from pyiceberg_encryption.pipeline.rewrite import RewriteTask, check_unchanged, rewrite, unused_deletes
from pyiceberg_encryption.pipeline.sealed import send
from pyiceberg_encryption.pipeline.splits import SplitSizes, packed, seal_tasks
from pyiceberg_encryption.table.manifests import V3DataFile
from pyiceberg_encryption.table.replace import ReplaceFiles
from pyiceberg_encryption.table.table import Table, checked
from pyiceberg_encryption.table.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask
    from pyiceberg.table import Table as PyIcebergTable
    from pyiceberg.table.metadata import TableMetadata
    from pyspark.sql import SparkSession


JOB_ID = "pyiceberg-encryption.rekey.job-id"


@dataclass(frozen=True)
class Rekeyed:
    job_id: str
    files_replaced: int = 0
    files_written: int = 0
    bytes_written: int = 0
    rows: int = 0
    commits: int = 0

    def plus(self, replaced: list[FileScanTask], added: list[DataFile], rows: int) -> Rekeyed:
        return Rekeyed(
            self.job_id,
            self.files_replaced + len(replaced),
            self.files_written + len(added),
            self.bytes_written + sum(file.file_size_in_bytes for file in added),
            self.rows + rows,
            self.commits + 1,
        )


def rekey(
    table: PyIcebergTable,
    spark: SparkSession | None = None,
    *,
    row_filter: str | BooleanExpression = AlwaysTrue(),  # noqa: B008  # as PyIceberg's
    older_than: datetime | None = None,
    branch: str = MAIN_BRANCH,
    max_bytes_per_commit: int | None = None,
    job_id: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Rekeyed:
    """Writes data files again, each with a new key, and has them replace the old ones. Rows keep their lineage.

    All files, or those that may have rows which match the filter, or those added before a time. Deleted rows are left
    out, and with them the delete files that nothing else needs. Old files stay until the snapshots that have them are
    expired.

    It is one commit, or several with `max_bytes_per_commit`. A job that was broken off goes on where it stopped when it
    is run again with its `job_id`: what it committed is not done again, and what it left behind is deleted.
    """
    table = checked(table)
    if max_bytes_per_commit is not None and not max_bytes_per_commit > 0:
        raise UsageError("max_bytes_per_commit must be above 0")
    if older_than is not None and (not isinstance(older_than, datetime) or older_than.tzinfo is None):
        raise UsageError("older_than is a moment: a datetime with a time zone")
    job = job_id or uuid.uuid4().hex
    files = f"rekey-{hashlib.sha256(job.encode()).hexdigest()[:32]}"  # no part of what another job is named
    sweep(table, files)
    bins = packed(
        _due(table.refresh(), row_filter, older_than, branch, job), SplitSizes.of(table.properties, {}), splits=False
    )
    report = Rekeyed(job)
    done = 0
    for unit in _units(bins, max_bytes_per_commit):
        sealed, here = send(table)
        tasks = [RewriteTask(sealed, None, seal_tasks(here, part), files, True) for part in unit]
        added: list[DataFile] = []
        rows = 0
        replaced = [task for part in unit for task in part]
        try:
            for result in engine_for(spark).run(rewrite, tasks):
                added += [entry.data_file for entry in here.open_entries(result.files)]
                rows += result.rows
                done += 1
                if progress is not None:
                    progress(done, len(bins))
        except BaseException:
            sweep(table, files)
            raise
        try:
            _replace(table, branch, replaced, added, job)
        except (CommitFailedException, ValidationException):
            # Any other error leaves open whether the table has the files, or will have them.
            sweep(table, files)
            raise
        report = report.plus(replaced, added, rows)
    sweep(table, files)
    return report


def _due(
    table: PyIcebergTable, row_filter: str | BooleanExpression, older_than: datetime | None, branch: str, job: str
) -> list[FileScanTask]:
    if branch not in table.metadata.refs:
        return []
    commits = _commits(table.metadata, branch, job)
    return [task for task in table.scan(row_filter).use_ref(branch).plan_files() if _is_due(task, commits, older_than)]


def _is_due(task: FileScanTask, commits: dict[int, tuple[int, bool]], older_than: datetime | None) -> bool:
    number = task.file.sequence_number if isinstance(task.file, V3DataFile) else None
    made, is_of_job = commits.get(number or 0, (0, False))  # of a snapshot that is expired: it is older than all others
    return not is_of_job and (older_than is None or made < older_than.timestamp() * 1000)


def _commits(metadata: TableMetadata, branch: str, job: str) -> dict[int, tuple[int, bool]]:
    """When each sequence number was committed, and whether by this job."""
    return {
        snapshot.sequence_number or 0: (
            snapshot.timestamp_ms,
            bool(snapshot.summary and snapshot.summary.additional_properties.get(JOB_ID) == job),
        )
        for snapshot in ancestors(metadata, branch)
    }


def _units(bins: list[list[FileScanTask]], limit: int | None) -> Iterator[list[list[FileScanTask]]]:
    unit: list[list[FileScanTask]] = []
    size = 0
    for part in bins:
        length = sum(task.file.file_size_in_bytes for task in part)
        if unit and limit is not None and size + length > limit:
            yield unit
            unit, size = [], 0
        unit.append(part)
        size += length
    if unit:
        yield unit


def _replace(table: Table, branch: str, replaced: list[FileScanTask], added: list[DataFile], job: str) -> None:
    def plan(metadata: TableMetadata) -> list[FileScanTask]:
        return list(table.scan().use_ref(branch).plan_files())

    table.refresh()
    now = plan(table.metadata)
    check_unchanged(replaced, now)
    transaction = Transaction(table)
    transaction.before_retry = lambda metadata: check_unchanged(replaced, plan(metadata))
    with ReplaceFiles(transaction, branch, {JOB_ID: job}) as producer:
        for task in replaced:
            producer.delete_data_file(task.file)
        for file in unused_deletes(replaced, now):
            producer.delete_data_file(file)
        for file in added:
            producer.append_data_file(file)
    transaction.commit_transaction()
