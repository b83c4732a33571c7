from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.table import StaticTable as PyIcebergStaticTable
from pyiceberg.typedef import EMPTY_DICT

from pyiceberg_encryption.catalogs.base import EncryptingCatalog
from pyiceberg_encryption.errors import ConfigurationError
from pyiceberg_encryption.table import policy
from pyiceberg_encryption.table.table import Table

if TYPE_CHECKING:
    from pyiceberg.typedef import Properties

NAME = "static-table"


class StaticTable(PyIcebergStaticTable, Table):
    """A table read from a metadata file, without a catalog that could vouch for it. So the caller names the key."""

    @classmethod
    def from_metadata(cls, metadata_location: str, properties: Properties = EMPTY_DICT) -> StaticTable:
        """`properties` are those of a catalog, with the table's `encryption.key-id` beside them."""
        if not metadata_location.endswith(".metadata.json"):
            metadata_location = cls._metadata_location_from_version_hint(metadata_location, properties)
        of_catalog = dict(properties)
        key_id = of_catalog.pop(policy.KEY_ID, None)
        catalog = _StaticCatalog(NAME, **of_catalog, **({policy.EXPECTED_KEY_ID: key_id} if key_id else {}))
        table = catalog._load((NAME, metadata_location), metadata_location)
        if table.is_encrypted and not key_id:
            raise ConfigurationError(
                f"{metadata_location} is of an encrypted table, and no catalog vouches for the key that it names: give "
                f"the property {policy.KEY_ID} that you expect"
            )
        return cls(table.name(), table.metadata, table.metadata_location, table.io, catalog)


class _StaticCatalog(EncryptingCatalog, NoopCatalog):
    pass
