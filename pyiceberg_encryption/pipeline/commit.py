"""Makes one snapshot of what many tasks wrote, once."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, NotEqualTo, NotNaN, NotNull, NotStartsWith, Or
from pyiceberg.expressions.visitors import ROWS_MUST_MATCH, _StrictMetricsEvaluator, rewrite_not
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.typedef import EMPTY_DICT

from pyiceberg_encryption.errors import UsageError
from pyiceberg_encryption.pipeline.data_writer import partition_name
from pyiceberg_encryption.pipeline.listing import files_below, place
from pyiceberg_encryption.table import reached
from pyiceberg_encryption.table.file_io import plain_io
from pyiceberg_encryption.table.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update.snapshot import _SnapshotProducer

    from pyiceberg_encryption.pipeline.sealed import RemoteTable
    from pyiceberg_encryption.table.table import Table


BRANCH = "pyiceberg-encryption.branch"  # of a snapshot's summary, beside what tells whether something was committed


class CommittedBeforeError(ValidationException):
    """What was to be committed is in the table already. A ValidationException, after which PyIceberg cleans up."""


@dataclass(frozen=True)
class Overwrite:
    """Which files an overwrite replaces: those whose rows all match the filter, or those of the same partitions."""

    row_filter: BooleanExpression = field(default_factory=AlwaysTrue)
    is_dynamic: bool = False


@dataclass(frozen=True)
class Once:
    """Entries in a snapshot's summary that tell whether something was committed before."""

    entries: Mapping[str, str]
    is_done: Callable[[Mapping[str, str]], bool | None]  # None if this summary does not tell

    def check(self, metadata: TableMetadata, branch: str) -> None:
        for snapshot in _history(metadata, branch):
            is_done = self.is_done(snapshot.summary.additional_properties) if snapshot.summary else None
            if is_done:
                raise CommittedBeforeError(f"Snapshot {snapshot.snapshot_id} has it already")
            if is_done is not None:
                return


def commit(
    table: Table,
    files: Iterable[DataFile],
    *,
    overwrite: Overwrite | None = None,
    branch: str = MAIN_BRANCH,
    summary: Mapping[str, str] | None = None,
    once: Once | None = None,
    table_properties: Mapping[str, str] = EMPTY_DICT,
) -> bool:
    """Whether a snapshot was made: not if `once` finds that it was made before, or if there is nothing to do."""
    added = list(files)
    properties = {**(summary or {}), **({**once.entries, BRANCH: branch} if once else {})}
    try:
        for is_last in (False, False, False, True):
            try:
                return _attempt(table, added, overwrite, branch, properties, once, table_properties)
            except CommittedBeforeError:
                return False
            except (CommitFailedException, ValidationException):
                # An overwrite replaces what is there when it is committed. So it is planned again.
                if overwrite is None or is_last:
                    raise
                table.refresh()
    finally:
        with contextlib.suppress(Exception):
            table.refresh()
    return False


def _attempt(
    table: Table,
    added: list[DataFile],
    overwrite: Overwrite | None,
    branch: str,
    properties: dict[str, str],
    once: Once | None,
    table_properties: Mapping[str, str],
) -> bool:
    def check(metadata: TableMetadata) -> None:
        if once is not None:
            once.check(metadata, branch)
        if any(file.spec_id != metadata.default_spec_id for file in added):
            raise UsageError("The partition spec of the table was changed after its new files were written")

    check(table.metadata)
    replaced = list(_replaced(table, added, overwrite, branch)) if overwrite is not None else []
    if not added and not replaced:
        return False

    def check_again(metadata: TableMetadata) -> None:
        check(metadata)
        if overwrite is not None:
            raise ValidationException("The table was changed after it was planned what is overwritten")

    transaction = Transaction(table)
    transaction.before_retry = check_again
    producer: _SnapshotProducer[Any]
    if replaced:
        producer = transaction.update_snapshot(properties, branch).overwrite()
    else:
        producer = transaction._append_snapshot_producer(properties, branch)
    with producer:
        for file in replaced:
            producer.delete_data_file(file)
        for file in added:
            producer.append_data_file(file)
    if table_properties:
        transaction.set_properties(dict(table_properties))
    transaction.commit_transaction()
    return True


def _replaced(table: Table, added: list[DataFile], overwrite: Overwrite, branch: str) -> Iterator[DataFile]:
    metadata = table.metadata
    if branch not in metadata.refs:
        return
    row_filter = _without_null(rewrite_not(overwrite.row_filter))
    scan = table.scan(row_filter).use_ref(branch)
    tasks = scan.plan_files()
    if overwrite.is_dynamic:
        if metadata.spec().is_unpartitioned():
            raise UsageError("The table has no partitions that could be overwritten dynamically")
        partitions = {partition_name(file.partition) for file in added}
        for task in tasks:
            if task.file.spec_id != metadata.default_spec_id:
                raise UsageError(
                    f"{task.file.file_path} was written with another partition spec, so that its rows may belong to "
                    "partitions that are to be overwritten. Overwrite by a filter, or the whole table"
                )
            if partition_name(task.file.partition) in partitions:
                yield task.file
        return
    whole = _StrictMetricsEvaluator(metadata.schema(), row_filter).eval
    for task in tasks:
        if task.residual != AlwaysTrue() and whole(task.file) != ROWS_MUST_MATCH:
            raise UsageError(
                f"{task.file.file_path} has rows that match {overwrite.row_filter} and may have others: an overwrite "
                "replaces whole files. Choose a filter along the partitions, or delete the rows first"
            )
        yield task.file


