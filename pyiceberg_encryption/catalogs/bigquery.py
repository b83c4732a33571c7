from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.api_core.exceptions import Conflict, NotFound, PreconditionFailed
from google.cloud.bigquery import DatasetReference, TableReference
from pyiceberg.catalog.bigquery_metastore import METADATA_LOCATION_PROP
from pyiceberg.catalog.bigquery_metastore import BigQueryMetastoreCatalog as PyIcebergBigQueryCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchPropertyException, NoSuchTableError

from pyiceberg_encryption.catalogs.metastore import EncryptingMetastoreCatalog

if TYPE_CHECKING:
    from google.cloud.bigquery import Table as BigQueryTable
    from pyiceberg.table import CommitTableResponse, Table
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from pyiceberg.typedef import Identifier

    from pyiceberg_encryption.table.table import StagedTable

PREVIOUS_METADATA_LOCATION = "previous_metadata_location"  # Iceberg Java: BaseMetastoreTableOperations


class BigQueryMetastoreCatalog(EncryptingMetastoreCatalog, PyIcebergBigQueryCatalog):
    """Tables in BigQuery's metastore. PyIceberg's own catalog cannot commit to them; this one does, as Iceberg Java."""

    def _convert_bigquery_table_to_iceberg_table(self, identifier: str | Identifier, table: BigQueryTable) -> Table:
        names = self.identifier_to_database_and_table(identifier, NoSuchTableError)
        options = table.external_catalog_table_options
        location = (options.parameters or {}).get(METADATA_LOCATION_PROP) if options else None
        if not location:
            raise NoSuchPropertyException(f"{'.'.join(names)} has no {METADATA_LOCATION_PROP}")
        return self._load(names, location)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        names = self.identifier_to_database_and_table(table.name(), NoSuchTableError)
        reference = TableReference(DatasetReference(self.project_id, names[0]), names[1])
        found: BigQueryTable | None = None
        current: Table | None = None
        try:
            found = self.client.get_table(reference)
            current = self._convert_bigquery_table_to_iceberg_table(names, found)
        except NotFound:
            pass

        def point_to(staged: StagedTable) -> None:
            if found is None or current is None:
                self._create(staged, reference)
            else:
                self._point_to(staged, found, current.metadata_location)

        return self._commit(current, names, requirements, updates, point_to)

    def _create(self, staged: StagedTable, reference: TableReference) -> None:
        try:
            self.client.create_table(self._described(staged, reference))
        except Conflict:
            raise CommitFailedException(f"{reference} was created by another commit") from None

    def _point_to(self, staged: StagedTable, found: BigQueryTable, previous: str) -> None:
        """The table has the ETag that it was read with, and BigQuery refuses the update if it is no longer that."""
        options = self._described(staged, found.reference).external_catalog_table_options
        options.parameters = {**options.parameters, PREVIOUS_METADATA_LOCATION: previous}
        found.external_catalog_table_options = options
        try:
            self.client.update_table(found, ["external_catalog_table_options"])
        except PreconditionFailed:
            raise CommitFailedException(f"{found.reference} was changed by another commit") from None

    def _described(self, staged: StagedTable, reference: TableReference) -> Any:
        """From a copy, since PyIceberg adds to the properties."""
        metadata = staged.metadata.model_copy(update={"properties": dict(staged.metadata.properties)})
        return self._make_new_table(metadata, staged.metadata_location, reference)
