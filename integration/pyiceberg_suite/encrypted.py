"""A pytest plugin that puts this package's catalogs, which encrypt all their tables, in the place of PyIceberg's.

Tests that are parametrized by format version run once, with V3. Where PyIceberg's integration tests connect to a REST
catalog or a metastore, they get an SQL catalog with the tables of `provision.py`. Where they go on in Spark, they end.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import pyiceberg.catalog
import pyiceberg.catalog.memory
import pyiceberg.catalog.sql
import pyiceberg.table
import pytest
from pyiceberg.catalog import Catalog

from integration.pyiceberg_suite import provision
from pyiceberg_encryption.catalogs import sql
from pyiceberg_encryption.table.policy import Policy
from pyiceberg_encryption.table.table import Table
from pyiceberg_encryption.table.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.table import Table as PyIcebergTable
    from pyiceberg.typedef import Identifier

ENCRYPTED = "encrypted"  # what is recorded of a test that used such a table
NEVER_ENCRYPTED = ("arrow_table_v1", "arrow_table_v2")  # how names of tables begin that have to have this version
PROPERTIES = {
    "encryption.kms-type": "memory",
    "kms.memory.key.keyA": base64.b64encode(bytes(range(16))).decode(),
    "table-default.encryption.key-id": "keyA",
    "table-override.format-version": "3",
}
SERVERS = {"rest_catalog", "rest_test_catalog", "hive_catalog"}  # fixtures that need a server
UNFIT = Path(__file__).with_name("unfit.txt")

_used: list[Table] = []
_load_catalog = pyiceberg.catalog.load_catalog
_new_table = Table.__init__


class _Policy(Policy):
    def properties_of_new_table(self, identifier: Identifier, given: Mapping[str, str]) -> dict[str, str]:
        if identifier[-1].startswith(NEVER_ENCRYPTED):
            return dict(given)
        return super().properties_of_new_table(identifier, given)


class SqlCatalog(sql.SqlCatalog):
    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **{**PROPERTIES, **properties})
        self._policy = _Policy.of(PROPERTIES)


class _ProvisionedCatalog(SqlCatalog):
    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        self._to_be_made = dict(provision.MAKERS)

    def load_table(self, identifier: str | Identifier) -> PyIcebergTable:
        name = Catalog.table_name_from(identifier)
        if make := self._to_be_made.pop(name, None):
            make(self, name)
        return super().load_table(identifier)


class InMemoryCatalog(sql.InMemoryCatalog):
    def __init__(self, name: str, warehouse: str = "file:///tmp/iceberg/warehouse", **properties: str) -> None:
        super().__init__(name, warehouse=warehouse, **{**PROPERTIES, **properties})


class SparkSession:
    """What the tests import from PySpark."""

    class Builder:
        def remote(self, url: str) -> SparkSession.Builder:
            return self

        def getOrCreate(self) -> SparkSession:  # noqa: N802
            return SparkSession()

    builder = Builder()

    def __getattr__(self, name: str) -> NoReturn:
        pytest.skip("the test goes on in Spark")


def load_catalog(name: str | None = None, **properties: str | None) -> Catalog:
    if properties.get("type") not in ("rest", "hive"):
        return _load_catalog(name, **properties)
    folder = Path(tempfile.mkdtemp(prefix="pyiceberg-suite-"))
    catalog = _ProvisionedCatalog(str(name), uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())
    catalog.create_namespace("default")
    return catalog


def _noticed(self: Table, *arguments: Any, **named: Any) -> None:
    _new_table(self, *arguments, **named)
    if self.is_encrypted:
        _used.append(self)


def _install() -> None:
    replacements: list[tuple[Any, str, object]] = [
        (pyiceberg.catalog, "load_catalog", load_catalog),
        (pyiceberg.catalog.memory, "InMemoryCatalog", InMemoryCatalog),
        (pyiceberg.catalog.sql, "SqlCatalog", SqlCatalog),
        (pyiceberg.table, "Transaction", Transaction),
        (Table, "__init__", _noticed),
    ]
    for owner, name, replacement in replacements:
        setattr(owner, name, replacement)
    pyspark: dict[str, dict[str, object]] = {
        "pyspark": {},
        "pyspark.sql": {"SparkSession": SparkSession, "DataFrame": object},
        "pyspark.sql.utils": {"AnalysisException": Exception},
    }
    for name, content in pyspark.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(content)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reasons = reasons_why_not()
    dropped = []
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if parameters.get("format_version") == 1 or not SERVERS.isdisjoint(_labels(item)):
            dropped.append(item)
        elif parameters.get("format_version") == 2:
            parameters["format_version"] = 3
        reason = reasons.get(item.nodeid, reasons.get(item.nodeid.partition("[")[0]))
        if reason:
            item.add_marker(pytest.mark.xfail(reason=reason, run=not reason.startswith("needs "), strict=True))
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if item not in dropped]


def reasons_why_not() -> dict[str, str]:
    """The tests that cannot pass on an encrypted table, by id or by the id that all parametrizations share."""
    reasons, reason = {}, ""
    for line in UNFIT.read_text().splitlines():
        if line.startswith("#"):
            reason = line.removeprefix("#").strip()
        elif line:
            reasons[line] = reason
    return reasons


def _labels(item: pytest.Item) -> list[str]:
    return item.nodeid.partition("[")[2].removesuffix("]").split("-")


def pytest_runtest_logstart() -> None:
    _used.clear()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    item.user_properties.append((ENCRYPTED, bool(_used)))


_install()
