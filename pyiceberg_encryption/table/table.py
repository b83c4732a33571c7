"""PyIceberg's tables, as the catalogs of this package return them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from pyiceberg.table import ALWAYS_TRUE
from pyiceberg.table import DataScan as PyIcebergTableScan
from pyiceberg.table import StagedTable as PyIcebergStagedTable
from pyiceberg.table import Table as PyIcebergTable
from pyiceberg.typedef import EMPTY_DICT

from pyiceberg_encryption.errors import IntegrityError, UsageError
from pyiceberg_encryption.table.file_io import EncryptedFileIO
from pyiceberg_encryption.table.manifests import with_v3_snapshots
from pyiceberg_encryption.table.models import VERSION, encryption_keys
from pyiceberg_encryption.table.scan import DataScan, IncrementalAppendScan
from pyiceberg_encryption.table.transaction import Transaction, UpdateSpec

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.table import DataScan as PyIcebergDataScan
    from pyiceberg.table import IncrementalAppendScan as PyIcebergIncrementalAppendScan
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from pyiceberg.table.update.spec import UpdateSpec as PyIcebergUpdateSpec
    from pyiceberg.typedef import Identifier, Properties


class Table(PyIcebergTable):
    """Its `io` decides: where that is an EncryptedFileIO, all files of the table are encrypted."""

    def __init__(
        self,
        identifier: Identifier,
        metadata: TableMetadata,
        metadata_location: str,
        io: FileIO,
        catalog: Catalog,
        config: dict[str, str] = EMPTY_DICT,
    ) -> None:
        super().__init__(identifier, with_v3_snapshots(metadata), metadata_location, io, catalog, config)
        self._learn_keys()

    @property
    def is_encrypted(self) -> bool:
        return isinstance(self.io, EncryptedFileIO)

    def transaction(self) -> Transaction:
        return Transaction(self)

    def update_spec(self, case_sensitive: bool = True) -> PyIcebergUpdateSpec:
        if self.format_version < VERSION:
            return super().update_spec(case_sensitive)
        return UpdateSpec(Transaction(self, autocommit=True), case_sensitive=case_sensitive)

    def refresh(self) -> PyIcebergTable:
        """Keeps the FileIO of an encrypted table, which what is under way refers to."""
        before = self.io
        super().refresh()
        if isinstance(before, EncryptedFileIO):
            if not isinstance(self.io, EncryptedFileIO) or self.io.keys.master_key_id != before.keys.master_key_id:
                raise IntegrityError(f"{'.'.join(self._identifier)} was encrypted by another key when it was loaded")
            before.plain = self.io.plain
            self.io = before
            self._learn_keys()
        return self

    def scan(
        self,
        row_filter: str | BooleanExpression = ALWAYS_TRUE,
        selected_fields: tuple[str, ...] = ("*",),
        case_sensitive: bool = True,
        snapshot_id: int | None = None,
        options: Properties = EMPTY_DICT,
        limit: int | None = None,
    ) -> PyIcebergDataScan:
        """As PyIceberg's. `_row_id` and `_last_updated_sequence_number` can be selected too, beside "*" as well."""
        kind = DataScan if self.format_version >= VERSION else PyIcebergTableScan
        return kind(
            self.metadata,
            self.io,
            row_filter,
            selected_fields,
            case_sensitive,
            snapshot_id,
            options,
            limit,
            catalog=self.catalog,
            table_identifier=self._identifier,
        )

    def incremental_append_scan(self, **arguments: Any) -> PyIcebergIncrementalAppendScan:
        scan = super().incremental_append_scan(**arguments)
        if self.format_version < VERSION:
            return scan
        return IncrementalAppendScan(
            scan.table_metadata,
            scan.io,
            scan.row_filter,
            scan.selected_fields,
            scan.case_sensitive,
            scan.from_snapshot_id,
            scan.from_snapshot_inclusive,
            scan.to_snapshot_id,
            scan.options,
            scan.limit,
        )

    def _do_commit(self, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...]) -> None:
        super()._do_commit(updates, requirements)
        self.metadata = with_v3_snapshots(self.metadata)
        self._learn_keys()

    def _learn_keys(self) -> None:
        if isinstance(self.io, EncryptedFileIO):
            self.io.keys.learn(encryption_keys(self.metadata))

    def to_polars(self) -> Any:
        """A LazyFrame."""
        if not self.is_encrypted:
            return super().to_polars()
        return _lazy_frame(self)

    def to_daft(self) -> Any:
        return self._refuse("Daft") if self.is_encrypted else super().to_daft()

    def to_bodo(self) -> Any:
        return self._refuse("Bodo") if self.is_encrypted else super().to_bodo()

    def __datafusion_table_provider__(self, session: Any | None = None) -> Any:
        return self._refuse("DataFusion") if self.is_encrypted else super().__datafusion_table_provider__(session)

    def _refuse(self, reader: str) -> NoReturn:
        raise UsageError(
            f"{reader} would read the files of {'.'.join(self._identifier)} by itself, and cannot decrypt them. Give "
            "it what table.scan(...).to_arrow() or to_arrow_batch_reader() returns"
        )


def checked(table: PyIcebergTable) -> Table:
    """A table that a catalog of this package loaded."""
    if not isinstance(table, Table):
        raise UsageError(f"{'.'.join(table.name())} has to be loaded through a catalog of pyiceberg_encryption")
    return table


class StagedTable(PyIcebergStagedTable, Table):  # type: ignore[misc]  # its scans take other arguments
    pass


def _lazy_frame(table: Table) -> Any:
    """Columns and rows are chosen when the frame is collected. Filters are left to Polars."""
    import polars as pl
    from polars.io.plugins import register_io_source

    def batches(columns: list[str] | None, predicate: Any, rows: int | None, batch_size: int | None) -> Any:
        scan = table.scan(selected_fields=tuple(columns) if columns is not None else ("*",))
        if rows is not None and predicate is None:
            scan = scan.update(limit=rows)
        for batch in scan.to_arrow_batch_reader():
            frame = pl.DataFrame(batch)
            yield frame if predicate is None else frame.filter(predicate)

    return register_io_source(batches, schema=pl.DataFrame(table.schema().as_arrow().empty_table()).schema)
