"""Transactions on tables of format V3: rows that move to another file take their lineage with them."""

from __future__ import annotations

import contextlib
import itertools
import uuid
import warnings
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, IsNaN, IsNull, Or
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import (
    _check_pyarrow_schema_compatible,
    _dataframe_to_data_files,
    _expression_to_complementary_pyarrow,
    expression_to_pyarrow,
)
from pyiceberg.partitioning import PartitionField
from pyiceberg.table import (
    ALWAYS_TRUE,
    DOWNCAST_NS_TIMESTAMP_TO_US_ON_WRITE,
    TableProperties,
    UpsertResult,
    _parse_row_filter,
    upsert_util,
)
from pyiceberg.table import CreateTableTransaction as PyIcebergCreateTableTransaction
from pyiceberg.table import Transaction as PyIcebergTransaction
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import UpgradeFormatVersionUpdate
from pyiceberg.table.update.spec import UpdateSpec as PyIcebergUpdateSpec
from pyiceberg.typedef import EMPTY_DICT
from pyiceberg.utils.config import Config

from pyiceberg_encryption.errors import ConfigurationError
from pyiceberg_encryption.table import lineage, policy
from pyiceberg_encryption.table.data_files import formats_of_v3
from pyiceberg_encryption.table.models import VERSION, AddEncryptionKeyUpdate, UpgradeToFormatV3Update
from pyiceberg_encryption.table.read import ArrowScan
from pyiceberg_encryption.table.scan import DataScan
from pyiceberg_encryption.table.snapshots import UpdateSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import DataScan as PyIcebergDataScan
    from pyiceberg.table import FileScanTask
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from pyiceberg.table.update.snapshot import UpdateSnapshot as PyIcebergUpdateSnapshot
    from pyiceberg.transforms import Transform
    from pyiceberg.typedef import Record, TableVersion

_ROW_ID = lineage.ROW_ID.name
_INDEX = "__index"