def _without_null(row_filter: BooleanExpression) -> BooleanExpression:
    """Where a column that must not have some value is null, scans show no row, and PyIceberg would replace it. With
    `NotIn` they show it."""
    if isinstance(row_filter, And):
        return And(_without_null(row_filter.left), _without_null(row_filter.right))
    if isinstance(row_filter, Or):
        return Or(_without_null(row_filter.left), _without_null(row_filter.right))
    if isinstance(row_filter, (NotEqualTo, NotNaN, NotStartsWith)):
        not_null: Any = NotNull  # mypy does not find the constructors of PyIceberg's predicates
        return And(not_null(row_filter.term), row_filter)
    return row_filter


def ancestors(metadata: TableMetadata, branch: str) -> Iterator[Snapshot]:
    """From the head of a branch to the oldest snapshot that is left."""
    reference = metadata.refs.get(branch)
    snapshot = metadata.snapshot_by_id(reference.snapshot_id) if reference else None
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = metadata.snapshot_by_id(parent) if parent is not None else None


def _history(metadata: TableMetadata, branch: str) -> Iterator[Snapshot]:
    """The snapshots of a branch, those too from which expired ones cut it off, if another branch or a tag has them."""
    number: int | None = None
    for snapshot in ancestors(metadata, branch):
        number = snapshot.sequence_number or 0
        yield snapshot
    if number is None:
        return
    elsewhere = {
        snapshot.snapshot_id: snapshot
        for name in metadata.refs
        for snapshot in ancestors(metadata, name)
        if (snapshot.sequence_number or 0) < number and snapshot.summary and snapshot.summary.get(BRANCH) == branch
    }
    yield from sorted(elsewhere.values(), key=lambda snapshot: snapshot.sequence_number or 0, reverse=True)


def sweep(table: Table, job: str) -> list[str]:
    """Deletes the data files of a job that no snapshot has: those of tasks that failed or were too late."""
    plain, folder = plain_io(table.io), table.location_provider().data_path
    found = [file.location for file in files_below(plain, folder) if _is_of(job, file.location)]
    if found:
        table.refresh()
        listed = {place(location) for location in data_files(table, job)}
        found = [location for location in found if place(location) not in listed]
    for location in found:
        with contextlib.suppress(FileNotFoundError):
            plain.delete(location)
    return found


def data_files(table: Table, job: str) -> set[str]:
    """Those of a job, in any snapshot."""
    entries = reached.entries(reached.manifests(table.metadata, table.io), table.io, discard_deleted=False)
    return {entry.data_file.file_path for entry in entries if _is_of(job, entry.data_file.file_path)}


def _is_of(job: str, location: str) -> bool:
    """Its name is a part of theirs, and may also be a part of another job's name."""
    return re.search(rf"(^|-){re.escape(job)}[-.]", location.rpartition("/")[2]) is not None


class Marks:
    """Empty files beside the data of a job, by which it and its tasks know of each other.

    `running` is there until all results are in, or the job has failed. It is gone before anything is swept. So a task
    that finds it when its files are complete has them swept if they are not wanted, and one that does not find it
    deletes them itself: one that another was faster than, or that did not hear yet that the job has failed.

    `retried` is left by attempts that are not the first at their task, for the job to know that it has to sweep.
    """

    def __init__(self, table: Table | RemoteTable, job: str) -> None:
        self._plain = plain_io(table.io)
        locations = load_location_provider(table.metadata.location, table.metadata.properties)
        self._running, self._retried = (locations.new_data_location(f"{job}.{name}") for name in ("running", "retried"))

    def begin(self) -> None:
        self._plain.new_output(self._running).create(overwrite=True).close()

    def is_running(self) -> bool:
        return self._exists(self._running)

    def end(self) -> None:
        self._delete(self._running)

    def add_retry(self) -> None:
        self._plain.new_output(self._retried).create(overwrite=True).close()

    def remove_retry(self) -> None:
        self._delete(self._retried)

    def has_retries(self) -> bool:
        return self._exists(self._retried)

    def _exists(self, location: str) -> bool:
        """PyIceberg's own look with fsspec finds no local file."""
        try:
            self._plain.new_input(location).open().close()
        except FileNotFoundError:
            return False
        return True

    def _delete(self, location: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._plain.delete(location)
