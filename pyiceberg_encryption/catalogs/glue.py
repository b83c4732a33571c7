from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import TABLE_TYPE
from pyiceberg.catalog.glue import GlueCatalog as PyIcebergGlueCatalog
from pyiceberg.exceptions import NoSuchPropertyException

from pyiceberg_encryption.catalogs.metastore import EncryptingMetastoreCatalog, metadata_location_of
from pyiceberg_encryption.errors import ConfigurationError
from pyiceberg_encryption.table import policy

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.typedef import Identifier

    from pyiceberg_encryption.table.table import StagedTable


class GlueCatalog(EncryptingMetastoreCatalog, PyIcebergGlueCatalog):
    """Tables in the AWS Glue data catalog."""

    def _convert_glue_to_iceberg(self, glue_table: Any) -> Table:
        database, table = glue_table["DatabaseName"], glue_table["Name"]
        parameters: dict[str, str] = glue_table.get("Parameters") or {}
        if parameters.get(TABLE_TYPE) is None:
            raise NoSuchPropertyException(f"{database}.{table} has no {TABLE_TYPE}, so it may be any kind of table")
        return self._load((database, table), metadata_location_of(f"{database}.{table}", parameters))

    def _staged(self, identifier: Identifier, metadata: TableMetadata, location: str, plain: FileIO) -> StagedTable:
        self._check_storage(identifier, metadata)
        return super()._staged(identifier, metadata, location, plain)

    def _check_storage(self, identifier: Identifier, metadata: TableMetadata) -> None:
        if metadata.properties.get(policy.KEY_ID) and self._is_s3tables_database(identifier[0]):
            raise ConfigurationError(
                f"{'.'.join(identifier)} cannot be encrypted: S3 Tables rewrites the files of its tables itself, and "
                "has no keys for that. Take a database with its own storage"
            )
