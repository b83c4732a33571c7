from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import ICEBERG, METADATA_LOCATION, TABLE_TYPE
from pyiceberg.catalog.glue import GlueCatalog as PyIcebergGlueCatalog
from pyiceberg.exceptions import NoSuchIcebergTableError, NoSuchPropertyException

from pyiceberg_encryption.catalogs.metastore import EncryptingMetastoreCatalog
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
        kind = parameters.get(TABLE_TYPE)
        if kind is None:
            raise NoSuchPropertyException(f"{database}.{table} has no {TABLE_TYPE}, so it may be any kind of table")
        if kind.lower() != ICEBERG:
            raise NoSuchIcebergTableError(f"{database}.{table} is not an Iceberg table: {TABLE_TYPE} is {kind!r}")
        if not parameters.get(METADATA_LOCATION):
            raise NoSuchPropertyException(f"{database}.{table} has no {METADATA_LOCATION}")
        return self._load((database, table), parameters[METADATA_LOCATION])

    def _staged(self, identifier: Identifier, metadata: TableMetadata, location: str, plain: FileIO) -> StagedTable:
        self._check_storage(identifier, metadata)
        return super()._staged(identifier, metadata, location, plain)

    def register_table(self, identifier: str | Identifier, metadata_location: str, overwrite: bool = False) -> Table:
        names = self.identifier_to_tuple(identifier)
        self._check_storage(names, self._load(names, metadata_location).metadata)
        return super().register_table(identifier, metadata_location, overwrite)

    def _check_storage(self, identifier: Identifier, metadata: TableMetadata) -> None:
        if metadata.properties.get(policy.KEY_ID) and self._is_s3tables_database(identifier[0]):
            raise ConfigurationError(
                f"{'.'.join(identifier)} cannot be encrypted: S3 Tables rewrites the files of its tables itself, and "
                "has no keys for that. Take a database with its own storage"
            )