class Transaction(PyIcebergTransaction):
    _known: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    # Gets the metadata that a commit is tried on again, and may raise a ValidationException.
    before_retry: Callable[[TableMetadata], None] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """As PyIceberg's, which copies all metadata each time that it is asked. Here that is done once a change."""
        base, updates = self._table.metadata, self._updates
        known = self._known  # one assignment: producers ask from several threads
        if known is None or known[0] is not base or known[1] is not updates:
            self._known = known = (base, updates, super().table_metadata)
        return known[2]

    @property
    def _is_v3(self) -> bool:
        version: TableVersion = self.table_metadata.format_version
        return version >= VERSION

    def _stage(
        self, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...] = ()
    ) -> PyIcebergTransaction:
        """Refuses what no catalog would commit, before a file is written for it."""
        before = self._updates, self._requirements
        staged = super()._stage(updates, requirements)
        try:
            policy.check_change(".".join(self._table.name()), self._table.metadata, self.table_metadata)
        except ConfigurationError:
            self._updates, self._requirements = before
            raise
        return staged

    def update_snapshot(
        self, snapshot_properties: dict[str, str] = EMPTY_DICT, branch: str | None = MAIN_BRANCH
    ) -> PyIcebergUpdateSnapshot:
        if not self._is_v3:
            return super().update_snapshot(snapshot_properties, branch)
        return UpdateSnapshot(self, self._table.io, branch=branch, snapshot_properties=snapshot_properties)

    def upgrade_table_version(self, format_version: TableVersion) -> PyIcebergTransaction:
        if format_version != VERSION or self._is_v3:
            return super().upgrade_table_version(format_version)
        return self._apply((UpgradeToFormatV3Update(),))

    def update_spec(self) -> PyIcebergUpdateSpec:
        return UpdateSpec(self) if self._is_v3 else super().update_spec()

    def append(
        self,
        df: pa.Table | pa.RecordBatchReader,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        branch: str | None = MAIN_BRANCH,
    ) -> None:
        with self._formats():
            super().append(df, snapshot_properties, branch)

    def overwrite(
        self,
        df: pa.Table | pa.RecordBatchReader,
        overwrite_filter: BooleanExpression | str = ALWAYS_TRUE,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        case_sensitive: bool = True,
        branch: str | None = MAIN_BRANCH,
    ) -> None:
        with self._formats():
            super().overwrite(df, overwrite_filter, snapshot_properties, case_sensitive, branch)

    def dynamic_partition_overwrite(
        self, df: pa.Table, snapshot_properties: dict[str, str] = EMPTY_DICT, branch: str | None = MAIN_BRANCH
    ) -> None:
        with self._formats():
            super().dynamic_partition_overwrite(df, snapshot_properties, branch)

    def delete(
        self,
        delete_filter: str | BooleanExpression,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        case_sensitive: bool = True,
        branch: str | None = MAIN_BRANCH,
        _isolation_operation: Operation | None = None,
    ) -> None:
        """Deletes rows: files of which all rows go are dropped, and the others are written again without these rows."""
        if not self._is_v3:
            super().delete(delete_filter, snapshot_properties, case_sensitive, branch, _isolation_operation)
            return
        mode = self.table_metadata.properties.get(TableProperties.DELETE_MODE, TableProperties.DELETE_MODE_DEFAULT)
        if mode == TableProperties.DELETE_MODE_MERGE_ON_READ:
            warnings.warn("Merge on read is not yet supported, falling back to copy-on-write", stacklevel=2)
        predicate = _parse_row_filter(delete_filter)
        with self.update_snapshot(snapshot_properties, branch).delete() as dropped:
            if _isolation_operation is not None:
                dropped._isolation_operation = _isolation_operation
            dropped.delete_by_predicate(predicate, case_sensitive)
        if dropped.rewrites_needed:
            commit_uuid = uuid.uuid4()
            replaced = list(self._rewritten_without(predicate, case_sensitive, branch, commit_uuid))
            if replaced:
                with self.update_snapshot(snapshot_properties, branch).overwrite(commit_uuid) as overwrite:
                    if _isolation_operation is not None:
                        overwrite._isolation_operation = _isolation_operation
                    overwrite._starting_snapshot_id = dropped._starting_snapshot_id
                    overwrite.delete_by_predicate(predicate, case_sensitive)
                    for original, rewritten in replaced:
                        overwrite.delete_data_file(original)
                        for data_file in rewritten:
                            overwrite.append_data_file(data_file)
        elif not dropped.files_affected:
            warnings.warn("Delete operation did not match any records", stacklevel=2)

    def upsert(
        self,
        df: pa.Table,
        join_cols: list[str] | None = None,
        when_matched_update_all: bool = True,
        when_not_matched_insert_all: bool = True,
        case_sensitive: bool = True,
        branch: str | None = MAIN_BRANCH,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
    ) -> UpsertResult:
        """Updates the rows that have the key of one in `df`, and inserts the others. Updated rows keep their ids."""
        if not self._is_v3:
            return super().upsert(
                df,
                join_cols,
                when_matched_update_all,
                when_not_matched_insert_all,
                case_sensitive,
                branch,
                snapshot_properties,
            )
        keys = self._key_columns(join_cols)
        if not when_matched_update_all and not when_not_matched_insert_all:
            raise ValueError("no upsert options selected...exiting")
        if upsert_util.has_duplicate_rows(df, keys):
            raise ValueError("Duplicate rows found in source dataset based on the key columns. No upsert executed")
        metadata = self.table_metadata
        _check_pyarrow_schema_compatible(
            metadata.schema(),
            provided_schema=df.schema,
            downcast_ns_timestamp_to_us=Config().get_bool(DOWNCAST_NS_TIMESTAMP_TO_US_ON_WRITE) or False,
            format_version=metadata.format_version,
        )
        updates: list[pa.Table] = []
        predicates: list[BooleanExpression] = []
        inserts = df
        for batch in self._matching(upsert_util.create_match_filter(df, keys), case_sensitive, branch):
            found = pa.Table.from_batches([batch])
            rows = found.drop_columns([_ROW_ID])
            if when_matched_update_all:
                changed = upsert_util.get_rows_to_update(df, rows, keys)
                if len(changed) > 0:
                    updates.append(_with_row_ids(changed, found, keys))
                    predicates.append(upsert_util.create_match_filter(changed, keys))
            if when_not_matched_insert_all:
                matched = bind(metadata.schema(), upsert_util.create_match_filter(rows, keys), case_sensitive)
                inserts = inserts.filter(~expression_to_pyarrow(matched))
        if updates:
            predicate = Or(*predicates) if len(predicates) > 1 else predicates[0]
            self.delete(predicate, snapshot_properties, case_sensitive, branch, Operation.OVERWRITE)
            self._append_with_lineage(pa.concat_tables(updates), snapshot_properties, branch)
        if when_not_matched_insert_all and len(inserts) > 0:
            self.append(inserts, snapshot_properties, branch)
        return UpsertResult(
            rows_updated=sum(map(len, updates)), rows_inserted=len(inserts) if when_not_matched_insert_all else 0
        )

    def _formats(self) -> contextlib.AbstractContextManager[None]:
        return formats_of_v3() if self._is_v3 else contextlib.nullcontext()

    def _scan(
        self, row_filter: str | BooleanExpression = ALWAYS_TRUE, case_sensitive: bool = True
    ) -> PyIcebergDataScan:
        if not self._is_v3:
            return super()._scan(row_filter, case_sensitive)
        return DataScan(self.table_metadata, self._table.io, row_filter, case_sensitive=case_sensitive)

    def _key_columns(self, names: list[str] | None) -> list[str]:
        schema = self.table_metadata.schema()
        if names is None:
            found = map(schema.find_column_name, schema.identifier_field_ids)
            names = [name for name in found if name is not None]
        if not names:
            raise ValueError("Join columns could not be found, please set identifier-field-ids or pass in explicitly.")
        return names

    def _matching(
        self, predicate: BooleanExpression, case_sensitive: bool, branch: str | None
    ) -> Iterable[pa.RecordBatch]:
        """Rows with their ids, in the current schema, which may be newer than that of the branch's snapshot."""
        metadata = self.table_metadata
        scan = self._scan(predicate, case_sensitive)
        if branch in metadata.refs:
            scan = scan.use_ref(branch)
        schema = lineage.with_lineage(metadata.schema(), [lineage.ROW_ID])
        return ArrowScan(metadata, self._table.io, schema, predicate, case_sensitive).stream(scan.plan_files())

    def _rewritten_without(
        self, predicate: BooleanExpression, case_sensitive: bool, branch: str | None, commit_uuid: uuid.UUID
    ) -> Iterable[tuple[DataFile, list[DataFile]]]:
        """The files that have rows to be deleted, each with those that take their place."""
        metadata = self.table_metadata
        schema = metadata.schema()
        preserved = _expression_to_complementary_pyarrow(bind(schema, predicate, case_sensitive), schema)
        scan = self._scan(predicate, case_sensitive)
        if branch is not None:
            scan = scan.use_ref(branch)
        counter = itertools.count(0)
        for task in scan.plan_files():
            rows = self._rows_with_lineage(metadata, task)
            remaining = rows.filter(preserved)
            if len(remaining) == 0:
                yield task.file, []
            elif len(remaining) != len(rows):
                yield task.file, self._write_with_lineage(metadata, remaining, commit_uuid, counter)

    def _rows_with_lineage(self, metadata: TableMetadata, task: FileScanTask) -> pa.Table:
        schema = lineage.with_lineage(metadata.schema())
        return ArrowScan(metadata, self._table.io, schema, AlwaysTrue()).to_table([task])

    def _append_with_lineage(self, rows: pa.Table, snapshot_properties: dict[str, str], branch: str | None) -> None:
        with self._append_snapshot_producer(snapshot_properties, branch) as append:
            for data_file in self._write_with_lineage(self.table_metadata, rows, append.commit_uuid):
                append.append_data_file(data_file)

    def _write_with_lineage(
        self,
        metadata: TableMetadata,
        rows: pa.Table,
        write_uuid: uuid.UUID,
        counter: itertools.count[int] | None = None,
    ) -> list[DataFile]:
        with formats_of_v3():
            target = lineage.for_rewriting(metadata)
            return list(_dataframe_to_data_files(target, rows, self._table.io, write_uuid, counter))

    def _build_partition_predicate(
        self, partition_records: set[Record], partition_fields: list[str]
    ) -> BooleanExpression:
        """As PyIceberg's, which knows no partition of NaN."""
        with_nan = [record for record in partition_records if any(map(_is_nan, _values(record)))]
        found = super()._build_partition_predicate(partition_records.difference(with_nan), partition_fields)
        for record in with_nan:
            found = Or(found, reduce(And, map(_is_equal, partition_fields, _values(record))))
        return found

    def _rebuild_snapshot_updates(self) -> None:
        if self.before_retry is not None:
            self.before_retry(self._table.metadata)
        # Keys of the attempt that failed: the next one makes its own.
        self._updates = tuple(update for update in self._updates if not isinstance(update, AddEncryptionKeyUpdate))
        super()._rebuild_snapshot_updates()


