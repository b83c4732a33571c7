"""Scans of tables of format V3."""

from __future__ import annotations

from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression, BoundLiteralPredicate, BoundNotNaN
from pyiceberg.expressions.visitors import BoundBooleanExpressionVisitor, ResidualEvaluator, rewrite_not
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestEntryStatus
from pyiceberg.table import DataScan as PyIcebergDataScan
from pyiceberg.table import FileScanTask, ManifestGroupPlanner
from pyiceberg.table import IncrementalAppendScan as PyIcebergIncrementalAppendScan
from pyiceberg.table.snapshots import Operation, ancestors_between_ids
from pyiceberg.types import strtobool

from pyiceberg_encryption.table import collector, lineage
from pyiceberg_encryption.table.deletes import DeleteIndex
from pyiceberg_encryption.table.read import ArrowScan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyiceberg.expressions import BoundPredicate
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.schema import Schema
    from pyiceberg.typedef import Record


class Planner(ManifestGroupPlanner):
    def plan_files(
        self,
        manifests: Iterable[ManifestFile],
        manifest_entry_filter: Callable[[ManifestEntry], bool] = lambda _: True,
    ) -> Iterable[FileScanTask]:
        data: list[ManifestEntry] = []
        deletes = DeleteIndex()
        for entry in filter(manifest_entry_filter, chain.from_iterable(self.plan_manifest_entries(manifests))):
            content = entry.data_file.content
            if content == DataFileContent.DATA:
                data.append(entry)
            elif content == DataFileContent.POSITION_DELETES:
                deletes.add(entry)
            else:
                raise NotImplementedError(f"{entry.data_file.file_path}: equality deletes cannot be read")
        residuals: dict[tuple[int, Record], BooleanExpression] = {}
        return [
            FileScanTask(
                entry.data_file,
                delete_files=deletes.for_data_file(entry),
                residual=self._residual(entry.data_file, residuals),
            )
            for entry in data
        ]

    def _build_metrics_evaluator(self) -> Callable[[DataFile], bool]:
        """Without a filter, the statistics of the columns need not be decoded."""
        if self.row_filter != AlwaysTrue():
            return super()._build_metrics_evaluator()
        includes_empty_files = strtobool(self.options.get("include_empty_files", "false"))
        return lambda file: file.record_count != 0 or includes_empty_files

    def _residual(self, file: DataFile, known: dict[tuple[int, Record], BooleanExpression]) -> BooleanExpression:
        """What is left of the filter in the rows of a partition."""
        partition = (file.spec_id, file.partition)
        found = known.get(partition)
        if found is None:
            evaluator = self._build_residual_evaluator(file.spec_id)(file)
            known[partition] = found = evaluator.residual_for(file.partition)
        return found

    def _build_residual_evaluator(self, spec_id: int) -> Callable[[DataFile], ResidualEvaluator]:
        spec = self.table_metadata.specs()[spec_id]
        if spec.is_unpartitioned():
            return super()._build_residual_evaluator(spec_id)
        schema, row_filter = self.table_metadata.schema(), rewrite_not(self.row_filter)
        return lambda file: _ResidualEvaluator(schema, spec, self.case_sensitive, row_filter)


class _NullIsNoValue(BoundBooleanExpressionVisitor[BooleanExpression]):
    """Comes after PyIceberg's visitor in the order of inheritance, which compares null as if it were a value."""

    struct: Record

    def visit_bound_predicate(self, predicate: BoundPredicate) -> BooleanExpression:
        is_of_values = isinstance(predicate, (BoundLiteralPredicate, BoundNotNaN))
        if is_of_values and predicate.term.eval(self.struct) is None:
            return AlwaysFalse()
        return super().visit_bound_predicate(predicate)


class _ResidualEvaluator(ResidualEvaluator, _NullIsNoValue):
    pass


