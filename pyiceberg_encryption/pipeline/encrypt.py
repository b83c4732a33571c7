"""Makes an encrypted table of one that is in plaintext: beside it, or in its place.

Each finished task is noted in a journal next to the table's metadata: what it wrote, with the keys, sealed. A job that
was broken off finds it there, and does only what is left. In the end there is one commit.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationException
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import TableProperties
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePartitionStatisticsUpdate,
    RemoveSnapshotsUpdate,
    update_table_metadata,
)
from pyiceberg.transforms import VoidTransform

from pyiceberg_encryption.catalogs.base import EncryptingCatalog
from pyiceberg_encryption.catalogs.base import checked as checked_catalog
from pyiceberg_encryption.errors import ConfigurationError, IntegrityError, UsageError
from pyiceberg_encryption.pipeline import journal
from pyiceberg_encryption.pipeline.commit import Once, commit, sweep
from pyiceberg_encryption.pipeline.data_writer import check_can_be_written
from pyiceberg_encryption.pipeline.engine import engine_for
from pyiceberg_encryption.pipeline.listing import place
from pyiceberg_encryption.pipeline.orphans import check_owns_its_files, outside, reached_by
from pyiceberg_encryption.pipeline.rewrite import RewriteTask, rewrite
from pyiceberg_encryption.pipeline.sealed import send
from pyiceberg_encryption.pipeline.splits import SplitSizes, packed, seal_tasks
from pyiceberg_encryption.pipeline.verify import verify
from pyiceberg_encryption.table.data_files import READABLE
from pyiceberg_encryption.table.file_io import plain_io
from pyiceberg_encryption.table.models import VERSION, StartEncryptionUpdate, UpgradeToFormatV3Update, key_id
from pyiceberg_encryption.table.policy import DATA_KEY_LENGTH, KEY_ID, check_names_no_code
from pyiceberg_encryption.table.replace import ReplaceFiles
from pyiceberg_encryption.table.table import Table, checked
from pyiceberg_encryption.table.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask
    from pyiceberg.table import Table as PyIcebergTable
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update import TableUpdate
    from pyiceberg.typedef import Identifier
    from pyspark.sql import SparkSession

    from pyiceberg_encryption.pipeline.report import Report

JOB = "pyiceberg-encryption.encrypted-from"  # of a snapshot's summary, and of a table made for the purpose
SOURCE = "pyiceberg-encryption.encrypted-from-snapshot"  # of the same
NAME_MAPPING = "schema.name-mapping.default"  # of the files of the table in plaintext
FOLDERS = (  # that are the source's own. Iceberg Java: TableProperties
    *(TableProperties.WRITE_DATA_PATH, TableProperties.WRITE_METADATA_PATH),
    *("write.object-storage.path", "write.folder-storage.path"),
)


@dataclass(frozen=True)
class Encrypted:
    files_read: int
    files_written: int
    rows: int
    plaintext_files_deleted: int
    report: Report


def encrypt_into(
    source: PyIcebergTable,
    catalog: Catalog,
    identifier: str | Identifier,
    *,
    properties: Mapping[str, str],
    spark: SparkSession | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Encrypted:
    """A new encrypted table with the rows that the main branch of a table in plaintext has now.

    Schema, partitioning, sort order and properties are those of the source, and those that are given, an
    `encryption.key-id` among them. The source stays as it is. Run again, it goes on where it stopped. Once it is done,
    it changes nothing more, and refuses if the source has other rows by then.
    """
    _check_is_plain(source)
    catalog = checked_catalog(catalog)
    job = f"encrypt-{source.metadata.table_uuid.hex}"
    target = _target(source, catalog, identifier, {**_carried_over(source), **properties, JOB: job})
    files = _job(target)  # of this copy: there may be others of the source
    head = source.metadata.current_snapshot_id
    copied = _copied(target, job)
    if copied is not None and copied != str(head):
        raise UsageError(
            f"{'.'.join(target.name())} has the rows of snapshot {copied}, and {'.'.join(source.name())} has others by "
            "now. Append what was added since, or drop the copy and begin anew"
        )
    planned = _planned(source) if copied is None else []
    added, rows = _rewritten(source, target, planned, files, keeps_lineage=False, spark=spark, progress=progress)
    once = Once({JOB: job, SOURCE: str(head)}, lambda summary: True if summary.get(JOB) == job else None)
    # In its properties too: the snapshot may expire.
    if not commit(target, added, once=once, table_properties={SOURCE: str(head)}) and added:
        raise UsageError(f"{'.'.join(target.name())} was made by another job meanwhile: run this one again")
    report = _checked(verify(_loaded(catalog, identifier), spark, orphans=False))
    _clean_up(target, files)
    return Encrypted(len(planned), len(added), rows, 0, report)


def encrypt_in_place(
    catalog: Catalog,
    identifier: str | Identifier,
    *,
    key: str,
    data_key_length: int | None = None,
    spark: SparkSession | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Encrypted:
    """Encrypts a table under the master key `key`, and deletes what there is of it in plaintext.

    All data is written again. One commit makes the table an encrypted one. Then every file of it is verified, and only
    then the files in plaintext are deleted and the old snapshots expired. Run again, it goes on where it stopped.
    Between the commit and the end nobody else can write to the table.
    """
    catalog = checked_catalog(catalog)
    table = _loaded(catalog, identifier)
    job = _job(table)
    added, rows, planned = 0, 0, 0
    if not table.is_encrypted:
        length = {DATA_KEY_LENGTH: str(data_key_length)} if data_key_length else {}
        start = StartEncryptionUpdate(updates={KEY_ID: key, **length})
        _check_can_be_encrypted(catalog, table, start)
        if table.format_version < VERSION:
            with table.transaction() as transaction:
                transaction.upgrade_table_version(VERSION)
            table = _loaded(catalog, identifier)
        planned, added, rows = _encrypt(catalog, table, start, job, spark, progress)
        table = _loaded(catalog, identifier)
    if table.properties[KEY_ID] != key:
        raise ConfigurationError(f"{'.'.join(table.name())} is encrypted already, by {table.properties[KEY_ID]!r}")
    old = [snapshot for snapshot in table.snapshots() if key_id(snapshot) is None]
    new = [snapshot for snapshot in table.snapshots() if key_id(snapshot) is not None]
    if old:
        _check_is_replaced(table, old, new, job)
    report = _checked(verify(_only(table, new), spark, orphans=False))
    deleted = _delete_plaintext(table, old, new)
    if old:
        ids = [snapshot.snapshot_id for snapshot in old]
        uuid = AssertTableUUID(uuid=table.metadata.table_uuid)
        statistics = [
            RemovePartitionStatisticsUpdate(snapshot_id=file.snapshot_id)
            for file in table.metadata.partition_statistics
            if file.snapshot_id in ids
        ]
        catalog.commit_table(table, (uuid,), (*statistics, RemoveSnapshotsUpdate(snapshot_ids=ids)))
    _clean_up(_loaded(catalog, identifier), job)
    return Encrypted(planned, added, rows, deleted, report)


def _encrypt(
    catalog: EncryptingCatalog,
    table: Table,
    start: StartEncryptionUpdate,
    job: str,
    spark: SparkSession | None,
    progress: Callable[[int, int], None] | None,
) -> tuple[int, int, int]:
    for is_last in (False, False, False, True):
        _check_can_be_replaced(table)
        becoming = _becoming(catalog, table, start)
        planned = _planned(table)
        keeps_lineage = any(getattr(task.file, "first_row_id", None) is not None for task in planned)
        added, rows = _rewritten(table, becoming, planned, job, keeps_lineage, spark, progress)
        try:
            _commit_encryption(catalog, table, becoming, start, added, job)
        except CommitFailedException:
            # Others have written to it. What they left unchanged need not be done again: it is in the journal.
            if is_last:
                raise
            table = _loaded(catalog, table.name())
            if table.is_encrypted:  # by another job like this
                return 0, 0, 0
        else:
            return len(planned), len(added), rows
    raise AssertionError("unreachable")


def _rewritten(
    source: PyIcebergTable,
    target: Table,
    planned: list[FileScanTask],
    job: str,
    keeps_lineage: bool,
    spark: SparkSession | None,
    progress: Callable[[int, int], None] | None,
) -> tuple[list[DataFile], int]:
    """The encrypted files, and how many rows are in them."""
    bins = _bins(source, planned)
    notes = [journal.location(target, job, part, source.schema()) for part in bins]
    noted = {index: journal.read(target, note) for index, note in enumerate(notes)}
    left = [index for index, entry in noted.items() if entry is None]
    sealed, here = send(target)
    plain = plain_io(source.io)
    from_source = here.seal_plaintext(source.metadata, plain)
    travelling = here.plaintext(source.metadata, plain)
    tasks = [
        RewriteTask(sealed, from_source, seal_tasks(travelling, bins[index]), job, keeps_lineage) for index in left
    ]
    files: list[DataFile] = []
    rows = 0
    for entry in noted.values():
        if entry is not None:
            files += entry[0]
            rows += entry[1]
    done = len(bins) - len(left)
    for index, result in zip(left, engine_for(spark).run(rewrite, tasks), strict=True):
        written = [found.data_file for found in here.open_entries(result.files)]
        if sum(file.record_count for file in written) != result.rows:
            raise IntegrityError(f"{result.rows} rows were read, but not as many written: nothing was changed")
        journal.write(target, notes[index], sealed.envelope, here, result)
        files += written
        rows += result.rows
        done += 1
        if progress is not None:
            progress(done, len(bins))
    return files, rows


def _bins(source: PyIcebergTable, planned: list[FileScanTask]) -> list[list[FileScanTask]]:
    return packed(planned, SplitSizes.of(source.properties, {}), splits=False)


def _planned(table: PyIcebergTable) -> list[FileScanTask]:
    if MAIN_BRANCH not in table.metadata.refs:
        return []
    return sorted(table.scan().plan_files(), key=lambda task: task.file.file_path)


def _job(target: Table) -> str:
    """The beginning of the names of its files."""
    return f"encrypt-{target.metadata.table_uuid.hex}"


def _clean_up(table: Table, job: str) -> None:
    """The journal, and the files of attempts that came to nothing."""
    sweep(table, job)
    _delete(table.io, journal.notes(table, job))


# Beside the source


def _target(
    source: PyIcebergTable, catalog: EncryptingCatalog, identifier: str | Identifier, properties: dict[str, str]
) -> Table:
    if not properties.get(KEY_ID):
        raise ConfigurationError(f"Which master key? Give {KEY_ID} among the properties")
    with contextlib.suppress(NoSuchTableError):
        found = _loaded(catalog, identifier)
        if found.properties.get(JOB) != properties[JOB]:
            raise UsageError(f"{'.'.join(found.name())} exists, and was not made to encrypt this table")
        if _columns(found) != _columns(source):
            raise UsageError(
                f"The columns of the source were changed since {'.'.join(found.name())} was made: drop it to begin anew"
            )
        return found
    catalog.create_table(
        identifier,
        source.schema(),
        partition_spec=PartitionSpec(*_partition_fields(source)),
        sort_order=source.sort_order(),
        properties=properties,
    )
    return _loaded(catalog, identifier)


def _copied(target: Table, job: str) -> str | None:
    """The snapshot of the source that was copied, if it was."""
    if SOURCE in target.properties:
        return target.properties[SOURCE]
    for snapshot in target.snapshots():
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        if summary.get(JOB) == job:
            return summary.get(SOURCE)
    return None


def _carried_over(source: PyIcebergTable) -> dict[str, str]:
    left_out = (TableProperties.FORMAT_VERSION, NAME_MAPPING, *FOLDERS)
    return {name: value for name, value in source.properties.items() if name not in left_out}


def _partition_fields(source: PyIcebergTable) -> list[PartitionField]:
    """Without what format V1 keeps of those that were removed, whose columns may be gone."""
    return [field for field in source.spec().fields if not isinstance(field.transform, VoidTransform)]


def _columns(table: PyIcebergTable) -> pa.Schema:
    return schema_to_pyarrow(table.schema(), include_field_ids=False).remove_metadata()


# In its place


def _becoming(catalog: EncryptingCatalog, table: Table, *updates: TableUpdate) -> Table:
    """The table as it will be, without the snapshots that are in plaintext. No catalog has it yet."""
    metadata = update_table_metadata(table.metadata, updates)
    without: dict[str, Any] = {"snapshots": [], "snapshot_log": [], "refs": {}, "current_snapshot_id": None}
    metadata = metadata.model_copy(update={**without, "statistics": [], "partition_statistics": []})
    return Table(table.name(), metadata, table.metadata_location, catalog._io(metadata, table.io), catalog)


def _commit_encryption(
    catalog: EncryptingCatalog,
    table: Table,
    becoming: Table,
    start: StartEncryptionUpdate,
    added: list[DataFile],
    job: str,
) -> None:
    transaction = Transaction(becoming)
    producer = ReplaceFiles(transaction, MAIN_BRANCH, {JOB: job})
    with producer:
        for file in added:
            producer.append_data_file(file)
    head = table.metadata.refs.get(MAIN_BRANCH)
    requirements = (
        AssertTableUUID(uuid=table.metadata.table_uuid),
        AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=head.snapshot_id if head else None),
    )
    try:
        catalog.commit_table(table, requirements, (start, *transaction._updates))
    except (CommitFailedException, ValidationException):
        producer._clean_all_uncommitted()
        raise


def _check_is_plain(table: PyIcebergTable) -> None:
    name = ".".join(table.name())
    if table.properties.get(KEY_ID):
        raise UsageError(f"{name} is encrypted already; rekey writes it again under new keys")
    if table.format_version >= VERSION and not isinstance(table, Table):
        raise UsageError(f"PyIceberg alone cannot read all of {name}: load it by load_catalog of pyiceberg_encryption")
    check_names_no_code(name, table.properties)


def _check_can_be_encrypted(catalog: EncryptingCatalog, table: Table, start: StartEncryptionUpdate) -> None:
    """As far as can be known before the table is changed, for from format V3 there is no way back."""
    _check_is_plain(table)
    _check_can_be_replaced(table)
    upgrade = [UpgradeToFormatV3Update()] if table.format_version < VERSION else []
    becoming = _becoming(catalog, table, *upgrade, start)
    check_can_be_written(becoming.metadata)
    for task in _planned(table):
        if task.file.file_format not in READABLE:
            raise UsageError(f"{task.file.file_path}: {task.file.file_format.value} files cannot be read")
    send(becoming)  # has the KMS wrap a key


def _check_can_be_replaced(table: Table) -> None:
    check_owns_its_files(table)
    others = sorted(name for name in table.metadata.refs if name != MAIN_BRANCH)
    if others:
        raise UsageError(
            f"{'.'.join(table.name())} has other branches or tags ({', '.join(others)}), whose snapshots would stay in "
            "plaintext: remove them first, or encrypt into another table"
        )
    elsewhere = outside(table.metadata, _Plaintext.of(table, table.snapshots()).all)
    if elsewhere:
        raise UsageError(
            f"{elsewhere[0]} is not in the folders of {'.'.join(table.name())}, and may not be its own to delete: "
            "encrypt into another table"
        )


def _check_is_replaced(table: Table, old: list[Snapshot], new: list[Snapshot], job: str) -> None:
    """That this job has encrypted what is about to be deleted. Nothing proves the metadata of a table that was never
    committed to from here: it may only say that it is encrypted."""
    name = ".".join(table.name())
    if not any(snapshot.summary and snapshot.summary.additional_properties.get(JOB) == job for snapshot in new):
        raise IntegrityError(f"{name} has an {KEY_ID}, but only snapshots in plaintext: its metadata was changed")
    ids = {snapshot.snapshot_id for snapshot in old}
    in_use = sorted(label for label, ref in table.metadata.refs.items() if ref.snapshot_id in ids)
    if in_use:
        raise UsageError(
            f"{name} was encrypted, but others have made snapshots in plaintext ({', '.join(in_use)}). Nothing "
            "was deleted: save their rows, remove these branches and tags, and run the job again"
        )


def _checked(report: Report) -> Report:
    if not report.ok:
        raise IntegrityError(f"The encrypted table did not pass verification, and nothing was deleted. {report}")
    return report


def _only(table: Table, snapshots: list[Snapshot]) -> Table:
    ids = {snapshot.snapshot_id for snapshot in snapshots}
    metadata = table.metadata
    statistics = [file for file in metadata.statistics if file.snapshot_id in ids]
    of_partitions = [file for file in metadata.partition_statistics if file.snapshot_id in ids]
    update: dict[str, Any] = {
        "snapshots": snapshots,
        "statistics": statistics,
        "partition_statistics": of_partitions,
    }
    return Table(
        table.name(), metadata.model_copy(update=update), table.metadata_location, table.io, table.catalog, table.config
    )


@dataclass(frozen=True)
class _Plaintext:
    """The files of snapshots in plaintext. Nothing proves what leads to them."""

    data: list[str]
    metadata: list[str]

    @classmethod
    def of(cls, table: Table, snapshots: list[Snapshot]) -> _Plaintext:
        plain = plain_io(table.io)
        manifests: dict[str, None] = {}
        files: dict[str, None] = {}
        for snapshot in snapshots:
            with contextlib.suppress(FileNotFoundError):
                for manifest in snapshot.manifests(plain):
                    if manifest.manifest_path in manifests:
                        continue
                    manifests[manifest.manifest_path] = None
                    with contextlib.suppress(FileNotFoundError):
                        for entry in manifest.fetch_manifest_entry(plain, discard_deleted=False):
                            files[entry.data_file.file_path] = None
        ids = {snapshot.snapshot_id for snapshot in snapshots}
        statistics = [
            file.statistics_path
            for file in chain(table.metadata.statistics, table.metadata.partition_statistics)
            if file.snapshot_id in ids
        ]
        return cls(list(files), [*manifests, *(snapshot.manifest_list for snapshot in snapshots), *statistics])

    @property
    def all(self) -> list[str]:
        return [*self.data, *self.metadata]


def _delete_plaintext(table: Table, old: list[Snapshot], new: list[Snapshot]) -> int:
    """Data first, and what leads to it last, so that a job which is broken off finds the rest when it is run again."""
    found = _Plaintext.of(table, old).all
    kept = {place(location) for location in reached_by(_only(table, new))}
    not_to_delete = [*outside(table.metadata, found), *(location for location in found if place(location) in kept)]
    if not_to_delete:
        raise IntegrityError(
            f"{not_to_delete[0]} is no file of the table in plaintext, but its metadata says so now: it was changed. "
            "Nothing was deleted"
        )
    return _delete(plain_io(table.io), found)


def _delete(io: FileIO, locations: Iterable[str]) -> int:
    deleted = 0
    for location in locations:
        with contextlib.suppress(FileNotFoundError):
            plain_io(io).delete(location)
            deleted += 1
    return deleted


def _loaded(catalog: EncryptingCatalog, identifier: str | Identifier) -> Table:
    return checked(catalog.load_table(identifier))
