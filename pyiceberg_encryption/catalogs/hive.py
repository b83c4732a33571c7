from __future__ import annotations

import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.hive import HiveCatalog as PyIcebergHiveCatalog

from pyiceberg_encryption.catalogs.base import Vouched
from pyiceberg_encryption.catalogs.metastore import EncryptingMetastoreCatalog, metadata_location_of
from pyiceberg_encryption.table import policy
from pyiceberg_encryption.table.metadata_files import hive_hash
from pyiceberg_encryption.table.metadata_json import to_json
from pyiceberg_encryption.table.table import StagedTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from hive_metastore.ttypes import Table as HiveTable
    from pyiceberg.catalog.hive import _HiveClient
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.typedef import Identifier

METADATA_HASH = "metadata_hash"  # Iceberg Java: BaseMetastoreTableOperations.METADATA_HASH_PROP


class HiveCatalog(EncryptingMetastoreCatalog, PyIcebergHiveCatalog):
    """Tables in a Hive metastore, which keeps their key id and a hash of their metadata, as Iceberg Java does."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        self._client = _ClientPerUse(lambda: self._create_hive_client(self.properties))  # type: ignore[assignment]

    def _convert_hive_into_iceberg(self, table: HiveTable) -> Table:
        name = f"{table.dbName}.{table.tableName}"
        parameters: dict[str, str] = table.parameters or {}
        location = metadata_location_of(name, parameters)
        vouched = Vouched(
            parameters.get(policy.KEY_ID), parameters.get(policy.DATA_KEY_LENGTH), parameters.get(METADATA_HASH)
        )
        return self._load((table.dbName, table.tableName), location, vouched)

    def _convert_iceberg_into_hive(self, table: Table) -> HiveTable:
        hive_table = super()._convert_iceberg_into_hive(table)
        hive_table.parameters |= _hash_parameter(table.metadata)
        return hive_table

    def _staged(self, identifier: Identifier, metadata: TableMetadata, location: str, plain: FileIO) -> StagedTable:
        return _StagedHiveTable(identifier, metadata, location, self._io(metadata, plain), self)


class _ClientPerUse:
    """PyIceberg's client has one connection, which threads would close for each other while they hold a lock."""

    def __init__(self, new_client: Callable[[], _HiveClient]) -> None:
        self._new_client = new_client
        self._in_use = threading.local()

    def __enter__(self) -> Any:
        client = self._new_client()
        connection = client.__enter__()
        self._in_use.__dict__.setdefault("clients", []).append(client)
        return connection

    def __exit__(self, *error: Any) -> None:
        self._in_use.clients.pop().__exit__(*error)


class _StagedHiveTable(StagedTable):
    @cached_property
    def properties(self) -> dict[str, Any]:
        """What PyIceberg copies into the metastore when it commits."""
        return {**self.metadata.properties, **_hash_parameter(self.metadata)}


def _hash_parameter(metadata: TableMetadata) -> dict[str, str]:
    return {METADATA_HASH: hive_hash(to_json(metadata))} if metadata.properties.get(policy.KEY_ID) else {}
