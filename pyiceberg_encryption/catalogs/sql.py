from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.memory import InMemoryCatalog as PyIcebergInMemoryCatalog
from pyiceberg.catalog.sql import SqlCatalog as PyIcebergSqlCatalog
from pyiceberg.exceptions import NoSuchTableError

from pyiceberg_encryption.catalogs.metastore import EncryptingMetastoreCatalog

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import IcebergTables
    from pyiceberg.table import Table


class SqlCatalog(EncryptingMetastoreCatalog, PyIcebergSqlCatalog):
    """Tables in a database, of which it holds the location of the metadata. SQLite, PostgreSQL and others."""

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        if not orm_table.metadata_location:
            raise NoSuchTableError(f"The catalog has no metadata location for {orm_table.table_name}")
        namespace = Catalog.identifier_to_tuple(orm_table.table_namespace)
        return self._load((*namespace, orm_table.table_name), orm_table.metadata_location)


class InMemoryCatalog(SqlCatalog, PyIcebergInMemoryCatalog):
    """For trying things out: it is gone when the program ends."""
