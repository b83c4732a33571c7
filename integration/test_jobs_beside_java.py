"""Jobs on tables that Iceberg Java wrote, and goes on with."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

import pytest

from integration.spark import configured
from integration.unitest_kms import UnitestKms
from pyiceberg_encryption import load_catalog
from pyiceberg_encryption.catalogs.base import checked as checked_catalog
from pyiceberg_encryption.jobs import encrypt_in_place, encrypt_into, rekey, verify
from pyiceberg_encryption.kms.registry import PY_KMS_IMPL
from pyiceberg_encryption.table.table import checked

pytest.importorskip("pyspark", reason="needs Spark: `pip install --group test`")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from integration.conftest import SparkOnHive
    from pyiceberg_encryption.catalogs import EncryptingCatalog

# PySpark leaves sockets to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NAMESPACE = "jobs_beside_java"
COLUMNS = "id bigint, name string, at timestamp, nested struct<a: int, b: array<string>>, gone int"
ROWS = """
    select id, if(id % 5 = 0, null, concat('name ', id)), timestamp'2024-01-01 00:00:00' + make_interval(0, 0, 0, id),
    if(id % 7 = 0, null, named_struct('a', int(id), 'b', array(string(id), null))), 1 from range({}, {})"""
LINEAGE = ("_row_id", "_last_updated_sequence_number")
KINDS, ENCRYPTED = (".parquet", ".avro", ".puffin"), (b"PARE", b"AGS1")


class Lake:
    """Tables of a Hive metastore, in Iceberg Java and here."""

    def __init__(self, session: Any, catalog: EncryptingCatalog) -> None:
        self.session = session
        self.catalog = catalog

    def java(self, statement: str) -> Any:
        """In the statement, {n} is the namespace."""
        return self.session.sql(statement.replace("{n}", f"h.{NAMESPACE}"))

    def create(self, name: str, version: int, **properties: str) -> None:
        """With an evolved schema and spec, and rows that were deleted and changed, by delete files from V2 on."""
        modes = {f"write.{what}.mode": "merge-on-read" for what in ("delete", "update")} if version > 1 else {}
        chosen = {"format-version": str(version), **modes, **properties}
        text = ", ".join(f"'{key}' = '{value}'" for key, value in chosen.items())
        self.java(f"create table {{n}}.{name} ({COLUMNS}) using iceberg tblproperties ({text})")
        self.java(f"insert into {{n}}.{name} {ROWS.format(0, 60)}")
        for change in ("rename column name to title", "drop column gone", "add partition field bucket(2, id)"):
            self.java(f"alter table {{n}}.{name} {change}")
        self.java(f"alter table {{n}}.{name} add column more decimal(9, 2) after id")
        self.java(f"insert into {{n}}.{name} select id, 1.25, b, c, d from ({ROWS.format(60, 90)}) t(id, b, c, d, x)")
        self.change(name, 2)

    def change(self, name: str, rest: int) -> None:
        self.java(f"delete from {{n}}.{name} where id % 10 = {rest}")
        self.java(f"update {{n}}.{name} set more = more + 1 where id % 10 = {rest + 1}")

    def rows(self, name: str, *columns: str) -> list[Any]:
        """As Java reads them, and as they are read here."""
        chosen = columns or ("id",)
        found = self.java(
            f"select {', '.join(columns or ['*'])} from {{n}}.{name} order by {', '.join(chosen)}"
        ).collect()
        order = [(column, "ascending") for column in chosen]
        scan = self.catalog.load_table((NAMESPACE, name)).scan(selected_fields=chosen).to_arrow().sort_by(order)
        assert scan.to_pylist() == [{column: row[column] for column in chosen} for row in found]
        return list(found)

    def check(self, name: str) -> None:
        table = checked(self.catalog.load_table((NAMESPACE, name)))
        report = verify(table, self.session, older_than=timedelta(0))
        assert {finding.problem for finding in report.findings} <= {"orphaned"}  # Java leaves what it does not commit
        files = [path for path in Path(urlparse(table.location()).path).rglob("*") if path.suffix in KINDS]
        assert files and not [path for path in files if path.read_bytes()[:4] not in ENCRYPTED]


@pytest.fixture(scope="module")
def lake(spark_on_hive: SparkOnHive, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    home = tmp_path_factory.mktemp("home")
    properties = {
        "type": "hive",
        "uri": spark_on_hive.uri,
        "warehouse": f"file://{spark_on_hive.warehouse}",
        PY_KMS_IMPL: f"{UnitestKms.__module__}.{UnitestKms.__name__}",
    }
    session = spark_on_hive.session
    with configured(session, home, {"lake": properties}):
        session.sql(f"create database h.{NAMESPACE}")
        with load_catalog("lake") as catalog:
            yield Lake(session, checked_catalog(catalog))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_java_goes_on_with_a_table_that_was_encrypted_in_place(lake: Lake, version: int) -> None:
    name = f"lake_{version}"
    lake.create(name, version)
    keeps = LINEAGE if version == 3 else ()
    before, lineage = lake.rows(name), lake.rows(name, "id", *keeps)
    done = encrypt_in_place(lake.catalog, f"{NAMESPACE}.{name}", key="keyA", spark=lake.session)
    assert done.rows == len(before) == 81
    assert lake.rows(name) == before
    assert lake.rows(name, "id", *keeps) == lineage
    lake.check(name)
    lake.change(name, 5)
    lake.java(f"insert into {{n}}.{name} select * from {{n}}.{name} where id = 0")
    ids = [row.id for row in lake.rows(name)]
    assert ids == [0, *(row.id for row in before if row.id % 10 != 5)]
    assert len({row["_row_id"] for row in lake.rows(name, "id", *LINEAGE)}) == len(ids)
    lake.check(name)


def test_java_reads_what_was_written_under_new_keys(lake: Lake) -> None:
    lake.create("rekeyed", 3, **{"encryption.key-id": "keyA"})
    before, lineage = lake.rows("rekeyed"), lake.rows("rekeyed", "id", *LINEAGE)
    table = lake.catalog.load_table((NAMESPACE, "rekeyed"))
    old = set(table.inspect.files()["file_path"].to_pylist())
    assert rekey(table, lake.session).rows == len(before)
    assert lake.rows("rekeyed") == before
    assert lake.rows("rekeyed", "id", *LINEAGE) == lineage
    assert old.isdisjoint(lake.catalog.load_table((NAMESPACE, "rekeyed")).inspect.files()["file_path"].to_pylist())
    lake.change("rekeyed", 5)
    lake.java("call h.system.rewrite_data_files(table => '{n}.rekeyed', options => map('rewrite-all', 'true'))")
    assert [row.id for row in lake.rows("rekeyed")] == [row.id for row in before if row.id % 10 != 5]
    lake.check("rekeyed")


def test_java_reads_the_encrypted_copy_of_a_table(lake: Lake) -> None:
    lake.create("original", 2)
    source = lake.catalog.load_table((NAMESPACE, "original"))
    keys = {"encryption.key-id": "keyB", "encryption.data-key-length": "32"}
    done = encrypt_into(source, lake.catalog, f"{NAMESPACE}.copy", properties=keys, spark=lake.session)
    assert done.rows == 81
    assert lake.rows("copy") == lake.rows("original")
    lake.change("copy", 5)
    lake.rows("copy")
    lake.check("copy")