class DataScan(PyIcebergDataScan):
    @cached_property
    def _manifest_planner(self) -> Planner:
        return Planner(self.table_metadata, self.io, self.row_filter, self.case_sensitive, self.options)

    def _should_use_server_side_planning(self) -> bool:
        """A server has no keys, and its tasks do not say all that format V3 has."""
        return False

    def _plan_files_local(self) -> Iterable[FileScanTask]:
        with collector.paused():
            return super()._plan_files_local()

    def projection(self) -> Schema:
        return _projection(self, super().projection)

    def to_arrow(self, dictionary_columns: tuple[str, ...] = ()) -> pa.Table:
        return _arrow_scan(self, dictionary_columns).to_table(self.plan_files())

    def to_arrow_batch_reader(self, dictionary_columns: tuple[str, ...] = ()) -> pa.RecordBatchReader:
        return _batch_reader(_arrow_scan(self, dictionary_columns), self.plan_files())

    def count(self) -> int:
        """From metadata where that is enough, and from the rows where it is not."""
        rows = 0
        for task in self.plan_files():
            if task.residual == AlwaysTrue() and not task.delete_files:
                rows += task.file.record_count
            else:
                rows += sum(batch.num_rows for batch in _arrow_scan(self).stream([task]))
        return rows


class IncrementalAppendScan(PyIcebergIncrementalAppendScan):
    def plan_files(self) -> Iterable[FileScanTask]:
        """PyIceberg's has a planner of its own."""
        metadata = self.table_metadata
        if self.from_snapshot_id is None and self.to_snapshot_id is None and metadata.current_snapshot() is None:
            return []
        start, end = self._validate_and_resolve_snapshots()
        appends = {
            snapshot.snapshot_id: snapshot
            for snapshot in ancestors_between_ids(start, end, metadata)
            if snapshot.summary is not None and snapshot.summary.operation == Operation.APPEND
        }
        planner = Planner(metadata, self.io, self.row_filter, self.case_sensitive, self.options)
        with collector.paused():
            manifests = {
                manifest.manifest_path: manifest
                for snapshot in appends.values()
                for manifest in snapshot.manifests(self.io)
                if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id in appends
            }
            return planner.plan_files(
                manifests.values(),
                lambda entry: entry.snapshot_id in appends and entry.status == ManifestEntryStatus.ADDED,
            )

    def projection(self) -> Schema:
        return _projection(self, super().projection)

    def to_arrow(self) -> pa.Table:
        return _arrow_scan(self).to_table(self.plan_files())

    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        return _batch_reader(_arrow_scan(self), self.plan_files())


def _projection(scan: DataScan | IncrementalAppendScan, without_lineage: Callable[[], Schema]) -> Schema:
    """The lineage columns can be selected by name, although no schema has them."""
    names = scan.selected_fields
    columns = scan.table_metadata.schema().column_names
    selected = [field for field in lineage.FIELDS if field.name in names and field.name not in columns]
    if not selected:
        return without_lineage()
    hidden = {field.name for field in selected}
    others = scan.update(selected_fields=tuple(name for name in names if name not in hidden))
    return lineage.with_lineage(others.projection(), selected)


def _arrow_scan(scan: DataScan | IncrementalAppendScan, dictionary_columns: tuple[str, ...] = ()) -> ArrowScan:
    return ArrowScan(
        scan.table_metadata,
        scan.io,
        scan.projection(),
        scan.row_filter,
        scan.case_sensitive,
        scan.limit,
        dictionary_columns=dictionary_columns,
    )


def _batch_reader(scan: ArrowScan, tasks: Iterable[FileScanTask]) -> pa.RecordBatchReader:
    """Batches are read as they are asked for. Columns read as dictionaries keep the type that the first batch has."""
    schema = schema_to_pyarrow(scan._projected_schema)
    batches = scan.stream(tasks)
    if scan._dictionary_columns and (first := next(batches, None)) is not None:
        schema = pa.schema(
            [first.schema.field(field.name) if field.name in scan._dictionary_columns else field for field in schema]
        )
        batches = chain([first], batches)
    return pa.RecordBatchReader.from_batches(schema, (batch.cast(schema) for batch in batches))
