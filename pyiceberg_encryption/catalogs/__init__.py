"""Catalogs whose tables can be encrypted: those of PyIceberg, with the same properties and some more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pyiceberg.catalog import PY_CATALOG_IMPL, TYPE, CatalogType, infer_catalog_type
from pyiceberg.utils.config import Config, merge_config

from pyiceberg_encryption.catalogs.base import EncryptingCatalog
from pyiceberg_encryption.errors import ConfigurationError
from pyiceberg_encryption.imports import import_class

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.typedef import RecursiveDict

CATALOG_CLASSES = {
    CatalogType.SQL: "pyiceberg_encryption.catalogs.sql.SqlCatalog",
    CatalogType.IN_MEMORY: "pyiceberg_encryption.catalogs.sql.InMemoryCatalog",
    CatalogType.HIVE: "pyiceberg_encryption.catalogs.hive.HiveCatalog",
    CatalogType.REST: "pyiceberg_encryption.catalogs.rest.RestCatalog",
    CatalogType.GLUE: "pyiceberg_encryption.catalogs.glue.GlueCatalog",
    CatalogType.DYNAMODB: "pyiceberg_encryption.catalogs.dynamodb.DynamoDbCatalog",
    CatalogType.BIGQUERY: "pyiceberg_encryption.catalogs.bigquery.BigQueryMetastoreCatalog",
}

__all__ = ["EncryptingCatalog", "load_catalog"]


def load_catalog(name: str | None = None, **properties: str | None) -> EncryptingCatalog:
    """As PyIceberg's `load_catalog`, from the same configuration, but tables of the catalog can be encrypted."""
    name, merged = configuration(name, properties)
    implementation, named_by = merged.pop(PY_CATALOG_IMPL, None), PY_CATALOG_IMPL
    if implementation is None:
        kind = catalog_type(name, merged)
        if kind not in CATALOG_CLASSES:
            raise ConfigurationError(
                f"Catalog {name!r} is of type {kind.value}, whose tables cannot be encrypted yet; these can: "
                f"{', '.join(known.value for known in CATALOG_CLASSES)}"
            )
        implementation, named_by = CATALOG_CLASSES[kind], f"Catalog type {kind.value!r}"
    catalog_class = import_class(str(implementation), named_by)
    if not (isinstance(catalog_class, type) and issubclass(catalog_class, EncryptingCatalog)):
        raise ConfigurationError(
            f"{PY_CATALOG_IMPL} is {implementation}, whose tables would not be encrypted. Take one of "
            f"{', '.join(CATALOG_CLASSES.values())}, or a subclass of EncryptingCatalog"
        )
    return catalog_class(name, **merged)


def configuration(name: str | None, properties: Mapping[str, str | None]) -> tuple[str, dict[str, Any]]:
    """The name and the properties of a catalog: arguments come before variables, and these before files."""
    config = Config()
    name = name or config.get_default_catalog_name()
    return name, merge_config(config.get_catalog_config(name) or {}, cast("RecursiveDict", properties))


def catalog_type(name: str, properties: dict[str, Any]) -> CatalogType:
    given = properties.get(TYPE)
    if given is None:
        kind = infer_catalog_type(name, properties)
    else:
        kind = next((known for known in CatalogType if known.value == str(given).lower()), None)
    if kind is None:
        raise ConfigurationError(f"Catalog {name!r} is of an unknown type: {given!r}")
    return kind