class UpdateSpec(PyIcebergUpdateSpec):
    """A partition field that comes back gets the id that it had, which PyIceberg sees to for format V2 alone."""

    def _partition_field(self, transform_key: tuple[int, Transform[Any, Any]], name: str | None) -> PartitionField:
        source_id, transform = transform_key
        for spec in self._transaction.table_metadata.specs().values():
            for field in spec.fields:
                is_same = field.source_id == source_id and repr(field.transform) == repr(transform)
                if is_same and name in (None, field.name):
                    return PartitionField(source_id, field.field_id, transform, field.name)
        return super()._partition_field(transform_key, name)


class CreateTableTransaction(PyIcebergCreateTableTransaction, Transaction):
    def _initial_changes(self, table_metadata: TableMetadata) -> None:
        super()._initial_changes(table_metadata)
        if table_metadata.format_version >= VERSION:
            self._updates = tuple(
                UpgradeToFormatV3Update() if isinstance(update, UpgradeFormatVersionUpdate) else update
                for update in self._updates
            )


def _values(record: Record) -> list[Any]:
    return [record[position] for position in range(len(record))]


def _is_nan(value: Any) -> bool:
    return bool(value != value)


def _is_equal(column: str, value: Any) -> BooleanExpression:
    unary: Any = IsNull if value is None else IsNaN
    binary: Any = EqualTo
    found: BooleanExpression = unary(column) if value is None or _is_nan(value) else binary(column, value)
    return found


def _with_row_ids(changed: pa.Table, found: pa.Table, keys: list[str]) -> pa.Table:
    """The changed rows, with the ids of those that they replace, and without the time of their last change."""
    known = found.select([*keys, _ROW_ID])
    wanted = changed.select(keys).cast(pa.schema([known.schema.field(name) for name in keys]))
    wanted = wanted.append_column(_INDEX, pa.arange(0, len(changed)))
    row_ids: Any = wanted.join(known, keys=keys, join_type="left outer").sort_by(_INDEX)[_ROW_ID]
    columns = changed.append_column(_ROW_ID, row_ids)
    return columns.append_column(lineage.LAST_UPDATED_SEQUENCE_NUMBER.name, pa.nulls(len(changed), pa.int64()))
